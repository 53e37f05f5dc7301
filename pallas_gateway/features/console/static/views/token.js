/** The dialog by which the gateway gets to know who calls: a sign-in or a key; and as whom it knows the caller. */

import { Dialog } from '../dialog.js';
import { html, useId, useSignal } from '../html.js';
import { KINDS, isTokenKept, refusalOf, setToken, signInOffer, signInTitle, signedIn, startSignIn, token, tokenRefusal, you } from '../state.js';
import { harmless } from '../text.js';
import { Copy } from './copy.js';

/** @param {{onClose: () => void}} props */
export function Token({ onClose }) {
  const value = useSignal(signedIn.value ? '' : token.value);
  const keep = useSignal(isTokenKept.value);
  const id = useId();
  const refusal = tokenRefusal();
  const problem = useSignal(refusal && token.value ? `The gateway does not accept this key or sign-in: ${refusal.message}` : '');
  const trying = useSignal(false);
  const wantsKey = useSignal(token.value !== '' && !signedIn.value);
  /** @param {Event} event */
  const submit = async (event) => {
    event.preventDefault();
    if (trying.value) return;
    const [tried, isKept] = [value.value.trim(), keep.value];
    trying.value = true;
    problem.value = await refusalOf(tried);
    trying.value = false;
    if (problem.value) return;
    setToken(tried, { keep: isKept });
    onClose();
  };
  const forget = () => {
    setToken('');
    onClose();
  };
  if (signedIn.value && !refusal) {
    return html`<${Dialog} title=${`Signed in as ${signedIn.value.name}`} onClose=${onClose}>
      <${Identity} />
      <div class="actions"><button type="button" class="primary" onClick=${onClose}>Close</button></div>
    <//>`;
  }
  if (signInOffer.value && !wantsKey.value) {
    return html`
      <${Dialog} title=${signInTitle()} onClose=${onClose}>
        ${problem.value && html`<p class="notice error" role="alert">${problem.value}</p>`}
        <p>You sign in at ${new URL(signInOffer.value.issuer).host}, or use a key.</p>
        <div class="actions">
          <button type="button" class="primary" onClick=${startSignIn}>Sign in</button>
          <button type="button" onClick=${() => (wantsKey.value = true)}>Use a key instead</button>
          <button type="button" onClick=${onClose}>Cancel</button>
        </div>
      <//>
    `;
  }
  return html`
    <${Dialog} title=${signInTitle()} onClose=${onClose}>
      <form onSubmit=${submit}>
        ${token.value && !refusal && html`<${Identity} />`}
        <p class="hint">Whoever runs the gateway gives you a key. This page keeps it in memory, and forgets it when it is closed or reloaded.</p>
        ${problem.value && html`<p class="notice error" role="alert">${problem.value}</p>`}
        <label for=${id}>Key</label>
        <input
          id=${id} type="password" autocomplete="off" spellcheck=${false} value=${value.value}
          onInput=${(/** @type {any} */ event) => ((value.value = event.target.value), (problem.value = ''))}
        />
        <label class="check">
          <input type="checkbox" checked=${keep.value} onChange=${(/** @type {any} */ event) => (keep.value = event.target.checked)} />
          Keep it in this tab, also when the page is reloaded
        </label>
        <div class="actions">
          <button class="primary" type="submit">${trying.value ? 'Trying the key…' : 'Use this key'}</button>
          <button type="button" onClick=${forget} disabled=${!token.value}>Forget key</button>
          <button type="button" onClick=${onClose}>Cancel</button>
        </div>
      </form>
    <//>
  `;
}

/** The name and the id under which the gateway knows the caller: who hands an agent over to them needs the id. */
function Identity() {
  if (!you.value?.id) return null;
  const { name, kind, id } = you.value;
  return html`
    <p>The gateway knows you as ${harmless(name)} (${KINDS[kind]}). Your id, for who hands an agent over to you:</p>
    <div class="copied"><code>${harmless(id)}</code><${Copy} text=${id} what="your id" small=${false} /></div>
  `;
}
