/** One agent: its state, its instruction, its downstreams with their tools, and its own tools as clients see them. */

import { html, useEffect, useSignal } from '../html.js';
import { Mark } from '../marks.js';
import { getJson, isUnreachable, request } from '../mcp.js';
import { address } from '../route.js';
import { checkedAt, downstreamsOf, health, isLost, reasonOf, statusOf, tokenFor } from '../state.js';
import { harmless, shown } from '../text.js';
import { Badge, DownstreamTable, Facts } from './agents.js';
import { Copy } from './copy.js';
import { DefinitionCard } from './definition_card.js';
import { RunTool } from './run_tool.js';
import { Plain } from './text.js';

const AGAIN_SECONDS = 3;
const NO_GRANT = 'It is shown to callers with the grant view:instructions.';
const LATER = 'Known when the agent has started.';

/** @param {{agent: import('../state.js').Agent}} props */
export function Details({ agent }) {
  const tools = useLoaded(agent, async (token) => (await request(agent.url, 'tools/list', {}, { token })).tools);
  const inside = useLoaded(agent, (token) =>
    getJson(`${agent.registry || '..'}/api/agents/${encodeURIComponent(agent.name)}`, { token }),
  );
  const known = health.value[agent.id]?.answer;
  const rows = downstreamsOf(agent.id);
  const reason = reasonOf(agent.id);
  return html`
    <div class="heading">
      <${Mark} agent=${agent} large />
      <h1>${agent.title} <${Badge} id=${agent.id} /></h1>
      ${inside.value?.may_edit && html`<a class="button" href=${address('agents', agent.id, 'edit')}>Edit</a>`}
      <a class="button" href=${address('agents', agent.id)}>Chat</a>
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
      ${inside.value?.source && !agent.registry && html`<${DefinitionCard} agent=${agent} rights=${inside.value} />`}
      <section class="card" aria-labelledby="details-instruction">
        <h2 id="details-instruction">Instruction</h2>
        <${Loaded} what=${inside} name="the instruction">
          ${(/** @type {any} */ found) => html`<${Instruction} found=${found} />`}
        <//>
      </section>
      <section class="card" aria-labelledby="details-downstreams">
        <h2 id="details-downstreams">Downstreams</h2>
        ${rows.length > 0 && html`<${DownstreamTable} rows=${rows} />`}
        ${inside.value && html`<${Servers} servers=${inside.value.servers} agent=${inside.value.may_run_tools ? agent : null} />`}
      </section>
      <section class="card" aria-labelledby="details-tools">
        <h2 id="details-tools">Tools, as clients see them</h2>
        <${Loaded} what=${tools} name="the tools">
          ${(/** @type {any} */ found) => html`<${Tools} tools=${found} agent=${inside.value?.may_run === false ? null : agent} />`}
        <//>
      </section>
    </div>
  `;
}

/**
 * Request something of an agent now, once more a little later, and after each round of health.
 *
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
  if (servers.length === 0) return html`<p class="hint">This agent has no downstream.</p>`;
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
