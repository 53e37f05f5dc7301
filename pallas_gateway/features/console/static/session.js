/**
 * The conversations with one agent as the page shows them: which is open, its calls, and who keeps them.
 *
 * A session outlives its view, so a call goes on while another view is shown.
 */

import { batch, signal } from './html.js';
import { BrowserKeeper, argumentsOf } from './browser_keeper.js';
import { firstOf, newTurn } from './conversations.js';
import { DELETED, GatewayKeeper } from './gateway_keeper.js';
import { McpError } from './mcp.js';
import { caller, callerOf, checkedAt, refresh } from './state.js';

/** A message that nothing is written of yet. */
export const EMPTY = { message: '', files: [], images: [], params: {} };

/** @type {Map<string, Session>} */
const sessions = new Map();

// Conversations on the gateway belong to the caller: those of the last one are not shown any more.
caller.subscribe(() => {
  for (const session of sessions.values()) session.forgetGateway();
});

// What could not be read before may be now.
checkedAt.subscribe(() => {
  for (const session of sessions.values()) if (session.isUnread) session.load();
});

/**
 * Return the session of an agent.
 * @param {import('./state.js').Agent} agent
 */
export function sessionOf(agent) {
  const key = agentKey(agent);
  let session = sessions.get(key);
  if (!session) {
    const made = (session = new Session(agent));
    sessions.set(key, made);
    made.keepOnLeaving();
    made.load(true);
    window.addEventListener('focus', () => made.load());
  }
  session.agent = agent;
  return session;
}

/**
 * Return what tells the conversations with an agent from those with others.
 * @param {import('./state.js').Agent} agent
 */
export function agentKey(agent) {
  return new URL(agent.url, document.baseURI).href;
}

/**
 * @typedef {import('./conversations.js').Conversation} Conversation
 * @typedef {import('./shown_call.js').ShownCall} ShownCall
 */

/**
 * Read the conversations of an agent again, if they were shown.
 * @param {import('./state.js').Agent} agent
 */
export function reload(agent) {
  sessions.get(agentKey(agent))?.load();
}

/**
 * Return what this page has of a conversation on the gateway; undefined if it has not read the list of its agent.
 * @param {import('./state.js').Agent} agent
 * @param {string} threadId
 * @returns {Conversation | undefined}
 */
export function listedThread(agent, threadId) {
  return sessions.get(agentKey(agent))?.conversations.value?.find((/** @type {Conversation} */ one) => one.threadId === threadId);
}

const CONTINUED = 'Another tab has continued this conversation. It is shown now, and nothing was changed here; please do it again.';

export class Session {
  /** @param {import('./state.js').Agent} agent */
  constructor(agent) {
    this.agent = agent;
    this.key = agentKey(agent);
    this._browser = new BrowserKeeper(this);
    this._gateway = new GatewayKeeper(this);
    /** @type {any} null before they are read */
    this.conversations = signal(null);
    /** @type {any} the open conversation */
    this.open = signal(this._newKeeper().begin());
    /** @type {any} calls of the open conversation, one for each turn */
    this.calls = signal([]);
    /** True while the turns of the open conversation are read. */
    this.isReading = signal(false);
    this.problem = signal('');
    /** The id of the conversation that is to be opened when it is found. */
    this.wanted = signal('');
    /** @type {any} the text for which a search opened a conversation: `id`, `text`, and `wasShown` once it was shown there; null otherwise */
    this.found = signal(null);
    /** The id of a conversation that was wanted and is not there. */
    this.missing = signal('');
    /** @type {any} the message that is being written */
    this.draft = signal(EMPTY);
    /** @type {any} the limit that refused the last call, with the caller that it holds for */
    this.limited = signal(null);
    /** True if the list, or the open conversation, could not be read. */
    this.isUnread = false;
    /** @type {Map<string, ShownCall>} running calls by turn, of any conversation */
    this._running = new Map();
    /** @type {WeakMap<object, ShownCall>} */
    this._calls = new WeakMap();
  }

  /** Keep what runs when the page is left. The page then holds this session until it ends. */
  keepOnLeaving() {
    window.addEventListener('pagehide', () => {
      for (const call of this._running.values()) call.leave();
      if (this.isRunning && !this.open.value.isOnGateway) this._browser.save(this.open.value);
      this._browser.isLeft = true;
    });
    window.addEventListener('pageshow', () => (this._browser.isLeft = false));
  }

  /** True if the gateway keeps new conversations. */
  get isOnGateway() {
    return this.agent.hasThreads && this.agent.registry === '';
  }

  /** True while a call of the open conversation runs. */
  get isRunning() {
    return this.calls.value.some((/** @type {ShownCall} */ call) => call.state.value === 'running');
  }

  /** True while another tab runs a call of the open conversation. */
  get isElsewhere() {
    return this.calls.value.some((/** @type {ShownCall} */ call) => call.state.value === 'elsewhere');
  }

  /**
   * True if this page runs the call of a turn.
   * @param {string} turn
   */
  runs(turn) {
    return this._running.has(turn);
  }

  /**
   * Read the conversations, which another tab, or another browser, may have changed.
   * @param {boolean} first
   */
  async load(first = false) {
    /** @type {string[]} */
    const problems = [];
    const [before, gateway] = [this.open.value, this._gateway];
    const { threadId } = before;
    const earlier = this.conversations.value;
    const [kept, ours] = await Promise.all([this._listOf(gateway, problems), this._listOf(this._browser, problems)]);
    if (gateway !== this._gateway) return; // the list of an earlier caller; that of this one is being read
    this.conversations.value = this._withBegun([...kept, ...ours], earlier);
    this.problem.value = problems.join(' ');
    this.isUnread = problems.length > 0;
    if (this.wanted.value && this._showWanted()) return;
    const open = this.open.value;
    const listed = this.conversations.value.find((/** @type {Conversation} */ one) => one.id === open.id);
    const newest = this.conversations.value.toSorted((/** @type {Conversation} */ a, /** @type {Conversation} */ b) => b.changed - a.changed)[0];
    if (listed?.isOnGateway) await this.show(listed);
    else if (listed && listed.changed > open.changed && !this.isRunning) await this.show(listed);
    // `before` and `threadId`: a person may have begun another one, or this one, while the list was read.
    else if (!listed && open === before && threadId && !this.isRunning && !this.problem.value) this._deletedElsewhere();
    else if (first && newest && open === before && open.turns.length === 0 && !this.missing.value) await this.show(newest);
  }

  /**
   * Return a list that was read with the conversations that were begun meanwhile, which it does not have.
   * @param {Conversation[]} found
   * @param {Conversation[] | null} earlier what was listed before
   */
  _withBegun(found, earlier) {
    const [before, ids] = [new Set(earlier), new Set(found.map(({ id }) => id))];
    const begun = (this.conversations.value ?? []).filter((/** @type {Conversation} */ one) => !before.has(one) && !ids.has(one.id));
    return [...begun, ...found];
  }

  /**
   * Read a conversation of which another tab has run a call that has ended.
   * @param {Conversation} conversation
   */
  async reread(conversation) {
    await this.load();
    if (this.open.value === conversation) await this.show(conversation); // the tab was lost and has stored no end
  }

  /**
   * Open the conversation with an id, which is read first if the list does not have it.
   * @param {string} id
   */
  find(id) {
    this.wanted.value = id;
    if (!this._showListed(id) && this.conversations.value) this.load(); // it is being read before
  }

  /** @param {string} id */
  _showListed(id) {
    const found = (this.conversations.value ?? []).find((/** @type {Conversation} */ one) => one.id === id || one.threadId === id);
    if (found) this.show(found);
    return Boolean(found);
  }

  /** Open the wanted conversation, now that the list was read; return false if it may be found later. */
  _showWanted() {
    if (this._showListed(this.wanted.value)) return true;
    if (this.isUnread) return false;
    const id = this.wanted.value;
    this.begin();
    this.missing.value = id;
    return true;
  }

  /**
   * Return the text for which a conversation was opened by a search; an empty text if it was opened otherwise.
   * @param {Conversation} conversation
   */
  foundText({ id, threadId }) {
    const { found } = this;
    return found.value && [id, threadId].includes(found.value.id) ? found.value.text : '';
  }

  /**
   * True if a conversation is in the list.
   * @param {Conversation} conversation
   */
  has(conversation) {
    return (this.conversations.value ?? []).some((/** @type {Conversation} */ { id }) => id === conversation.id);
  }

  /**
   * @param {BrowserKeeper | GatewayKeeper} keeper
   * @param {string[]} problems where a failure is added
   * @returns {Promise<Conversation[]>}
   */
  async _listOf(keeper, problems) {
    const isOurs = keeper === this._browser;
    const before = (this.conversations.value ?? []).filter((/** @type {Conversation} */ one) => !one.isOnGateway === isOurs);
    if (!isOurs && !this.isOnGateway) return [];
    if (isOurs && [...this._running.values()].some(({ turn }) => turn.number === undefined) && before.length) return before; // what this tab has is newer
    try {
      return await keeper.list();
    } catch (error) {
      const where = isOurs ? 'Conversations cannot be stored in this browser' : 'The gateway’s conversations cannot be read';
      problems.push(`${where}: ${/** @type {Error} */ (error).message}`);
      return before;
    }
  }

  /** @param {Conversation} conversation */
  _keeper(conversation) {
    return conversation.isOnGateway ? this._gateway : this._browser;
  }

  _newKeeper() {
    return this.isOnGateway ? this._gateway : this._browser;
  }

  /** @param {Conversation} conversation */
  async show(conversation) {
    this._forgetWanted();
    if (this.found.value?.wasShown && !this.foundText(conversation)) this.found.value = null;
    if (this.open.value !== conversation) {
      batch(() => {
        this.open.value = conversation;
        this.calls.value = [];
        this.isReading.value = true;
      });
    }
    if (!(await this.attempt(() => this._keeper(conversation).read(conversation)))) this.isUnread = true;
    if (this.open.value !== conversation) return;
    batch(() => {
      this.isReading.value = false;
      this._draw(conversation);
    });
    conversation.turns.forEach((turn, index) => {
      if (turn.state === 'running' && !this.runs(turn.id)) this._follow(conversation, index); // a call that runs on the gateway
    });
  }

  /** @param {Conversation} conversation */
  _draw(conversation) {
    this.calls.value = conversation.turns.map((turn) => this._callOf(turn, conversation));
  }

  /**
   * @param {import('./conversations.js').Turn} turn
   * @param {Conversation} conversation
   */
  _callOf(turn, conversation) {
    const known = this._calls.get(turn);
    const isCurrent = known && (known.state.value === turn.state || this.runs(turn.id));
    const call = isCurrent ? known : this._keeper(conversation).callOf(turn, conversation);
    this._calls.set(turn, call);
    return call;
  }

  /** Open a new conversation. */
  begin() {
    this._forgetWanted();
    this.found.value = null;
    this.open.value = this._newKeeper().begin();
    this.calls.value = [];
    this.isReading.value = false;
  }

  _forgetWanted() {
    this.wanted.value = '';
    this.missing.value = '';
  }

  /**
   * Send a message: in place of the turn at `at` and those that follow.
   * @param {string} message
   * @param {{images?: import('./conversations.js').Image[], params?: Record<string, any>, at?: number}} options
   * @returns {Promise<boolean>} false if it was not sent; the problem is shown
   */
  async send(message, { images = [], params = {}, at = this.open.value.turns.length } = {}) {
    const open = this.open.value;
    if (await this._isContinued(open)) return false;
    let conversation = open;
    const shorten = async () => (conversation = await this._keeper(open).before(open, at));
    if (at < open.turns.length && !(await this.attempt(shorten))) return false;
    await this._add(conversation, newTurn(message, images, params));
    return true;
  }

  /**
   * Ask for another answer to the message of the turn at `index`, the last one.
   * @param {number} index
   * @param {Record<string, any>} [params]
   */
  async retry(index, params) {
    const conversation = this.open.value;
    if (await this._isContinued(conversation)) return;
    const turn = conversation.turns[index];
    const again = newTurn(turn.message, turn.images, params ?? turn.params);
    const isUnsent = conversation.isOnGateway && firstOf(turn) === turn.id; // the gateway has no turn to be replaced
    if (isUnsent) conversation.turns = conversation.turns.toSpliced(index, 1);
    await this._add(conversation, isUnsent ? again : { ...again, replaces: firstOf(turn) });
  }

  /**
   * Show what another tab has added to a conversation of this browser, which storing would lose; return false if that is
   * nothing.
   * @param {Conversation} conversation
   */
  async _isContinued(conversation) {
    const continued = conversation.isOnGateway ? null : await this._browser.continued(conversation);
    if (!continued) return false;
    this.listed(continued);
    await this.show(continued);
    this.problem.value = CONTINUED;
    return true;
  }

  /**
   * Add a turn, open its conversation, and make its call.
   * @param {Conversation} conversation
   * @param {import('./conversations.js').Turn} turn
   */
  async _add(conversation, turn) {
    this.found.value = null;
    conversation.turns = [...conversation.turns, turn];
    batch(() => {
      this.open.value = conversation;
      this._draw(conversation);
    });
    await this._follow(conversation, conversation.turns.length - 1);
  }

  /**
   * Make the call of a turn, or go on with it.
   * @param {Conversation} conversation
   * @param {number} index
   */
  async _follow(conversation, index) {
    const turn = conversation.turns[index];
    const call = this._callOf(turn, conversation);
    this._running.set(turn.id, call);
    const running = this._keeper(conversation).run(/** @type {any} */ (call), conversation, index);
    await running.finally(() => this._running.delete(turn.id));
    if (call.limit) this.limited.value = { ...call.limit, caller: callerOf(this.agent) };
    refresh();
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
  async rename(conversation, title) {
    if (await this._isContinued(conversation)) return false;
    return this.attempt(() => this._keeper(conversation).rename(conversation, title));
  }

  /**
   * Rate an answer of the open conversation; null takes the rating away.
   * @param {import('./conversations.js').Turn} turn
   * @param {import('./conversations.js').Given | null} feedback
   * @throws {Error} if it cannot be stored
   */
  async rate(turn, feedback) {
    if (await this._isContinued(this.open.value)) throw new Error(CONTINUED);
    return this._keeper(this.open.value).rate(this.open.value, turn, feedback);
  }

  /** @param {Conversation} conversation */
  async remove(conversation) {
    await Promise.all(conversation.turns.map(({ id }) => this._running.get(id)?.stop()));
    if (!(await this.attempt(() => this._keeper(conversation).remove(conversation)))) return;
    this.conversations.value = this.conversations.value.filter((/** @type {Conversation} */ one) => one.id !== conversation.id);
    if (this.open.value.id === conversation.id) this.begin();
  }

  /** Forget the gateway's conversations, and read them again. */
  forgetGateway() {
    this._gateway = new GatewayKeeper(this);
    this.conversations.value = (this.conversations.value ?? []).filter((/** @type {Conversation} */ one) => !one.isOnGateway);
    const wanted = this.wanted.value || this.missing.value; // another caller may have it
    if (this.open.value.isOnGateway) this.begin();
    this.wanted.value = wanted;
    this.load(true);
  }

  _deletedElsewhere() {
    this.begin();
    this.problem.value = 'The conversation that was open here is not on the gateway any more: it was deleted elsewhere.';
  }

  /**
   * Keep an imported conversation in the browser, and open it.
   * @param {Conversation} conversation
   */
  async add(conversation) {
    await this._browser.save(conversation);
    await this.show(conversation);
  }

  /**
   * Show a conversation in the list, as the one last changed.
   * @param {Conversation} conversation
   */
  listed(conversation) {
    const others = (this.conversations.value ?? []).filter((/** @type {Conversation} */ one) => one.id !== conversation.id);
    this.conversations.value = [conversation, ...others];
  }

  /**
   * @param {() => Promise<unknown>} act
   * @returns {Promise<boolean>} false if it failed; the problem is shown
   */
  async attempt(act) {
    try {
      await act();
      this.problem.value = '';
      return true;
    } catch (error) {
      const isGone = error instanceof McpError && error.status === 404;
      this.problem.value = isGone ? DELETED : `This conversation cannot be kept or read: ${/** @type {Error} */ (error).message}`;
      return false;
    }
  }
}
