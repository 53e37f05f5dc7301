/** Parts of a call's tree: when they began, and what a payload has to be. Pure. */

/**
 * Return when a turn of an agent began: with the call, or when the tools of its last turn, and the person's answers, had ended.
 * @param {import('./calls.js').Root | import('./calls.js').Tool} place
 * @param {string} agent
 * @param {number} at
 */
export function beginOf(place, agent, at) {
  const before = place.entries.findLast((entry) => entry.kind === 'turn' && entry.agent === agent);
  if (before?.kind !== 'turn') return place.kind === 'tool' ? place.began : Math.min(at, 0);
  const ends = before.tools.map((tool) => tool.ended ?? at);
  return Math.min(at, Math.max(before.ended ?? 0, ...ends, ...place.waits.map((one) => one.ended ?? 0)));
}

/**
 * Note that a question was asked, or closed.
 * @param {import('./calls.js').Root | import('./calls.js').Tool} place
 * @param {Record<string, any>} payload
 * @param {number} at
 */
export function wait(place, payload, at) {
  const asked = place.waits.find((one) => one.id === payload.id);
  if (payload.kind === 'question') place.waits.push({ kind: 'wait', id: payload.id, began: at, ended: null });
  else if (asked) asked.ended = at;
}

/** @param {Record<string, any>} payload */
export function isTurn(payload) {
  return typeof payload.agent === 'string' && Number.isInteger(payload.iteration);
}

/**
 * @param {unknown} value
 * @returns {Record<string, any> | null}
 */
export function object(value) {
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? value : null;
}
