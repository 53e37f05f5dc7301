/**
 * The conversations with one agent as the page shows them: which is open, its calls, and how they are stored.
 *
 * A session outlives its view, so a call goes on while another view is shown.
 */

import { signal } from './html.js';
import { Conversations, historyOf, newConversation, newTurn } from './conversations.js';
import { RunningCall } from './running_call.js';
import { refresh, tokenFor } from './state.js';

const SAVE_SECONDS = 2;
const store = new Conversations();
/** @type {Map<string, Session>} */
const sessions = new Map();

/**
 * Return the session of an agent.
 * @param {import('./state.js').Agent} agent
 */
export function sessionOf(agent) {
  const key = agentKey(agent);
  let session = sessions.get(key);
  if (!session) sessions.set(key, (session = new Session(agent)));
  session.agent = agent;
  return session;
}

/** @param {import('./state.js').Agent} agent */
function agentKey(agent) {
  return new URL(agent.url, document.baseURI).href;
}

/** @typedef {import('./conversations.js').Conversation} Conversation */

export class Session {
  /** @param {import('./state.js').Agent} agent */
  constructor(agent) {
    this.agent = agent;
    this.key = agentKey(agent);
    /** @type {any} null before they are read */
    this.conversations = signal(null);
    /** @type {any} the open conversation */
    this.open = signal(newConversation(this.key));
    /** @type {any} calls of the open conversation, one for each turn */
    this.calls = signal([]);
    /** @type {Map<string, RunningCall>} running calls by turn, of any conversation */
    this._running = new Map();
    this.problem = signal('');
    this._load(true);
    window.addEventListener('focus', () => this._load(false));
    window.addEventListener('pagehide', () => {
      for (const call of this._running.values()) call.leave();
      if (this.isRunning) this._save(this.open.value);
    });
  }

  /**
   * Read the conversations, which another tab may have changed.
   * @param {boolean} first
   */
  async _load(first) {
    if (this._running.size) return; // what this tab has is newer
    try {
      const found = await store.list(this.key);
      this.conversations.value = found;
      const { id, changed, turns } = this.open.value;
      const stored = found.find((one) => one.id === id);
      if (stored && stored.changed > changed) this.show(stored);
      else if (first && found.length && turns.length === 0) this.show(found[0]);
    } catch (error) {
      this.conversations.value = [];
      this.problem.value = `Conversations cannot be stored in this browser: ${/** @type {Error} */ (error).message}`;
    }
  }

  /** True while a call of the open conversation runs. */
  get isRunning() {
    return this.calls.value.some((/** @type {RunningCall} */ call) => call.state.value === 'running');
  }

  /**
   * Open a conversation.
   * @param {Conversation} conversation
   */
  show(conversation) {
    this.open.value = conversation;
    this.calls.value = conversation.turns.map((turn) => this._callOf(turn));
  }

  /** @param {import('./conversations.js').Turn} turn */
  _callOf(turn) {
    const running = this._running.get(turn.id);
    if (running) return running;
    if (turn.state === 'running') turn.state = 'interrupted'; // its page was closed or reloaded
    return new RunningCall(turn);
  }

  /** Open a new conversation. */
  begin() {
    this.show(newConversation(this.key));
  }

  /**
   * Send a message: after the turn number `at`, in place of those that follow.
   * @param {string} message
   * @param {{images?: import('./conversations.js').Image[], params?: Record<string, any>, at?: number}} options
   */
  async send(message, { images = [], params = {}, at = this.open.value.turns.length } = {}) {
    const conversation = this.open.value;
    const turn = newTurn(message, images, params);
    const call = new RunningCall(turn);
    this._running.set(turn.id, call);
    conversation.turns = [...conversation.turns.slice(0, at), turn];
    this.calls.value = [...this.calls.value.slice(0, at), call];
    const saving = setInterval(() => this._save(conversation), SAVE_SECONDS * 1000);
    await this._save(conversation);
    try {
      await call.run({ url: this.agent.url, token: tokenFor(this.agent), args: argumentsOf(conversation, at) });
    } finally {
      clearInterval(saving);
      this._running.delete(turn.id);
      await this._save(conversation);
      refresh();
    }
  }

  /**
   * Return the arguments of the call of a turn of the open conversation.
   * @param {number} index
   */
  argumentsOf(index) {
    return argumentsOf(this.open.value, index);
  }

  /** Stop the calls of the open conversation. */
  stop() {
    for (const call of this.calls.value) if (call.state.value === 'running') call.stop();
  }

  /**
   * @param {Conversation} conversation
   * @param {string} title
   */
  rename(conversation, title) {
    conversation.title = title;
    return this._save(conversation);
  }

  /** @param {Conversation} conversation */
  async remove(conversation) {
    for (const turn of conversation.turns) this._running.get(turn.id)?.stop();
    conversation.turns = [];
    await this._attempt(() => store.remove(conversation.id));
    this.conversations.value = this.conversations.value.filter((/** @type {Conversation} */ one) => one.id !== conversation.id);
    if (this.open.value.id === conversation.id) this.begin();
  }

  /**
   * Keep an imported conversation, and open it.
   * @param {Conversation} conversation
   */
  async add(conversation) {
    await this._save(conversation);
    this.show(conversation);
  }

  /** @param {Conversation} conversation */
  async _save(conversation) {
    if (conversation.turns.length === 0) return;
    conversation.changed = Date.now();
    await this._attempt(() => store.put(conversation));
    const others = (this.conversations.value ?? []).filter((/** @type {Conversation} */ one) => one.id !== conversation.id);
    this.conversations.value = [conversation, ...others];
  }

  /** @param {() => Promise<void>} act */
  async _attempt(act) {
    try {
      await act();
      this.problem.value = '';
    } catch (error) {
      this.problem.value = `This conversation cannot be stored: ${/** @type {Error} */ (error).message}`;
    }
  }
}

/**
 * Return the arguments of `send_message` for a turn: its message, and the answered turns before it.
 * @param {Conversation} conversation
 * @param {number} index
 */
function argumentsOf(conversation, index) {
  const { message, images, params } = conversation.turns[index];
  const history = historyOf(conversation, index);
  return {
    message,
    ...(history.length ? { history } : {}),
    ...(images.length ? { images } : {}),
    ...(Object.keys(params).length ? { params } : {}),
    conversation_id: conversation.id,
  };
}
