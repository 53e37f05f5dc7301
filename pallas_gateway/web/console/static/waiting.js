/** The pauses between attempts to reach the gateway. */

const SHORTEST_MS = 1000;
const LONGEST_MS = 30_000;

/** Pauses that double from attempt to attempt, up to 30 s, and do not end while the page is hidden. */
export class Pauses {
  _next = SHORTEST_MS;

  /** Begin with the shortest again. */
  reset() {
    this._next = SHORTEST_MS;
  }

  /** Return the next pause in milliseconds. */
  next() {
    const pause = this._next;
    this._next = Math.min(2 * pause, LONGEST_MS);
    return pause;
  }

  async wait() {
    await new Promise((resolve) => setTimeout(resolve, this.next()));
    await whenShown();
  }
}

/** Wait until the page is not hidden. */
export async function whenShown() {
  if (document.hidden) await new Promise((resolve) => document.addEventListener('visibilitychange', resolve, { once: true }));
}
