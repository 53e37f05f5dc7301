/** The usage of agents by callers, and the limits of the caller. */

import { request } from './gateway_api.js';
import { jsonOf } from './mcp.js';

/**
 * @typedef {{input: number, cachedInput: number, cacheWrite: number, output: number}} Tokens
 * @typedef {{caller?: string, agent: string, calls: number, refused: number, nestedCalls: number, tokens: Tokens, estimatedTokens: number, cost: number | null}} Row
 * @typedef {{rule: string, agents: string[], kind: string, limit: number, used: number | null, resetSeconds: number | null, enforced: boolean}} Limit
 * @typedef {{today: Row[], total: Row[]}} Periods
 * @typedef {{day: string, since: string, caller: string, own: Periods & {complete: boolean}, limits: Limit[], all?: Periods}} Usage
 */

/**
 * Return the usage that a caller may see.
 * @param {string} token
 * @param {AbortSignal} signal
 * @returns {Promise<Usage>}
 */
export async function readUsage(token, signal) {
  return /** @type {any} */ (await jsonOf(await request('usage', { token, signal })));
}

/**
 * Return the tokens of the prompt: those from and to the cache are in it. Pure.
 * @param {Tokens} tokens
 */
export function tokensIn({ input, cachedInput, cacheWrite }) {
  return input + cachedInput + cacheWrite;
}

/**
 * Return the rows with the most tokens first. Pure.
 * @param {Row[]} rows
 */
export function byTokens(rows) {
  const all = (/** @type {Row} */ { tokens }) => tokensIn(tokens) + tokens.output;
  return rows.toSorted((a, b) => all(b) - all(a) || b.calls - a.calls);
}

/**
 * Return a cost as a text: two decimals, or three digits of one below 1. Pure.
 * @param {number | null} cost
 */
export function costText(cost) {
  if (cost === null) return '';
  return cost.toLocaleString(undefined, cost < 1 ? { maximumSignificantDigits: 3 } : { minimumFractionDigits: 2, maximumFractionDigits: 2 });
}
