/** Reading of what changes on the gateway, while it is looked at. */

import { isUnreachable, whenShown } from './mcp.js';
import { nextRound, untilReached } from './state.js';
import { harmless } from './text.js';

/**
 * Read again and again while the page is shown. While the gateway cannot be reached, and after a refusal, the next read is
 * after a round that it answers.
 * @param {() => Promise<void>} read
 * @param {{milliseconds: number, onRefused: (why: string) => void, gone: AbortSignal}} options `gone`: the view was left
 */
export async function poll(read, { milliseconds, onRefused, gone }) {
  while (!gone.aborted) {
    try {
      await read();
    } catch (error) {
      if (gone.aborted) return;
      if (isUnreachable(error)) await untilReached();
      else {
        onRefused(sentence(error));
        await nextRound();
      }
    }
    await new Promise((resolve) => setTimeout(resolve, milliseconds));
    await whenShown();
  }
}

/**
 * Return the message of an error with one full stop.
 * @param {unknown} error
 */
export function sentence(error) {
  return `${harmless(/** @type {Error} */ (error).message).replace(/\.$/, '')}.`;
}
