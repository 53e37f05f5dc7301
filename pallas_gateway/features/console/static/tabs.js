/**
 * Calls of other tabs. A tab holds a lock for each of its calls, which the browser releases when the tab is closed. Without
 * Web Locks (a page over plain HTTP of another host) no tab knows of the others.
 */

const PREFIX = 'pallas-call-';
const locks = /** @type {LockManager | undefined} */ (navigator.locks);

/**
 * Hold the lock of a turn during its call.
 * @param {string} turn
 * @param {() => Promise<any>} call
 */
export async function whileHeld(turn, call) {
  return locks ? locks.request(`${PREFIX}${turn}`, call) : call();
}

/** Return the turns whose calls run in any tab. */
export async function heldTurns() {
  const found = locks ? await locks.query() : {};
  return new Set((found.held ?? []).filter(({ mode }) => mode === 'exclusive').map(({ name }) => String(name).replace(PREFIX, '')));
}

/** @type {Set<string>} */
const awaited = new Set();

/**
 * Run once when the call of a turn has ended in its tab.
 * @param {string} turn
 * @param {() => void} run
 */
export function whenFree(turn, run) {
  if (!locks || awaited.has(turn)) return;
  awaited.add(turn);
  locks.request(`${PREFIX}${turn}`, { mode: 'shared' }, async () => run());
}
