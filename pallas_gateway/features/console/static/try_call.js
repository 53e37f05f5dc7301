/** A call of an agent as a form defines it, which is not saved. It ends when the page leaves it. */

import { historyOf } from './conversations.js';
import { ThreadCall } from './thread_call.js';
import { callEvents } from './threads.js';

/** @typedef {{name: string, definition: Record<string, any>, isNew: boolean}} Tried `name`: of the agent, also of a new one */

export class TryCall extends ThreadCall {
  /**
   * @param {import('./conversations.js').Turn} turn the last one of the conversation
   * @param {import('./conversations.js').Conversation} conversation
   * @param {{tried: Tried, token: () => string}} of
   */
  constructor(turn, conversation, { tried, token }) {
    super(turn, conversation, { agent: tried.name, token, onBegun: () => {} });
    this._tried = tried;
  }

  async run() {
    if (await super.run()) this.fail(this.loss.value); // there is no thread to be read
    return false;
  }

  _events() {
    const { name, definition, isNew } = this._tried;
    const { message, images } = this.turn;
    const messages = historyOf(this._conversation, this._conversation.turns.indexOf(this.turn));
    const of = { definition: isNew && name ? { name, ...definition } : definition, background: undefined }; // it ends with its client
    const body = { ...of, message, ...(messages.length ? { messages } : {}), ...(images.length ? { images } : {}) };
    return callEvents(isNew ? 'agents/try' : `agents/${encodeURIComponent(name)}/try`, body, this._gateway.token(), this._controller.signal);
  }

  _answersAt() {
    return `agents/try/${this._id}/answers`;
  }

  /** @param {any} event */
  _receive(event) {
    if (event.type === 'try') this._id = event.tryId;
    else super._receive(event);
  }

  _id = '';
}
