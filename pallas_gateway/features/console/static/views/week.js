/** The last week at a glance: a bar for the calls of each day, with those that failed, and the same as a table. */

import { Card, html, useEffect, useId, useSignal } from '../html.js';
import { token } from '../state.js';
import { costText, cut, harmless } from '../text.js';
import { added, callsOf, failed, readUsage, tokensIn, weekOf } from '../usage.js';

const WIDTH = 44;
const HEIGHT = 72;
const BAR = 28;
const LINE = 14;

/** @typedef {import('../usage.js').Row} Row */

/** @param {{rows: Row[], today: string, since: string, heading: string}} props `heading`: the id of what they are of */
export function Week({ rows, today, since, heading }) {
  const days = weekOf(rows, today, since);
  const most = Math.max(1, ...days.map(({ sum }) => (sum ? callsOf(sum) : 0)));
  const height = (/** @type {number} */ count) => (count === 0 ? 0 : Math.max(2, Math.round((count / most) * HEIGHT)));
  const total = days.reduce((all, { sum }) => all + (sum ? callsOf(sum) : 0), 0);
  const reasons = Object.entries(added(rows.map((row) => ({ ...row, caller: '', agent: '' })))[0]?.failures ?? {}).sort((a, b) => b[1] - a[1]);
  return html`
    <svg class="week" viewBox=${`0 0 ${days.length * WIDTH} ${HEIGHT + 2 * LINE}`} aria-hidden="true">
      ${days.map(({ day, sum }, index) => {
        const [x, all, bad] = [index * WIDTH + (WIDTH - BAR) / 2, height(sum ? callsOf(sum) : 0), height(sum ? failed(sum) : 0)];
        return html`
          <rect x=${x} y=${LINE + HEIGHT - all} width=${BAR} height=${all} />
          <rect class="failed" x=${x} y=${LINE + HEIGHT - bad} width=${BAR} height=${bad} />
          <text x=${x + BAR / 2} y=${LINE + HEIGHT - all - 3}>${sum ? callsOf(sum).toLocaleString() : ''}</text>
          <text x=${x + BAR / 2} y=${HEIGHT + 2 * LINE - 2}>${new Date(day).toLocaleDateString(undefined, { weekday: 'short', timeZone: 'UTC' })}</text>
        `;
      })}
    </svg>
    <div class="unseen">
      <table aria-labelledby=${heading}>
        <thead>
          <tr>${['Day (UTC)', 'Calls', 'Failed', 'Tokens in', 'Tokens out', 'Cost'].map((name) => html`<th scope="col">${name}</th>`)}</tr>
        </thead>
        <tbody>
          ${days.map(({ day, sum }) => html`
            <tr>
              <th scope="row">${day}</th>
              ${(sum ? [callsOf(sum), failed(sum), tokensIn(sum.tokens), sum.tokens.output] : ['not stored', '', '', '']).map((count) => html`<td>${count.toLocaleString()}</td>`)}
              <td>${costText(sum?.cost ?? null)}</td>
            </tr>
          `)}
        </tbody>
      </table>
    </div>
    <p class="hint">
      ${total.toLocaleString()} calls${since > days[0].day ? ` since ${since}` : ' in the last 7 days'} (UTC), calls by other agents included.
      ${reasons.length > 0 && ` Failed: ${reasons.map(([why, count]) => `${count.toLocaleString()} ${harmless(cut(why, 40))}`).join(', ')}.`}
    </p>
  `;
}

/** The last week of an agent of this gateway, for its owner and for who may see all calls; nothing for others. */
/** @param {{agent: import('../state.js').Agent}} props */
export function AgentWeek({ agent }) {
  const known = useSignal(/** @type {import('../usage.js').Usage | null} */ (null));
  const id = useId();
  useEffect(() => {
    const leaving = new AbortController();
    known.value = null;
    readUsage(token.value, leaving.signal).then((usage) => (known.value = usage), () => {}); // who may not read it sees no week
    return () => leaving.abort();
  }, [agent.id]);
  const days = known.value?.days;
  const rows = (days?.all ?? days?.owned ?? []).filter((row) => row.agent === agent.name);
  if (!days || !known.value || rows.length === 0) return null;
  return html`
    <${Card} id=${id} title="Last 7 days">
      <${Week} rows=${rows} today=${known.value.day} since=${days.since} heading=${id} />
    <//>
  `;
}
