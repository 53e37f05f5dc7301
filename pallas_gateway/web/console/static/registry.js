/** The agents of a registry's document (`/.well-known/mcp/server.json`). */

export const WELL_KNOWN = '/.well-known/mcp/server.json';
const PUBLISHER = 'io.modelcontextprotocol.registry/publisher-provided';

/**
 * @typedef {object} Agent
 * @property {string} id unique among all registries; used in the page's address
 * @property {string} name
 * @property {string} title
 * @property {string} description
 * @property {string} version
 * @property {string} url its MCP endpoint, relative to the page where it is behind this gateway's port
 * @property {string} publicUrl the same as clients see it
 * @property {{model?: string, vision?: boolean, context_window?: number, max_output_tokens?: number}} capabilities
 * @property {boolean} needsToken
 * @property {string} registry the URL of its gateway; empty for this one
 * @property {boolean} hasThreads its gateway keeps conversations
 */

/**
 * The agents of a document; entries of an unknown form are left out.
 *
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
  return {
    id: registry ? `${registry.replace(/^https?:\/\//, '')}~${known}` : known,
    name: known,
    ...textsOf(server, known),
    url: name ? `${base}/agents/${name}/mcp` : remote.url,
    publicUrl: remote.url,
    capabilities: server.capabilities ?? {},
    needsToken: Array.isArray(remote.headers) && remote.headers.length > 0,
    registry,
    hasThreads: typeof server._meta?.[PUBLISHER]?.threads === 'string',
  };
}

/**
 * The texts of an entry; its own title and description may be shortened.
 *
 * @param {any} server
 * @param {string} name
 */
function textsOf(server, name) {
  const full = server._meta?.[PUBLISHER] ?? {};
  return {
    title: String(full.title ?? server.title ?? name),
    description: String(full.description ?? server.description ?? ''),
    version: String(server.version ?? ''),
  };
}

/** @param {unknown} url */
function isHttp(url) {
  return typeof url === 'string' && URL.canParse(url) && /^https?:$/.test(new URL(url).protocol);
}
