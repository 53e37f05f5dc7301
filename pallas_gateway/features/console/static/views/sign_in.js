/** The dialogs of signing in at the authorization server, in a window of its own, and of signing out. */

import { Dialog } from '../dialog.js';
import { html, useEffect, useRef, useSignal } from '../html.js';
import { SignInError, SignedIn, begin, codeIn, hostOf, readServer, redeem, revoke } from '../sign_in.js';
import { isAskingForToken, refresh, refusalOf, setToken, signInOffer, signInTitle, signedIn, startSignIn, useToken } from '../state.js';

const WINDOW = 'popup,width=520,height=720';
/** The channel on which the window hands its answer over: the sign-ins of two tabs share none. */
const CHANNEL = 'pallas-sign-in-';

/**
 * @typedef {import('../sign_in.js').Attempt} Attempt
 * @typedef {import('../state.js').SignInOffer} Offer
 */

/** @param {{window?: Window | null, left?: SignedIn, onClose: () => void}} props */
export function SignIn({ window: opened = null, left, onClose }) {
  if (left) return html`<${SignedOut} left=${left} onClose=${onClose} />`;
  return html`<${SigningIn} offer=${signInOffer.value} opened=${opened} onClose=${onClose} />`;
}

/** @param {{offer: Offer, opened: Window | null, onClose: () => void}} props */
function SigningIn({ offer, opened, onClose }) {
  const host = hostOf(offer.issuer);
  const attempt = useSignal(/** @type {Attempt | null} */ (null));
  const isBlocked = useSignal(opened === null);
  const isAnswered = useSignal(false);
  const problem = useSignal('');
  const gone = useRef(new AbortController());
  useEffect(() => {
    const { signal } = gone.current;
    signIn(offer, {
      signal,
      onReady: (begun) => {
        attempt.value = begun;
        opened?.location.replace(begun.url);
      },
      onAnswered: () => (isAnswered.value = true),
    }).then(
      () => signal.aborted || onClose(),
      (error) => {
        if (!attempt.peek()) opened?.close();
        if (!signal.aborted) problem.value = error.message;
      },
    );
    return () => {
      gone.current.abort();
      if (!attempt.peek()) opened?.close();
    };
  }, []);
  const open = () => (isBlocked.value = window.open(attempt.peek()?.url, '_blank', WINDOW) === null);
  const useKey = () => {
    onClose();
    isAskingForToken.value = true;
  };
  const again = () => {
    onClose();
    setTimeout(startSignIn); // after this dialog is gone; the click still allows a window
  };
  return html`
    <${Dialog} title=${signInTitle()} onClose=${onClose}>
      ${problem.value && html`<p class="notice error" role="alert">${problem.value}</p>`}
      ${!problem.value && html`<p role="status" tabindex="-1" autofocus>${stepOf(host, attempt.value !== null, isAnswered.value, isBlocked.value)}</p>`}
      <div class="actions">
        ${problem.value && html`<button type="button" class="primary" onClick=${again}>Try again</button>`}
        ${!problem.value && attempt.value && !isAnswered.value && html`<button type="button" class=${isBlocked.value ? 'primary' : ''} onClick=${open}>${isBlocked.value ? 'Open the window' : 'Open it again'}</button>`}
        <button type="button" onClick=${useKey}>Use a key instead</button>
        <button type="button" onClick=${onClose}>Cancel</button>
      </div>
    <//>
  `;
}

/**
 * @param {string} host
 * @param {boolean} isReady
 * @param {boolean} isAnswered
 * @param {boolean} isBlocked
 */
function stepOf(host, isReady, isAnswered, isBlocked) {
  if (isAnswered) return 'Signing in…';
  if (!isReady) return `Asking ${host} how to sign in…`;
  return isBlocked ? `The browser has blocked the window of ${host}.` : `Continue in the window of ${host}. This page goes on by itself once you have signed in there.`;
}

/**
 * Sign in; returns when the page uses the token.
 * @param {Offer} offer
 * @param {{signal: AbortSignal, onReady: (attempt: Attempt) => void, onAnswered: () => void}} options
 */
async function signIn(offer, { signal, onReady, onAnswered }) {
  if (!('BroadcastChannel' in globalThis)) throw new SignInError('This browser cannot sign in here: it has no BroadcastChannel. Use a key instead.');
  const server = await readServer(offer);
  const attempt = await begin(offer, server, new URL('signed-in', document.baseURI).href);
  const answering = answerTo(attempt, signal);
  if (signal.aborted) return;
  onReady(attempt);
  const answer = await answering;
  onAnswered();
  const tokens = await redeem(attempt, codeIn(answer, attempt));
  const why = signal.aborted ? 'cancelled' : await refusalOf(tokens.access);
  if (why || signal.aborted) {
    await revoke(attempt, tokens);
    throw new SignInError(why);
  }
  const person = new SignedIn(attempt, tokens, { onRenewed: (token) => (useToken(token, person), refresh()) });
  if (signedIn.value?.isSamePerson(person)) {
    useToken(person.token, person);
    refresh();
  } else setToken(person.token, { of: person });
  person.start();
}

/**
 * Wait for the answer that the window hands over.
 * @param {Attempt} attempt
 * @param {AbortSignal} signal
 * @returns {Promise<any>}
 */
function answerTo({ state }, signal) {
  const channel = new BroadcastChannel(`${CHANNEL}${state}`);
  signal.addEventListener('abort', () => channel.close());
  return new Promise((resolve) => {
    channel.onmessage = ({ data }) => {
      if (data?.state !== state) return;
      channel.postMessage('received');
      channel.close();
      resolve(data);
    };
  });
}

/** @param {{left: SignedIn, onClose: () => void}} props */
function SignedOut({ left, onClose }) {
  const problem = useSignal(/** @type {string | null} */ (null));
  useEffect(() => {
    left.leave().then((why) => (problem.value = why));
  }, []);
  const endSession = () => {
    window.open(left.endSession, '_blank', WINDOW);
    onClose();
  };
  return html`
    <${Dialog} title="Signed out" onClose=${onClose}>
      <p role="status">
        This page has forgotten your tokens.
        ${problem.value === '' && ` ${left.host} has revoked them.`}
        ${problem.value && ` They are not revoked: ${problem.value}`}
      </p>
      ${left.endSession && html`<p>At ${left.host} you may still be signed in.</p>`}
      <div class="actions">
        <button type="button" class="primary" onClick=${onClose}>Close</button>
        ${left.endSession && html`<button type="button" onClick=${endSession}>Sign out there too</button>`}
      </div>
    <//>
  `;
}
