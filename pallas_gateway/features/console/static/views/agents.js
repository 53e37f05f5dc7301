/** The first page: its head, and all agents with their states; those with problems first. */

import { FactList, Table, html, signal, useEffect, useMemo, useRef, useSignal } from '../html.js';
import { Mark, slug } from '../marks.js';
import { address } from '../route.js';
import { agents, checkedAt, checking, downstreamsOf, health, howToBeKnown, isLost, mayCreate, reasonOf, refresh, registryError, signedIn, statusOf, token, you } from '../state.js';
import { registries } from '../registries.js';

/** @typedef {import('../state.js').Agent} Agent */
/** @type {import('../vendor/preact-signals.js').Signal<any>} the list of other registries, once it is opened */
const Registries = signal(null);

/** When the last call of each agent ended that the caller may see, by the agent's name. */
export const lastCalls = signal(/** @type {Map<string, {text: string, at: Date}>} */ (new Map()));

/** @type {Record<string, number>} states that need a person come first */
const RANKS = { error: -2, degraded: -1 };
/** @type {Record<string, string>} */
const ADVICE = {
  error: 'It takes no messages. The gateway tries again by itself; its log has the whole error.',
  degraded: 'It takes messages, and its answers may lack what cannot be reached.',
};
const NO_WRONG_TOKEN = 'The gateway does not accept this key or sign-in: ';

/** @param {{front: any, onDrawn: () => void}} props `front`: the head, once it is loaded; `onDrawn`: the states are drawn */
export function Agents({ front, onDrawn }) {
  const search = useSignal('');
  const list = useRef(/** @type {HTMLElement | null} */ (null));
  // In one step at the end of a round, so that no agent moves while the states arrive.
  const ordered = useMemo(() => (agents.value ?? []).toSorted((a, b) => rankOf(a) - rankOf(b)), [agents.value, checkedAt.value]);
  const found = ordered.filter((agent) => matches(agent, search.value));
  const isDrawn = checkedAt.value !== null;
  useEffect(() => {
    if (!isDrawn) return;
    performance.mark('agents drawn');
    onDrawn();
  }, [isDrawn]);
  return html`
    ${agents.value?.length !== 0 && !registryError.value && html`<div class="front">${front}</div>`}
    <div class="heading">
      <h1>Agents</h1>
      <span class="round" role="status">${roundText()}</span>
      <button class="quiet" onClick=${refresh} disabled=${checking.value}>Check now</button>
      ${mayCreate.value && html`<a class="button primary" href=${address('new-agent')}>New agent</a>`}
      <input
        type="search" aria-label="Search agents" placeholder="Search agents" value=${search.value}
        onInput=${(/** @type {any} */ event) => (search.value = event.target.value)}
        onKeyDown=${(/** @type {KeyboardEvent} */ event) => event.key === 'ArrowDown' && move(event, list.current, 1)}
      />
    </div>
    <${Notice} found=${found.length} search=${search.value} />
    <ul class="agents" ref=${list} onKeyDown=${(/** @type {KeyboardEvent} */ event) => arrows(event, list.current)}>
      ${found.map((agent) => html`<${Row} key=${agent.id} agent=${agent} />`)}
    </ul>
    <details class="registries" onToggle=${openRegistries}>
      <summary>Other registries${registries.value.length > 0 && ` (${registries.value.length})`}</summary>
      ${Registries.value && html`<${Registries.value} />`}
    </details>
  `;
}

/** @param {Agent} agent */
function rankOf(agent) {
  return RANKS[statusOf(agent.id)] ?? 0;
}

/** An agent's state as text. */
/** @param {{id: string}} props */
export function Badge({ id }) {
  const status = statusOf(id);
  return html`<span class=${`badge ${status}`}>${status}</span>`;
}

async function openRegistries() {
  Registries.value ??= (await import('./registries.js')).Registries;
}

/** @param {{found: number, search: string}} props */
function Notice({ found, search }) {
  const error = registryError.value;
  if (error && !isLost.value) {
    const why = error.status === 401 && token.value ? `${NO_WRONG_TOKEN}${error.message}` : error.message;
    return html`<p class="notice error" role="alert">${why}</p>`;
  }
  if (agents.value === null) return isLost.value ? null : html`<p class="empty" role="status">Loading the agents…</p>`;
  if (agents.value.length === 0) {
    return html`<p class="empty">
      ${token.value
        ? `You are signed in as ${signedIn.value?.name ?? you.value?.name ?? 'a caller without a name'} and have no access to agents yet; ask whoever runs this gateway.`
        : `The agents of this gateway are shown once it knows who you are. ${howToBeKnown()}`}
    </p>`;
  }
  if (found === 0) return html`<p class="empty">No agent matches “${search}”.</p>`;
  return null;
}

function roundText() {
  if (checking.value) return 'Checking…';
  if (!checkedAt.value || isLost.value) return ''; // the time of the last answer is said above all views
  return `${registryError.value ? 'Last answer at' : 'Checked at'} ${checkedAt.value.toLocaleTimeString()}`;
}

/** @param {{agent: Agent}} props */
function Row({ agent }) {
  const known = health.value.get(agent.id);
  const [status, reason] = [statusOf(agent.id), reasonOf(agent.id)];
  const last = agent.registry === '' ? lastCalls.value.get(slug(agent.name)) : undefined;
  return html`
    <li class="agent">
      <${Mark} agent=${agent} large />
      <div class="what">
        <h2><a href=${address('agents', agent.id)}>${agent.title}</a></h2>
        ${agent.registry && html`<p class="hint">${new URL(agent.registry).host}</p>`}
        ${agent.description !== agent.title && html`<p class="purpose">${agent.description}</p>`}
        ${reason && html`<p class=${`problem ${status}`}>${reason} ${ADVICE[status] && html`<span class="hint">${ADVICE[status]}</span>`}</p>`}
        ${status === 'unknown' && known?.at && html`<p class="hint">Last answer at ${known.at.toLocaleTimeString()}</p>`}
      </div>
      <div class="state">
        <${Badge} id=${agent.id} />
        <a class="more" href=${address('agents', agent.id, 'details')} aria-label=${`Details of ${agent.title}`}>Details</a>
      </div>
      <dl class="used">
        <div><dt>Model</dt><dd>${known?.answer?.agent?.model ?? agent.model}</dd></div>
        ${last && html`<div><dt>Last call</dt><dd title=${last.at.toLocaleString()}>${last.text}</dd></div>`}
      </dl>
      <${Downstreams} rows=${downstreamsOf(agent.id)} />
    </li>
  `;
}

/** @param {{agent: Agent, known: any}} props `known`: the last `get_health` */
export function Facts({ agent, known }) {
  const llm = known?.llm;
  const { vision, documents, context_window: context } = agent.capabilities;
  const facts = [
    ['Model', known?.agent?.model ?? agent.model],
    ['Provider', llm && (llm.status === 'ok' ? llm.provider : `${llm.provider} (${llm.status})`)],
    ['Images', vision === undefined ? null : vision ? 'accepted' : 'not accepted'],
    ['Documents', documents && 'accepted'],
    ['Context', context ? `${context.toLocaleString()} tokens` : null],
  ];
  return html`<${FactList} facts=${facts} />`;
}

/** @param {{rows: any[]}} props */
function Downstreams({ rows }) {
  if (rows.length === 0) return null;
  const down = rows.filter((row) => row.status !== 'ok' && row.status !== 'unknown').length;
  const summary = `${rows.length} server${rows.length === 1 ? '' : 's'}${down ? `, ${down} unreachable` : ''}`;
  return html`<details><summary>${summary}</summary><${DownstreamTable} rows=${rows} /></details>`;
}

/** @param {{rows: any[]}} props */
export function DownstreamTable({ rows }) {
  return html`<${Table} label="Servers" kind="" columns=${['Server', 'State', 'Answers in', 'Since']}>
    ${rows.map((row) => html`
      <tr key=${row.name}>
        <th scope="row">${row.name}</th>
        <td>
          <span class=${`badge ${['ok', 'unknown'].includes(row.status) ? row.status : 'error'}`}>${row.status}</span>
          ${row.error && html`<br /><small>${row.error}</small>`}
        </td>
        <td>${typeof row.seconds === 'number' ? `${Math.round(row.seconds * 1000)} ms` : ''}</td>
        <td>${row.since ? new Date(row.since).toLocaleTimeString() : ''}</td>
      </tr>
    `)}
  <//>`;
}

/**
 * @param {Agent} agent
 * @param {string} search
 */
function matches(agent, search) {
  const text = `${agent.title} ${agent.name} ${agent.description} ${agent.model} ${statusOf(agent.id)}`.toLowerCase();
  return search.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

/**
 * @param {KeyboardEvent} event
 * @param {HTMLElement | null} list
 */
function arrows(event, list) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (step && /** @type {HTMLElement} */ (event.target).matches('h2 > a')) move(event, list, step);
}

/**
 * Focus the next or previous agent.
 * @param {KeyboardEvent} event
 * @param {HTMLElement | null} list
 * @param {number} step
 */
function move(event, list, step) {
  const links = /** @type {HTMLElement[]} */ ([...(list?.querySelectorAll('h2 > a') ?? [])]);
  const next = links[links.indexOf(/** @type {HTMLElement} */ (document.activeElement)) + step];
  if (!next) return;
  event.preventDefault();
  next.focus();
}
