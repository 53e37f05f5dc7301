/** The steps of a call as rows, each with a bar for its time. */

import { html, useMemo } from '../html.js';
import { duration, harmless } from '../text.js';
import { waterfall } from '../waterfall.js';

const MOST_ROWS = 500;

/** @param {{place: import('../calls.js').Root, none: string}} props `none`: the sentence for a call without steps */
export function Waterfall({ place, none }) {
  const rows = useMemo(() => waterfall(place), [place]);
  const end = Math.max(1, ...rows.slice(0, MOST_ROWS).map((row) => row.ended ?? row.began));
  if (!rows.length) return html`<p class="hint">${none}</p>`;
  return html`
    <div class="scroll waterfall" tabindex="0" role="group" aria-label="Waterfall">
      <table>
        <thead><tr><th scope="col">Step</th><th scope="col">Duration</th><th scope="col">When</th></tr></thead>
        <tbody>
          ${rows.slice(0, MOST_ROWS).map((row) => {
            const ended = row.ended ?? end;
            return html`
              <tr>
                <th scope="row" style=${{ paddingLeft: `${Math.min(row.depth, 12)}em` }}>${harmless(row.label)}</th>
                <td>${duration((ended - row.began) / 1000)}</td>
                <td class="bar-cell"><div class=${`span of-${row.node.kind}`} style=${{ marginLeft: `${(100 * row.began) / end}%`, width: `${(100 * (ended - row.began)) / end}%` }}></div></td>
              </tr>
            `;
          })}
        </tbody>
      </table>
      ${rows.length > MOST_ROWS && html`<p class="hint">${rows.length - MOST_ROWS} more steps are not drawn.</p>`}
    </div>
  `;
}
