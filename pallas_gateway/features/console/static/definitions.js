/** A client of the gateway's agents as data (`/api/v1/agents`). */

import { request } from './gateway_api.js';
import { jsonOf } from './mcp.js';
import { agentById, refreshAgain } from './state.js';

const ATTEMPTS = 20;
const PAUSE_MS = 300;

/**
 * @typedef {import('./definition.js').MayUse} MayUse
 * @typedef {{version: number, editor: string, updatedAt: string, why?: string}} Version
 * @typedef {{document: any, etag: string}} Stored
 * @typedef {Stored & {written: any}} Written `written`: the document of its latest version, which has no defaults
 */

/**
 * Return an agent with its definition, and the `ETag` that a change needs.
 * @param {string} name
 * @param {string} token
 * @returns {Promise<Stored>}
 */
export async function readAgent(name, token) {
  return storedIn(await request(pathOf(name), { token }));
}

/**
 * Return an agent, with its definition as it was written.
 * @param {string} name
 * @param {string} token
 * @returns {Promise<Written>}
 */
export async function readWritten(name, token) {
  const stored = await readAgent(name, token);
  const { source, version } = stored.document;
  return { ...stored, written: source === 'database' ? await readVersion(name, version, token) : stored.document };
}

/**
 * Return what definitions may use.
 * @param {string} token
 * @returns {Promise<MayUse>}
 */
export async function readMayUse(token) {
  return jsonOf(await request('agents_may_use', { token }));
}

/**
 * Make an agent; with `isCheck` the gateway only checks it.
 * @param {Record<string, any>} definition with its `name`
 * @param {string} token
 * @param {boolean} isCheck
 */
export async function createAgent(definition, token, isCheck) {
  return storedIn(await request(`agents?${howOf(isCheck)}`, { method: 'POST', token, body: definition }));
}

/**
 * Replace the definition of an agent; with `isCheck` the gateway only checks it.
 * @param {string} name
 * @param {Record<string, any>} definition
 * @param {string} etag
 * @param {string} token
 * @param {boolean} isCheck
 * @param {string} [why] the reason, for the list of versions
 */
export async function replaceAgent(name, definition, etag, token, isCheck, why = '') {
  return storedIn(await request(`${pathOf(name)}?${howOf(isCheck)}${reasonOf(why)}`, { method: 'PUT', token, body: definition, match: etag }));
}

/**
 * Hand an agent over to another owner.
 * @param {string} name
 * @param {string} owner its id
 * @param {string} etag
 * @param {string} token
 */
export async function giveAgent(name, owner, etag, token) {
  return storedIn(await request(`${pathOf(name)}?${howOf(false)}`, { method: 'PATCH', token, body: { owner }, match: etag }));
}

/**
 * @param {string} name
 * @param {string} etag
 * @param {string} token
 * @param {boolean} withThreads delete its threads as well
 */
export async function deleteAgent(name, etag, token, withThreads) {
  await request(`${pathOf(name)}?${howOf(false)}${withThreads ? '&threads=delete' : ''}`, { method: 'DELETE', token, match: etag });
}

/**
 * Return the callers to which an agent may be handed over.
 * @param {string} name
 * @param {string} token
 * @returns {Promise<{id: string, name: string, kind: string}[]>}
 */
export async function readPossibleOwners(name, token) {
  return (await jsonOf(await request(`${pathOf(name)}/possible-owners`, { token }))).callers;
}

/**
 * Return how callers have rated an agent.
 * @param {string} name
 * @param {string} token
 * @returns {Promise<{good: number, bad: number, notes: {rating: string, note: string, ratedAt: string, question: string, answer: string}[]}>}
 */
export async function readRatings(name, token) {
  return jsonOf(await request(`${pathOf(name)}/ratings`, { token }));
}

/**
 * Return the versions of an agent, the latest first.
 * @param {string} name
 * @param {string} token
 * @returns {Promise<Version[]>}
 */
export async function readVersions(name, token) {
  const { versions } = await jsonOf(await request(`${pathOf(name)}/versions`, { token }));
  return versions.toSorted((/** @type {Version} */ a, /** @type {Version} */ b) => b.version - a.version);
}

/**
 * @param {string} name
 * @param {number} version
 * @param {string} token
 */
export async function readVersion(name, version, token) {
  return jsonOf(await request(`${pathOf(name)}/versions/${version}`, { token }));
}

/**
 * Make an earlier version the latest one, as a new version.
 * @param {string} name
 * @param {number} version
 * @param {string} etag
 * @param {string} token
 * @param {string} why the reason, for the list of versions
 */
export async function restoreVersion(name, version, etag, token, why) {
  return storedIn(await request(`${pathOf(name)}/versions/${version}/restore?${howOf(false)}${reasonOf(why)}`, { method: 'POST', token, body: {}, match: etag }));
}

/**
 * Read the list of agents again until an agent is in it, or is not: another process of the gateway may have taken the change.
 * @param {string} name
 * @param {boolean} isListed
 */
export async function untilListed(name, isListed) {
  for (let attempt = 0; attempt < ATTEMPTS; attempt += 1) {
    await refreshAgain();
    if ((agentById(name) !== null) === isListed) return;
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
  }
}

/** @param {boolean} isCheck */
function howOf(isCheck) {
  return isCheck ? 'dry_run=true' : 'wait=true';
}

/** @param {string} why */
function reasonOf(why) {
  return why.trim() ? `&why=${encodeURIComponent(why.trim())}` : '';
}

/** @param {string} name */
function pathOf(name) {
  return `agents/${encodeURIComponent(name)}`;
}

/** @param {Response} response */
async function storedIn(response) {
  return { document: await jsonOf(response), etag: response.headers.get('ETag') ?? '' };
}
