/** Conversations that the gateway keeps as threads. Their calls go on when the page is closed. */

import { newConversation, titleOf } from './conversations.js';
import { McpError, Pauses, isUnreachable } from './mcp.js';
import { tokenFor, untilReached } from './state.js';
import { ThreadCall, isLoss } from './thread_call.js';
import { deleteThread, forkThread, listThreads, rateTurn, readTurns, renameThread } from './threads.js';

/**
 * @typedef {import('./conversations.js').Conversation} Conversation
 * @typedef {import('./conversations.js').Turn} Turn
 */

/** The error of a conversation that the gateway does not have. */
export const DELETED = 'This conversation is not on the gateway any more: it was deleted elsewhere.';

export class GatewayKeeper {
  /** @param {import('./session.js').Session} session */
  constructor(session) {
    this._session = session;
    /** @type {Map<string, Conversation>} */
    this._known = new Map();
    this._pauses = new Pauses(); // before a call whose connection was lost is looked for
  }

  /** @returns {Conversation} */
  begin() {
    return { ...newConversation(this._session.key), isOnGateway: true };
  }

  /** @returns {Promise<Conversation[]>} */
  async list() {
    const threads = await listThreads(this._session.agent.name, this._token());
    return threads.map((thread) => this._conversationOf(thread));
  }

  /** @param {import('./threads.js').Thread} thread */
  _conversationOf({ id, title, createdAt, updatedAt }) {
    const times = { title: title ?? '', created: Date.parse(createdAt), changed: Date.parse(updatedAt) };
    const known = this._known.get(id) ?? { ...this.begin(), id, threadId: id };
    this._known.set(id, known);
    return Object.assign(known, times);
  }

  /**
   * Return a conversation with the turns before the one at `at` alone. The gateway keeps its turns, so it is a copy.
   * @param {Conversation} conversation
   * @param {number} at
   */
  async before(conversation, at) {
    const isKept = (/** @type {Turn} */ { number }) => number !== undefined;
    const turns = conversation.turns.slice(0, at);
    if (!conversation.turns.slice(at).some(isKept)) return Object.assign(conversation, { turns });
    const last = turns.findLast(isKept)?.number;
    if (!last) return this.begin();
    const thread = await forkThread(String(conversation.threadId), last, this._token());
    const copied = turns.map((turn) => (turn.feedback ? { ...turn, feedback: undefined } : turn)); // ratings are not copied
    const copy = Object.assign(this._conversationOf(thread), { turns: copied });
    this._session.listed(copy);
    return copy;
  }

  /**
   * Read the turns. Those that this page has seen stay as they are: they have their steps.
   * @param {Conversation} conversation
   */
  async read(conversation) {
    const isBeginning = conversation.turns.some(({ id, number }) => number === undefined && this._session.runs(id));
    if (!conversation.threadId || isBeginning) return;
    const open = conversation.turns.findIndex(({ number, state }, index) => number !== index + 1 || state === 'running');
    const known = conversation.turns.slice(0, open === -1 ? conversation.turns.length : open);
    const found = await readTurns({ ...this._placeOf(conversation), after: known.length }, this._token());
    const seen = conversation.turns.slice(known.length).filter((turn) => turn.state !== 'running' || this._session.runs(turn.id));
    const byNumber = new Map(seen.map((turn) => [turn.number, turn]));
    const numbers = new Set(found.map(({ number }) => number));
    const newer = seen.filter(({ number }) => !numbers.has(number)); // sent meanwhile, or not taken by the gateway
    conversation.turns = [...known, ...found.map((turn) => byNumber.get(turn.number) ?? turn), ...newer];
  }

  /**
   * @param {Turn} turn
   * @param {Conversation} conversation
   */
  callOf(turn, conversation) {
    return new ThreadCall(turn, conversation, {
      agent: this._session.agent.name,
      token: () => this._token(),
      onBegun: () => this._begun(conversation),
    });
  }

  /**
   * Follow a call to its end. If its stream ends before, the thread says what became of it; until then it stays as it is.
   * @param {ThreadCall} call
   * @param {Conversation} conversation
   */
  async run(call, conversation) {
    while (await call.run()) {
      if (call.wasReached) this._pauses.reset();
      await Promise.all([this._pauses.wait(), untilReached()]);
      await this._readEnd(call, conversation);
      if (call.state.value !== 'running') return;
    }
  }

  /**
   * @param {ThreadCall} call
   * @param {Conversation} conversation
   */
  async _readEnd(call, conversation) {
    try {
      const turns = await readTurns({ ...this._placeOf(conversation), after: Number(call.turn.number) - 1 }, this._token());
      const turn = turns.find(({ number }) => number === call.turn.number);
      if (turn && turn.state !== 'running') call.endAs(turn);
    } catch (error) {
      if (isLoss(error)) return;
      const isGone = error instanceof McpError && error.status === 404;
      call.fail(isGone ? DELETED : /** @type {Error} */ (error).message);
    }
  }

  /**
   * @param {Conversation} conversation
   * @param {string} title
   */
  async rename(conversation, title) {
    await renameThread(String(conversation.threadId), title, this._token());
    conversation.title = title;
    this._session.listed(conversation);
  }

  /**
   * @param {Conversation} conversation
   * @param {Turn} turn
   * @param {import('./conversations.js').Given | null} feedback
   */
  async rate(conversation, turn, feedback) {
    turn.feedback = await rateTurn(String(conversation.threadId), Number(turn.number), feedback, this._token());
  }

  /** @param {Conversation} conversation */
  async remove(conversation) {
    if (conversation.threadId) await deleteThread(conversation.threadId, this._token());
  }

  /**
   * List a thread that has begun, under the name of its first message.
   * @param {Conversation} conversation
   */
  _begun(conversation) {
    this._known.set(String(conversation.threadId), conversation);
    this._session.listed(conversation);
    const name = () => this.rename(conversation, titleOf(conversation));
    const nameLater = async (/** @type {unknown} */ error) => {
      if (!isUnreachable(error)) throw error;
      await untilReached();
      await name();
    };
    this._session.attempt(() => name().catch(nameLater));
  }

  /** @param {Conversation} conversation */
  _placeOf({ threadId }) {
    return { id: String(threadId), agent: this._session.agent.name };
  }

  _token() {
    return tokenFor(this._session.agent);
  }
}
