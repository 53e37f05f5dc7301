/** One agent: its state, its instruction, its downstreams with their tools, and its own tools as clients see them. */

import { deleteAgent, readAgent, readRatings, untilListed } from '../definitions.js';
import { Dialog } from '../dialog.js';
import { Card, FactList, html, useEffect, useSignal } from '../html.js';
import { Mark } from '../marks.js';
import { McpError, getJson, isUnreachable, request } from '../mcp.js';
import { address } from '../route.js';
import { caller, checkedAt, downstreamsOf, health, isLost, reasonOf, statusOf, tokenFor } from '../state.js';
import { cut, harmless, shown } from '../text.js';
import { Badge, DownstreamTable, Facts } from './agents.js';
import { Copy } from './copy.js';
import { HandOver } from './hand_over.js';
import { RunTool } from './run_tool.js';
import { Plain } from './text.js';
import { AgentWeek } from './week.js';

const SOON_MS = 1000;
const AGAIN_MS = 5000; // once a reason is known, or the version has not run for a while
const SOON_ATTEMPTS = 10;
const AGAIN_SECONDS = 3;
const NO_GRANT = 'It is shown to callers with the grant view:instructions.';
const LONGEST_NOTE = 120;
const JUST_NOW_MS = 60_000;
const LATER = 'Known when the agent has started.';

/** @param {{agent: import('../state.js').Agent}} props */
export function Details({ agent }) {
  const tools = useLoaded(agent, async (token) => (await request(agent.url, 'tools/list', {}, { token })).tools);
  const inside = useLoaded(agent, (token) =>
    getJson(`${agent.registry || '..'}/api/agents/${encodeURIComponent(agent.name)}`, { token }),
  );
  const known = health.value.get(agent.id)?.answer;
  const rows = downstreamsOf(agent.id);
  const reason = reasonOf(agent.id);
  const rights = agent.registry ? null : inside.value; // an agent of another gateway is changed there
  return html`
    <div class="heading">
      <${Mark} agent=${agent} large />
      <h1>${agent.title} <${Badge} id=${agent.id} /></h1>
      <a class="button primary" href=${address('agents', agent.id)}>Chat</a>
      ${rights?.may_edit && html`<a class="button" href=${address('agents', agent.id, 'edit')}>Edit</a>`}
    </div>
    <div class="sections">
      <section class="card" aria-label="Agent">
        <p>${agent.description}</p>
        ${reason && html`<p class=${`notice ${statusOf(agent.id)}`}>${reason}</p>`}
        <${Facts} agent=${agent} known=${known} />
        <div class="copied">
          <code>${agent.publicUrl}</code>
          <${Copy} text=${agent.publicUrl} what="the MCP URL" small=${false} />
        </div>
      </section>
      ${rights?.may_edit && html`<${AgentWeek} agent=${agent} />`}
      ${rights?.may_edit && html`<${Ratings} agent=${agent} />`}
      ${rights?.source && html`<${DefinitionCard} agent=${agent} rights=${rights} />`}
      <${Card} id="details-instruction" title="Instruction">
        <${Loaded} what=${inside} name="the instruction">
          ${(/** @type {any} */ found) => html`<${Instruction} found=${found} />`}
        <//>
      <//>
      <${Card} id="details-downstreams" title="Servers and tools">
        ${rows.length > 0 && html`<${DownstreamTable} rows=${rows} />`}
        ${inside.value && html`<${Servers} servers=${inside.value.servers} agent=${inside.value.may_run_tools ? agent : null} />`}
      <//>
      <${Card} id="details-tools" title="Tools, as clients see them">
        <${Loaded} what=${tools} name="the tools">
          ${(/** @type {any} */ found) => html`<${Tools} tools=${found} agent=${inside.value?.may_run === false ? null : agent} />`}
        <//>
      <//>
    </div>
  `;
}

/**
 * Request something of an agent now, once more a little later, and after each round of health.
 * @param {import('../state.js').Agent} agent
 * @param {(token: string) => Promise<any>} load
 * @returns {{value: any, error: string}}
 */
function useLoaded(agent, load) {
  const loaded = useSignal({ value: /** @type {any} */ (null), error: '' });
  useEffect(() => {
    let isGone = false;
    const attempt = async () => {
      try {
        const value = await load(tokenFor(agent));
        if (!isGone) loaded.value = { value, error: '' };
      } catch (failure) {
        if (!isGone && !(isUnreachable(failure) && loaded.value.value)) loaded.value = { value: null, error: /** @type {Error} */ (failure).message };
      }
    };
    attempt();
    const timer = setTimeout(attempt, AGAIN_SECONDS * 1000); // the gateway requests a listing that it does not have
    return () => {
      isGone = true;
      clearTimeout(timer);
    };
  }, [agent.id, checkedAt.value]);
  return loaded.value;
}

/** @param {{what: {value: any, error: string}, name: string, children: (found: any) => any}} props */
function Loaded({ what, name, children }) {
  if (what.error && isLost.value) return html`<p class="hint">Not known now.</p>`;
  if (what.error) return html`<p class="notice error" role="alert">${harmless(what.error)}</p>`;
  return what.value === null ? html`<p role="status">Loading ${name}…</p>` : children(what.value);
}

/** @param {{found: any}} props */
function Instruction({ found }) {
  if (!('instruction' in found)) return html`<p class="hint">${NO_GRANT}</p>`;
  if (found.instruction === null) return html`<p class="hint">${LATER}</p>`;
  return html`<${Plain} text=${String(found.instruction)} label="Instruction" />`;
}

/** @param {{servers: any, agent: import('../state.js').Agent | null}} props `agent`: whose tools the caller may run */
function Servers({ servers, agent }) {
  if (!Array.isArray(servers)) return html`<p class="hint">${LATER}</p>`;
  if (servers.length === 0) return html`<p class="hint">This agent uses no server.</p>`;
  return servers.map(
    ({ name, tools, reason }) => html`
      <section class="server" key=${name} aria-label=${`Tools of ${harmless(name)}`}>
        <h3>${harmless(name)}</h3>
        ${Array.isArray(tools) ? html`<${Tools} tools=${tools} agent=${agent} server=${name} />` : html`<p class="hint">Its tools are not shown. ${harmless(reason)}</p>`}
      </section>
    `,
  );
}

/** @param {{tools: any, agent: import('../state.js').Agent | null, server?: string | null}} props */
function Tools({ tools, agent, server = null }) {
  if (!Array.isArray(tools) || tools.length === 0) return html`<p class="hint">No tools.</p>`;
  return html`<div class="tool-list">${tools.map((tool) => html`<${Tool} key=${tool.name} tool=${tool} agent=${agent} server=${server} />`)}</div>`;
}

/** @param {{tool: any, agent: import('../state.js').Agent | null, server: string | null}} props */
function Tool({ tool, agent, server }) {
  const opened = useSignal(false);
  const parameters = Object.keys(tool.inputSchema?.properties ?? {}).join(', ');
  return html`
    <details onToggle=${(/** @type {any} */ event) => (opened.value = event.target.open)}>
      <summary><code>${harmless(tool.name)}</code> <span class="hint">${harmless(parameters)}</span></summary>
      ${tool.description && html`<p class="described">${harmless(tool.description)}</p>`}
      ${opened.value && agent && html`<${RunTool} agent=${agent} server=${server} tool=${tool} />`}
      ${opened.value && html`<${Plain} text=${shown(tool.inputSchema)} label=${`Input schema of ${harmless(tool.name)}`} />`}
    </details>
  `;
}

/** How callers have rated the agent, to its owner and editors. */
/** @param {{agent: import('../state.js').Agent}} props */
function Ratings({ agent }) {
  const loaded = useLoaded(agent, () => readRatings(agent.name));
  return html`
    <${Card} id="details-ratings" title="Ratings">
      <${Loaded} what=${loaded} name="the ratings">
        ${(/** @type {Awaited<ReturnType<typeof readRatings>>} */ { good, bad, notes }) => html`
          <p>${good + bad === 0 ? 'Nobody has rated an answer in a conversation on the gateway.' : `${good} good, ${bad} bad ${good + bad === 1 ? 'answer' : 'answers'}, as people rated them.`}</p>
          ${notes.map((/** @type {any} */ one) => html`<${Note} key=${one.ratedAt} note=${one} />`)}
        `}
      <//>
    <//>
  `;
}

/** @param {{note: any}} props a note whose writer lets the owner read it, with the message and the answer */
function Note({ note: { rating, note, ratedAt, question, answer } }) {
  return html`
    <details>
      <summary><span class=${`badge ${rating === 'good' ? 'ok' : 'error'}`}>${rating === 'good' ? 'good' : 'bad'}</span> ${harmless(cut(note || question, LONGEST_NOTE))} <span class="hint">${new Date(ratedAt).toLocaleDateString()}</span></summary>
      ${note && html`<p class="described">${harmless(note)}</p>`}
      <${Plain} text=${String(question)} label="Message" />
      <${Plain} text=${String(answer)} label="Answer" />
    </details>
  `;
}

/**
 * @typedef {{may_edit: boolean, may_delete: boolean, may_copy: boolean, may_hand_over: boolean, may_delete_threads: boolean, source: string}} Rights
 */

/** @param {{agent: import('../state.js').Agent, rights: Rights}} props */
function DefinitionCard({ agent, rights }) {
  const isStored = rights.source === 'database';
  const { document, problem } = useDefinition(agent.name, isStored);
  const asked = useSignal('');
  const close = () => (asked.value = '');
  const { name } = agent;
  return html`
    <${Card} id="details-definition" title="Definition">
      ${!isStored && html`<p class="hint">It is defined in agents.yaml, and is changed there.</p>`}
      ${problem && html`<p class="notice error" role="alert">${harmless(problem)}</p>`}
      ${document && html`<${Running} document=${document} />`}
      ${document && html`<${DefinitionFacts} document=${document} />`}
      <div class="actions">
        ${isStored && html`<a class="button" href=${address('agents', name, 'versions')}>Versions</a>`}
        ${rights.may_copy && html`<a class="button" href=${address('new-agent', name)}>Make a copy</a>`}
        ${rights.may_hand_over && document && html`<button type="button" class="quiet" onClick=${() => (asked.value = 'hand over')}>Hand over</button>`}
        ${rights.may_delete && document && html`<button type="button" class="quiet" onClick=${() => (asked.value = 'delete')}>Delete</button>`}
      </div>
      ${asked.value === 'hand over' && html`<${HandOver} agent=${agent} owner=${String(document?.owner ?? '')} onClose=${close} />`}
      ${asked.value === 'delete' && html`<${Delete} agent=${agent} rights=${rights} onClose=${close} />`}
    <//>
  `;
}

/**
 * Read the definition of a stored agent: soon again until its version runs, later while it does not, and after each round of health.
 * @param {string} name
 * @param {boolean} isStored
 * @returns {{document: any, problem: string}}
 */
function useDefinition(name, isStored) {
  const read = useSignal({ document: /** @type {any} */ (null), problem: '' });
  useEffect(() => {
    if (!isStored) return undefined;
    let isGone = false;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    let timer;
    const attempt = async (/** @type {number} */ count) => {
      try {
        const { document } = await readAgent(name);
        if (isGone) return;
        read.value = { document, problem: '' };
        const isSoon = !document.reason && count < SOON_ATTEMPTS;
        if (document.runningVersion !== document.version) timer = setTimeout(() => attempt(count + 1), isSoon ? SOON_MS : AGAIN_MS);
      } catch (error) {
        if (!isGone) read.value = { document: null, problem: /** @type {Error} */ (error).message };
      }
    };
    attempt(1);
    return () => {
      isGone = true;
      clearTimeout(timer);
    };
  }, [name, isStored, caller.value, checkedAt.value]);
  return read.value;
}

/** Which version runs, and why it is not the latest one. */
/** @param {{document: any}} props */
function Running({ document: { version, runningVersion, reason, updatedAt } }) {
  const isNew = Date.now() - Date.parse(updatedAt) < JUST_NOW_MS;
  if (runningVersion === version) return html`<p class="notice" role="status">${isNew && 'Saved. '}Version ${version} runs.</p>`;
  const now = runningVersion ? `Version ${runningVersion} still runs` : 'No version runs';
  if (!reason) return html`<p class="notice" role="status">Version ${version} is saved and is being started. ${now}.</p>`;
  return html`<p class="notice error" role="status">Version ${version} is saved and does not start. ${now}. ${harmless(reason)}</p>`;
}

/** @param {{document: any}} props */
function DefinitionFacts({ document }) {
  const time = (/** @type {unknown} */ text) => (typeof text === 'string' ? new Date(text).toLocaleString() : '');
  const facts = [['Owner', document.owner], ['Version', document.version], ['Created', time(document.createdAt)], ['Changed', time(document.updatedAt)]];
  return html`<${FactList} facts=${facts.map(([label, value]) => [label, harmless(value)])} />`;
}

/** @param {{agent: import('../state.js').Agent, rights: Rights, onClose: () => void}} props */
function Delete({ agent: { name, title }, rights, onClose }) {
  const withThreads = useSignal(false);
  const isBusy = useSignal(false);
  const problem = useSignal('');
  const remove = async () => {
    isBusy.value = true;
    problem.value = '';
    try {
      const { etag } = await readAgent(name); // of now: the question is about the agent, not about a version
      await deleteAgent(name, etag, withThreads.value);
    } catch (error) {
      isBusy.value = false;
      const isGone = error instanceof McpError && error.status === 404;
      if (!isGone) return (problem.value = /** @type {Error} */ (error).message);
    }
    location.hash = address('agents');
    await untilListed(name, false);
    return undefined;
  };
  const choice = (/** @type {boolean} */ value, /** @type {string} */ label) => html`
    <label class="check"><input type="radio" name="threads" checked=${withThreads.value === value} onChange=${() => (withThreads.value = value)} /><span>${label}</span></label>
  `;
  return html`
    <${Dialog} title=${`Delete ${title}?`} onClose=${onClose}>
      <div class="sections">
        <p>New calls are refused at once; running calls end as they began. An agent that gets the name later is another one.</p>
        ${rights.may_delete_threads
          ? html`<fieldset class="field"><legend>Its conversations on the gateway</legend>${choice(false, 'Keep them, for their owners to read')}${choice(true, 'Delete those of all callers as well')}</fieldset>`
          : html`<p class="hint">Its conversations on the gateway stay readable for their owners.</p>`}
        ${problem.value && html`<p class="notice error" role="alert">${harmless(problem.value)}</p>`}
        <div class="actions">
          <button type="button" class="primary" disabled=${isBusy.value} onClick=${remove}>Delete</button>
          <button type="button" onClick=${onClose}>Cancel</button>
        </div>
      </div>
    <//>
  `;
}
