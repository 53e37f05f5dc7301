/** The difference of two texts by lines. Pure. */

/**
 * @typedef {{kind: 'equal' | 'added' | 'removed', text: string}} Line
 * @typedef {Line | {kind: 'gap', count: number}} Row
 */

const CONTEXT = 3;
const MOST_COMPARED = 2_000_000; // pairs of lines; larger differences are shown as one block

/**
 * Return the lines of two texts in order: equal ones, removed ones of the first, added ones of the second.
 * @param {string} before
 * @param {string} after
 * @returns {Line[]}
 */
export function lineDiff(before, after) {
  const [old, now] = [before.split('\n'), after.split('\n')];
  let start = 0;
  while (start < old.length && start < now.length && old[start] === now[start]) start += 1;
  let end = 0;
  while (end < old.length - start && end < now.length - start && old[old.length - 1 - end] === now[now.length - 1 - end]) end += 1;
  return [
    ...lines('equal', old.slice(0, start)),
    ...middle(old.slice(start, old.length - end), now.slice(start, now.length - end)),
    ...lines('equal', old.slice(old.length - end)),
  ];
}

/**
 * Return the rows to show: changes with a few lines around them, and gaps for the others.
 * @param {Line[]} all
 * @returns {Row[]}
 */
export function rowsOf(all) {
  const near = new Uint8Array(all.length);
  all.forEach(({ kind }, index) => {
    if (kind !== 'equal') near.fill(1, Math.max(0, index - CONTEXT), index + CONTEXT + 1);
  });
  /** @type {Row[]} */
  const rows = [];
  all.forEach((line, index) => {
    const last = rows.at(-1);
    if (near[index]) rows.push(line);
    else if (last?.kind === 'gap') last.count += 1;
    else rows.push({ kind: 'gap', count: 1 });
  });
  return rows;
}

/**
 * @param {string[]} old
 * @param {string[]} now
 * @returns {Line[]}
 */
function middle(old, now) {
  if (!old.length || !now.length || old.length * now.length > MOST_COMPARED) return [...lines('removed', old), ...lines('added', now)];
  const longest = longestCommon(old, now);
  const width = now.length + 1;
  /** @type {Line[]} */
  const found = [];
  let [at, to] = [0, 0];
  while (at < old.length || to < now.length) {
    if (at < old.length && to < now.length && old[at] === now[to]) {
      found.push({ kind: 'equal', text: old[at] });
      at += 1;
      to += 1;
    } else if (to >= now.length || (at < old.length && longest[(at + 1) * width + to] >= longest[at * width + to + 1])) {
      found.push({ kind: 'removed', text: old[at] });
      at += 1;
    } else {
      found.push({ kind: 'added', text: now[to] });
      to += 1;
    }
  }
  return found;
}

/**
 * Return the table of the longest common lines of all ends of the two lists.
 * @param {string[]} old
 * @param {string[]} now
 */
function longestCommon(old, now) {
  const width = now.length + 1;
  const table = new Uint32Array((old.length + 1) * width);
  for (let at = old.length - 1; at >= 0; at -= 1) {
    for (let to = now.length - 1; to >= 0; to -= 1) {
      const below = (at + 1) * width + to;
      table[at * width + to] = old[at] === now[to] ? table[below + 1] + 1 : Math.max(table[below], table[at * width + to + 1]);
    }
  }
  return table;
}

/**
 * @param {Line['kind']} kind
 * @param {string[]} texts
 * @returns {Line[]}
 */
function lines(kind, texts) {
  return texts.map((text) => ({ kind, text }));
}
