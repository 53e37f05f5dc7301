/**
 * Registries: the documents (`/.well-known/mcp/server.json`) with the agents of this gateway, and of other ones whose agents
 * the page shows. The URLs of others are kept in this browser, their tokens in memory.
 */

import { signal } from './html.js';
import { McpError, getJson } from './mcp.js';

export const WELL_KNOWN = '/.well-known/mcp/server.json';
const PUBLISHER = 'io.modelcontextprotocol.registry/publisher-provided';
const KEY = 'pallas.registries';

/** @typedef {{url: string, token: string}} Registry */

/** @type {import('./vendor/preact-signals.js').Signal<Registry[]>} */
export const registries = signal(stored().map((url) => ({ url, token: '' })));
/** Why the agents of a registry are not shown, by its URL. */
export const registryProblems = signal(/** @type {Map<string, string>} */ (new Map()));

/**
 * Add a registry, or replace its token.
 * @param {string} text the URL of a gateway, with or without the path of its registry
 * @param {string} token
 * @returns {string} why it is not added; empty if it is
 */
export function addRegistry(text, token) {
  if (!URL.canParse(text) || !/^https?:$/.test(new URL(text).protocol)) return 'Enter a URL that begins with http:// or https://.';
  const { origin, pathname } = new URL(text);
  const url = `${origin}${pathname}`.replace(WELL_KNOWN, '').replace(/(?<!\/)\/+$/, '');
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
  registryProblems.value = new Map(registryProblems.value).set(url, why);
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

/**
 * @typedef {object} Agent
 * @property {string} id unique among all registries; used in the page's address
 * @property {string} name
 * @property {string} title
 * @property {string} description
 * @property {string} version
 * @property {string} url its MCP endpoint, relative to the page where it is behind this gateway's port
 * @property {string} publicUrl the same as clients see it
 * @property {{model?: string, vision?: boolean, documents?: boolean, context_window?: number, max_output_tokens?: number}} capabilities
 * @property {boolean} needsToken
 * @property {string} model its own, as its registry names it; empty if it does not
 * @property {string} registry the URL of its gateway; empty for this one
 * @property {string[]} icons URLs of its icons, the first one preferred
 * @property {boolean} hasThreads its gateway keeps conversations
 */

/**
 * The agents of a document; entries of an unknown form are left out. Those of another registry are at its origin, whatever
 * they name.
 * @param {any} document
 * @param {string} [registry] the URL of another gateway whose document it is
 * @returns {Agent[]}
 */
export function agentsOf(document, registry = '') {
  const entries = Array.isArray(document?.servers) ? document.servers : [];
  return entries.map((/** @type {any} */ entry) => agentOf(entry?.server, registry)).filter(Boolean);
}

/**
 * @param {any} server
 * @param {string} registry
 * @returns {Agent | null}
 */
function agentOf(server, registry) {
  const remote = server?.remotes?.[0];
  if (typeof server?.name !== 'string' || !isHttp(remote?.url)) return null;
  // The registry names public URLs; behind a gateway's port an agent is at a path, whatever a proxy puts before it.
  const name = /\/agents\/([^/?#]+)\/mcp$/.exec(remote.url)?.[1];
  const known = name ?? server.name.replace(/^.*\//, '');
  const base = registry || '..';
  const isOwn = !registry || new URL(remote.url).origin === new URL(registry).origin;
  if (!isOwn && !name) return null; // a token, and the texts to connect, are for the registry's own origin alone
  return {
    id: registry ? `${registry.replace(/^https?:\/\//, '')}~${known}` : known,
    name: known,
    ...textsOf(server, known),
    url: name ? `${base}/agents/${name}/mcp` : remote.url,
    publicUrl: isOwn ? remote.url : `${base}/agents/${name}/mcp`,
    capabilities: server.capabilities ?? {},
    needsToken: Array.isArray(remote.headers) && remote.headers.length > 0,
    registry,
    icons: iconsOf(server.icons),
    hasThreads: typeof server._meta?.[PUBLISHER]?.threads === 'string',
  };
}

/**
 * The texts of an entry; its own title and description may be shortened.
 * @param {any} server
 * @param {string} name
 */
function textsOf(server, name) {
  const full = server._meta?.[PUBLISHER] ?? {};
  return {
    title: String(full.title ?? server.title ?? name),
    description: String(full.description ?? server.description ?? ''),
    version: String(server.version ?? ''),
    model: String(full.model ?? server.capabilities?.model ?? ''),
  };
}

/** @param {unknown} icons */
function iconsOf(icons) {
  return (Array.isArray(icons) ? icons : []).map((icon) => icon?.src).filter((src) => typeof src === 'string');
}

/** @param {unknown} url */
function isHttp(url) {
  return typeof url === 'string' && URL.canParse(url) && /^https?:$/.test(new URL(url).protocol);
}
