/**
 * The call of one turn as the page shows it: its tree, its questions and its state. How it is made is up to its subclasses.
 *
 * Events are applied a few at a time, once for each frame of the browser, so a burst of them does not freeze the page.
 * What is drawn are signals: one of the call, and one for each node of its tree.
 */

import { batch, signal } from './html.js';
import { ANSWERED, answerText, waitingTools } from './asked.js';
import { CallTree } from './calls.js';
import { answerOf, keepEvent } from './conversations.js';
import { outcomeOf } from './outcome.js';

const EVENTS_OF_A_FRAME = 10;
const HIDDEN_MS = 250;

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
export class ShownCall {
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
    /** Why the events do not arrive now; empty while they do. */
    this.loss = signal('');
    /** Why something that was asked of the call failed. */
    this.problem = signal('');
    /** @type {import('./outcome.js').Limit | null} the limit that refused the call */
    this.limit = null;
    /** Changes when the events come from the beginning again. */
    this.beginning = signal(0);
    this.isLive = turn.state === 'running';
    this._tree = this.isLive ? new CallTree() : null;
    /** @type {(() => void)[]} */
    this._waiting = [];
    this._began = performance.now();
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

  /** End the call on the gateway. */
  stop() {}

  /** End the call on the gateway if it may wait for answers: the page is being closed. */
  leave() {}

  /**
   * Answer a question.
   * @param {Question} question
   * @param {{action: string, content?: any}} answer
   */
  answer(question, answer) {
    question.sent.value = true;
    question.error.value = '';
    question.answer = answer;
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
    this._take({ method: ANSWERED, params: { id: question.id, text, origin: question.origin } });
  }

  /** Forget the events, which come from the beginning again. */
  _begin() {
    this._tree = new CallTree();
    Object.assign(this.turn, { events: [], leftOut: 0 });
    this.beginning.value += 1;
  }

  /** @param {any} message */
  _take(message) {
    const at = Math.round(performance.now() - this._began);
    keepEvent(this.turn, { at, message });
    this.lastEvent.value = performance.now();
    this.problem.value = '';
    this._later(() => this.tree.apply(message, at));
    const data = message?.params?.data;
    if (data?.kind === 'answer') for (const one of this.questions.value) if (one.id === data.id) this._close(one);
  }

  /**
   * Apply a change after the events that wait.
   * @param {() => void} apply
   */
  _later(apply) {
    this._waiting.push(apply);
    if (this._waiting.length === 1) nextFrame(() => this._draw());
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
}

/**
 * Run once before the next frame; in a hidden tab, which has no frames, soon.
 * @param {() => void} run
 */
function nextFrame(run) {
  if (document.hidden) setTimeout(run, HIDDEN_MS);
  else requestAnimationFrame(run);
}
