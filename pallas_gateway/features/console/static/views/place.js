/** One message with its answers: the latest one, and those before it on request. */

import { html, useEffect, useSignal } from '../html.js';

/** @typedef {import('../shown_call.js').ShownCall} ShownCall */

/**
 * @param {{calls: ShownCall[], found?: number | null, turnOf: (index: number) => any}} props `calls`: one for each answer; `found`: the one that a search
 *   has found; `turnOf`: draws one of them
 */
export function Place({ calls, found = null, turnOf }) {
  const chosen = useSignal(/** @type {number | null} */ (null));
  useEffect(() => {
    chosen.value = null; // a new answer is shown, or that which was found
  }, [calls.length, found]);
  const index = Math.min(chosen.value ?? found ?? calls.length - 1, calls.length - 1);
  const used = calls.findLastIndex(({ state }) => state.value === 'complete');
  const step = (/** @type {number} */ by) => {
    const next = index + by;
    if (next >= 0 && next < calls.length) chosen.value = next;
  };
  return html`<div class="place">
    ${turnOf(index)}
    ${calls.length > 1 &&
    html`<div class="actions answers" role="group" aria-label="Answers">
      <button type="button" class="quiet small" aria-label="Previous answer" aria-disabled=${index === 0} onClick=${() => step(-1)}>‹</button>
      <span role="status">Answer ${index + 1} of ${calls.length}</span>
      <button type="button" class="quiet small" aria-label="Next answer" aria-disabled=${index === calls.length - 1} onClick=${() => step(1)}>›</button>
      ${used >= 0 && used !== index && html`<span class="hint">The conversation goes on from answer ${used + 1}.</span>`}
    </div>`}
  </div>`;
}
