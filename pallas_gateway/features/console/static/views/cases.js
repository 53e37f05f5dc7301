/** The export of rated answers as cases. */

import { store } from '../browser_keeper.js';
import { asCases, casesOf } from '../cases.js';
import { Dialog } from '../dialog.js';
import { download } from '../download.js';
import { html, useSignal } from '../html.js';
import { agentKey } from '../session.js';
import { agents, token } from '../state.js';
import { harmless } from '../text.js';
import { listRated, readTurns } from '../threads.js';

/** @typedef {import('../state.js').Agent} Agent */

/** @param {{agent: Agent, onClose: () => void}} props */
export function Cases({ agent, onClose }) {
  const told = useSignal('');
  const problem = useSignal('');
  const busy = useSignal(false);
  const run = async (/** @type {Agent | null} */ only) => {
    [busy.value, told.value, problem.value] = [true, 'Reading the rated answers…', ''];
    try {
      const cases = await ratedCases(only);
      if (cases.length) download(`cases-${only?.name ?? 'all'}.json`, 'application/json', asCases(cases));
      told.value = cases.length ? `${cases.length} ${cases.length === 1 ? 'case' : 'cases'} exported.` : 'No answer is rated yet.';
    } catch (error) {
      [told.value, problem.value] = ['', `The rated answers cannot be read: ${/** @type {Error} */ (error).message}`];
    }
    busy.value = false;
  };
  return html`
    <${Dialog} title="Rated answers as cases (JSON)" onClose=${onClose}>
      <p>One file for evaluations: of each rated answer the message, the messages before it, images, parameters, tools, the answer, the rating and the note.</p>
      ${problem.value && html`<p class="notice error" role="alert">${harmless(problem.value)}</p>`}
      <p class="hint" role="status">${told.value}</p>
      <div class="actions">
        <button type="button" class="primary" disabled=${busy.value} onClick=${() => run(agent)}>Export those of ${harmless(agent.title)}</button>
        <button type="button" disabled=${busy.value} onClick=${() => run(null)}>Export those of all agents</button>
        <button type="button" class="quiet" onClick=${onClose}>Close</button>
      </div>
    <//>
  `;
}

/**
 * Return the cases of an agent, or of all: those of the gateway's conversations and of the browser's.
 * @param {Agent | null} agent
 */
async function ratedCases(agent) {
  const all = agents.value ?? [];
  const isKept = (/** @type {Agent} */ { hasThreads, registry }) => hasThreads && registry === '';
  const found = [];
  for (const thread of (agent ? [agent] : all).some(isKept) ? await listRated(token.value, agent?.name) : []) {
    const turns = await readTurns({ id: thread.id, agent: thread.agent }, token.value);
    const known = all.find(({ name, registry }) => name === thread.agent && registry === '');
    found.push(...casesOf({ id: thread.id, turns }, { name: thread.agent, url: known?.publicUrl ?? '' }));
  }
  for (const conversation of await store.list(agent ? agentKey(agent) : undefined)) {
    const known = all.find((one) => agentKey(one) === conversation.agent);
    const url = known?.publicUrl ?? conversation.agent;
    found.push(...casesOf(conversation, { name: known?.name ?? (/\/agents\/([^/]+)\/mcp$/.exec(url)?.[1] || url), url }));
  }
  return found;
}
