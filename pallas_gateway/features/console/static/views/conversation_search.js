/** The search box above the conversations, and what it finds: conversations with all agents that the page shows. */

import { html, useEffect, useId, useMemo, useSignal } from '../html.js';
import { store } from '../browser_keeper.js';
import { nameOf } from '../conversations.js';
import { foundIn, partsOf } from '../conversation_search.js';
import { Mark, hueOf, slug } from '../marks.js';
import { go } from '../route.js';
import { agentKey, listedThread, sessionOf } from '../session.js';
import { agents, token } from '../state.js';
import { harmless } from '../text.js';
import { searchThreads } from '../threads.js';

/**
 * @typedef {import('../conversations.js').Conversation} Conversation
 * @typedef {import('../session.js').Session} Session
 * @typedef {import('../state.js').Agent} Agent
 * @typedef {{agent: Agent, one: Conversation, excerpt: string}} Hit
 */

const PAUSE_MS = 250; // after the last key
const LONGEST_QUERY = 200;

/** @param {{session: Session, query: any}} props */
export function SearchBox({ session, query }) {
  const id = useId();
  const change = (/** @type {string} */ text) => {
    query.value = text;
    if (!text.trim()) session.found.value = null;
  };
  const clear = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === 'Escape') change('');
  };
  return html`<label class="unseen" for=${id}>Search conversations</label>
    <input id=${id} class="search" type="search" placeholder="Search all agents" maxlength=${LONGEST_QUERY} value=${query.value} onKeyDown=${clear} onInput=${(/** @type {any} */ event) => change(event.target.value)} />`;
}

/** The conversations that have a text: those of the browser at once, those of the gateway page by page. */
/** @param {{session: Session, query: string}} props */
export function Found({ session, query }) {
  const ours = useBrowser(session, query);
  const { found, next, isBusy, problem, more } = useGateway(query);
  const entries = [...found.flatMap((thread) => hitOf(thread, query)), ...ours];
  const status = isBusy ? 'Searching…' : entries.length > 0 ? `${entries.length}${next ? ' or more' : ''} found` : problem ? '' : `No conversation matches “${query}”.`;
  return html`
    <p class="hint" role="status">${status}</p>
    ${problem && html`<p class="notice error" role="alert">The gateway’s conversations cannot be searched: ${harmless(problem)}</p>`}
    ${entries.length > 0 &&
    html`<ul aria-label="Found conversations">
      ${entries.map((hit) => html`<li key=${placeOf(hit.one)}><${Entry} session=${session} hit=${hit} query=${query} /></li>`)}
    </ul>`}
    ${next && !isBusy && html`<button type="button" class="quiet small" onClick=${more}>Search further</button>`}
  `;
}

/** @param {{session: Session, hit: Hit, query: string}} props */
function Entry({ session, hit: { agent, one, excerpt }, query }) {
  const place = placeOf(one);
  const isOpen = agentKey(agent) === session.key && [session.open.value.id, session.open.value.threadId].includes(place);
  const open = () => {
    const its = sessionOf(agent);
    its.found.value = { id: place, text: query };
    if (its === session) session.find(place);
    else go(['agents', agent.id, 'conversations', place], { isAStep: true });
  };
  return html`<button type="button" class="conversation" aria-current=${isOpen ? 'true' : undefined} onClick=${open}>
    <span class=${`speaker ${hueOf(agent.name)}`}><${Mark} agent=${agent} />${agent.title}${agent.registry && ` (${new URL(agent.registry).host})`}</span>
    ${marked(nameOf(one), query)}${excerpt && html`<small class="excerpt">${marked(excerpt, query)}</small>`}
  </button>`;
}

/**
 * @param {string} text
 * @param {string} query
 */
function marked(text, query) {
  return partsOf(text, query).map((part) => (part.isMatch ? html`<mark>${harmless(part.text)}</mark>` : harmless(part.text)));
}

/**
 * Return the id of a conversation in the page's address.
 * @param {Conversation} conversation
 */
function placeOf({ id, threadId, isOnGateway }) {
  return isOnGateway && threadId ? threadId : id;
}

/**
 * Return a thread that was found; nothing for one of an agent that the page does not show, such as a deleted one.
 * @param {import('../threads.js').Thread} thread
 * @param {string} query
 * @returns {Hit[]}
 */
function hitOf({ id, agent: name, title, createdAt, updatedAt }, query) {
  const agent = agents.value?.find(({ registry, name: its }) => registry === '' && slug(its) === slug(name));
  if (!agent) return [];
  const turns = listedThread(agent, id)?.turns ?? [];
  const one = { id, threadId: id, isOnGateway: true, agent: agentKey(agent), title: title ?? '', created: Date.parse(createdAt), changed: Date.parse(updatedAt), turns };
  return [{ agent, one, excerpt: foundIn(one, query) ?? '' }];
}

/**
 * Return what is found in the browser. Conversations with the other agents are read once, when the search begins.
 * @param {Session} session
 * @param {string} query
 * @returns {Hit[]}
 */
function useBrowser(session, query) {
  const stored = useSignal(/** @type {Conversation[]} */ ([]));
  useEffect(() => {
    const keep = (/** @type {Conversation[]} */ all) => (stored.value = all.filter(({ agent }) => agent !== session.key));
    store.list().then(keep, () => {}); // the list of the agent's own says why they cannot be read
  }, []);
  const own = session.conversations.value;
  return useMemo(() => {
    const known = new Map((agents.value ?? []).map((agent) => [agentKey(agent), agent]));
    return [...(own ?? []), ...stored.value].flatMap((one) => {
      const agent = one.isOnGateway ? undefined : known.get(one.agent);
      const excerpt = agent ? foundIn(one, query) : null;
      return agent && excerpt !== null ? [{ agent, one, excerpt }] : [];
    });
  }, [query, own, stored.value, agents.value]);
}

/**
 * Search the threads of the gateway, if it keeps any.
 * @param {string} query
 */
function useGateway(query) {
  const found = useSignal(/** @type {import('../threads.js').Thread[]} */ ([]));
  const next = useSignal(/** @type {string | null} */ (null));
  const isBusy = useSignal(true);
  const problem = useSignal('');
  const wanted = useSignal(/** @type {{cursor: string | null}} */ ({ cursor: null }));
  const hasThreads = (agents.value ?? []).some((agent) => agent.registry === '' && agent.hasThreads);
  useEffect(() => {
    found.value = [];
    wanted.value = { cursor: null };
  }, [query]);
  useEffect(() => {
    const controller = new AbortController();
    const search = async () => {
      try {
        const page = await searchThreads({ text: query, cursor: wanted.value.cursor }, token.value, controller.signal);
        if (controller.signal.aborted) return; // another one has begun
        found.value = [...found.value, ...page.threads];
        next.value = page.nextCursor;
      } catch (error) {
        if (controller.signal.aborted) return;
        problem.value = /** @type {Error} */ (error).message;
        next.value = null;
      }
      isBusy.value = false;
    };
    isBusy.value = hasThreads;
    problem.value = '';
    next.value = null;
    const timer = hasThreads ? setTimeout(search, wanted.value.cursor ? 0 : PAUSE_MS) : undefined;
    return () => {
      clearTimeout(timer);
      controller.abort();
    };
  }, [query, wanted.value, hasThreads]);
  return { found: found.value, next: next.value, isBusy: isBusy.value, problem: problem.value, more: () => (wanted.value = { cursor: next.value }) };
}

/**
 * Move the focus between the search box and the conversations.
 * @param {KeyboardEvent} event
 */
export function moveByArrows(event) {
  const by = event.key === 'ArrowDown' ? 1 : event.key === 'ArrowUp' ? -1 : 0;
  const list = /** @type {HTMLElement} */ (event.currentTarget);
  const places = [...list.querySelectorAll('input.search, button.conversation')];
  const at = places.indexOf(/** @type {Element} */ (document.activeElement));
  const to = /** @type {HTMLElement | undefined} */ (places[at + by]);
  if (by === 0 || at < 0 || !to) return;
  event.preventDefault();
  to.focus();
}
