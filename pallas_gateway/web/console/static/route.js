/** The view that the page's address names: `#/agents/echo` is `['agents', 'echo']`. */

import { signal } from './html.js';

export const route = signal(parts());

/**
 * The address of a view, for links.
 *
 * @param {...string} path
 */
export function address(...path) {
  return `#/${path.map(encodeURIComponent).join('/')}`;
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
