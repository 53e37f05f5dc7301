/** The steps of a call as rows, depth first. Pure. */

import { DEEPEST, nameOf } from './calls.js';

/**
 * Return the rows of a waterfall: turns, tools and waits for a person with begin and end in milliseconds, depth first.
 * @param {import('./calls.js').Root | import('./calls.js').Tool} place
 * @returns {{node: import('./calls.js').Turn | import('./calls.js').Tool | import('./calls.js').Wait, depth: number, label: string, began: number, ended: number | null}[]}
 */
export function waterfall(place, depth = 0) {
  const rows = [];
  const waits = [...place.waits];
  const waited = (/** @type {number} */ until) => {
    while (waits.length && waits[0].began < until) {
      const node = /** @type {import('./calls.js').Wait} */ (waits.shift());
      rows.push({ node, depth: depth + 1, label: 'waited for you', began: node.began, ended: node.ended });
    }
  };
  for (const entry of place.entries) {
    if (entry.kind !== 'turn') continue;
    waited(entry.began);
    const label = entry.iteration > 0 ? `${entry.agent} turn ${entry.iteration}` : entry.agent; // 0: the call as a whole
    rows.push({ node: entry, depth, label, began: entry.began, ended: entry.ended });
    for (const tool of entry.tools) {
      rows.push({ node: tool, depth: depth + 1, label: nameOf(tool), began: tool.began, ended: tool.ended });
      if (depth < DEEPEST) rows.push(...waterfall(tool, depth + 2));
    }
  }
  waited(Infinity);
  return rows;
}
