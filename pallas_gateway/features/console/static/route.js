/** The view that the page's address names: `#/agents/echo` is `['agents', 'echo']`. */

import { signal } from './html.js';

export const route = signal(parts());

/**
 * The address of a view, for links.
 * @param {...string} path
 */
export function address(...path) {
  return `#/${path.map(encodeURIComponent).join('/')}`;
}

/**
 * Change the address, without a change of the focus.
 * @param {string[]} path
 * @param {{isAStep: boolean}} how a step that “back” returns from, or in place of the address
 */
export function go(path, { isAStep }) {
  const place = address(...path);
  if (isAStep) history.pushState(null, '', place);
  else history.replaceState(null, '', place);
  route.value = parts();
}

function parts() {
  const path = location.hash.replace(/^#\/?/, '').split('/').map(decoded);
  return path[0] ? path : ['agents'];
}

/** @param {string} part */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

window.addEventListener('hashchange', () => {
  route.value = parts();
});
