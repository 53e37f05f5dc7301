/**
 * Conversations that this browser keeps. The gateway keeps nothing of them: each call gets the earlier turns as `history`,
 * and ends with its page.
 */

import { Conversations, copyOf, historyOf, newConversation } from './conversations.js';
import { RunningCall } from './running_call.js';
import { tokenFor } from './state.js';
import { heldTurns, whileHeld, whenFree } from './tabs.js';

/**
 * @typedef {import('./conversations.js').Conversation} Conversation
 * @typedef {import('./conversations.js').Turn} Turn
 * @typedef {import('./session.js').Session} Session
 */

const SAVE_SECONDS = 2;
export const store = new Conversations();

export class BrowserKeeper {
  /** @param {Session} session */
  constructor(session) {
    this._session = session;
    /** True from when the page is left: the browser fails its requests then, which ends no call as failed. */
    this.isLeft = false;
  }

  begin() {
    return newConversation(this._session.key);
  }

  list() {
    return store.list(this._session.key);
  }

  /**
   * Find the calls of a conversation that run in other tabs, and those that have ended with their page.
   * @param {Conversation} conversation
   */
  async read(conversation) {
    const open = conversation.turns.filter(({ id, state }) => (state === 'running' || state === 'elsewhere') && !this._session.runs(id));
    const held = open.length ? await heldTurns() : new Set();
    for (const turn of open) {
      turn.state = held.has(turn.id) ? 'elsewhere' : 'interrupted';
      if (turn.state === 'elsewhere') whenFree(turn.id, () => this._session.reread(conversation));
    }
  }

  /**
   * Return a conversation as another tab has stored it with turns that this one does not have; null if there are none.
   * @param {Conversation} conversation
   */
  async continued(conversation) {
    const known = new Set(conversation.turns.map(({ id }) => id));
    const stored = await store.get(conversation.id);
    return stored?.turns.some(({ id }) => !known.has(id)) ? stored : null;
  }

  /**
   * Return a copy of a conversation with the turns before the one at `at` alone, or the conversation itself if nothing
   * came of those that follow.
   * @param {Conversation} conversation
   * @param {number} at
   */
  async before(conversation, at) {
    const isKept = (/** @type {Turn} */ { state, events }) => state !== 'error' || events.length > 0;
    if (!conversation.turns.slice(at).some(isKept)) return Object.assign(conversation, { turns: conversation.turns.slice(0, at) });
    return copyOf(conversation, at);
  }

  /** @param {Turn} turn */
  callOf(turn) {
    return new RunningCall(turn);
  }

  /**
   * Make the call of a turn, and store what arrives.
   * @param {RunningCall} call
   * @param {Conversation} conversation
   * @param {number} index of the turn
   */
  async run(call, conversation, index) {
    const { agent } = this._session;
    call.turn.model = call.turn.params.model ?? (agent.model || null);
    await whileHeld(call.turn.id, async () => {
      const saving = setInterval(() => this.save(conversation), SAVE_SECONDS * 1000);
      await this.save(conversation);
      try {
        await call.run({ url: agent.url, token: () => tokenFor(agent), args: argumentsOf(conversation, index) });
      } finally {
        clearInterval(saving);
        await this.save(conversation);
      }
    });
  }

  /** @param {Conversation} conversation */
  async save(conversation) {
    if (conversation.turns.length === 0 || this.isLeft) return;
    conversation.changed = Date.now();
    await this._session.attempt(() => store.put(conversation));
    this._session.listed(conversation);
  }

  /**
   * @param {Conversation} conversation
   * @param {string} title
   */
  rename(conversation, title) {
    conversation.title = title;
    return this.save(conversation);
  }

  /**
   * @param {Conversation} conversation
   * @param {Turn} turn
   * @param {import('./conversations.js').Given | null} feedback
   */
  async rate(conversation, turn, feedback) {
    const before = turn.feedback;
    turn.feedback = feedback ? { ...feedback, ratedAt: new Date().toISOString() } : undefined;
    try {
      await store.put(Object.assign(conversation, { changed: Date.now() }));
    } catch (error) {
      turn.feedback = before;
      throw error;
    }
    this._session.listed(conversation);
  }

  /** @param {Conversation} conversation */
  async remove(conversation) {
    conversation.turns = [];
    await store.remove(conversation.id);
  }
}

/**
 * Return the arguments of `send_message` for a turn: its message, and the answered turns before it.
 * @param {Conversation} conversation
 * @param {number} index
 */
export function argumentsOf(conversation, index) {
  const { message, images, params } = conversation.turns[index];
  const history = historyOf(conversation, index);
  return {
    message,
    ...(history.length ? { history } : {}),
    ...(images.length ? { images } : {}),
    ...(Object.keys(params).length ? { params } : {}),
    conversation_id: conversation.threadId ?? conversation.id,
  };
}
