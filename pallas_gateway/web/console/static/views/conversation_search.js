/** The search box above the conversations, and what it finds. */

import { html, useEffect, useId, useSignal } from '../html.js';
import { nameOf } from '../conversations.js';
import { foundIn, partsOf } from '../conversation_search.js';
import { harmless } from '../text.js';

/** @typedef {import('../conversations.js').Conversation} Conversation */

const PAUSE_MS = 250; // after the last key
const LONGEST_QUERY = 200;

/** @param {{query: any}} props */
export function SearchBox({ query }) {
  const id = useId();
  const clear = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === 'Escape') query.value = '';
  };
  return html`<label class="unseen" for=${id}>Search conversations</label>
    <input id=${id} class="search" type="search" placeholder="Search" maxlength=${LONGEST_QUERY} value=${query.value} onKeyDown=${clear} onInput=${(/** @type {any} */ event) => (query.value = event.target.value)} />`;
}

/**
 * The conversations that have a text: those of the browser at once, those of the gateway page by page.
 * @param {{session: import('../session.js').Session, query: string}} props
 */
export function Found({ session, query }) {
  const kept = /** @type {Conversation[]} */ (session.conversations.value ?? []);
  const { found, next, isBusy, problem, more } = useGateway(session, query);
  const ours = kept.filter((one) => !one.isOnGateway).map((one) => ({ one, excerpt: foundIn(one, query) })).filter(({ excerpt }) => excerpt !== null);
  const entries = [...found.map((one) => ({ one, excerpt: foundIn(one, query) })), ...ours];
  const status = isBusy ? 'Searching…' : entries.length > 0 ? `${entries.length}${next ? ' or more' : ''} found` : problem ? '' : `No conversation matches “${query}”.`;
  return html`
    <p class="hint" role="status">${status}</p>
    ${problem && html`<p class="notice error" role="alert">The gateway’s conversations cannot be searched: ${harmless(problem)}</p>`}
    ${entries.length > 0 &&
    html`<ul aria-label="Found conversations">
      ${entries.map(({ one, excerpt }) => html`<li key=${one.id}><${Entry} session=${session} one=${one} excerpt=${excerpt ?? ''} query=${query} /></li>`)}
    </ul>`}
    ${next && !isBusy && html`<button type="button" class="quiet small" onClick=${more}>Search further</button>`}
  `;
}

/** @param {{session: import('../session.js').Session, one: Conversation, excerpt: string, query: string}} props */
function Entry({ session, one, excerpt, query }) {
  return html`<button type="button" class="conversation" aria-current=${one.id === session.open.value.id ? 'true' : undefined} onClick=${() => session.show(one)}>
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
 * @param {import('../session.js').Session} session
 * @param {string} query
 */
function useGateway(session, query) {
  const found = useSignal(/** @type {Conversation[]} */ ([]));
  const next = useSignal(/** @type {string | null} */ (null));
  const isBusy = useSignal(true);
  const problem = useSignal('');
  const wanted = useSignal(/** @type {{cursor: string | null}} */ ({ cursor: null }));
  useEffect(() => {
    found.value = [];
    wanted.value = { cursor: null };
  }, [query]);
  useEffect(() => {
    const controller = new AbortController();
    const search = async () => {
      try {
        const page = await session.search(query, wanted.value.cursor, controller.signal);
        if (controller.signal.aborted) return; // another one has begun
        found.value = [...found.value, ...page.found];
        next.value = page.next;
      } catch (error) {
        if (controller.signal.aborted) return;
        problem.value = /** @type {Error} */ (error).message;
        next.value = null;
      }
      isBusy.value = false;
    };
    isBusy.value = true;
    problem.value = '';
    const timer = setTimeout(search, wanted.value.cursor ? 0 : PAUSE_MS);
    return () => {
      clearTimeout(timer);
      controller.abort();
    };
  }, [query, wanted.value]);
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
