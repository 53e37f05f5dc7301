/** The dialog that hands an agent of the database over to another owner: a caller that the gateway knows, or one by its id. */

import { giveAgent, readAgent, readPossibleOwners } from '../definitions.js';
import { Dialog } from '../dialog.js';
import { html, useEffect, useId, useRef, useSignal } from '../html.js';
import { address } from '../route.js';
import { KINDS, refreshAgain } from '../state.js';
import { harmless, shortName } from '../text.js';

const EVERYBODY = { id: 'anonymous', name: 'all callers without a key', kind: '' };

/** @param {{agent: import('../state.js').Agent, owner: string, onClose: () => void}} props `owner`: the present one */
export function HandOver({ agent: { name, title }, owner, onClose }) {
  const known = useSignal(/** @type {{id: string, name: string, kind: string}[]} */ ([]));
  const chosen = useSignal('');
  const typed = useSignal('');
  const wrong = useSignal('');
  const problem = useSignal('');
  const isBusy = useSignal(false);
  const box = useRef(/** @type {HTMLInputElement | null} */ (null));
  const id = useId();
  useEffect(() => {
    readPossibleOwners(name).then((found) => (known.value = found.filter((one) => one.name !== owner)), () => {}); // an id can be written
  }, []);
  const choices = [...known.value, EVERYBODY];
  const wanted = chosen.value || typed.value.trim();
  const shown = choices.find((one) => one.id === wanted)?.name ?? (wanted.replace(/^key:/, '') || '…');
  const show = (/** @type {string} */ text) => {
    wrong.value = text;
    setTimeout(() => box.current?.focus());
  };
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    problem.value = wrong.value = '';
    if (!wanted) return show('Enter an id.');
    isBusy.value = true;
    try {
      const { etag } = await readAgent(name); // of now: the question is about the agent, not about a version
      await giveAgent(name, wanted, etag);
    } catch (error) {
      isBusy.value = false;
      return refused(/** @type {import('../mcp.js').McpError} */ (error));
    }
    await leave();
    return undefined;
  };
  const refused = (/** @type {import('../mcp.js').McpError} */ error) => {
    const problems = /** @type {any} */ (error.data)?.problems;
    const ofOwner = Array.isArray(problems) ? problems.filter(({ path }) => path === 'owner').map(({ message }) => String(message)) : [];
    if (ofOwner.length && !chosen.value) show(harmless(ofOwner.join(' ')));
    else problem.value = error.message;
  };
  const leave = async () => {
    const isSeen = await readAgent(name).then(() => true, () => false);
    if (isSeen) onClose();
    else location.hash = address('agents');
    await refreshAgain();
  };
  return html`
    <${Dialog} title=${`Hand over ${title}?`} onClose=${onClose}>
      <form class="sections" noValidate onSubmit=${submit}>
        <div class="field">
          <label for=${id}>New owner</label>
          <select id=${id} value=${chosen.value} onChange=${(/** @type {any} */ event) => ([chosen.value, wrong.value, problem.value] = [event.target.value, '', ''])}>
            <option value="">Somebody else, by an id</option>
            ${choices.map((one) => html`<option key=${one.id} value=${one.id}>${shortName(one.name)}${one.kind && ` (${KINDS[one.kind]})`}</option>`)}
          </select>
          <p class="hint">Those who have opened this console.${wanted === EVERYBODY.id && ' Callers without a key own agents only where anonymous has the grant create:agents.'}</p>
        </div>
        ${!chosen.value &&
        html`<div class="field">
          <label for=${`${id}-id`}>Their id</label>
          <input id=${`${id}-id`} ref=${box} autocomplete="off" value=${typed.value} aria-describedby=${`${id}-about`} aria-invalid=${wrong.value ? 'true' : undefined}
            onInput=${(/** @type {any} */ event) => (typed.value = event.target.value)} />
          <p class="hint" id=${`${id}-about`}>They read it here under their own name; that of a key is key:NAME. ${wrong.value && html`<strong class="wrong">${wrong.value}</strong>`}</p>
        </div>`}
        <p role="status">The owner changes from ${harmless(owner)} to ${shortName(shown)}.</p>
        <ul>
          <li>The new owner can read the instruction, and change, hand over and delete the agent.</li>
          <li>${harmless(owner)} can no longer change, hand over or delete the agent, nor see or run it, unless a grant allows it.</li>
          <li>This is saved as a new version with the same definition. Running calls go on, and conversations stay with the callers that had them.</li>
        </ul>
        ${problem.value && html`<p class="notice error" role="alert">${harmless(problem.value)}</p>`}
        <div class="actions">
          <button type="submit" class="primary" disabled=${isBusy.value}>Hand over</button>
          <button type="button" onClick=${onClose}>Cancel</button>
        </div>
      </form>
    <//>
  `;
}
