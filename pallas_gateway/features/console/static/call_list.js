/** The running and the ended calls of the gateway: their order, and the tree of one. */

import { DEEPEST } from './calls.js';
import { request } from './gateway_api.js';
import { jsonOf } from './mcp.js';
import { cut } from './text.js';

const LONGEST_NAME = 80;
const CLOSE_MS = 50; // clocks of a call and of the tool call that made it

/**
 * @typedef {{id: string, parent: string | null, agent: string, caller: string, api: string, step: string | null, seconds: number,
 *   tokens: number, waiting: boolean, worker: number | null, startedAt: string, statusMessage?: string, runs?: number,
 *   atRest?: boolean}} Call
 * @typedef {Call & {outcome: string, stopReason: string | null, endedAt: string,
 *   tools: {name: string, start: number, seconds: number, ok: boolean}[], toolsLeftOut?: number}} EndedCall
 */

/**
 * Return the running calls, the workers that did not answer, and whether the database of long calls did not.
 * @param {string} token
 * @param {AbortSignal} signal
 * @returns {Promise<{calls: Call[], missing: unknown[], tasksMissing: boolean}>}
 */
export function runningCalls(token, signal) {
  return list('calls', token, signal);
}

/**
 * Return the calls that ended last.
 * @param {number} most
 * @param {string} token
 * @param {AbortSignal} signal
 * @returns {Promise<{calls: EndedCall[], missing: unknown[], tasksMissing: boolean}>}
 */
export function endedCalls(most, token, signal) {
  return list(`calls?recent=${most}`, token, signal);
}

/**
 * @param {string} id
 * @param {string} token
 */
export async function endCall(id, token) {
  await request(`calls/${encodeURIComponent(id)}`, { method: 'DELETE', token });
}

/**
 * @param {string} path
 * @param {string} token
 * @param {AbortSignal} signal
 */
async function list(path, token, signal) {
  const found = await jsonOf(await request(path, { token, signal }));
  const [calls, missing] = [found?.calls, found?.missing].map((one) => (Array.isArray(one) ? one : []));
  return { calls, missing, tasksMissing: Boolean(found?.tasksMissing) };
}

/**
 * Return what a running call does besides its step: it waits, or no worker of the gateway runs it; empty for others. Pure.
 * @param {Call} call
 */
export function stateOf({ waiting, worker, atRest, statusMessage, runs }) {
  const place = worker === null ? (atRest ? 'at rest' : 'at another replica') : '';
  const facts = [waiting ? 'waiting for its caller' : place, statusMessage, Number(runs) > 1 ? `run ${runs}` : ''];
  return facts.filter(Boolean).join(', ');
}

/**
 * Return calls with their depths, each nested call below its parent; the order is that of the list. Pure.
 * @template {Call} C
 * @param {C[]} calls
 * @returns {{call: C, depth: number}[]}
 */
export function nested(calls) {
  const ids = new Set(calls.map(({ id }) => id));
  /** @type {Map<string | null, C[]>} */
  const byParent = new Map();
  for (const call of calls) byParent.set(call.parent, [...(byParent.get(call.parent) ?? []), call]);
  /** @type {(call: C, depth: number) => {call: C, depth: number}[]} */
  const withNested = (call, depth) => [
    { call, depth },
    ...(depth < DEEPEST ? (byParent.get(call.id) ?? []).flatMap((one) => withNested(one, depth + 1)) : []),
  ];
  return calls.filter(({ parent }) => parent === null || !ids.has(parent)).flatMap((call) => withNested(call, 0));
}

/**
 * Return an ended call with its nested calls as the tree that the page draws: each call is one turn with its tools. Pure.
 * @param {EndedCall} call
 * @param {EndedCall[]} calls all that are known
 * @returns {import('./calls.js').Root}
 */
export function treeOf(call, calls) {
  return { kind: 'call', key: call.id, entries: [turnOf(call, calls, Date.parse(call.startedAt), 0)], calls: new Map(), waits: [], version: 0 };
}

/**
 * @param {EndedCall} call
 * @param {EndedCall[]} calls
 * @param {number} zero when the outermost call began
 * @param {number} depth
 * @returns {import('./calls.js').Turn}
 */
function turnOf(call, calls, zero, depth) {
  const began = Math.max(0, Date.parse(call.startedAt) - zero);
  const tools = call.tools.map((tool, index) => toolOf(`${call.id} ${index}`, tool, began));
  for (const below of depth < DEEPEST ? calls.filter(({ parent }) => parent === call.id) : []) {
    const turn = turnOf(below, calls, zero, depth + 1);
    let tool = callerOf(turn, tools);
    if (!tool) {
      const made = { name: below.agent, start: (turn.began - began) / 1000, seconds: below.seconds, ok: below.outcome === 'ok' };
      tools.push((tool = toolOf(below.id, made, began)));
    }
    tool.entries.push(turn);
  }
  tools.sort((a, b) => a.began - b.began);
  return {
    kind: 'turn', key: call.id, agent: cut(call.agent, LONGEST_NAME), iteration: 0, text: '', live: false, stopReason: call.stopReason && cut(call.stopReason, LONGEST_NAME),
    note: `${call.tokens.toLocaleString()} tokens`, tools, began, ended: began + call.seconds * 1000, version: 0,
  };
}

/**
 * Return the tool call that made a nested call: one of its time, and before others one that has the agent's name.
 * @param {import('./calls.js').Turn} turn
 * @param {import('./calls.js').Tool[]} tools
 */
function callerOf(turn, tools) {
  const isOfItsTime = (/** @type {import('./calls.js').Tool} */ { began, ended }) =>
    began <= turn.began + CLOSE_MS && Number(turn.ended) <= Number(ended) + CLOSE_MS;
  const free = tools.filter((tool) => tool.entries.length === 0 && isOfItsTime(tool));
  return free.find(({ name }) => name.includes(turn.agent)) ?? free[0];
}

/**
 * @param {string} key
 * @param {EndedCall["tools"][number]} tool
 * @param {number} began of its call
 * @returns {import('./calls.js').Tool}
 */
function toolOf(key, { name, start, seconds, ok }, began) {
  const at = began + start * 1000;
  return {
    kind: 'tool', key, id: key, server: null, name: cut(name, LONGEST_NAME), args: {}, state: ok ? 'completed' : 'failed', result: null, truncated: false,
    seconds, began: at, ended: at + seconds * 1000, entries: [], calls: new Map(), waits: [], isAsking: false, approval: '', version: 0,
  };
}
