/**
 * The page to which the authorization server sends its answer, in the window of the sign-in. It hands the answer over to the page of the
 * console that waits for it, and closes the window. It has no other way to that page, whose policy (COOP) parts it from all windows.
 */

const WAIT_MS = 10_000;
const NAMES = ['state', 'code', 'iss', 'error', 'error_description'];

const { searchParams } = new URL(location.href);
history.replaceState(null, '', location.pathname); // the code is in no address or history
const answer = Object.fromEntries(NAMES.filter((name) => searchParams.has(name)).map((name) => [name, searchParams.get(name)]));
const channel = new BroadcastChannel(`pallas-sign-in-${answer.state}`);
const status = /** @type {HTMLElement} */ (document.getElementById('status'));

/** @param {string} text */
function say(text) {
  status.textContent = text;
}

const timer = setTimeout(() => say('No page of the console waits for this sign-in. Close this window, and sign in at the console again.'), WAIT_MS);
channel.onmessage = () => {
  clearTimeout(timer);
  say('The console goes on. You can close this window.');
  window.close();
};
say('Handing the answer over to the console…');
channel.postMessage(answer);

export {};
