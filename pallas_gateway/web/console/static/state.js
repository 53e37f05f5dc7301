/**
 * What all views share: the token, the agents and their health. Health is requested in one round for all agents: every
 * minute, when the page gets the focus, and after each call.
 */

import { batch, computed, signal } from './html.js';
import { getHealth, getJson } from './mcp.js';
import { WELL_KNOWN, agentsOf } from './registry.js';
import { readRegistry, registries } from './registries.js';

const TOKEN_KEY = 'pallas.token';
const ROUND_SECONDS = 60;
const STARTING_SECONDS = 3;

/** @typedef {import('./registry.js').Agent} Agent */
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
 * The token for an agent: that of its registry, and only where the agent has the registry's origin.
 *
 * @param {Agent} agent
 */
export function tokenFor(agent) {
  if (agent.registry === '') return token.value;
  const registry = registries.value.find(({ url }) => url === agent.registry);
  return registry && new URL(agent.url).origin === new URL(registry.url).origin ? registry.token : '';
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

/** Begin a round after the running one, which may not know of a change. */
export async function refreshAgain() {
  await round?.done;
  await refresh();
}

/** @param {string} asked */
async function runRound(asked) {
  checking.value = true;
  const current = () => token.value === asked;
  try {
    const found = agentsOf(await getJson(`..${WELL_KNOWN}`, { token: asked }));
    if (!current()) return;
    batch(() => {
      agents.value = [...found, ...(agents.value ?? []).filter((agent) => agent.registry !== '')];
      registryError.value = null;
    });
    const others = (await Promise.all(registries.value.map(readRegistry))).flat();
    if (!current()) return;
    agents.value = [...found, ...others];
    await checkAll([...found, ...others], current);
  } catch (error) {
    if (current()) registryError.value = /** @type {any} */ (error);
  } finally {
    if (current()) {
      batch(() => {
        checking.value = false;
        checkedAt.value = new Date();
      });
      againWhileAgentsStart();
    }
  }
}

/** @type {ReturnType<typeof setTimeout> | undefined} */
let again;

/** Begin another round soon while an agent is starting: others may wait for it, and are degraded until it is up. */
function againWhileAgentsStart() {
  clearTimeout(again);
  if (!(agents.value ?? []).some(({ id }) => statusOf(id) === 'starting')) return;
  again = setTimeout(() => document.visibilityState === 'visible' && refresh(), STARTING_SECONDS * 1000);
}

/**
 * Request the health of each agent at once; a slow one delays no other.
 *
 * @param {Agent[]} found
 * @param {() => boolean} current
 */
async function checkAll(found, current) {
  const known = new Set(found.map((agent) => agent.id));
  health.value = Object.fromEntries(Object.entries(health.value).filter(([id]) => known.has(id)));
  const checks = found.map(async (agent) => {
    const answer = await healthAt(agent);
    if (current()) health.value = { ...health.value, [agent.id]: answer };
  });
  await Promise.all(checks);
}

/** @param {Agent} agent */
async function healthAt(agent) {
  try {
    return await getHealth(agent.url, { token: tokenFor(agent) });
  } catch (error) {
    return { message: /** @type {Error} */ (error).message };
  }
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
