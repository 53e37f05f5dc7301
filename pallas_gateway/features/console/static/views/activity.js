/**
 * What an agent does during a call: its LLM turns as cards, tool calls in them, and in a tool call the activity of the
 * peer that answers it. Each card is drawn again only when its own node of the tree changes.
 */

import { html, useEffect, useSignal } from '../html.js';
import { nameOf } from '../calls.js';
import { Mark, hueOf, titleOf } from '../marks.js';
import { stopOf } from '../outcome.js';
import { versionOf } from '../shown_call.js';
import { cut, duration, harmless, shown } from '../text.js';
import { Copy } from './copy.js';
import { Markdown, Plain } from './text.js';

/**
 * @typedef {import('../calls.js').Root} Root
 * @typedef {import('../calls.js').Tool} Tool
 * @typedef {import('../calls.js').Turn} Turn
 */

const LONGEST_PREVIEW = 100;
const LONGEST_RAW = 4000;
const ENTRIES_OF_A_PAGE = 200;
const ENTRIES_OF_A_FRAME = 10;

/** @type {WeakMap<object, any>} */
const drawn = new WeakMap();

/**
 * Return the element of a node, the same one each time: Preact then leaves it alone.
 * @param {object} node
 * @param {() => any} make
 */
function once(node, make) {
  let element = drawn.get(node);
  if (!element) drawn.set(node, (element = make()));
  return element;
}

/** The entries of a call or a tool call, a few more in each frame. Of a stored call, a long list is shown in parts. */
/** @param {{place: Root | Tool, whole?: boolean}} props */
export function Entries({ place, whole = true }) {
  void versionOf(place).value;
  const most = useSignal(whole ? Infinity : ENTRIES_OF_A_PAGE);
  const rest = place.entries.length - most.value;
  const drawnNow = useSignal(ENTRIES_OF_A_FRAME);
  const isBehind = drawnNow.value < Math.min(place.entries.length, most.value);
  useEffect(() => {
    if (!isBehind) return undefined;
    const next = requestAnimationFrame(() => (drawnNow.value += ENTRIES_OF_A_FRAME));
    return () => cancelAnimationFrame(next);
  }, [isBehind, drawnNow.value]);
  const entries = place.entries.slice(0, Math.min(drawnNow.value, most.value));
  return html`<div class="entries">
    ${entries.map((entry) =>
      once(entry, () =>
        entry.kind === 'turn'
          ? html`<${TurnCard} key=${entry.key} turn=${entry} />`
          : entry.kind === 'answer' ? html`<p key=${entry.key} class="answered">${harmless(entry.text)}</p>`
          : html`<${RawEntry} key=${entry.key} entry=${entry} />`,
      ),
    )}
    ${rest > 0 &&
    html`<button type="button" class="quiet" onClick=${() => (most.value += ENTRIES_OF_A_PAGE)}>Show ${rest} more steps</button>`}
  </div>`;
}

/** @param {{turn: Turn}} props */
function TurnCard({ turn }) {
  void versionOf(turn).value;
  const took = turn.ended === null || turn.ended === turn.began ? '' : duration((turn.ended - turn.began) / 1000); // times of stored turns are not known
  return html`
    <div class=${`turn-card ${hueOf(turn.agent)}`} aria-busy=${turn.live}>
      <p class="turn-head">
        <span class="speaker"><${Mark} name=${turn.agent} />${harmless(titleOf(turn.agent))}</span>
        ${turn.iteration > 0 && html`<span>turn ${turn.iteration}</span>`}
        ${turn.note && html`<span>${harmless(turn.note)}</span>`}
        ${turn.stopReason && turn.stopReason !== 'endTurn' && turn.stopReason !== 'toolUse' && html`<span>${harmless(stopOf(turn.stopReason))}</span>`}
        <span>${took}</span>
      </p>
      ${turn.text && html`<${Markdown} text=${turn.text} />`}
      ${turn.tools.length > 0 && html`<div class="tools">${turn.tools.map((tool) => once(tool, () => html`<${ToolCard} key=${tool.key} tool=${tool} />`))}</div>`}
    </div>
  `;
}

const STATES = { running: 'starting', completed: 'ok', failed: 'error', unknown: 'unknown' };
const WORDS = { running: 'running', completed: 'completed', failed: 'failed', unknown: 'no result' };

/** @param {{tool: Tool, open?: boolean}} props `open`: its result is shown at once */
export function ToolCard({ tool, open = false }) {
  void versionOf(tool).value;
  const name = harmless(nameOf(tool));
  const args = shown(tool.args);
  const waits = tool.isAsking && tool.state === 'running';
  return html`
    <div class="tool" role="group" aria-label=${name}>
      ${tool.approval && html`<p class="answered">${harmless(tool.approval)}</p>`}
      <p class="tool-head">
        <code>${name}</code>
        <span class=${`badge ${waits ? 'degraded' : STATES[tool.state]}`}>${waits ? 'waiting for you' : WORDS[tool.state]}</span>
        <span>${duration(tool.seconds)}</span>
      </p>
      ${args !== '{}' &&
      html`<details>
        <summary>Arguments <span class="preview">${preview(tool.args)}</span></summary>
        <div class="code"><${Plain} text=${args} label="Arguments" /><${Copy} text=${() => (typeof tool.args === 'string' ? tool.args : JSON.stringify(tool.args, null, 2))} what=${`the arguments of ${name}`} /></div>
      </details>`}
      ${tool.entries.length > 0 && html`<${Entries} place=${tool} />`}
      ${tool.result !== null &&
      html`<details open=${open || tool.state === 'failed'}>
        <summary>Result <span class="preview">${preview(tool.result)}</span></summary>
        <div class="code"><${Plain} text=${tool.result} label="Result" /><${Copy} text=${tool.result} what=${`the result of ${name}`} /></div>
        ${tool.truncated && html`<p class="hint">The gateway has cut this text; the agent has all of it.</p>`}
      </details>`}
    </div>
  `;
}

/** @param {{entry: import('../calls.js').Raw}} props */
function RawEntry({ entry }) {
  return html`
    <details class="raw">
      <summary>Event that the console does not know (${entry.why})</summary>
      <${Plain} text=${cut(shown(entry.event), LONGEST_RAW)} label="Event" />
    </details>
  `;
}

/**
 * Return the begin of a value on one line.
 * @param {unknown} value
 */
function preview(value) {
  const text = typeof value === 'string' ? value.slice(0, 10 * LONGEST_PREVIEW) : JSON.stringify(value).slice(0, 10 * LONGEST_PREVIEW);
  return harmless(cut(text.replace(/\s+/g, ' ').trim(), LONGEST_PREVIEW));
}
