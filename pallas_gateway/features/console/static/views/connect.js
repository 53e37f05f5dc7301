/** How other programs connect to an agent, or to all agents at once. */

import { linkFor, textFor } from '../clients.js';
import { html, signal, useEffect, useId, useSignal } from '../html.js';
import { request } from '../mcp.js';
import { agents, signedIn, tokenFor } from '../state.js';
import { Copy } from './copy.js';

/** @typedef {import('../clients.js').Client} Client */
/** @typedef {import('../clients.js').Target} Target */
/** @typedef {import('../state.js').Agent} Agent */

const ALL = '';
const ALL_NAME = 'pallas';

/** @type {import('../vendor/preact-signals.js').Signal<Client[]>} */
const clients = signal([]);
/** The message tool of each agent, as its server lists it. */
const tools = signal(/** @type {Map<string, string>} */ (new Map()));

export function Connect() {
  const chosen = useSignal(/** @type {string | null} */ (null));
  const id = useId();
  const known = agents.value ?? [];
  const shared = known.find((agent) => agent.url.startsWith('../'));
  const own = known.filter((agent) => agent.registry === '');
  const current = known.some((agent) => agent.id === chosen.value) ? chosen.value : null;
  const agent = known.find((one) => one.id === current) ?? (shared ? null : known[0]);
  useEffect(() => {
    loadClients();
  }, []);
  useEffect(() => {
    if (agent) loadTool(agent);
  }, [agent?.id]);
  if (known.length === 0) return html`<h1>Connect</h1><p class="empty">There is no agent to connect to.</p>`;
  return html`
    <div class="heading">
      <h1>Connect</h1>
      <label for=${id}>Connect to</label>
      <select id=${id} onChange=${(/** @type {any} */ event) => (chosen.value = event.target.value)}>
        ${shared && html`<option value=${ALL} selected=${!agent}>All agents, as one server</option>`}
        ${known.map((one) => html`<option value=${one.id} selected=${one === agent}>${one.title}${one.registry && ` (${new URL(one.registry).host})`}</option>`)}
      </select>
    </div>
    <ul class="texts">
      ${clients.value
        .map((client) => html`<${Text} key=${client.id} client=${client} target=${agent ? targetOf(agent) : client.agents_only ? targetOf(known[0]) : targetOfAll(own)} isHere=${!agent?.registry} />`)}
    </ul>
  `;
}

/** @param {{client: Client, target: Target, isHere: boolean}} props `isHere`: an agent of this gateway, where the reader may have signed in */
function Text({ client, target: found, isHere }) {
  const signsIn = isHere && signedIn.value !== null && client.signs_in && found.needsToken;
  const target = signsIn ? { ...found, needsToken: false } : found;
  const text = textFor(client, target);
  const link = linkFor(client, target);
  const heading = useId();
  return html`
    <li class="card">
      <div class="card-head">
        <h2 id=${heading}>${client.title}</h2>
        <div class="actions">
          ${link && html`<a class="button" href=${link}>${client.link?.title}</a>`}
          <${Copy} text=${text} what=${`the text for ${client.title}`} small=${false} />
        </div>
      </div>
      <p class="hint">${client.how}${signsIn && ' It opens a page on which you sign in.'}${target.needsToken && ` Replace TOKEN by ${signedIn.value ? 'a key: ask whoever runs this gateway for one' : 'your key'}.`}</p>
      <pre tabindex="0" role="region" aria-labelledby=${heading}><code>${text}</code></pre>
    </li>
  `;
}

/**
 * @param {Agent} agent
 * @returns {Target}
 */
function targetOf(agent) {
  return {
    name: agent.name,
    url: agent.publicUrl,
    base: baseOf(agent),
    tool: tools.value.get(agent.id) ?? 'send_message',
    needsToken: agent.needsToken,
  };
}

/**
 * @param {Agent[]} known
 * @returns {Target}
 */
function targetOfAll(known) {
  const base = baseOf(known[0]);
  const needsToken = known.some((agent) => agent.needsToken);
  return { name: ALL_NAME, url: `${base}/mcp`, base, tool: `agent-${known[0].name}`, needsToken };
}

/** @param {Agent} agent */
function baseOf(agent) {
  const path = `/agents/${agent.name}/mcp`;
  const here = agent.registry || new URL('..', location.href).href.replace(/\/$/, '');
  return agent.publicUrl.endsWith(path) ? agent.publicUrl.slice(0, -path.length) : here;
}

async function loadClients() {
  if (clients.value.length > 0) return;
  clients.value = await (await fetch(new URL('../clients.json', import.meta.url))).json();
}

/** @param {Agent} agent */
async function loadTool(agent) {
  try {
    const listed = await request(agent.url, 'tools/list', {}, { token: tokenFor(agent) });
    tools.value = new Map(tools.value).set(agent.id, listed.tools[0].name);
  } catch {
    // The default name stays.
  }
}
