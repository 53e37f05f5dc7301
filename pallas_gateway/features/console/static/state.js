/**
 * What all views share: the token, the agents and their health. Health is requested in one round for all agents: every
 * minute, when the page gets the focus, and after each call. A round that finds no gateway is repeated soon.
 */

import { batch, computed, signal } from './html.js';
import { slug } from './marks.js';
import { Pauses, getHealth, getJson, isUnreachable, whenShown } from './mcp.js';
import { WELL_KNOWN, agentsOf, readRegistry, registries } from './registries.js';

const TOKEN_KEY = 'pallas.token';
const LONGEST_NAME = 80;
const SIGN_IN_WINDOW = 'popup,width=520,height=720';
const ROUND_SECONDS = 60;
const STARTING_SECONDS = 3;
const ANSWER_SECONDS = 20; // a gateway that takes longer is not there

/** @typedef {import('./registries.js').Agent} Agent */
/** @typedef {{answer: any, at: Date | null, problem: import('./mcp.js').McpError | null}} Health the last `get_health`, its time, and why the latest request has no answer */
/** @typedef {'ok' | 'degraded' | 'error' | 'starting' | 'unknown'} Status */

/** @typedef {{issuer: string, client_id: string, scopes: string[], resource: string | null}} SignInOffer */

/** The bearer token of every request; in memory, and on request in `sessionStorage`. */
export const token = signal(storedToken());
/** Changes with the caller: when another token is set, and not when a sign-in renews its own. */
export const caller = signal(0);
/** @type {import('./vendor/preact-signals.js').Signal<SignInOffer | null | undefined>} how people sign in; undefined before it is known, null if they do not */
export const signInOffer = signal(undefined);
/** @type {import('./vendor/preact-signals.js').Signal<import('./sign_in.js').SignedIn | null>} who has signed in */
export const signedIn = signal(null);
/** @type {import('./vendor/preact-signals.js').Signal<{window?: Window | null, left?: import('./sign_in.js').SignedIn} | null>} the
 *   sign-in that the page shows, with its window (null if the browser blocked it); or who has signed out */
export const signInShown = signal(null);
/** @type {import('./vendor/preact-signals.js').Signal<Agent[] | null>} null before the first answer */
export const agents = signal(null);
/** @type {import('./vendor/preact-signals.js').Signal<import('./mcp.js').McpError | null>} why there is no list */
export const registryError = signal(null);
/** By agent id. */
export const health = signal(/** @type {Map<string, Health>} */ (new Map()));
/** The name of the project in its `agents.yaml`; empty before it is known. */
export const project = signal('');
/** @type {import('./vendor/preact-signals.js').Signal<{name: string, id: string | null, kind: string} | null>} as whom the gateway knows the caller */
export const you = signal(null);
/** True if the caller may make agents. */
export const mayCreate = signal(false);
/** True if the caller may list calls. */
export const mayListCalls = signal(false);
/** The names of this gateway's agents that the caller may run; null before they are known. */
export const runnable = signal(/** @type {string[] | null} */ (null));
/** True during a round. */
export const checking = signal(false);
/** The time of the last complete round that the gateway answered. */
export const checkedAt = signal(/** @type {Date | null} */ (null));
/** True while the gateway cannot be reached. */
export const isLost = computed(() => isUnreachable(registryError.value));
/** True while the page asks for a token. */
export const isAskingForToken = signal(false);
/** @type {string | null} the token that was refused when the page last asked for another one */
let refusedToken = null;
/** @type {import('./sign_in.js').SignedIn | null} whose token was renewed because it was refused; null when one is accepted */
let renewedFor = null;
/** True while a refused token is being renewed. */
let isRenewing = false;
/** The time of the next attempt to reach it, in milliseconds. */
export const nextAttempt = signal(0);
const pauses = new Pauses();

export const isTokenKept = computed(() => token.value !== '' && storedToken() === token.value);

/**
 * Return why the gateway refuses a token; an empty text if it accepts it.
 * @param {string} value
 */
export async function refusalOf(value) {
  const options = { token: value, signal: AbortSignal.timeout(ANSWER_SECONDS * 1000) };
  try {
    await getJson('../api/rights', options); // an open registry looks at no token
    return '';
  } catch (error) {
    if (isUnreachable(error)) return 'The gateway cannot be reached now.';
    if (/** @type {import('./mcp.js').McpError} */ (error).status !== 401) return ''; // what it may not do is said where it is tried
    return `The gateway does not accept this key or sign-in: ${/** @type {Error} */ (error).message}`;
  }
}

/** Return the refusal of the latest round for want of a token, or for a wrong one; null if there is none. */
export function tokenRefusal() {
  const own = (agents.value ?? []).filter(({ registry }) => registry === '');
  const problems = [registryError.value, ...own.map(({ id }) => health.value.get(id)?.problem)];
  return problems.find((problem) => problem?.status === 401) ?? null;
}

/**
 * Ask for a token once for each that is refused, or for none; that of a sign-in is renewed before.
 * @param {string} sent that of the round; an earlier one says nothing of the present token
 */
async function askForToken(sent) {
  if (isRenewing || sent !== token.value) return;
  const person = signedIn.value;
  if (!tokenRefusal()) renewedFor = null;
  else if (person && renewedFor !== person) {
    renewedFor = person;
    isRenewing = true;
    const isRenewed = await person.renew().finally(() => (isRenewing = false));
    if (isRenewed) return;
  }
  if (refusedToken === token.value || !tokenRefusal() || signedIn.value?.hasEnded || signInShown.value) return;
  refusedToken = token.value;
  isAskingForToken.value = true;
}

/**
 * Use a token, or none.
 * @param {string} value
 * @param {{keep?: boolean, of?: import('./sign_in.js').SignedIn | null}} [options] `keep`: store it until the tab is closed; `of`: who has signed in
 *   and got it
 */
export function setToken(value, { keep = false, of = null } = {}) {
  try {
    if (keep && value) sessionStorage.setItem(TOKEN_KEY, value);
    else sessionStorage.removeItem(TOKEN_KEY);
  } catch {
    // A browser without storage keeps the token in memory only.
  }
  batch(() => {
    if (token.value !== value) caller.value += 1;
    useToken(value, of);
    agents.value = null;
    health.value = new Map();
    registryError.value = null;
    showRights(null);
  });
  return refresh();
}

/**
 * Use the token of a caller: of the same one, if it is not set by `setToken`.
 * @param {string} value
 * @param {import('./sign_in.js').SignedIn | null} of who has signed in and got it
 */
export function useToken(value, of) {
  const before = signedIn.value;
  if (before !== of) before?.leave();
  batch(() => {
    signedIn.value = of;
    token.value = value;
  });
}

/** Show the sign-in; its window is opened by the click itself, otherwise browsers block it. */
export function startSignIn() {
  isAskingForToken.value = false;
  signInShown.value = { window: window.open('', '_blank', SIGN_IN_WINDOW) };
}

/** Forget the tokens of who has signed in, and show what became of them. */
export function signOut() {
  const left = signedIn.value ?? undefined;
  setToken('');
  signInShown.value = { left };
}

/** What a caller that is not known can do, as a sentence. */
export function howToBeKnown() {
  return signInOffer.value ? 'Sign in, or use a key.' : 'Use a key.';
}

/** The kinds of callers as people name them. */
export const KINDS = /** @type {Record<string, string>} */ ({ key: 'key', token: 'signs in', anonymous: 'without a key' });

/** The title of what asks a person to sign in. */
export function signInTitle() {
  return `Sign in to ${project.value || 'the gateway'}`;
}

/**
 * The caller of an agent, to compare: what is shown for one is not shown for another.
 * @param {Agent} agent
 */
export function callerOf(agent) {
  return agent.registry === '' ? caller.value : tokenFor(agent);
}

/**
 * The token for an agent: that of its registry, and only where the agent has the registry's origin.
 * @param {Agent} agent
 */
export function tokenFor(agent) {
  if (agent.registry === '') return token.value;
  const registry = registries.value.find(({ url }) => url === agent.registry);
  return registry && new URL(agent.url).origin === new URL(registry.url).origin ? registry.token : '';
}

/**
 * The sentence for a caller that may not run an agent.
 * @param {Agent} agent
 */
export function refusalFor(agent) {
  if (agent.registry === '' && token.value && tokenRefusal()) return 'The gateway does not accept this key or sign-in.';
  return tokenFor(agent) ? `You may see this agent, and not run it: ask for the grant run:agents:${agent.name}.` : `Callers that are not signed in may not run this agent. ${howToBeKnown()}`;
}

/** @param {string} id */
export function agentById(id) {
  return agents.value?.find((agent) => agent.id === id) ?? null;
}

/**
 * The state of an agent in one word; `unknown` from the first request that has no answer.
 * @param {string} id
 * @returns {Status}
 */
export function statusOf(id) {
  const known = health.value.get(id);
  if (!known?.answer || known.problem || isOutdated(id)) return 'unknown';
  const { agent, status } = known.answer;
  if (agent?.state === 'pending' || agent?.state === 'starting') return 'starting';
  return ['ok', 'degraded', 'error'].includes(status) ? status : 'unknown';
}

/**
 * The reason for a state that is not `ok`. That the gateway is lost is said once, for all agents.
 * @param {string} id
 */
export function reasonOf(id) {
  const known = health.value.get(id);
  if (isOutdated(id) || known?.problem?.status === 401) return ''; // that a caller is not known is said once
  return known?.problem?.message ?? known?.answer?.message ?? '';
}

/**
 * The downstreams of an agent with their states.
 * @param {string} id
 * @returns {any[]}
 */
export function downstreamsOf(id) {
  const rows = health.value.get(id)?.answer?.downstream;
  if (!Array.isArray(rows)) return [];
  return statusOf(id) === 'unknown' ? rows.map((row) => ({ ...row, status: 'unknown', error: null })) : rows;
}

/**
 * True if the gateway has refused or not answered the latest round: what it said before may not be so any more.
 * @param {string} id
 */
function isOutdated(id) {
  return registryError.value !== null && agentById(id)?.registry === '';
}

/** @type {{caller: number, done: Promise<void>} | null} */
let round = null;

/** Read the registry and the health of all agents; a request during a round of the same caller joins it. */
export function refresh() {
  if (round?.caller === caller.value) return round.done;
  const begun = { caller: caller.value, done: runRound(caller.value) };
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

/** Wait until the gateway answers a round. */
export async function untilReached() {
  await refresh();
  if (!isLost.value) return;
  await new Promise((resolve) => {
    const stop = isLost.subscribe((lost) => lost || queueMicrotask(() => (stop(), resolve(undefined))));
  });
}

/** Wait until the gateway has answered another round. */
export async function nextRound() {
  const before = checkedAt.value;
  await new Promise((resolve) => {
    const stop = checkedAt.subscribe((at) => at === before || queueMicrotask(() => (stop(), resolve(undefined))));
  });
}

/** @param {number} asking */
async function runRound(asking) {
  if (signInOffer.value === undefined) readOffer();
  checking.value = true;
  const current = () => caller.value === asking;
  const sent = token.value;
  try {
    const options = { token: sent, signal: AbortSignal.timeout(ANSWER_SECONDS * 1000) };
    const [listed, rights] = await Promise.all([getJson(`..${WELL_KNOWN}`, options), getJson('../api/rights', options).catch(() => null)]);
    if (!current()) return;
    // An open registry lists all agents; who is known sees those that it has access to.
    const found = agentsOf(listed).filter(({ name }) => !sent || !Array.isArray(rights?.view) || rights.view.some((/** @type {string} */ one) => slug(one) === slug(name)));
    batch(() => {
      if (rights) showRights(rights);
      show('', found);
      registryError.value = null;
    });
    await Promise.all([checkAll(found, current), ...registries.value.map((registry) => checkRegistry(registry, current))]);
    if (!current()) return;
    batch(() => {
      forgetOthers();
      checkedAt.value = new Date();
    });
  } catch (error) {
    if (current()) registryError.value = /** @type {any} */ (error);
  } finally {
    if (current()) {
      checking.value = false;
      askForToken(sent);
      scheduleNext();
    }
  }
}

/** Ask how people sign in here; without an answer the next round asks again. */
async function readOffer() {
  const found = await getJson('../api/sign-in').catch(() => undefined);
  if (found === undefined) return;
  project.value = String(found?.project ?? '').slice(0, LONGEST_NAME);
  signInOffer.value = found?.sign_in ?? null;
}

/** @param {any} rights what the caller is and may do; null if it is not known */
function showRights(rights) {
  you.value = rights?.you ?? null;
  mayCreate.value = rights?.create_agents === true;
  mayListCalls.value = rights?.list_calls === true;
  runnable.value = Array.isArray(rights?.run) ? rights.run : null;
}

/**
 * @param {string} url empty for this gateway's
 * @param {Agent[]} found
 */
function show(url, found) {
  const all = agents.value ?? [];
  const others = all.filter(({ registry }) => registry !== url);
  agents.value = url ? [...others, ...found] : [...found, ...others];
}

/**
 * @param {import('./registries.js').Registry} registry
 * @param {() => boolean} current
 */
async function checkRegistry(registry, current) {
  const found = await readRegistry(registry);
  if (!current()) return;
  const known = found ?? (agents.value ?? []).filter((agent) => agent.registry === registry.url);
  show(registry.url, known);
  await checkAll(known, current);
}

/** Forget the agents of registries that were removed, and the health of agents that are gone. */
function forgetOthers() {
  const urls = new Set(['', ...registries.value.map(({ url }) => url)]);
  const kept = (agents.value ?? []).filter(({ registry }) => urls.has(registry));
  const ids = new Set(kept.map(({ id }) => id));
  agents.value = kept;
  health.value = new Map([...health.value].filter(([id]) => ids.has(id)));
}

/** @type {ReturnType<typeof setTimeout> | undefined} */
let again;

/** Begin another round soon while the gateway is lost or an agent is starting: others may wait for it, and are degraded until it is up. */
function scheduleNext() {
  clearTimeout(again);
  const own = (agents.value ?? []).filter(({ registry }) => registry === '');
  if (isLost.value || own.some(({ id }) => isUnreachable(health.value.get(id)?.problem))) {
    const pause = pauses.next();
    nextAttempt.value = Date.now() + pause;
    again = setTimeout(() => whenShown().then(refresh), pause);
    return;
  }
  pauses.reset();
  if ((agents.value ?? []).some(({ id }) => statusOf(id) === 'starting')) {
    again = setTimeout(() => document.visibilityState === 'visible' && refresh(), STARTING_SECONDS * 1000);
  }
}

/**
 * Request the health of each agent at once; a slow one delays no other.
 * @param {Agent[]} found
 * @param {() => boolean} current
 */
async function checkAll(found, current) {
  await Promise.all(found.map((agent) => checkAgent(agent, current)));
}

/** @param {Agent} agent */
export async function checkAgent(agent, current = () => true) {
  /** @type {Health} */
  let known;
  try {
    known = { answer: await getHealth(agent.url, { token: tokenFor(agent) }), at: new Date(), problem: null };
  } catch (error) {
    const before = health.value.get(agent.id) ?? { answer: null, at: null };
    known = { ...before, problem: /** @type {any} */ (error) };
  }
  if (current()) health.value = new Map(health.value).set(agent.id, known);
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
