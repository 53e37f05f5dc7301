/** Where an agent is defined, which version of it runs, and what the caller may do with its definition. */

import { Dialog } from '../dialog.js';
import { deleteAgent, readAgent, untilListed } from '../definitions.js';
import { html, useEffect, useSignal } from '../html.js';
import { McpError } from '../mcp.js';
import { address } from '../route.js';
import { caller, checkedAt, token } from '../state.js';
import { harmless } from '../text.js';

const SOON_MS = 1000;
const AGAIN_MS = 5000; // once a reason is known, or the version has not run for a while
const SOON_ATTEMPTS = 10;

/**
 * @typedef {{may_edit: boolean, may_delete: boolean, may_copy: boolean, may_delete_threads: boolean, source: string}} Rights
 */

/** @param {{agent: import('../state.js').Agent, rights: Rights}} props */
export function DefinitionCard({ agent, rights }) {
  const isStored = rights.source === 'database';
  const { document, problem } = useDefinition(agent.name, isStored);
  const isAsked = useSignal(false);
  const { name } = agent;
  return html`
    <section class="card" aria-labelledby="details-definition">
      <h2 id="details-definition">Definition</h2>
      ${!isStored && html`<p class="hint">It is defined in agents.yaml, and is changed there.</p>`}
      ${problem && html`<p class="notice error" role="alert">${harmless(problem)}</p>`}
      ${document && html`<${Running} document=${document} />`}
      ${document && html`<${Facts} document=${document} />`}
      <div class="actions">
        ${isStored && html`<a class="button" href=${address('agents', name, 'versions')}>Versions</a>`}
        ${rights.may_copy && html`<a class="button" href=${address('new-agent', name)}>Make a copy</a>`}
        ${rights.may_delete && document && html`<button type="button" class="quiet" onClick=${() => (isAsked.value = true)}>Delete</button>`}
      </div>
      ${isAsked.value && html`<${Delete} agent=${agent} rights=${rights} onClose=${() => (isAsked.value = false)} />`}
    </section>
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
        const { document } = await readAgent(name, token.value);
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
function Running({ document: { version, runningVersion, reason } }) {
  if (runningVersion === version) return html`<p class="notice" role="status">Version ${version} runs.</p>`;
  const now = runningVersion ? `Version ${runningVersion} still runs` : 'No version runs';
  if (!reason) return html`<p class="notice" role="status">Version ${version} is saved and is being started. ${now}.</p>`;
  return html`<p class="notice error" role="status">Version ${version} is saved and does not start. ${now}. ${harmless(reason)}</p>`;
}

/** @param {{document: any}} props */
function Facts({ document }) {
  const time = (/** @type {unknown} */ text) => (typeof text === 'string' ? new Date(text).toLocaleString() : '');
  const facts = [['Owner', document.owner], ['Version', document.version], ['Created', time(document.createdAt)], ['Changed', time(document.updatedAt)]];
  return html`<dl class="facts">${facts.filter(([, value]) => value).map(([label, value]) => html`<div><dt>${label}</dt><dd>${harmless(value)}</dd></div>`)}</dl>`;
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
      const { etag } = await readAgent(name, token.value); // of now: the question is about the agent, not about a version
      await deleteAgent(name, etag, token.value, withThreads.value);
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
