/** The agent that a message is for: by `@name` at its beginning, or chosen; and which agents take none. Pure. */

import { cut } from './text.js';

const LONGEST_REASON = 80;
const MOST_CHOICES = 8;

/**
 * @typedef {import('./registries.js').Agent} Agent
 * @typedef {{agent: Agent, why: string}} Choice `why`: the reason for which it takes no messages now; empty if it does
 */

/**
 * Return why an agent takes no messages; an empty text if it does, or if that is not known yet.
 * @param {string} status
 * @param {string} reason for its state
 * @param {string} refusal for callers that may not run it; empty for others
 */
export function blockOf(status, reason, refusal) {
  if (refusal) return refusal;
  if (status === 'error') return cut(`error: ${reason}`, LONGEST_REASON);
  if (status === 'starting') return 'starting';
  return status === 'unknown' ? cut(reason, LONGEST_REASON) : '';
}

/**
 * Return what is written of a name after `@` at the beginning of a message; null if there is none.
 * @param {string} text
 */
export function mentionOf(text) {
  return /^@(\S*)$/.exec(text)?.[1] ?? null;
}

/**
 * Return the agents that take messages and whose name, or a word of whose title, begins with what is written.
 * @param {string} written
 * @param {Choice[]} choices
 */
export function suggestionsOf(written, choices) {
  const wanted = written.toLowerCase();
  /** @param {Choice} choice */
  const begins = ({ agent }) => [agent.name, agent.title, ...agent.title.split(/[^\p{L}\p{N}]+/u)].some((word) => word.toLowerCase().startsWith(wanted));
  return choices.filter((choice) => choice.why === '' && begins(choice)).slice(0, MOST_CHOICES);
}

/**
 * Return the agent that a message begins with, by its whole name, and the rest; null if it names none that takes messages.
 * @param {string} text
 * @param {Choice[]} choices
 * @returns {{agent: Agent, rest: string} | null}
 */
export function addressed(text, choices) {
  const [, name, rest] = /^@(\S+)\s+([^]*)$/.exec(text) ?? [];
  const found = name && choices.find(({ agent, why }) => why === '' && [agent.id, agent.name].some((one) => one.toLowerCase() === name.toLowerCase()));
  return found ? { agent: found.agent, rest } : null;
}
