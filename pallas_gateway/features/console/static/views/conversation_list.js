/** The conversations with an agent: open, begin, rename, delete, export and import. */

import { Dialog } from '../dialog.js';
import { html, useEffect, useId, useRef, useSignal } from '../html.js';
import { linkTo } from '../conversation_address.js';
import { asJson, asMarkdown, fromJson, nameOf, titleOf } from '../conversations.js';
import { download } from '../download.js';
import { hueOf } from '../marks.js';
import { address } from '../route.js';
import { isLost } from '../state.js';
import { Cases } from './cases.js';
import { Copy } from './copy.js';
import { Found, SearchBox, moveByArrows } from './conversation_search.js';

/** @typedef {import('../conversations.js').Conversation} Conversation */

const wide = window.matchMedia('(min-width: 56rem)');

/** @param {{session: import('../session.js').Session}} props */
export function ConversationList({ session }) {
  const kept = session.conversations.value;
  const opened = useSignal(wide.matches);
  useEffect(() => {
    const fit = () => (opened.value = wide.matches);
    wide.addEventListener('change', fit);
    return () => wide.removeEventListener('change', fit);
  }, []);
  useEffect(() => {
    if (!wide.matches) opened.value = false; // it covers the conversation that was chosen
  }, [session.open.value]);
  useEffect(() => {
    if (session.found.value && !wide.matches) opened.value = false; // the open one may have been found
  }, [session.found.value]);
  const query = useSignal(session.found.value?.text ?? ''); // a hit of another agent's list has led here
  const isSearching = query.value.trim() !== '';
  const problem = useSignal('');
  useEffect(() => {
    problem.value = '';
  }, [session.open.value]);
  const choose = async (/** @type {any} */ event) => {
    const file = event.target.files[0];
    event.target.value = '';
    if (!file) return;
    problem.value = '';
    try {
      await session.add(fromJson(await file.text(), session.key));
    } catch (error) {
      problem.value = /** @type {Error} */ (error).message;
    }
  };
  return html`
    <details class=${`conversations ${hueOf(session.agent.name)}`} open=${opened.value} onToggle=${(/** @type {any} */ event) => (opened.value = event.target.open)} onKeyDown=${moveByArrows}>
      <summary title="Conversations"><span class="name">Conversations${kept?.length > 0 && ` (${kept.length})`}</span></summary>
      <div class="actions">
        <button type="button" onClick=${() => session.begin()}>New conversation</button>
        <label class="button quiet">Import<input class="unseen" type="file" accept="application/json,.json" onChange=${choose} /></label>
      </div>
      ${kept && html`<${SearchBox} session=${session} query=${query} />`}
      ${problem.value && html`<p class="notice error" role="alert">${problem.value}</p>`}
      ${session.problem.value && !isLost.value && html`<p class="notice error" role="alert">${session.problem.value}</p>`}
      ${kept === null && html`<p class="hint" role="status">Reading the conversations…</p>`}
      ${kept?.length === 0 && !session.problem.value && html`<p class="hint">None yet. ${session.isOnGateway ? 'The gateway keeps them.' : 'They are kept in this browser only.'}</p>`}
      ${isSearching
        ? html`<${Found} session=${session} query=${query.value.trim()} />`
        : html`
            <${Kept} session=${session} conversations=${kept?.filter((/** @type {Conversation} */ one) => one.isOnGateway)} title="On the gateway" />
            <${Kept} session=${session} conversations=${kept?.filter((/** @type {Conversation} */ one) => !one.isOnGateway)} title=${session.isOnGateway ? 'In this browser' : ''} />
          `}
    </details>
  `;
}

/** @param {{session: import('../session.js').Session, conversations?: Conversation[], title: string}} props */
function Kept({ session, conversations = [], title }) {
  if (conversations.length === 0) return null;
  return html`
    ${title && html`<h2>${title}</h2>`}
    <ul aria-label=${title || 'Conversations'}>
      ${conversations.map((one) => entry(session, one))}
    </ul>
  `;
}

/** @type {WeakMap<Conversation, {name: string, isOpen: boolean, element: any}>} */
const drawn = new WeakMap();

/**
 * Return the element of a conversation, the same one for as long as nothing of it changes: Preact leaves that alone.
 * @param {import('../session.js').Session} session
 * @param {Conversation} one
 */
function entry(session, one) {
  const name = nameOf(one);
  const isOpen = one.id === session.open.value.id;
  const known = drawn.get(one);
  if (known?.name === name && known.isOpen === isOpen) return known.element;
  const element = html`<li key=${one.id}><button type="button" class="conversation" title=${name} aria-current=${isOpen ? 'true' : undefined} onClick=${() => session.show(one)}>${name}</button></li>`;
  drawn.set(one, { name, isOpen, element });
  return element;
}

/** @param {{session: import('../session.js').Session}} props */
export function ConversationActions({ session }) {
  const conversation = session.open.value;
  const asking = useSignal('');
  const menu = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => {
    const leave = (/** @type {any} */ event) => {
      const isOutside = event.type === 'pointerdown' && !event.target.closest('.menu, dialog');
      if (isOutside || event.key === 'Escape') menu.current?.removeAttribute('open');
    };
    for (const type of ['pointerdown', 'keydown']) document.addEventListener(type, leave);
    return () => ['pointerdown', 'keydown'].forEach((type) => document.removeEventListener(type, leave));
  }, []);
  const close = () => {
    menu.current?.removeAttribute('open');
    menu.current?.querySelector('summary')?.focus(); // a dialog returns the focus to it
  };
  void session.calls.value;
  const hasTurns = conversation.turns.length > 0;
  const name = titleOf(conversation).replace(/[^\p{L}\p{N} _-]/gu, '').trim() || 'conversation';
  return html`
    <details class="menu" ref=${menu}>
      <summary>More</summary>
      <div class="actions" onClick=${close}>
        <a class="button quiet" href=${address('compare', session.agent.id)}>Compare</a>
        <button type="button" class="quiet" onClick=${() => (asking.value = 'cases')}>Rated answers…</button>
        ${hasTurns && html`<button type="button" class="quiet" onClick=${() => (asking.value = 'rename')}>Rename</button>
        <span class="link-copy" onClick=${(/** @type {Event} */ event) => event.stopPropagation()}><${Copy} text=${() => linkTo(session.agent.id, conversation)} what="link" label="Copy link" small=${false} /></span>
        ${!conversation.isOnGateway && html`<p class="hint">The link opens it in this browser.</p>`}
        <button type="button" class="quiet" onClick=${() => download(`${name}.md`, 'text/markdown', asMarkdown(conversation))}>Export Markdown</button>
        <button type="button" class="quiet" onClick=${() => download(`${name}.json`, 'application/json', asJson(conversation))}>Export JSON</button>
        <button type="button" class="quiet" onClick=${() => (asking.value = 'delete')}>Delete</button>`}
      </div>
    </details>
    ${asking.value === 'rename' && html`<${Rename} session=${session} onClose=${() => (asking.value = '')} />`}
    ${asking.value === 'cases' && html`<${Cases} agent=${session.agent} onClose=${() => (asking.value = '')} />`}
    ${asking.value === 'delete' && html`<${Delete} session=${session} onClose=${() => (asking.value = '')} />`}
  `;
}

/** @param {{session: import('../session.js').Session, onClose: () => void}} props */
function Rename({ session, onClose }) {
  const id = useId();
  const title = useSignal(nameOf(session.open.value));
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    session.rename(session.open.value, title.value.trim());
    onClose();
  };
  return html`
    <${Dialog} title="Rename the conversation" onClose=${onClose}>
      <form onSubmit=${submit}>
        <label for=${id}>Name</label>
        <input id=${id} value=${title.value} onInput=${(/** @type {any} */ event) => (title.value = event.target.value)} />
        <div class="actions"><button type="submit" class="primary">Rename</button><button type="button" onClick=${onClose}>Cancel</button></div>
      </form>
    <//>
  `;
}

/** @param {{session: import('../session.js').Session, onClose: () => void}} props */
function Delete({ session, onClose }) {
  const remove = () => {
    session.remove(session.open.value);
    onClose();
  };
  return html`
    <${Dialog} title="Delete the conversation?" onClose=${onClose}>
      <p>“${titleOf(session.open.value)}” is ${session.open.value.isOnGateway ? 'deleted on the gateway, for all your browsers' : 'removed from this browser'}. A running call is stopped.</p>
      <div class="actions"><button type="button" class="primary" onClick=${remove}>Delete</button><button type="button" onClick=${onClose}>Cancel</button></div>
    <//>
  `;
}
