/**
 * A call in a thread of the gateway. It goes on when the page is closed; a page that comes later receives its events from
 * the beginning, and its open questions.
 */

import { signal } from './html.js';
import { ANSWERED } from './asked.js';
import { LOGGER } from './calls.js';
import { McpError, isUnreachable } from './mcp.js';
import { limitFrom } from './outcome.js';
import { ShownCall } from './shown_call.js';
import { callEvents, cancelCall, endedBy, giveAnswers, resultOf } from './threads.js';

// Ends of a stream, and not of the turn: the thread says what became of it.
const READ_AGAIN = ['lease_lost', 'stopping', 'stopped', 'not_found', 'question_not_open'];

const UNAUTHORIZED = 401;
const LIMITED = 429;

/** @type {Record<string, string>} */
const CLOSED = {
  accept: 'A question was answered elsewhere.',
  decline: 'A question was declined elsewhere.',
  cancel: 'A question was closed without an answer.',
};

/**
 * True for an error that says nothing of the call: the gateway is lost, or does not accept the token, such as that of a sign-in that has ended.
 * @param {unknown} error
 */
export function isLoss(error) {
  return isUnreachable(error) || (error instanceof McpError && error.status === UNAUTHORIZED);
}

/** @typedef {import('./shown_call.js').Question} Question */

export class ThreadCall extends ShownCall {
  /**
   * @param {import('./conversations.js').Turn} turn
   * @param {import('./conversations.js').Conversation} conversation
   * @param {{agent: string, token: () => string, onBegun: () => void}} gateway the agent's name, the token, and what to do when the thread is there
   */
  constructor(turn, conversation, gateway) {
    super(turn);
    this._conversation = conversation;
    this._gateway = gateway;
  }

  /**
   * Send the message, or go on with the call that runs; returns when it has ended for this page.
   * @returns {Promise<boolean>} true if the thread has to be read to know its end
   */
  async run() {
    this._last = null;
    this._isRepeated = this._paths.size > 0 || this.tree.count > 0;
    try {
      for await (const event of this._events()) {
        this.wasReached = true;
        this.loss.value = '';
        this._receive(event);
      }
      if (this._last === null) throw new McpError('The connection ended before the answer was complete.');
    } catch (error) {
      await this._drawn();
      if (this._controller.signal.aborted) return this._ended('stopped');
      const { message, status, data } = /** @type {McpError} */ (error);
      this.refusal = data;
      if (status === LIMITED) this.limit = limitFrom(/** @type {any} */ (data)?.rule, /** @type {any} */ (data)?.retryAfter);
      if (this.turn.number === undefined || !isLoss(error)) return this._ended('error', { error: message });
      this.loss.value = message;
      return true;
    }
    await this._drawn();
    const { type, reason, message, limit } = this._last;
    if (limit) this.limit = limitFrom(limit.rule, limit.retryAfterSeconds);
    if (type === 'final') return this._ended('complete', { result: resultOf(this._last, { seconds: (performance.now() - this._began) / 1000 }) });
    if (reason === 'cancelled') return this._ended('stopped', { error: endedBy(message) });
    if (!READ_AGAIN.includes(reason)) return this._ended('error', { error: String(message) });
    this.loss.value = String(message);
    return true;
  }

  /**
   * End the call as the thread says.
   * @param {import('./conversations.js').Turn} turn
   */
  endAs({ state, result, error }) {
    this._end(state, { result, error });
  }

  /**
   * End the call, of which nothing can be known any more.
   * @param {string} error
   */
  fail(error) {
    this._end('error', { error });
  }

  /** End the call on the gateway. */
  async stop() {
    this.questions.value = [];
    const { threadId } = this._conversation;
    try {
      // A message without its turn is withdrawn by its client leaving.
      if (threadId && this.turn.number !== undefined) await cancelCall(threadId, this._gateway.token());
    } catch (error) {
      this.problem.value = `The call could not be stopped: ${/** @type {Error} */ (error).message}`;
      return;
    }
    this._controller.abort();
  }

  /**
   * @param {Question} question
   * @param {{action: string, content?: any}} answer
   */
  async answer(question, answer) {
    super.answer(question, answer);
    try {
      await giveAnswers(this._answersAt(), { [question.id]: answer }, this._gateway.token());
    } catch (error) {
      if (error instanceof McpError && error.status === 404) return this._closeElsewhere(question.id);
      question.sent.value = false;
      question.error.value = /** @type {Error} */ (error).message;
      this._mark();
    }
  }

  _events() {
    const { message, images, params, number, replaces } = this.turn;
    const { threadId } = this._conversation;
    const [token, stopped] = [this._gateway.token(), this._controller.signal];
    if (number !== undefined) return callEvents(this._answersAt(), { answers: {} }, token, stopped);
    const body = {
      message,
      ...(threadId ? { threadId } : {}),
      ...(replaces ? { replaces } : {}),
      ...(images.length ? { images } : {}),
      ...(Object.keys(params).length ? { params } : {}),
    };
    return callEvents(`agents/${encodeURIComponent(this._gateway.agent)}/chat`, body, token, stopped);
  }

  /** The path of the answers to its questions. */
  _answersAt() {
    return `threads/${this._conversation.threadId}/answers`;
  }

  /** @param {any} event */
  _receive(event) {
    if (event.type === 'thread') this._begins(event);
    else if (event.type === 'assistant') this._repeat(event.data);
    else if (event.type === 'question') this._ask(event);
    else if (event.type === 'answer') this._closed(event);
    else if (event.type === 'final' || event.type === 'error') this._last = event;
    else this._take(event); // drawn as one that the console does not know
  }

  /** @param {any} event */
  _begins({ threadId, turnIndex }) {
    this.turn.number = turnIndex;
    if (this._conversation.threadId) return;
    this._conversation.threadId = threadId;
    this._gateway.onBegun();
  }

  /**
   * Take an event. A stream that goes on with a call has its events from the beginning, if the process runs the call: the
   * first one takes the place of what was seen before.
   * @param {any} data
   */
  _repeat(data) {
    if (this._isRepeated) {
      this._isRepeated = false;
      this._paths.clear();
      this._answered = new Map(this.turn.events.filter(({ message }) => message.method === ANSWERED).map(({ message }) => [message.params.id, message]));
      this._begin();
    }
    this._stream(data);
  }

  /** @param {any} data */
  _stream(data) {
    this._take({ method: 'notifications/message', params: { logger: LOGGER, data } });
  }

  /** @param {any} event */
  _ask({ id, message, schema, url, agent, kind, server, tool, callPath }) {
    if (this._paths.has(id)) return;
    this._paths.set(id, callPath);
    this._stream({ kind: 'question', id, message, call_path: callPath });
    if (this.questions.value.some((/** @type {Question} */ one) => one.id === id)) return;
    const params = url === undefined ? { message, requestedSchema: schema } : { message, url };
    const origin = { agent, kind, server, tool };
    this.questions.value = [...this.questions.value, { id, params, origin, error: signal(''), sent: signal(false) }];
    this._later(() => this._mark());
  }

  /**
   * @param {string} id
   * @param {string} [action]
   */
  _closeElsewhere(id, action = '') {
    const open = this.questions.value.filter((/** @type {Question} */ one) => one.id !== id);
    if (open.length === this.questions.value.length) return;
    this.questions.value = open;
    this._take({ method: ANSWERED, params: { id, text: CLOSED[action] ?? 'A question was answered elsewhere, or has expired.' } });
    this._mark();
  }

  /** @param {any} event */
  _closed({ id, action }) {
    const question = this.questions.value.find((/** @type {Question} */ one) => one.id === id);
    if (question && !question.sent.value) this._closeElsewhere(id, action);
    else if (!question && this._answered.has(id)) this._take(this._answered.get(id));
    this._stream({ kind: 'answer', id, action, call_path: this._paths.get(id) });
  }

  /**
   * @param {import('./conversations.js').TurnState} state
   * @param {{result?: any, error?: string}} [how]
   */
  _ended(state, how = {}) {
    this._end(state, how);
    return false;
  }

  /** @type {any} what the gateway says of a refused request */
  refusal = null;
  /** True once the gateway has sent an event. */
  wasReached = false;
  /** @type {any} */
  _last = null;
  /** True until a repeated stream has shown that it begins with the call. */
  _isRepeated = false;
  /** @type {Map<string, any>} */
  _paths = new Map();
  /** @type {Map<string, any>} lines of the answers that were given before the stream was repeated */
  _answered = new Map();
}
