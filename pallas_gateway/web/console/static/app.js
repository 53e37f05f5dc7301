/** The page: its header, and the view that the address names (`#/agents`, `#/agents/{id}`, `#/connect`, …). */

import { html, render, signal, useEffect, useRef, useSignal } from './html.js';
import { address, route } from './route.js';
import { agentById, agents, checkedAt, isLost, isTokenKept, nextAttempt, registryError, startRounds, token } from './state.js';
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

/** Says that the gateway is lost, and when the next attempt is. */
function Connection() {
  const now = useSignal(Date.now());
  useEffect(() => {
    const timer = setInterval(() => (now.value = Date.now()), 250);
    return () => clearInterval(timer);
  }, []);
  const seconds = Math.ceil((nextAttempt.value - now.value) / 1000);
  const since = checkedAt.value ? ` Its last answer was at ${checkedAt.value.toLocaleTimeString()}.` : '';
  return html`<p class="notice error connection" role="alert">
    The gateway cannot be reached; trying again <span aria-live="off">${seconds > 0 ? `in ${seconds} s` : 'now'}</span>.${since}
  </p>`;
}

function View() {
  const [view, id, part] = route.value;
  if (view === 'agents' && id) {
    const agent = agentById(id);
    if (agent && part === 'details') return html`<${Details} key=${id} agent=${agent} />`;
    if (agent) return html`<${Chat} key=${id} agent=${agent} />`;
    if (agents.value) return html`<${Missing} text=${`There is no agent “${id}” here, or the token may not view it.`} />`;
    if (!registryError.value) return html`<p class="empty" role="status">Loading the agents…</p>`;
    return isLost.value ? null : html`<p class="notice error" role="alert">${registryError.value.message}</p>`;
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
    ${isLost.value && html`<${Connection} />`}
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
