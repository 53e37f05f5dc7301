/** A call, inspected: its ids, a waterfall of turns and tools, the raw events, the request for other clients. */

import { Dialog } from '../dialog.js';
import { answersOf } from '../asked.js';
import { FactList, html, useMemo, useSignal } from '../html.js';
import { download } from '../download.js';
import { snippets } from '../snippets.js';
import { duration, harmless, safeLink, shown } from '../text.js';
import { stopOf, tokensOf } from '../outcome.js';
import { Plain } from './text.js';
import { Waterfall } from './waterfall.js';

const NOT_KEPT = 'The steps of this call are not known to this page: of earlier calls, only messages, answers and tool calls are kept.';
const TIMELESS = 'The times of its steps are not known to this page.';

/**
 * @param {{call: import('../shown_call.js').ShownCall, agent: import('../state.js').Agent, args?: Record<string, any>,
 *   onClose: () => void}} props `args`: none for a call that cannot be repeated elsewhere
 */
export function CallInspector({ call, agent, args, onClose }) {
  const { turn } = call;
  const facts = call.outcome.value?.facts ?? {};
  const known = { Began: new Date(turn.began).toLocaleString(), 'Call id': facts.call_id, Conversation: facts.conversation_id, 'Stop reason': stopOf(facts.stop_reason), Duration: duration(facts.duration_seconds), ...tokens(facts.usage_with_nested ?? facts.usage) };
  const answers = answersOf(turn);
  const whole = () => ({
    agent: { name: agent.name, url: agent.publicUrl, version: agent.version },
    request: { name: 'send_message', arguments: args },
    began: new Date(turn.began).toISOString(),
    state: turn.state,
    error: turn.error || undefined,
    [turn.isTimeless ? 'steps' : 'events']: turn.events,
    events_left_out: turn.leftOut,
    result: turn.result,
  });
  return html`
    <${Dialog} title="Call" onClose=${onClose} wide>
      <${FactList} facts=${Object.entries(known).map(([name, value]) => [name, harmless(value)])} />
      <${TraceLink} url=${call.outcome.value?.traceUrl} />
      ${turn.isTimeless ? html`<p class="hint">${TIMELESS}</p>` : html`<${Waterfall} place=${call.tree.root} none=${hadTurns(call) ? NOT_KEPT : 'The call had no LLM turn.'} />`}
      ${answers.map((text) => html`<p class="answered">${harmless(text)}</p>`)}
      ${args && html`<${CopyRow} agent=${agent} args=${args} />`}
      ${!turn.isTimeless &&
      html`<details>
        <summary>Raw events (${turn.events.length})</summary>
        <${Events} events=${turn.events} />
      </details>`}
      <div class="actions">
        <button type="button" onClick=${() => download(`call-${facts.call_id ?? turn.id}.json`, 'application/json', JSON.stringify(whole(), null, 2))}>Download the call as JSON</button>
        <button type="button" class="primary" onClick=${onClose}>Close</button>
      </div>
    <//>
  `;
}

/** @param {{url: unknown}} props */
function TraceLink({ url }) {
  const link = safeLink(url);
  if (!link || !/^https?:/.test(link.href)) return null;
  return html`<p><a class="outside" href=${link.href} target="_blank" rel="noopener noreferrer">Open the trace</a> <span class="host">(${link.host})</span></p>`;
}

/** @param {Record<string, number> | undefined} usage */
function tokens(usage) {
  const { in: read, out, ...parts } = tokensOf(usage);
  if (!read && !out) return {};
  const some = /** @type {Record<string, number>} */ ({ 'of these from cache': parts.fromCache, 'of these to cache': parts.toCache });
  const shares = Object.entries({ ...some, 'of the output reasoning': parts.reasoning }).filter(([, count]) => count > 0);
  return Object.fromEntries([['Tokens in', read], ['Tokens out', out], ...shares].map(([name, count]) => [name, count.toLocaleString()]));
}

/** @param {import('../shown_call.js').ShownCall} call */
function hadTurns({ outcome: { value } }) {
  return Boolean(value) && (value.facts.iterations !== 0 || tokensOf(value.facts.usage).in > 0);
}

/** @param {{agent: import('../state.js').Agent, args: Record<string, any>}} props */
function CopyRow({ agent, args }) {
  const copied = useSignal('');
  const copy = async (/** @type {string} */ name, /** @type {string} */ text) => {
    try {
      await navigator.clipboard.writeText(text);
      copied.value = `Copied as ${name}.`;
    } catch {
      copied.value = 'The browser does not allow this page to copy.';
    }
  };
  const all = useMemo(() => snippets(agent.publicUrl, args, agent.needsToken), [agent, args]);
  return html`
    <div class="actions">
      ${Object.entries(all).map(([name, text]) => html`<button type="button" class="quiet" onClick=${() => copy(name, text)}>Copy as ${name}</button>`)}
      <span class="hint" role="status">${copied.value}</span>
    </div>
  `;
}

/** @param {{events: import('../conversations.js').Event[]}} props */
function Events({ events }) {
  const text = useMemo(() => events.map(({ at, message }) => `${at} ms  ${JSON.stringify(message)}`).join('\n'), [events]);
  return html`<${Plain} text=${shown(text)} label="Raw events" />`;
}
