/** Untrusted text as elements: Markdown, and plain text of any length. */

import { html, useMemo, useSignal } from '../html.js';
import { GrowingMarkdown } from '../markdown.js';
import { harmless, showsHost, size } from '../text.js';
import { Copy } from './copy.js';

const LONGEST_MARKDOWN = 60_000;
const FIRST_PART = 20_000;
const NEXT_PART = 200_000;

/** A text as Markdown, also while it grows; a very long one as plain text. */
/** @param {{text: string}} props */
export function Markdown({ text }) {
  const growing = useMemo(() => ({ markdown: new GrowingMarkdown(), drawn: /** @type {any[]} */ ([]) }), []);
  if (text.length > LONGEST_MARKDOWN) return html`<${Plain} text=${text} />`;
  const { markdown, drawn } = growing;
  const parts = markdown.update(text);
  if (markdown.settled < drawn.length) drawn.length = 0;
  for (let index = drawn.length; index < markdown.settled; index += 1) drawn.push(blocks(parts[index]));
  return html`<div class="markdown">${drawn.slice()}${parts.slice(markdown.settled).map(blocks)}</div>`;
}

/** A text as it is; of a long one the begin, and more on request. */
/** @param {{text: string, label?: string}} props */
export function Plain({ text, label = 'Text' }) {
  const shown = useSignal(FIRST_PART);
  const safe = useMemo(() => harmless(text.slice(0, shown.value)), [text, shown.value]);
  const rest = text.length - shown.value;
  return html`
    <pre class="plain" tabindex="0" role="group" aria-label=${label}>${safe}</pre>
    ${rest > 0 &&
    html`<button type="button" class="quiet" onClick=${() => (shown.value += NEXT_PART)}>
      Show ${size(Math.min(rest, NEXT_PART))} more of ${size(text.length)}
    </button>`}
  `;
}

/** @param {import('../markdown.js').Block[]} list */
function blocks(list) {
  return list.map(block);
}

/**
 * @param {import('../markdown.js').Block} one
 * @returns {any}
 */
function block(one) {
  switch (one.type) {
    case 'heading':
      return html`<p class=${`heading-${Math.min(one.level, 4)}`} role="heading" aria-level=${Math.min(one.level + 2, 6)}>${inlines(one.children)}</p>`;
    case 'code':
      return html`<div class="code"><pre tabindex="0" role="group" aria-label=${one.language ? `Code, ${one.language}` : 'Code'}><code>${one.text}</code></pre><${Copy} text=${one.text} what="the code" /></div>`;
    case 'rule':
      return html`<hr />`;
    case 'quote':
      return html`<blockquote>${blocks(one.blocks)}</blockquote>`;
    case 'list':
      return one.ordered
        ? html`<ol start=${one.start}>${one.items.map((item) => html`<li>${tight(item)}</li>`)}</ol>`
        : html`<ul>${one.items.map((item) => html`<li>${tight(item)}</li>`)}</ul>`;
    case 'table':
      return table(one.head, one.rows);
    default:
      return html`<p>${inlines(one.children)}</p>`;
  }
}

/**
 * The blocks of a list item, without a paragraph around its only text.
 * @param {import('../markdown.js').Block[]} item
 */
function tight(item) {
  return item.map((one, index) => (index === 0 && one.type === 'paragraph' ? inlines(one.children) : block(one)));
}

/**
 * @param {import('../markdown.js').Inline[][]} head
 * @param {import('../markdown.js').Inline[][][]} rows
 */
function table(head, rows) {
  return html`
    <div class="scroll" tabindex="0" role="group" aria-label="Table">
      <table>
        <thead><tr>${head.map((cell) => html`<th scope="col">${inlines(cell)}</th>`)}</tr></thead>
        <tbody>${rows.map((row) => html`<tr>${row.map((cell) => html`<td>${inlines(cell)}</td>`)}</tr>`)}</tbody>
      </table>
    </div>
  `;
}

/**
 * @param {import('../markdown.js').Inline[]} parts
 * @returns {any[]}
 */
function inlines(parts) {
  return parts.map((part) => {
    if (typeof part === 'string') return part;
    if (part.type === 'break') return html`<br />`;
    if (part.type === 'code') return html`<code>${part.text}</code>`;
    if (part.type === 'link' || part.type === 'image') return link(part);
    return html`<${part.type}>${inlines(part.children)}<//>`;
  });
}

/** @param {{type: string, href: string, host: string, children: any[]}} part */
function link({ type, href, host, children }) {
  const label = children.length === 1 && typeof children[0] === 'string' ? children[0] : null;
  const hidesHost = label === null || !showsHost(label, host);
  const what = type === 'image' ? 'Image: ' : '';
  return html`<a class="outside" href=${href} target="_blank" rel="noopener noreferrer nofollow">${what}${inlines(children)}</a>${hidesHost && html` <span class="host">(${host})</span>`}`;
}
