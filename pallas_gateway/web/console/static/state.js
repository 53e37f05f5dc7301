/**
 * What all views share: the token, the agents and their health. Health is requested in one round for all agents: every
 * minute, when the page gets the focus, and after each call.
 */

import { batch, computed, signal } from './html.js';
import { getHealth, getJson } from './mcp.js';

const TOKEN_KEY = 'pallas.token';
const ROUND_SECONDS = 60;
const PUBLISHER = 'io.modelcontextprotocol.registry/publisher-provided';

/**
 * @typedef {object} Agent
 * @property {string} id unique among all registries; used in the page's address
 * @property {string} name
 * @property {string} title
 * @property {string} description
 * @property {string} version
 * @property {string} url its MCP endpoint, relative to the page where it is below the same origin
 * @property {string} publicUrl the same as clients see it
 * @property {{model?: string, vision?: boolean, context_window?: number, max_output_tokens?: number}} capabilities
 * @property {boolean} needsToken
 */

/** @typedef {'ok' | 'degraded' | 'error' | 'starting' | 'unknown'} Status */

/** The bearer token of every request; in memory, and on request in `sessionStorage`. */
export const token = signal(storedToken());
/** @type {import('./vendor/preact-signals.js').Signal<Agent[] | null>} null before the first answer */
export const agents = signal(null);
/** @type {import('./vendor/preact-signals.js').Signal<import('./mcp.js').McpError | null>} why there is no list */
export const registryError = signal(null);
/** @type {import('./vendor/preact-signals.js').Signal<Record<string, any>>} the last `get_health` by agent id */
export const health = signal({});
/** True during a round. */
export const checking = signal(false);
/** The time of the last complete round. */
export const checkedAt = signal(/** @type {Date | null} */ (null));

export const isTokenKept = computed(() => token.value !== '' && storedToken() === token.value);

/**
 * Use a token, or none.
 *
 * @param {string} value
 * @param {{keep?: boolean}} [options] `keep`: store it until the tab is closed
 */
export function setToken(value, { keep = false } = {}) {
  try {
    if (keep && value) sessionStorage.setItem(TOKEN_KEY, value);
    else sessionStorage.removeItem(TOKEN_KEY);
  } catch {
    // A browser without storage keeps the token in memory only.
  }
  batch(() => {
    token.value = value;
    agents.value = null;
    health.value = {};
    registryError.value = null;
  });
  return refresh();
}

/**
 * The token for an agent of this gateway.
 *
 * @param {Agent} _agent
 */
export function tokenFor(_agent) {
  return token.value;
}

/** @param {string} id */
export function agentById(id) {
  return agents.value?.find((agent) => agent.id === id) ?? null;
}

/**
 * The state of an agent in one word.
 *
 * @param {string} id
 * @returns {Status}
 */
export function statusOf(id) {
  const known = health.value[id];
  if (known?.agent?.state === 'pending' || known?.agent?.state === 'starting') return 'starting';
  return ['ok', 'degraded', 'error'].includes(known?.status) ? known.status : 'unknown';
}

/**
 * The reason for a state that is not `ok`.
 *
 * @param {string} id
 * @returns {string}
 */
export function reasonOf(id) {
  return health.value[id]?.message ?? '';
}

/** @type {{token: string, done: Promise<void>} | null} */
let round = null;

/** Read the registry and the health of all agents; a request during a round with the same token joins it. */
export function refresh() {
  if (round?.token === token.value) return round.done;
  const begun = { token: token.value, done: runRound(token.value) };
  round = begun;
  return begun.done.finally(() => {
    if (round === begun) round = null;
  });
}

/** @param {string} asked */
async function runRound(asked) {
  checking.value = true;
  const current = () => token.value === asked;
  try {
    const document = await getJson('../.well-known/mcp/server.json', { token: asked });
    if (!current()) return;
    const found = agentsOf(document);
    batch(() => {
      agents.value = found;
      registryError.value = null;
    });
    await checkAll(found, asked, current);
  } catch (error) {
    if (current()) registryError.value = /** @type {any} */ (error);
  } finally {
    if (current()) {
      batch(() => {
        checking.value = false;
        checkedAt.value = new Date();
      });
    }
  }
}

/**
 * Request the health of each agent at once; a slow one delays no other.
 *
 * @param {Agent[]} found
 * @param {string} asked
 * @param {() => boolean} current
 */
async function checkAll(found, asked, current) {
  const known = new Set(found.map((agent) => agent.id));
  health.value = Object.fromEntries(Object.entries(health.value).filter(([id]) => known.has(id)));
  const checks = found.map(async (agent) => {
    const answer = await healthAt(agent.url, asked);
    if (current()) health.value = { ...health.value, [agent.id]: answer };
  });
  await Promise.all(checks);
}

/**
 * @param {string} url
 * @param {string} asked
 */
async function healthAt(url, asked) {
  try {
    return await getHealth(url, { token: asked });
  } catch (error) {
    return { message: /** @type {Error} */ (error).message };
  }
}

/**
 * The agents of a registry's document; entries of an unknown form are left out.
 *
 * @param {any} document
 * @returns {Agent[]}
 */
export function agentsOf(document) {
  const entries = Array.isArray(document?.servers) ? document.servers : [];
  return entries.map((/** @type {any} */ entry) => agentOf(entry?.server)).filter(Boolean);
}

/**
 * @param {any} server
 * @returns {Agent | null}
 */
function agentOf(server) {
  const remote = server?.remotes?.[0];
  if (typeof remote?.url !== 'string' || typeof server.name !== 'string') return null;
  // The registry names public URLs; behind this gateway's port an agent is at a path, whatever a proxy puts before it.
  const name = /\/agents\/([^/]+)\/mcp$/.exec(remote.url)?.[1];
  const full = server._meta?.[PUBLISHER] ?? {};
  const id = name ?? server.name.replace(/^.*\//, '');
  return {
    id,
    name: id,
    title: String(full.title ?? server.title ?? id),
    description: String(full.description ?? server.description ?? ''),
    version: String(server.version ?? ''),
    url: name ? `../agents/${name}/mcp` : remote.url,
    publicUrl: remote.url,
    capabilities: server.capabilities ?? {},
    needsToken: Array.isArray(remote.headers) && remote.headers.length > 0,
  };
}

/** Begin the rounds. */
export function startRounds() {
  refresh();
  setInterval(() => {
    if (document.visibilityState === 'visible') refresh();
  }, ROUND_SECONDS * 1000);
  window.addEventListener('focus', () => refresh());
}

function storedToken() {
  try {
    return sessionStorage.getItem(TOKEN_KEY) ?? '';
  } catch {
    return '';
  }
}
