/** The difference between two definitions: the lines of the instruction, and a table of the other keys. */

import { Table, html, useMemo, useSignal } from '../html.js';
import { LABELS, changedKeys, normalOf } from '../definition.js';
import { lineDiff, rowsOf } from '../line_diff.js';
import { cut, harmless, shown } from '../text.js';

const LONGEST_VALUE = 2000;
const LONGEST_LINE = 2000;
const ROWS_OF_A_PAGE = 500;
/** @type {Record<string, [string, string]>} */
const SIGNS = { equal: [' ', ''], added: ['+', 'added: '], removed: ['−', 'removed: '] };

/** @param {{before: import('../definition.js').Definition, after: import('../definition.js').Definition, names: [string, string]}} props */
export function Difference({ before, after, names }) {
  const keys = changedKeys(before, after);
  const others = keys.filter((key) => key !== 'instruction');
  if (keys.length === 0) return html`<p class="hint">Nothing differs.</p>`;
  return html`
    ${others.length > 0 &&
    html`<${Table} label="Changed fields" kind="difference" columns=${['Field', ...names]}>
      ${others.map((key) => html`<tr key=${key}><th scope="row">${LABELS[key]}</th><td>${valueText(before[key], key)}</td><td>${valueText(after[key], key)}</td></tr>`)}
    <//>`}
    ${keys.includes('instruction') && html`<${Lines} before=${String(before.instruction ?? '')} after=${String(after.instruction ?? '')} />`}
  `;
}

/** @param {{before: string, after: string}} props */
function Lines({ before, after }) {
  const rows = useMemo(() => rowsOf(lineDiff(before, after)), [before, after]);
  const most = useSignal(ROWS_OF_A_PAGE);
  const rest = rows.length - most.value;
  return html`
    <div>
      <h3>Instruction</h3>
      <div class="lines" tabindex="0" role="group" aria-label="Changed lines of the instruction">
        ${rows.slice(0, most.value).map((row) => (row.kind === 'gap' ? html`<p class="gap">${row.count} equal ${row.count === 1 ? 'line' : 'lines'}</p>` : html`<${Line} row=${row} />`))}
      </div>
      ${rest > 0 && html`<button type="button" class="quiet" onClick=${() => (most.value += ROWS_OF_A_PAGE)}>Show ${rest} more lines</button>`}
    </div>
  `;
}

/** @param {{row: import('../line_diff.js').Line}} props */
function Line({ row: { kind, text } }) {
  const [sign, word] = SIGNS[kind];
  return html`<p class=${`line ${kind}`}><span class="sign" aria-hidden="true">${sign}</span><span>${word && html`<span class="unseen">${word}</span>`}${harmless(cut(text, LONGEST_LINE))}</span></p>`;
}

/**
 * @param {any} value
 * @param {string} key
 */
function valueText(value, key) {
  if (value === undefined) return html`<span class="hint">${normalOf(key)}</span>`;
  if (typeof value === 'boolean') return value ? 'yes' : 'no';
  if (Array.isArray(value) && value.length === 0) return html`<span class="hint">none</span>`;
  if (Array.isArray(value)) return harmless(cut(value.join('\n'), LONGEST_VALUE));
  if (typeof value === 'object') return harmless(cut(Object.entries(value).map(([name, one]) => `${name}: ${shown(one)}`).join('\n'), LONGEST_VALUE));
  return harmless(cut(String(value), LONGEST_VALUE));
}
