/** The page: its header, and the view that the address names (`#/agents`, `#/agents/{id}`, `#/connect`, …). */

import { html, render, signal, useEffect, useRef } from './html.js';
import { address, route } from './route.js';
import { agentById, agents, isTokenKept, registryError, startRounds, token } from './state.js';
import { TokenDialog } from './views/token.js';
import { Agents } from './views/agents.js';
import { Chat } from './views/chat.js';
import { Connect } from './views/connect.js';
import { Details } from './views/details.js';
import { Gateway } from './views/gateway.js';

const VIEWS = [
  { path: 'agents', title: 'Agents' },
  { path: 'connect', title: 'Connect' },
  { path: 'gateway', title: 'Gateway' },
];

const isAsking = signal(false);

function Header() {
  const view = route.value[0];
  return html`
    <header class="bar">
      <a class="wordmark" href="#/agents">Pallas Gateway</a>
      <nav aria-label="Views">
        ${VIEWS.map(
          ({ path, title }) =>
            html`<a href=${address(path)} aria-current=${path === view ? 'page' : undefined}>${title}</a>`,
        )}
      </nav>
      <button class="quiet" onClick=${() => (isAsking.value = true)}>
        ${token.value ? (isTokenKept.value ? 'Token kept' : 'Token set') : 'Set token'}
      </button>
    </header>
  `;
}

function View() {
  const [view, id, part] = route.value;
  if (view === 'agents' && id) {
    const agent = agentById(id);
    if (agent && part === 'details') return html`<${Details} key=${id} agent=${agent} />`;
    if (agent) return html`<${Chat} key=${id} agent=${agent} />`;
    return agents.value || registryError.value
      ? html`<${Missing} text=${`There is no agent “${id}” here, or the token may not view it.`} />`
      : html`<p class="empty" role="status">Loading the agents…</p>`;
  }
  if (view === 'agents') return html`<${Agents} />`;
  if (view === 'connect') return html`<${Connect} />`;
  if (view === 'gateway') return html`<${Gateway} />`;
  return html`<${Missing} text="There is no such view." />`;
}

/** @param {{text: string}} props */
function Missing({ text }) {
  return html`<div class="empty"><h1>Not found</h1><p>${text}</p><p><a href="#/agents">All agents</a></p></div>`;
}

function App() {
  const main = useRef(/** @type {HTMLElement | null} */ (null));
  const place = route.value.join('/');
  const first = useRef(true);
  useEffect(() => {
    document.title = titleOf();
  }, [place, agents.value]);
  useEffect(() => {
    if (!first.current) main.current?.focus({ preventScroll: true });
    first.current = false;
  }, [place]);
  return html`
    <a class="skip" href="#main" onClick=${skip}>Skip to the content</a>
    <${Header} />
    <main id="main" ref=${main} tabindex="-1"><${View} /></main>
    ${isAsking.value && html`<${TokenDialog} onClose=${() => (isAsking.value = false)} />`}
  `;
}

/** @param {Event} event */
function skip(event) {
  event.preventDefault();
  document.getElementById('main')?.focus();
}

function titleOf() {
  const [view, id] = route.value;
  const name = id ? (agentById(id)?.title ?? id) : VIEWS.find(({ path }) => path === view)?.title;
  return name ? `${name} - Pallas Gateway` : 'Pallas Gateway';
}

startRounds();
render(html`<${App} />`, /** @type {HTMLElement} */ (document.getElementById('app')));
