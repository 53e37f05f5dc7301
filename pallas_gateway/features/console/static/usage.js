/** The usage of agents by callers, and the limits of the caller. */

import { request } from './gateway_api.js';
import { jsonOf } from './mcp.js';

/**
 * @typedef {{input: number, cachedInput: number, cacheWrite: number, output: number}} Tokens
 * @typedef {{caller?: string, agent: string, model?: string, day?: string, failures?: Record<string, number>, calls: number, refused: number, nestedCalls: number, tokens: Tokens, estimatedTokens: number, cost: number | null}} Row
 * @typedef {{rule: string, agents: string[], kind: string, limit: number, used: number | null, resetSeconds: number | null, enforced: boolean}} Limit
 * @typedef {{today: Row[], total: Row[]}} Periods
 * @typedef {{since: string, own: Row[], owned: Row[], all?: Row[], complete: boolean}} Days what is stored of the last days
 * @typedef {{days: Days | null, day: string, since: string, caller: string, own: Periods & {complete: boolean}, limits: Limit[], all?: Periods}} Usage
 */

export const WEEK = 7;
const DAY_MS = 24 * 3600 * 1000;

/**
 * Return the usage that a caller may see, with that of the last week where it is stored.
 * @param {string} token
 * @param {AbortSignal} signal
 * @returns {Promise<Usage>}
 */
export async function readUsage(token, signal) {
  return /** @type {any} */ (await jsonOf(await request(`usage?days=${WEEK}`, { token, signal })));
}

/**
 * Return true if all that was used on the present day has been counted: the gateway has run since midnight (UTC).
 * @param {Usage} usage
 */
export function hasWholeDay({ since, day }) {
  return since < day;
}

/**
 * Return rows of days added up by the names of a caller and an agent. Pure.
 * @param {Row[]} rows
 * @returns {Row[]}
 */
export function added(rows) {
  /** @type {Map<string, Row>} */
  const sums = new Map();
  for (const row of rows) {
    const key = JSON.stringify([row.caller, row.agent]);
    const sum = sums.get(key);
    sums.set(key, sum ? plus(sum, row) : row);
  }
  return [...sums.values()];
}

/**
 * @param {Row} one
 * @param {Row} other
 * @returns {Row}
 */
function plus(one, other) {
  return {
    ...one,
    calls: one.calls + other.calls,
    refused: one.refused + other.refused,
    nestedCalls: one.nestedCalls + other.nestedCalls,
    estimatedTokens: one.estimatedTokens + other.estimatedTokens,
    tokens: joined(one.tokens, other.tokens),
    failures: joined(one.failures ?? {}, other.failures ?? {}),
    cost: one.cost === null && other.cost === null ? null : (one.cost ?? 0) + (other.cost ?? 0),
  };
}

/**
 * @template {Record<string, number>} Counts
 * @param {Counts} one
 * @param {Counts} other
 * @returns {Counts}
 */
function joined(one, other) {
  /** @type {Record<string, number>} */
  const sums = { ...one };
  for (const [name, count] of Object.entries(other)) sums[name] = (sums[name] ?? 0) + count;
  return /** @type {Counts} */ (sums);
}

/**
 * Return the days of the last week, the earliest first, each with the sum of its rows; null before `since`. Pure.
 * @param {Row[]} rows
 * @param {string} today
 * @param {string} since the first day that is stored
 * @returns {{day: string, sum: Row | null}[]}
 */
export function weekOf(rows, today, since) {
  const nothing = { agent: '', calls: 0, refused: 0, nestedCalls: 0, estimatedTokens: 0, tokens: { input: 0, cachedInput: 0, cacheWrite: 0, output: 0 }, failures: {}, cost: null };
  return Array.from({ length: WEEK }, (_, index) => {
    const day = new Date(Date.parse(today) - (WEEK - 1 - index) * DAY_MS).toISOString().slice(0, today.length);
    return { day, sum: day < since ? null : rows.filter((row) => row.day === day).reduce(plus, /** @type {Row} */ (nothing)) };
  });
}

/**
 * Return how many calls have failed or were refused. Pure.
 * @param {Row} row
 */
export function failed({ failures = {} }) {
  return Object.values(failures).reduce((sum, count) => sum + count, 0);
}

/**
 * Return how many calls there were, refused and nested ones included. Pure.
 * @param {Row} row
 */
export function callsOf({ calls, refused, nestedCalls }) {
  return calls + refused + nestedCalls;
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
