/** The list of other registries, and the form that adds one. */

import { html, useId, useSignal } from '../html.js';
import { addRegistry, registries, registryProblems, removeRegistry } from '../registries.js';
import { agents, refreshAgain } from '../state.js';

export function Registries() {
  const url = useSignal('');
  const token = useSignal('');
  const problem = useSignal('');
  const [urlId, tokenId] = [useId(), useId()];
  /** @param {Event} event */
  const add = (event) => {
    event.preventDefault();
    problem.value = addRegistry(url.value.trim(), token.value.trim());
    if (problem.value) return;
    url.value = token.value = '';
    refreshAgain();
  };
  /** @param {string} removed */
  const remove = (removed) => {
    removeRegistry(removed);
    refreshAgain();
  };
  return html`
      <p class="hint">Agents of other gateways are shown beside those of this one. A token is kept in memory.</p>
      <ul>
        ${registries.value.map((one) => html`<${Entry} key=${one.url} url=${one.url} onRemove=${() => remove(one.url)} />`)}
      </ul>
      <form onSubmit=${add}>
        <div>
          <label for=${urlId}>URL of the gateway</label>
          <input id=${urlId} type="url" required value=${url.value} onInput=${(/** @type {any} */ event) => (url.value = event.target.value)} />
        </div>
        <div>
          <label for=${tokenId}>Its token, if it requires one</label>
          <input id=${tokenId} type="password" autocomplete="off" value=${token.value} onInput=${(/** @type {any} */ event) => (token.value = event.target.value)} />
        </div>
        <button type="submit">Add registry</button>
      </form>
      ${problem.value && html`<p class="notice error" role="alert">${problem.value}</p>`}
  `;
}

/** @param {{url: string, onRemove: () => void}} props */
function Entry({ url, onRemove }) {
  const count = (agents.value ?? []).filter((agent) => agent.registry === url).length;
  const problem = registryProblems.value.get(url);
  return html`
    <li>
      <code>${url}</code> <span class="hint">${problem ? '' : `${count} agent${count === 1 ? '' : 's'}`}</span>
      <button class="quiet" aria-label=${`Remove ${url}`} onClick=${onRemove}>Remove</button>
      ${problem && html`<p class="notice error">${problem}</p>`}
    </li>
  `;
}
