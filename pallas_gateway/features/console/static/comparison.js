/** Two conversations side by side, and the figures of their last answers. */

import { tokensOf } from './outcome.js';
import { Session, reload } from './session.js';
import { newParameters } from './views/composer.js';

let count = 0;

/** One side: a new conversation with an agent that the browser keeps. It shows no other one. */
export class Side extends Session {
  /** @param {import('./state.js').Agent} agent */
  constructor(agent) {
    super(agent);
    count += 1;
    this.id = `side-${count}`;
    this.parameters = newParameters();
  }

  get isOnGateway() {
    return false;
  }

  async load() {}

  /** @type {Session["_follow"]} */
  async _follow(conversation, index) {
    await super._follow(conversation, index);
    reload(this.agent);
  }

  /**
   * Send a message; the one that was sent last is sent again in its place.
   * @param {string} message
   * @param {{images: import('./conversations.js').Image[], params: Record<string, any>}} options
   */
  again(message, options) {
    const { turns } = this.open.value;
    return this.send(message, { ...options, at: turns.at(-1)?.message === message ? turns.length - 1 : turns.length });
  }
}

/**
 * @typedef {{state: string, seconds: number | null, turns: number | null, in: number | null, out: number | null, cost: number | null}} Figures
 */

/**
 * Return the figures of a call; null if there is none.
 * @param {import('./shown_call.js').ShownCall | undefined} call
 * @returns {Figures | null}
 */
export function figuresOf(call) {
  if (!call) return null;
  const facts = call.outcome.value?.facts ?? {};
  const tokens = facts.usage ? tokensOf(facts.usage) : null;
  const number = (/** @type {unknown} */ value) => (typeof value === 'number' ? value : null);
  return {
    state: call.state.value,
    seconds: number(facts.duration_seconds),
    turns: number(facts.iterations),
    in: tokens && tokens.in,
    out: tokens && tokens.out,
    cost: number(/** @type {any} */ (facts).cost),
  };
}
