/** A client of the gateway's agents as data (`/api/v1/agents`). */

import { request } from './gateway_api.js';
import { jsonOf } from './mcp.js';
import { agentById, refreshAgain, token } from './state.js';

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
 * @returns {Promise<Stored>}
 */
export async function readAgent(name) {
  return storedIn(await ask(pathOf(name)));
}

/**
 * Return an agent, with its definition as it was written.
 * @param {string} name
 * @returns {Promise<Written>}
 */
export async function readWritten(name) {
  const stored = await readAgent(name);
  const { source, version } = stored.document;
  return { ...stored, written: source === 'database' ? await readVersion(name, version) : stored.document };
}

/** @returns {Promise<MayUse>} */
export async function readMayUse() {
  return jsonOf(await ask('agents_may_use'));
}

/**
 * Make an agent; with `isCheck` the gateway only checks it.
 * @param {Record<string, any>} definition with its `name`
 * @param {boolean} isCheck
 */
export async function createAgent(definition, isCheck) {
  return storedIn(await ask(`agents?${howOf(isCheck)}`, { method: 'POST', body: definition }));
}

/**
 * Replace the definition of an agent; with `isCheck` the gateway only checks it.
 * @param {string} name
 * @param {Record<string, any>} definition
 * @param {string} etag
 * @param {boolean} isCheck
 * @param {string} [why] the reason, for the list of versions
 */
export async function replaceAgent(name, definition, etag, isCheck, why = '') {
  return storedIn(await ask(`${pathOf(name)}?${howOf(isCheck)}${reasonOf(why)}`, { method: 'PUT', body: definition, match: etag }));
}

/**
 * @param {string} name
 * @param {string} owner its id
 * @param {string} etag
 */
export async function giveAgent(name, owner, etag) {
  return storedIn(await ask(`${pathOf(name)}?${howOf(false)}`, { method: 'PATCH', body: { owner }, match: etag }));
}

/**
 * @param {string} name
 * @param {string} etag
 * @param {boolean} withThreads delete its threads as well
 */
export async function deleteAgent(name, etag, withThreads) {
  await ask(`${pathOf(name)}?${howOf(false)}${withThreads ? '&threads=delete' : ''}`, { method: 'DELETE', match: etag });
}

/**
 * @param {string} name
 * @returns {Promise<{id: string, name: string, kind: string}[]>}
 */
export async function readPossibleOwners(name) {
  return (await jsonOf(await ask(`${pathOf(name)}/possible-owners`))).callers;
}

/**
 * @param {string} name
 * @returns {Promise<{good: number, bad: number, notes: {rating: string, note: string, ratedAt: string, question: string, answer: string}[]}>}
 */
export async function readRatings(name) {
  return jsonOf(await ask(`${pathOf(name)}/ratings`));
}

/**
 * Return the versions of an agent, the latest first.
 * @param {string} name
 * @returns {Promise<Version[]>}
 */
export async function readVersions(name) {
  const { versions } = await jsonOf(await ask(`${pathOf(name)}/versions`));
  return versions.toSorted((/** @type {Version} */ a, /** @type {Version} */ b) => b.version - a.version);
}

/**
 * @param {string} name
 * @param {number} version
 */
export async function readVersion(name, version) {
  return jsonOf(await ask(`${pathOf(name)}/versions/${version}`));
}

/**
 * Make an earlier version the latest one, as a new version.
 * @param {string} name
 * @param {number} version
 * @param {string} etag
 * @param {string} why the reason, for the list of versions
 */
export async function restoreVersion(name, version, etag, why) {
  return storedIn(await ask(`${pathOf(name)}/versions/${version}/restore?${howOf(false)}${reasonOf(why)}`, { method: 'POST', body: {}, match: etag }));
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

/**
 * @param {string} path
 * @param {{method?: string, body?: any, match?: string}} [options]
 */
function ask(path, options = {}) {
  return request(path, { ...options, token: token.value });
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
