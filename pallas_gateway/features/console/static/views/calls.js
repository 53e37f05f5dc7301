/** The calls of the gateway: those that run, which one may end, and those that ended last. */

import { endCall, endedCalls, nested, runningCalls, stateOf, treeOf } from '../call_list.js';
import { Dialog } from '../dialog.js';
import { Card, FactList, Table, html, useEffect, useMemo, useSignal } from '../html.js';
import { Mark, hueOf } from '../marks.js';
import { stopOf } from '../outcome.js';
import { poll, sentence } from '../polling.js';
import { caller, isLost, token } from '../state.js';
import { cut, duration, harmless, shortName } from '../text.js';
import { Entries } from './activity.js';
import { Waterfall } from './waterfall.js';

const LONGEST_FACT = 200;
const EVERY_MS = 2000;
const ENDED_MS = 10_000; // ended calls are read less often, unless one of the running calls is gone
const MOST_ENDED = 50;
/** @type {Record<string, string>} */
const APIS = { mcp: 'MCP', openai: 'OpenAI', threads: 'Threads', console: 'Console', try: 'Try' };

/**
 * @typedef {import('../call_list.js').Call} Call
 * @typedef {import('../call_list.js').EndedCall} Ended
 * @typedef {{running: Call[], ended: {calls: Ended[], missing: unknown[]}, endedAt: number, missing: unknown[],
 *   tasksMissing: boolean}} Known
 */

export function Calls() {
  const known = useSignal(/** @type {Known | null} */ (null));
  const problem = useSignal('');
  const asked = useSignal(/** @type {Call | null} */ (null));
  const inspected = useSignal(/** @type {Ended | null} */ (null));
  const said = useSignal({ text: '', isError: false });
  const ends = useSignal(0);

  useEffect(() => {
    known.value = null;
    said.value = { text: '', isError: false };
  }, [caller.value]);
  useEffect(() => {
    const leaving = new AbortController();
    const read = async () => {
      const { calls, missing, tasksMissing } = await runningCalls(token.value, leaving.signal);
      const ids = new Set(calls.map(({ id }) => id));
      const before = known.peek();
      const isRecent = before && Date.now() - before.endedAt < ENDED_MS && before.running.every(({ id }) => ids.has(id));
      const ended = isRecent ? before.ended : await endedCalls(MOST_ENDED, token.value, leaving.signal);
      known.value = { running: calls, ended, endedAt: isRecent ? before.endedAt : Date.now(), missing: [...new Set([...missing, ...ended.missing])], tasksMissing };
      problem.value = '';
    };
    poll(read, { milliseconds: EVERY_MS, onRefused: (why) => (problem.value = `The calls are not shown: ${why}`), gone: leaving.signal });
    return () => leaving.abort();
  }, [caller.value, ends.value]);
  const end = async (/** @type {Call} */ call) => {
    asked.value = null;
    const agent = shortName(call.agent);
    try {
      await endCall(call.id, token.value);
      said.value = { text: `The call of ${agent} was ended.`, isError: false };
    } catch (error) {
      said.value = { text: `The call of ${agent} was not ended: ${sentence(error)}`, isError: true };
    }
    ends.value += 1; // the list is read again at once
    document.getElementById('main')?.focus({ preventScroll: true }); // the button may be gone with its call
  };
  return html`
    <div class="heading"><h1>Calls</h1></div>
    <div class="sections">
      <p class=${said.value.text ? `notice ${said.value.isError ? 'error' : ''}` : 'unseen'} role="status">${said.value.text}</p>
      ${problem.value ? html`<p class="notice error" role="alert">${problem.value}</p>` : html`<${Lists} known=${known.value} asked=${asked} inspected=${inspected} />`}
    </div>
    ${asked.value && html`<${Confirmation} call=${asked.value} onEnd=${end} onClose=${() => (asked.value = null)} />`}
    ${inspected.value && html`<${EndedCall} call=${inspected.value} calls=${known.value?.ended.calls ?? []} onClose=${() => (inspected.value = null)} />`}
  `;
}

/** @param {{known: Known | null, asked: any, inspected: any}} props */
function Lists({ known, asked, inspected }) {
  if (isLost.value) return html`<p class="empty">Not known now.</p>`;
  if (known === null) return html`<p class="empty" role="status">Loading the calls…</p>`;
  return html`
    ${known.missing.length > 0 && html`<p class="notice degraded" role="status">These workers did not answer, and their calls are missing: ${harmless(cut(known.missing.join(', '), 200))}.</p>`}
    ${known.tasksMissing && html`<p class="notice degraded" role="status">The database cannot be used: long calls that no worker runs are missing.</p>`}
    <${Card} id="calls-running" title="Running calls">
      ${known.running.length === 0 ? html`<p class="hint">No call is running.</p>` : html`<${Running} calls=${known.running} asked=${asked} />`}
    <//>
    <${Card} id="calls-ended" title="Ended calls">
      ${known.ended.calls.length === 0 ? html`<p class="hint">No call has ended.</p>` : html`<${Ended} calls=${known.ended.calls} inspected=${inspected} />`}
    <//>
  `;
}

/** @param {{calls: Call[], asked: any}} props */
function Running({ calls, asked }) {
  return html`<${CallTable} calls=${calls} by="calls-running" columns=${['Step', 'Time', 'Tokens', 'Worker']}>
    ${(/** @type {Call} */ call) => html`
      <td>${shortName(call.step)}${stateOf(call) && html` <span class="badge degraded">${shortName(stateOf(call))}</span>`}</td>
      <td class="number">${duration(call.seconds)}</td>
      <td class="number">${call.tokens.toLocaleString()}</td>
      <td class="number">${call.worker ?? ''}</td>
      <td class="act"><button type="button" onClick=${() => (asked.value = call)}>End</button></td>
    `}
  <//>`;
}

/** @param {{calls: Ended[], inspected: any}} props */
function Ended({ calls, inspected }) {
  return html`<${CallTable} calls=${calls} by="calls-ended" columns=${['Outcome', 'Ended', 'Time', 'Tokens']}>
    ${(/** @type {Ended} */ call) => html`
      <td><span class=${`badge ${call.outcome === 'ok' ? 'ok' : 'error'}`}>${shortName(call.outcome)}</span>${call.stopReason !== 'endTurn' && html` ${shortName(stopOf(call.stopReason))}`}</td>
      <td>${new Date(call.endedAt).toLocaleTimeString()}</td>
      <td class="number">${duration(call.seconds)}</td>
      <td class="number">${call.tokens.toLocaleString()}</td>
      <td class="act"><button type="button" class="quiet" onClick=${() => (inspected.value = call)}>Inspect</button></td>
    `}
  <//>`;
}

/** @param {{calls: Call[], by: string, columns: string[], children: (call: any) => any}} props `children`: the cells of `columns`, and of the button */
function CallTable({ calls, by, columns, children: cells }) {
  return html`<${Table} by=${by} columns=${['Agent', 'Caller', 'API', ...columns, '']}>
    ${nested(calls).map(({ call, depth }) => html`
      <tr key=${call.id}>
        <th scope="row" style=${{ paddingLeft: `${Math.min(depth, 12)}em` }}>
          ${depth > 0 && html`<span class="unseen">nested call of </span>`}<span class=${`speaker ${hueOf(call.agent)}`}><${Mark} name=${call.agent} />${shortName(call.agent)}</span>
        </th>
        <td>${shortName(call.caller)}</td>
        <td>${APIS[call.api] ?? shortName(call.api)}</td>
        ${cells(call)}
      </tr>
    `)}
  <//>`;
}

/** @param {{call: Call, onEnd: (call: Call) => void, onClose: () => void}} props */
function Confirmation({ call, onEnd, onClose }) {
  return html`
    <${Dialog} title="End the call?" onClose=${onClose}>
      <p>The call of ${shortName(call.agent)} by ${shortName(call.caller)} ends without an answer, and its nested calls with it. Its client reads who ended it.</p>
      <div class="actions"><button type="button" class="primary" onClick=${() => onEnd(call)}>End the call</button><button type="button" onClick=${onClose}>Cancel</button></div>
    <//>
  `;
}

/** @param {{call: import('../call_list.js').EndedCall, calls: import('../call_list.js').EndedCall[], onClose: () => void}} props */
function EndedCall({ call, calls, onClose }) {
  const tree = useMemo(() => treeOf(call, calls), [call]);
  const facts = {
    Agent: call.agent,
    Caller: call.caller,
    Began: new Date(call.startedAt).toLocaleString(),
    'Call id': call.id,
    Outcome: call.outcome,
    'Stop reason': stopOf(call.stopReason),
    Duration: duration(call.seconds),
    Tokens: call.tokens.toLocaleString(),
  };
  return html`
    <${Dialog} title="Call" onClose=${onClose} wide>
      <${FactList} facts=${Object.entries(facts).map(([name, value]) => [name, harmless(cut(value, LONGEST_FACT))])} />
      <${Waterfall} place=${tree} none="" />
      <div class="whole-call" role="group" aria-label="Steps"><${Entries} place=${tree} whole=${false} /></div>
      ${Number(call.toolsLeftOut) > 0 && html`<p class="hint">${call.toolsLeftOut} further tool calls are not listed.</p>`}
      <div class="actions"><button type="button" class="primary" onClick=${onClose}>Close</button></div>
    <//>
  `;
}
