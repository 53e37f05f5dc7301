/** What the caller has used of its limits, and who uses which agent. */

import { Card, Table, html, useEffect, useId, useSignal } from '../html.js';
import { poll } from '../polling.js';
import { caller, isLost, token } from '../state.js';
import { costText, shortName } from '../text.js';
import { added, byTokens, failed, hasWholeDay, readUsage, tokensIn } from '../usage.js';
import { Week } from './week.js';

const EVERY_MS = 10_000;
const MOST_ROWS = 200;
const DAY_MS = 24 * 3600 * 1000;
const NEAR = 0.9;
/** @type {Record<string, string>} */
const KINDS = { calls_per_minute: 'calls a minute', calls_at_once: 'calls at once', tokens_per_day: 'tokens a day' };

/**
 * @typedef {import('../usage.js').Usage} Known
 * @typedef {import('../usage.js').Row} Row
 * @typedef {import('../usage.js').Limit} Limit
 */

export function Usage() {
  const known = useSignal(/** @type {Known | null} */ (null));
  const problem = useSignal('');
  const chosen = useSignal('');
  useEffect(() => {
    const leaving = new AbortController();
    const read = async () => {
      known.value = await readUsage(token.value, leaving.signal);
      problem.value = '';
    };
    known.value = null;
    poll(read, { milliseconds: EVERY_MS, onRefused: (why) => (problem.value = `The usage is not shown: ${why}`), gone: leaving.signal });
    return () => leaving.abort();
  }, [caller.value]);
  return html`
    <div class="heading">
      <h1>Usage</h1>
      <${Period} chosen=${chosen} known=${known.value} />
    </div>
    <div class="sections">
      ${problem.value ? html`<p class="notice error" role="alert">${problem.value}</p>` : html`<${Tables} known=${known.value} chosen=${chosen.value} />`}
    </div>
  `;
}

/**
 * Return the periods whose usage is known, by their names: those of days that are stored, and what the gateway has counted.
 * @param {Known} known
 * @returns {Record<string, (whose: 'own' | 'all') => Row[] | undefined>}
 */
function periods(known) {
  const { days, day } = known;
  const total = { [`Since ${new Date(known.since).toLocaleString()}`]: (/** @type {'own' | 'all'} */ whose) => known[whose]?.total };
  if (days) {
    return {
      'Today (UTC)': (whose) => days[whose] && added(days[whose].filter((row) => row.day === day)),
      'Last 7 days': (whose) => days[whose] && added(days[whose]),
      ...total,
    };
  }
  return hasWholeDay(known) ? { 'Today (UTC)': (whose) => known[whose]?.today, ...total } : total;
}

/** @param {{chosen: any, known: Known | null}} props */
function Period({ chosen, known }) {
  const id = useId();
  if (known === null) return null;
  const names = Object.keys(periods(known));
  return html`
    <label class="hint" for=${id}>Period</label>
    <select id=${id} value=${names.includes(chosen.value) ? chosen.value : names[0]} onChange=${(/** @type {any} */ event) => (chosen.value = event.target.value)}>
      ${names.map((name) => html`<option value=${name}>${name}</option>`)}
    </select>
  `;
}

/** @param {{known: Known | null, chosen: string}} props */
function Tables({ known, chosen }) {
  if (isLost.value) return html`<p class="empty">Not known now.</p>`;
  if (known === null) return html`<p class="empty" role="status">Loading the usage…</p>`;
  const { own, all, limits, days } = known;
  const offered = periods(known);
  const rowsOf = offered[chosen] ?? Object.values(offered)[0];
  return html`
    ${limits.length > 0 &&
    html`<${Card} id="usage-limits" title="Limits">
      <${Limits} limits=${limits} />
    <//>`}
    ${days &&
    html`<${Card} id="usage-week" title=${`Last 7 days${days.all ? ' of all callers' : ''}`}>
      <${Week} rows=${days.all ?? days.own} today=${known.day} since=${days.since} heading="usage-week" />
      ${!days.complete && html`<p class="hint">There are too many rows to show all: the earliest days are not whole.</p>`}
    <//>`}
    <${Card} id="usage-own" title=${`Usage of ${shortName(known.caller)}`}>
      ${!own.complete && html`<p class="notice degraded">There are too many callers to count each. Usage of this caller may be among the others.</p>`}
      <${Rows} rows=${rowsOf('own') ?? []} caption="Own usage" heading="usage-own" />
    <//>
    ${all &&
    html`<${Card} id="usage-all" title="All callers">
      <${Rows} rows=${rowsOf('all') ?? []} caption="Usage of all callers" heading="usage-all" />
    <//>`}
  `;
}

/** @param {{limits: Limit[]}} props */
function Limits({ limits }) {
  return html`<${Table} by="usage-limits" columns=${['Rule', 'Used', 'Reset', 'Agents']}>
    ${limits.map((limit) => html`
      <tr>
        <th scope="row">${shortName(limit.rule)}${!limit.enforced && html` <span class="badge">counts only</span>`}</th>
        <td><${Share} limit=${limit} /></td>
        <td>${resetText(limit)}</td>
        <td>${shortName(limit.agents.join(', '))}</td>
      </tr>
    `)}
  <//>`;
}

/** @param {{limit: Limit}} props */
function Share({ limit: { rule, kind, limit, used } }) {
  const what = `${limit.toLocaleString()} ${KINDS[kind] ?? shortName(kind)}`;
  if (used === null) return html`at most ${what}`;
  return html`
    <meter min="0" max=${limit} high=${NEAR * limit} optimum="0" value=${Math.min(used, limit)} aria-label=${`Used of ${shortName(rule)}`}></meter>
    ${' '}${used.toLocaleString()} of ${what}
  `;
}

/** @param {{rows: Row[], caption: string, heading: string}} props */
function Rows({ rows, caption, heading }) {
  if (rows.length === 0) return html`<p class="hint">No calls.</p>`;
  const hasCallers = rows[0].caller !== undefined;
  const hasCosts = rows.some(({ cost }) => cost !== null);
  const hasFailures = rows.some(({ failures }) => failures);
  const estimated = rows.reduce((sum, row) => sum + row.estimatedTokens, 0);
  const columns = [...(hasCallers ? ['Caller'] : []), 'Agent', 'Calls', 'Nested calls', 'Refused', ...(hasFailures ? ['Failed'] : []), 'Tokens in', 'Tokens out', ...(hasCosts ? ['Cost'] : [])];
  return html`
    <${Table} by=${heading} label=${caption} columns=${columns}>
      ${byTokens(rows).slice(0, MOST_ROWS).map((row) => html`
        <tr>
          ${hasCallers && html`<th scope="row">${shortName(row.caller)}</th>`}
          ${hasCallers ? html`<td>${shortName(row.agent)}</td>` : html`<th scope="row">${shortName(row.agent)}</th>`}
          ${[row.calls, row.nestedCalls, row.refused, ...(hasFailures ? [failed(row)] : []), tokensIn(row.tokens), row.tokens.output].map((count) => html`<td class="number">${count.toLocaleString()}</td>`)}
          ${hasCosts && html`<td class="number">${costText(row.cost)}</td>`}
        </tr>
      `)}
    <//>
    ${rows.length > MOST_ROWS && html`<p class="hint">${(rows.length - MOST_ROWS).toLocaleString()} rows with fewer tokens are not shown.</p>`}
    ${estimated > 0 && html`<p class="hint">${estimated.toLocaleString()} of the tokens are estimated, because a provider sent no usage.</p>`}
  `;
}

/**
 * Return when more of a limit is free.
 * @param {Limit} limit
 */
function resetText({ kind, resetSeconds }) {
  if (resetSeconds === null || resetSeconds === undefined) return kind === 'calls_at_once' ? 'with each end of a call' : '';
  const at = new Date(Date.now() + resetSeconds * 1000);
  return resetSeconds * 1000 < DAY_MS ? at.toLocaleTimeString() : at.toLocaleString();
}
