/** Other gateways whose agents the page shows. Their URLs are kept in this browser, their tokens in memory. */

import { signal } from './html.js';
import { McpError, getJson } from './mcp.js';
import { WELL_KNOWN, agentsOf } from './registry.js';

const KEY = 'pallas.registries';

/** @typedef {{url: string, token: string}} Registry */

/** @type {import('./vendor/preact-signals.js').Signal<Registry[]>} */
export const registries = signal(stored().map((url) => ({ url, token: '' })));
/** Why the agents of a registry are not shown, by its URL. */
export const registryProblems = signal(/** @type {Record<string, string>} */ ({}));

/**
 * Add a registry, or replace its token.
 *
 * @param {string} text the URL of a gateway, with or without the path of its registry
 * @param {string} token
 * @returns {string} why it is not added; empty if it is
 */
export function addRegistry(text, token) {
  if (!URL.canParse(text) || !/^https?:$/.test(new URL(text).protocol)) return 'Enter a URL that begins with http:// or https://.';
  const { origin, pathname } = new URL(text);
  const url = `${origin}${pathname}`.replace(WELL_KNOWN, '').replace(/\/+$/, '');
  registries.value = [...registries.value.filter((one) => one.url !== url), { url, token }];
  store();
  return '';
}

/** @param {string} url */
export function removeRegistry(url) {
  registries.value = registries.value.filter((one) => one.url !== url);
  store();
}

/**
 * The agents of a registry; null, with the reason in `registryProblems`, if it cannot be read.
 *
 * @param {Registry} registry
 */
export async function readRegistry({ url, token }) {
  try {
    await checkPolicy(url);
    const found = agentsOf(await getJson(`${url}${WELL_KNOWN}`, { token }), url);
    note(url, '');
    return found;
  } catch (error) {
    const { message, status } = /** @type {McpError} */ (error);
    const unlisted = `It does not answer, or its agents.yaml does not list this page: gateway.allowed_origins: [${location.origin}]`;
    note(url, status === 0 && !(error instanceof PolicyError) ? unlisted : message);
    return null;
  }
}

class PolicyError extends McpError {}

/**
 * Compare a registry with the page's own policy: a request against it would be an error in the browser's console.
 *
 * @param {string} url
 */
async function checkPolicy(url) {
  const policy = (await fetch('./', { method: 'HEAD' })).headers.get('Content-Security-Policy') ?? '';
  const { origin } = new URL(url);
  const allowed = /connect-src ([^;]*)/.exec(policy)?.[1].split(' ') ?? [];
  if (origin !== location.origin && !allowed.includes(origin)) {
    throw new PolicyError(`This gateway's agents.yaml does not list it: gateway.console_registries: [${url}]`);
  }
}

/**
 * @param {string} url
 * @param {string} why
 */
function note(url, why) {
  registryProblems.value = { ...registryProblems.value, [url]: why };
}

function store() {
  try {
    localStorage.setItem(KEY, JSON.stringify(registries.value.map(({ url }) => url)));
  } catch {
    // A browser without storage forgets them with the page.
  }
}

/** @returns {string[]} */
function stored() {
  try {
    const urls = JSON.parse(localStorage.getItem(KEY) ?? '[]');
    return Array.isArray(urls) ? urls.filter((url) => typeof url === 'string' && URL.canParse(url)) : [];
  } catch {
    return [];
  }
}
