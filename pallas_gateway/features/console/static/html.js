/** Preact with htm and signals, as the views import them. Text in a template is always text: nothing here parses HTML. */

import htm from './vendor/htm.js';
import { h } from './vendor/preact.js';
import { useLayoutEffect, useRef } from './vendor/preact-hooks.js';

export { Component, Fragment, createRef, h, render } from './vendor/preact.js';
export { useCallback, useEffect, useId, useLayoutEffect, useMemo, useRef, useState } from './vendor/preact-hooks.js';
export { batch, computed, effect, signal, untracked, useComputed, useSignal, useSignalEffect } from './vendor/preact-signals.js';

export const html = htm.bind(h);

/** A table, which scrolls sideways by itself. */
/** @param {{columns: any[], by?: string, label?: string, kind?: string, children?: any}} props `columns`: their heads, empty for one without; `by`: the id of its heading */
export function Table({ columns, by, label, kind = 'calls', children }) {
  const body = useRef(/** @type {HTMLTableSectionElement | null} */ (null));
  useLayoutEffect(() => {
    for (const row of body.current?.rows ?? []) columns.forEach((name, index) => row.cells[index]?.setAttribute('data-label', typeof name === 'string' ? name : ''));
  });
  return html`
    <div class="scroll" tabindex="0" role="group" aria-labelledby=${by} aria-label=${by ? undefined : label}>
      <table class=${kind} aria-labelledby=${label ? undefined : by} aria-label=${label}>
        <thead><tr>${columns.map((column) => (column ? html`<th scope="col">${column}</th>` : html`<td></td>`))}</tr></thead>
        <tbody ref=${body}>${children}</tbody>
      </table>
    </div>
  `;
}

/** @param {{facts: any[][]}} props names with their values; those without a value are left out */
export function FactList({ facts }) {
  const known = facts.filter(([, value]) => value || value === 0);
  return known.length > 0 && html`<dl class="facts">${known.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

/** @param {{id: string, title: any, children?: any}} props a section with its heading */
export function Card({ id, title, children }) {
  return html`<section class="card" aria-labelledby=${id}><h2 id=${id}>${title}</h2>${children}</section>`;
}
