/** An ended call of the gateway, inspected: its facts, a waterfall of its tools and nested calls, and the tree of them. */

import { treeOf } from '../call_list.js';
import { Dialog } from '../dialog.js';
import { html, useMemo } from '../html.js';
import { cut, duration, harmless } from '../text.js';
import { Entries } from './activity.js';
import { Waterfall } from './waterfall.js';

const LONGEST_FACT = 200;

/** @param {{call: import('../call_list.js').EndedCall, calls: import('../call_list.js').EndedCall[], onClose: () => void}} props */
export function EndedCall({ call, calls, onClose }) {
  const tree = useMemo(() => treeOf(call, calls), [call]);
  const facts = {
    Agent: call.agent,
    Caller: call.caller,
    Began: new Date(call.startedAt).toLocaleString(),
    'Call id': call.id,
    Outcome: call.outcome,
    'Stop reason': call.stopReason,
    Duration: duration(call.seconds),
    Tokens: call.tokens.toLocaleString(),
  };
  return html`
    <${Dialog} title="Call" onClose=${onClose} wide>
      <dl class="facts">
        ${Object.entries(facts)
          .filter(([, value]) => value !== null && value !== '')
          .map(([name, value]) => html`<div><dt>${name}</dt><dd>${harmless(cut(String(value), LONGEST_FACT))}</dd></div>`)}
      </dl>
      <${Waterfall} place=${tree} none="" />
      <div class="whole-call" role="group" aria-label="Steps"><${Entries} place=${tree} whole=${false} /></div>
      ${Number(call.toolsLeftOut) > 0 && html`<p class="hint">${call.toolsLeftOut} further tool calls are not listed.</p>`}
      <div class="actions"><button type="button" class="primary" onClick=${onClose}>Close</button></div>
    <//>
  `;
}
