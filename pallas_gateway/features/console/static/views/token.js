/** The dialog that takes the bearer token of all requests. */

import { Dialog } from '../dialog.js';
import { html, useId, useSignal } from '../html.js';
import { isTokenKept, refusalOf, setToken, signInOffer, signedIn, startSignIn, token, tokenRefusal } from '../state.js';

/** @param {{onClose: () => void}} props */
export function TokenDialog({ onClose }) {
  const value = useSignal(signedIn.value ? '' : token.value);
  const keep = useSignal(isTokenKept.value);
  const id = useId();
  const refusal = tokenRefusal();
  const problem = useSignal(refusal && token.value ? `The gateway does not accept this token: ${refusal.message}` : '');
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
  if (signInOffer.value && !wantsKey.value) {
    return html`
      <${Dialog} title="Token" onClose=${onClose}>
        ${problem.value && html`<p class="notice error" role="alert">${problem.value}</p>`}
        <p>${refusal && !token.value ? 'The gateway requires a token. ' : ''}Sign in at ${new URL(signInOffer.value.issuer).host}, or use a key.</p>
        <div class="actions">
          <button type="button" class="primary" onClick=${startSignIn}>Sign in</button>
          <button type="button" onClick=${() => (wantsKey.value = true)}>Use a key instead</button>
          <button type="button" onClick=${onClose}>Cancel</button>
        </div>
      <//>
    `;
  }
  return html`
    <${Dialog} title="Token" onClose=${onClose}>
      <form onSubmit=${submit}>
        <p class="hint">
          The key or token with which this page calls the gateway. It is kept in memory, and forgotten when the page is
          closed or reloaded.${refusal && !token.value && ' The gateway requires one.'}
        </p>
        ${problem.value && html`<p class="notice error" role="alert">${problem.value}</p>`}
        <label for=${id}>Bearer token</label>
        <input
          id=${id}
          type="password"
          autocomplete="off"
          spellcheck=${false}
          value=${value.value}
          onInput=${(/** @type {any} */ event) => ((value.value = event.target.value), (problem.value = ''))}
        />
        <label class="check">
          <input
            type="checkbox"
            checked=${keep.value}
            onChange=${(/** @type {any} */ event) => (keep.value = event.target.checked)}
          />
          Keep it in this tab, also when the page is reloaded
        </label>
        <div class="actions">
          <button class="primary" type="submit">${trying.value ? 'Trying the token…' : 'Use token'}</button>
          <button type="button" onClick=${forget} disabled=${!token.value}>Forget token</button>
          <button type="button" onClick=${onClose}>Cancel</button>
        </div>
      </form>
    <//>
  `;
}
