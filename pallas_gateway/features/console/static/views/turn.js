/** One turn of a conversation: the message, what the agent does, its questions, and its answer. */

import { html, useEffect, useMemo, useSignal } from '../html.js';
import { answersOf } from '../asked.js';
import { apart } from '../attachments.js';
import { Mark, hueOf } from '../marks.js';
import { figuresOf, partial, stopOf } from '../outcome.js';
import { isLost } from '../state.js';
import { costText, cut, duration, harmless } from '../text.js';
import { Entries } from './activity.js';
import { Files, Thumbnails } from './composer.js';
import { Copy } from './copy.js';
import { FeedbackRow } from './feedback.js';
import { CallInspector } from './inspect.js';
import { QuestionForm } from './question.js';
import { Markdown } from './text.js';

const LONGEST_NOW = 160;
const FOUND = { role: 'group', tabindex: -1 };
const FOUND_MESSAGE = { ...FOUND, class: 'by-you found', 'aria-label': 'Found message' };
const FOUND_ANSWER = { ...FOUND, class: 'reply found', 'aria-label': 'Found answer' };

/**
 * @typedef {import('../shown_call.js').ShownCall} ShownCall
 * @typedef {{call: ShownCall, agent: import('../state.js').Agent, args?: () => Record<string, any>,
 *   onEdit?: (() => void) | null, onRetry: (() => void) | null, onRate?: import('./feedback.js').Rate, isRecent: boolean,
 *   found?: '' | 'message' | 'answer'}} Props `isRecent`: one of the last turns; `found`: the part in which a search has found a text
 */

/** @param {Props} props */
export function TurnView({ call, agent, args, onEdit, onRetry, onRate, isRecent, found = '' }) {
  const { turn } = call;
  const { message, files } = useMemo(() => apart(turn.message), [turn.message]);
  const inspected = useSignal(false);
  const state = call.state.value;
  return html`
    <article class="turn">
      <div class="said">
        ${onEdit !== undefined && html`<button type="button" class="quiet small" disabled=${!onEdit} onClick=${onEdit}>Edit</button>`}
        <div class="by-you" ...${found === 'message' && FOUND_MESSAGE}>
          <h2 class="unseen">You</h2>
          ${message && html`<p class="message">${harmless(message)}</p>`}
          <${Files} files=${files} />
          <${Thumbnails} images=${turn.images} />
        </div>
      </div>
      <div class="reply" ...${found === 'answer' && FOUND_ANSWER}>
        <h2 class=${`speaker ${hueOf(agent.name)}`}><${Mark} agent=${agent} />${agent.title}</h2>
        <${Steps} call=${call} isRecent=${isRecent} />
        ${call.questions.value.map((/** @type {any} */ question) => html`<${QuestionForm} key=${question.id} question=${question} answer=${(/** @type {any} */ answer) => call.answer(question, answer)} />`)}
        ${state === 'running' ? html`<${Pulse} call=${call} />` : html`<${Outcome} call=${call} />`}
        ${state !== 'running' &&
        html`<div class="actions">
          <${Facts} call=${call} />
          ${state === 'complete' && call.outcome.value?.text && html`<${Copy} text=${call.outcome.value.text} what="the answer" />`}
          ${onRetry && html`<button type="button" class="quiet small" onClick=${onRetry}>Retry</button>`}
          <button type="button" class="quiet small" onClick=${() => (inspected.value = true)}>Inspect</button>
          ${state === 'complete' && onRate && html`<${FeedbackRow} turn=${turn} onRate=${onRate} />`}
        </div>`}
      </div>
      ${inspected.value && html`<${CallInspector} call=${call} agent=${agent} args=${args?.()} onClose=${() => (inspected.value = false)} />`}
    </article>
  `;
}

/** @param {{call: ShownCall, isRecent: boolean}} props */
function Steps({ call, isRecent }) {
  if (call.isLive) return html`<${Entries} key=${call.beginning.value} place=${call.tree.root} />`;
  return html`<${StoredSteps} call=${call} isRecent=${isRecent} />`;
}

/** What a call did that was read from the store: its steps stay closed until they are looked at, but for those of the last calls on the gateway. */
/** @param {{call: ShownCall, isRecent: boolean}} props */
function StoredSteps({ call, isRecent }) {
  const { isTimeless = false } = call.turn;
  const opened = useSignal(call.turn.state !== 'complete' || (isTimeless && isRecent));
  const count = call.turn.events.filter(({ message }) => message?.params?.data?.kind === 'assistant_chunk').length;
  const answers = answersOf(call.turn);
  if (count <= 1 && !isTimeless && call.turn.state === 'complete' && answers.length === 0) return null;
  if (call.turn.events.length === 0) return null;
  return html`
    <details class="steps" open=${opened.value} onToggle=${(/** @type {any} */ event) => (opened.value = event.target.open)}>
      <summary>${count === 0 ? 'Unfinished LLM turn' : `${count} LLM ${count === 1 ? 'turn' : 'turns'}`}${isTimeless && ' with tools'}</summary>
      ${opened.value && html`<${Entries} place=${call.tree.root} whole=${false} />`}
      ${call.turn.leftOut > 0 && html`<p class="hint">${call.turn.leftOut} later events were not kept.</p>`}
    </details>
    ${!opened.value && answers.map((text) => html`<p class="answered">${harmless(text)}</p>`)}
  `;
}

/** The state of a running call in words; the seconds since its last event. */
/** @param {{call: ShownCall}} props */
function Pulse({ call }) {
  const now = useSignal(performance.now());
  useEffect(() => {
    const timer = setInterval(() => (now.value = performance.now()), 1000);
    return () => clearInterval(timer);
  }, []);
  const asks = call.questions.value.some((/** @type {any} */ question) => !question.sent.value);
  const seconds = Math.max(0, Math.round((now.value - call.lastEvent.value) / 1000));
  const what = asks ? 'Waits for your answer' : cut(harmless(call.now.value), LONGEST_NOW) || 'Waits for the agent';
  return html`
    ${isLost.value || call.loss.value
      ? html`<p class="notice degraded" role="status">${isLost.value ? '' : harmless(call.loss.value)} The connection to this call is lost; the call may still run. The page looks for it.</p>`
      : html`<p class="pulse"><span class="dot" aria-hidden="true"></span><span>${what}</span><span class="since">last event ${seconds} s ago</span></p>`}
    ${call.problem.value && html`<p class="notice error" role="alert">${harmless(call.problem.value)}</p>`}
  `;
}

/** @param {{call: ShownCall}} props */
function Outcome({ call }) {
  const state = call.state.value;
  const outcome = call.outcome.value;
  if (state === 'stopped') return html`<p class="notice degraded">${harmless(call.error.value) || 'Stopped.'} The agent’s work on this message has ended, and its answer is partial.</p>`;
  if (state === 'interrupted') return html`<p class="notice degraded">Interrupted: the page was closed or reloaded, which ended the call. Its answer is partial. Retry sends the message again.</p>`;
  if (state === 'elsewhere') return html`<p class="notice degraded" role="status">This call runs in another tab. Its answer appears here when it has ended.</p>`;
  if (state === 'error') return html`<p class="notice error" role="alert">${harmless(call.error.value)}</p>`;
  if (!outcome) return null;
  const why = partial(outcome);
  return html`
    ${!isLastTurn(call, outcome.text) && html`<div class="turn-card answer"><${Markdown} text=${outcome.text} /></div>`}
    <${Thumbnails} images=${outcome.images.map((/** @type {any} */ image) => ({ data: image.data, mime_type: image.mimeType }))} />
    ${why && html`<p class="notice degraded">Partial answer: ${why}.</p>`}
    ${outcome.notes && html`<p class="hint">${notesOf(outcome.notes)}</p>`}
  `;
}

/**
 * True if the answer is the last turn's text, which is shown already.
 * @param {ShownCall} call
 * @param {string} text
 */
function isLastTurn(call, text) {
  if (!call.isLive) return false;
  const last = call.tree.root.entries.findLast((entry) => entry.kind === 'turn');
  return last?.kind === 'turn' && last.tools.length === 0 && last.text.trim() === text.trim();
}

/** @param {Record<string, any>} notes */
function notesOf(notes) {
  const ignored = Array.isArray(notes.ignored) ? notes.ignored.map(String) : [];
  const changed = Object.entries(notes.changed ?? {}).map(([name, value]) => `${name}: ${JSON.stringify(value)}`);
  const parts = [ignored.length && `without effect: ${ignored.join(', ')}`, changed.length && `changed: ${changed.join(', ')}`];
  return harmless(`Parameters ${parts.filter(Boolean).join('; ')}`);
}

/** Tokens, LLM turns, stop reason and seconds of a call. */
/** @param {{call: ShownCall}} props */
function Facts({ call }) {
  const facts = call.outcome.value?.facts ?? {};
  const { seconds, turns, tokens, cost } = figuresOf(facts);
  const parts = [
    turns && `${turns} LLM ${turns === 1 ? 'turn' : 'turns'}`,
    tokens,
    cost !== null && `cost ${costText(cost)}`,
    facts.stop_reason !== 'endTurn' && harmless(stopOf(facts.stop_reason)),
    duration(seconds),
  ].filter(Boolean);
  return parts.length ? html`<span class="call-facts">${parts.join(' · ')}</span>` : null;
}
