/**
 * One call of an agent: it sends the requests, takes the events into the tree, puts the questions, and stops.
 *
 * Events are applied a few at a time, once for each frame of the browser, so a burst of them does not freeze the page.
 * What is drawn are signals: one of the call, and one for each node of its tree.
 */

import { batch, signal } from './html.js';
import { ANSWERED, answerText, waitingTools } from './asked.js';
import { CallTree } from './calls.js';
import { answerOf, keepEvent } from './conversations.js';
import { McpError, callTool, endCall } from './mcp.js';
import { outcomeOf } from './outcome.js';

const EVENTS_OF_A_FRAME = 10;
const HIDDEN_MS = 250;
const INVALID_PARAMS = -32602;
const CAPABILITIES = { elicitation: { form: {}, url: {} } };

/**
 * @typedef {import('./conversations.js').Turn} Turn
 * @typedef {{id: string, params: any, origin: any, answer?: any, error: import('./vendor/preact-signals.js').Signal<string>, sent: import('./vendor/preact-signals.js').Signal<boolean>}} Question
 */

/** @type {WeakMap<object, any>} */
const versions = new WeakMap();

/**
 * Return the signal that changes with a node of a tree.
 * @param {object} node
 */
export function versionOf(node) {
  let version = versions.get(node);
  if (!version) versions.set(node, (version = signal(0)));
  return version;
}

/** The call of one turn: running, or ended and read from the stored turn. */
export class RunningCall {
  /** @param {Turn} turn */
  constructor(turn) {
    this.turn = turn;
    this.state = signal(turn.state);
    this.error = signal(turn.error);
    this.lastEvent = signal(performance.now());
    this.now = signal('');
    /** @type {any} */
    this.outcome = signal(turn.result ? outcomeOf(turn.result) : null);
    /** @type {any} */
    this.questions = signal([]);
    this.isLive = turn.state === 'running';
    this._tree = this.isLive ? new CallTree() : null;
    /** @type {(() => void)[]} */
    this._waiting = [];
    this._began = performance.now();
    /** @type {Record<string, any>} */
    this._answers = {};
    this._wake = () => {};
    this._controller = new AbortController();
  }

  /** The tree of the call; of a stored turn, made of its events when it is first looked at. */
  get tree() {
    if (this._tree === null) {
      this._tree = new CallTree();
      for (const { at, message } of this.turn.events) this._tree.apply(message, at);
      this._tree.stop(this.turn.events.at(-1)?.at ?? 0);
    }
    return this._tree;
  }

  /**
   * Make the call; returns when it has ended, in whatever way.
   * @param {{url: string, token: string, args: Record<string, any>}} call
   */
  async run({ url, token, args }) {
    this._call = { url, token, args };
    const send = (/** @type {Record<string, any>} */ params) =>
      callTool(url, 'send_message', args, { ...this._options(token), params });
    try {
      const result = await this._answered(send);
      await this._drawn();
      this._end(result.isError ? 'error' : 'complete', { result });
    } catch (error) {
      await this._drawn();
      if (this._controller.signal.aborted) {
        this._end('stopped', {});
        await this._left;
      } else this._end('error', { error: sentence(error) });
    }
  }

  /** End the call on the gateway. */
  stop() {
    this._controller.abort();
    this._left = this.leave();
    this.questions.value = [];
    this._wake();
  }

  /** End the call on the gateway if it may wait for answers; it ends a call whose client leaves during a request itself. */
  async leave() {
    if (!this._call || !this._state) return;
    const { url, token, args } = this._call;
    try {
      await endCall(url, 'send_message', args, this._state, { token });
    } catch {
      // It ends by itself when the state expires.
    }
  }

  /**
   * Answer a question.
   * @param {Question} question
   * @param {{action: string, content?: any}} answer
   */
  answer(question, answer) {
    question.sent.value = true;
    question.error.value = '';
    question.answer = answer;
    this._answers[question.id] = answer;
    this._mark();
    this._wake();
  }

  /**
   * Send the request, and again with the answers for as long as its result are questions.
   * @param {(params: Record<string, any>) => Promise<any>} send
   */
  async _answered(send) {
    let result = await send({});
    while (result?.resultType === 'input_required') {
      this._state = result.requestState;
      await this._drawn();
      this._ask(result.inputRequests ?? {}, result._meta?.['pallas/questions'] ?? {});
      result = await this._withAnswers(send);
      const open = result?.resultType === 'input_required' ? (result.inputRequests ?? {}) : {};
      for (const question of this.questions.value) if (!Object.hasOwn(open, question.id)) this._close(question);
    }
    this.questions.value = [];
    return result;
  }

  /** @param {(params: Record<string, any>) => Promise<any>} send */
  async _withAnswers(send) {
    for (;;) {
      await this._anAnswer();
      const inputResponses = this._answers;
      const requestState = this._state;
      this._answers = {};
      try {
        return await send({ inputResponses, requestState });
      } catch (error) {
        const refused = error instanceof McpError && error.code === INVALID_PARAMS && error.message.startsWith('inputResponses');
        if (!refused) throw error;
        for (const question of this.questions.value.filter((/** @type {Question} */ one) => one.id in inputResponses)) {
          question.sent.value = false;
          question.error.value = /** @type {Error} */ (error).message;
        }
        this._mark();
      }
    }
  }

  async _anAnswer() {
    while (Object.keys(this._answers).length === 0) {
      if (this._controller.signal.aborted) throw new Error('stopped');
      await new Promise((resolve) => {
        this._wake = () => resolve(undefined);
        if (this._controller.signal.aborted) resolve(undefined);
      });
    }
    if (this._controller.signal.aborted) throw new Error('stopped');
  }

  /**
   * Show the open questions; those that were shown before stay as they are.
   * @param {Record<string, any>} requests
   * @param {Record<string, any>} origins of the questions, as the gateway says
   */
  _ask(requests, origins) {
    const before = new Map(this.questions.value.map((/** @type {Question} */ one) => [one.id, one]));
    // One that was answered and is asked again, because its answer did not fit, takes another answer.
    for (const [id, question] of before) question.sent.value = id in this._answers;
    this.questions.value = Object.entries(requests).map(
      ([id, request]) => before.get(id) ?? { id, params: request?.params ?? {}, origin: origins[id], error: signal(''), sent: signal(false) },
    );
    this._mark();
  }

  /** Mark the tool calls that wait for an answer. */
  _mark() {
    const open = this.questions.value.filter((/** @type {Question} */ one) => !one.sent.value);
    this.tree.wait(waitingTools(this.tree.root, open.map((/** @type {Question} */ one) => one.origin)));
    this._redraw();
  }

  /**
   * Replace an answered question by a line in the conversation.
   * @param {Question} question
   */
  _close(question) {
    if (!question.sent.value) return;
    this.questions.value = this.questions.value.filter((/** @type {Question} */ one) => one !== question);
    const text = answerText(question.params, question.origin, question.answer);
    this._take({ method: ANSWERED, params: { id: question.id, text } });
  }

  /** @param {string} token */
  _options(token) {
    return {
      token,
      signal: this._controller.signal,
      capabilities: CAPABILITIES,
      meta: { progressToken: this.turn.id, 'io.modelcontextprotocol/logLevel': 'info', 'pallas/stream': 'delta' },
      onNotification: (/** @type {any} */ message) => this._take(message),
    };
  }

  /** @param {any} message */
  _take(message) {
    const at = Math.round(performance.now() - this._began);
    keepEvent(this.turn, { at, message });
    this.lastEvent.value = performance.now();
    this._waiting.push(() => this.tree.apply(message, at));
    if (this._waiting.length === 1) nextFrame(() => this._draw());
    const data = message?.params?.data;
    if (data?.kind === 'answer') for (const one of this.questions.value) if (one.id === data.id) this._close(one);
  }

  _draw() {
    for (const apply of this._waiting.splice(0, EVENTS_OF_A_FRAME)) apply();
    this._redraw();
    if (this._waiting.length) nextFrame(() => this._draw());
    else this._allDrawn?.();
  }

  _redraw() {
    batch(() => {
      for (const node of this.tree.takeChanged()) {
        const version = versions.get(node);
        if (version) version.value += 1;
      }
      this.now.value = this.tree.now;
    });
  }

  async _drawn() {
    if (this._waiting.length) await new Promise((resolve) => (this._allDrawn = () => resolve(undefined)));
  }

  /**
   * @param {Turn["state"]} state
   * @param {{result?: any, error?: string}} how
   */
  _end(state, { result = null, error = '' }) {
    const at = Math.round(performance.now() - this._began);
    if (result) this.tree.finish(result, at);
    else this.tree.stop(at);
    const turn = Object.assign(this.turn, { state, result, error });
    if (result?.isError) turn.error = answerOf(turn) || 'The call failed.';
    batch(() => {
      this._redraw();
      this.outcome.value = this.tree.outcome;
      this.error.value = turn.error;
      this.state.value = state;
      if (state !== 'stopped') this.questions.value = [];
    });
  }

  /** @type {(() => void) | undefined} */
  _allDrawn = undefined;
  /** @type {string | null} */
  _state = null;
  /** @type {{url: string, token: string, args: Record<string, any>} | null} */
  _call = null;
  /** @type {Promise<void> | undefined} */
  _left = undefined;
}

/** @param {unknown} error */
function sentence(error) {
  if (error instanceof McpError && error.code === INVALID_PARAMS && /requestState/.test(error.message)) {
    return 'The question has expired, and the call has ended. Send the message again.';
  }
  return error instanceof Error ? error.message : String(error);
}

/**
 * Run once before the next frame; in a hidden tab, which has no frames, soon.
 * @param {() => void} run
 */
function nextFrame(run) {
  if (document.hidden) setTimeout(run, HIDDEN_MS);
  else requestAnimationFrame(run);
}
