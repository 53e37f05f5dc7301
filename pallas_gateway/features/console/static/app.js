/** The page: its header, and the view that the address names (`#/agents`, `#/agents/{id}`, `#/connect`, …). */

import { html, render, signal, useEffect, useRef, useSignal } from './html.js';
import { Owl } from './marks.js';
import { address, route } from './route.js';
import {
  agentById, agents, checkedAt, isAskingForToken, isLost, isTokenKept, nextAttempt, project, registryError, signInOffer, signInShown, signOut, signedIn,
  startRounds, startSignIn, token,
} from './state.js';
import { Agents } from './views/agents.js';

const NAV_LEAD_PIXELS = 48; // of the view before, on a narrow screen
const VIEWS = [
  { path: 'agents', title: 'Agents' },
  { path: 'connect', title: 'Connect' },
  { path: 'calls', title: 'Calls' },
  { path: 'usage', title: 'Usage' },
  { path: 'gateway', title: 'Gateway' },
];

const UNLISTED = [{ path: 'new-agent', title: 'New agent' }, { path: 'compare', title: 'Compare' }];

const OF_CHAT = [
  'asked', 'attachments', 'browser_keeper', 'calls', 'cases', 'conversation_address', 'conversation_search',
  'conversations', 'dialog', 'download', 'forms', 'found_text', 'gateway_api', 'gateway_keeper', 'inlines', 'markdown', 'outcome',
  'parameters', 'running_call', 'session', 'shown_call', 'snippets', 'tabs', 'text', 'thread_call', 'threads',
  'waterfall', 'views/activity', 'views/cases', 'views/composer', 'views/conversation_list',
  'views/conversation_search', 'views/copy', 'views/feedback', 'views/fields', 'views/inspect', 'views/place',
  'views/question', 'views/text', 'views/turn', 'views/waterfall',
];

/**
 * The other views, with the files that each needs besides its own in `views/`: they are loaded when it is opened, all at once. Names that are
 * not listed here would be requested one after the other.
 * @type {Record<string, string[]>}
 */
const LATER = {
  Chat: OF_CHAT,
  Compare: [...OF_CHAT, 'views/chat'],
  Calls: [
    'asked', 'attachments', 'call_list', 'calls', 'conversations', 'dialog', 'forms', 'gateway_api', 'inlines', 'markdown', 'outcome', 'polling',
    'shown_call', 'text', 'waterfall', 'views/activity', 'views/copy', 'views/text', 'views/waterfall',
  ],
  Connect: ['clients', 'views/copy'],
  AgentForm: [...OF_CHAT, 'definition', 'definitions', 'line_diff', 'try_call', 'views/agent_fields', 'views/chat', 'views/difference', 'views/try'],
  Versions: ['definition', 'definitions', 'dialog', 'forms', 'gateway_api', 'line_diff', 'text', 'views/difference'],
  Details: [
    'asked', 'attachments', 'calls', 'conversations', 'definitions', 'dialog', 'forms', 'gateway_api', 'inlines', 'markdown', 'outcome',
    'shown_call', 'text', 'usage', 'views/activity', 'views/copy', 'views/fields', 'views/hand_over', 'views/question', 'views/run_tool', 'views/text',
    'views/week',
  ],
  Front: ['ask', 'asked', 'call_list', 'calls', 'forms', 'gateway_api', 'outcome', 'polling', 'text'],
  Gateway: ['asked', 'call_list', 'calls', 'forms', 'gateway_api', 'outcome', 'text', 'views/graph'],
  Usage: ['gateway_api', 'polling', 'text', 'usage', 'views/week'],
  SignIn: ['dialog', 'sign_in', 'text'],
  Token: ['dialog', 'text', 'views/copy'],
};
/** @type {Record<string, string>} views of one agent, by the parts of their paths */
const PARTS = { details: 'Details', edit: 'AgentForm', versions: 'Versions' };
/** @param {string} part */
const partOf = (part) => (Object.hasOwn(PARTS, part) ? PARTS[part] : undefined);
/** @type {Record<string, string>} views without a part, by their paths */
const PLAIN = { ...Object.fromEntries(VIEWS.slice(1).map(({ path, title }) => [path, title])), compare: 'Compare' };
const loaded = signal(/** @type {Record<string, any>} */ ({}));

/**
 * Load a view with its files. One that could not be loaded is loaded after the next round that the gateway answers.
 * @param {string} name
 */
async function load(name) {
  if (name in loaded.peek()) return;
  loaded.value = { ...loaded.peek(), [name]: null };
  try {
    for (const file of LATER[name]) addLink('modulepreload', `${file}.js`);
    const file = name.replace(/(?<=.)[A-Z]/g, '_$&').toLowerCase(); // `AgentForm` is in agent_form.js
    const [view] = await Promise.all([import(`./views/${file}.js`), style()]);
    loaded.value = { ...loaded.peek(), [name]: view[name] };
  } catch {
    loaded.value = { ...loaded.peek(), [name]: Unloaded };
  }
}

/** @type {Promise<unknown> | undefined} */
let styled;

/** Load the styles of the other views. */
function style() {
  styled ??= new Promise((resolve) => {
    const link = addLink('stylesheet', 'chat.css');
    link.onload = link.onerror = resolve;
  });
  return styled;
}

/**
 * @param {string} rel
 * @param {string} file
 */
function addLink(rel, file) {
  const link = document.createElement('link');
  Object.assign(link, { rel, href: new URL(file, import.meta.url).href });
  document.head.append(link);
  return link;
}

checkedAt.subscribe(() => {
  const views = Object.entries(loaded.peek());
  loaded.value = Object.fromEntries(views.filter(([, view]) => view !== Unloaded));
  for (const [name, view] of views) if (view === Unloaded) load(name);
});

function Unloaded() {
  return html`<div class="empty">
    <p role="alert">This view could not be loaded. The gateway cannot be reached, or has been updated.</p>
    <p><button type="button" onClick=${() => location.reload()}>Reload the page</button></p>
  </div>`;
}

/** @param {{name: string, of?: Record<string, any>}} props */
function Later({ name, of = {} }) {
  useEffect(() => {
    load(name);
  }, [name]);
  const Loaded = loaded.value[name];
  return Loaded ? html`<${Loaded} ...${of} />` : html`<p class="empty" role="status">Loading the view…</p>`;
}

function Header() {
  const view = route.value[0];
  const nav = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => {
    const current = /** @type {HTMLElement | null | undefined} */ (nav.current?.querySelector('[aria-current]'));
    if (nav.current && current) nav.current.scrollLeft = current.offsetLeft - nav.current.offsetLeft - NAV_LEAD_PIXELS;
  }, [view]);
  return html`
    <header class="bar">
      <a class="wordmark" href="#/agents"><${Owl} /><span class="name">Pallas <span class="kind">Gateway</span>${project.value && html`<span class="project" title=${project.value}>${project.value}</span>`}</span></a>
      <nav aria-label="Views" ref=${nav}>
        ${VIEWS.map(
          ({ path, title }) =>
            html`<a href=${address(path)} aria-current=${path === view ? 'page' : undefined}>${title}</a>`,
        )}
      </nav>
      <${Caller} />
    </header>
  `;
}

/** Who calls: a person who has signed in, or the holder of a token. */
function Caller() {
  const person = signedIn.value;
  if (person) {
    return html`<button class="quiet person" title=${person.name} onClick=${() => (isAskingForToken.value = true)}><span class="unseen">Signed in as </span>${person.name}</button>
      <button class="quiet" onClick=${signOut}>Sign out</button>`;
  }
  return html`
    ${signInOffer.value && !token.value && html`<button class="primary" onClick=${startSignIn}>Sign in</button>`}
    <button class="quiet" onClick=${() => (isAskingForToken.value = true)}>
      ${token.value ? (isTokenKept.value ? 'Key kept' : 'Key set') : 'Use a key'}
    </button>
  `;
}

/** Says that a sign-in ends, or has ended. */
/** @param {{person: import('./sign_in.js').SignedIn}} props */
function SignInNotice({ person }) {
  if (!person.notice.value) return null;
  const hasEnded = person.state.value === 'ended';
  return html`<p class=${`notice connection ${hasEnded ? 'error' : 'degraded'}`} role=${hasEnded ? 'alert' : 'status'}>
    ${person.notice.value} <button type="button" onClick=${startSignIn}>Sign in</button>
  </p>`;
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
  const [view, id, part, conversation] = route.value;
  if (view === 'agents' && id) {
    const agent = agentById(id);
    if (agent && partOf(part) && (part === 'details' || !agent.registry)) return html`<${Later} key=${`${part} ${id}`} name=${partOf(part)} of=${{ agent, name: agent.name }} />`;
    if (agent) return html`<${Later} key=${id} name="Chat" of=${{ agent, wanted: part === 'conversations' ? conversation : undefined }} />`;
    if (agents.value) return html`<${Missing} text=${`There is no agent “${id}” here, or you have no access to it.`} />`;
    if (!registryError.value) return html`<p class="empty" role="status">Loading the agents…</p>`;
    return isLost.value ? null : html`<p class="notice error" role="alert">${registryError.value.message}</p>`;
  }
  if (view === 'agents') return html`<${Agents} front=${loaded.value.Front && html`<${loaded.value.Front} prepare=${() => load('Chat')} />`} onDrawn=${() => load('Front')} />`;
  if (view === 'new-agent') return html`<${Later} key=${`new ${id}`} name="AgentForm" of=${{ copyOf: id }} />`;
  if (Object.hasOwn(PLAIN, view)) return html`<${Later} key=${view} name=${PLAIN[view]} />`;
  return html`<${Missing} text="There is no such view." />`;
}

/** @param {{text: string}} props */
function Missing({ text }) {
  return html`<div class="empty"><h1>Not found</h1><p>${text}</p><p><a href="#/agents">All agents</a></p></div>`;
}

function App() {
  const main = useRef(/** @type {HTMLElement | null} */ (null));
  const place = route.value.slice(0, route.value[2] === 'conversations' ? 2 : undefined).join('/'); // other conversations are the same view
  const first = useRef(true);
  useEffect(() => {
    document.title = titleOf();
  }, [place, agents.value, project.value]);
  useEffect(() => {
    const isInside = main.current?.contains(document.activeElement); // a view has set the focus itself
    if (!first.current && !isInside) main.current?.focus({ preventScroll: true });
    first.current = false;
  }, [place]);
  return html`
    <a class="skip" href="#main" onClick=${skip}>Skip to the content</a>
    <${Header} />
    ${isLost.value && html`<${Connection} />`}
    ${signedIn.value && html`<${SignInNotice} person=${signedIn.value} />`}
    <main id="main" ref=${main} tabindex="-1"><${View} /></main>
    ${isAskingForToken.value && html`<${Later} name="Token" of=${{ onClose: () => (isAskingForToken.value = false) }} />`}
    ${signInShown.value && html`<${Later} name="SignIn" of=${{ ...signInShown.value, onClose: () => (signInShown.value = null) }} />`}
  `;
}

/** @param {Event} event */
function skip(event) {
  event.preventDefault();
  document.getElementById('main')?.focus();
}

function titleOf() {
  const [view, id] = route.value;
  const name = id && view !== 'new-agent' ? (agentById(id)?.title ?? id) : [...VIEWS, ...UNLISTED].find(({ path }) => path === view)?.title;
  return [name, project.value, 'Pallas Gateway'].filter(Boolean).join(' - ');
}

/** The view of the address at which the page is opened is loaded with the agents. */
function loadFirst() {
  const [view, id, part] = route.value;
  const name = view === 'agents' && id ? (partOf(part) ?? 'Chat') : view === 'new-agent' ? 'AgentForm' : PLAIN[view];
  if (name) load(name);
}

loadFirst();
startRounds();
render(html`<${App} />`, /** @type {HTMLElement} */ (document.getElementById('app')));
