/**
 * A client of MCP 2026-07-28: each request is one POST, answered as JSON or as an event stream. Aborting the request
 * cancels the call on the gateway. Also the pauses between attempts to reach a gateway that does not answer.
 */

const VERSION = '2026-07-28';
const META = 'io.modelcontextprotocol';
const KEEPALIVE_BYTES = 60_000; // browsers refuse longer bodies
const SHORTEST_PAUSE_MS = 1000;
const LONGEST_PAUSE_MS = 30_000;
const CLIENT = { name: 'pallas-console', version: '1' };

/** A request that has no result. `status` is that of HTTP; `code` is JSON-RPC's, if the answer has one. */
export class McpError extends Error {
  /**
   * @param {string} message
   * @param {{status?: number, code?: number, data?: unknown}} [details]
   */
  constructor(message, { status = 0, code, data } = {}) {
    super(message);
    this.name = 'McpError';
    this.status = status;
    this.code = code;
    this.data = data;
  }
}

const NO_ANSWER = [0, 502, 503, 504]; // no response, or that of a proxy whose gateway is gone

/**
 * True for a request that reached no gateway: a later one may.
 * @param {unknown} error
 */
export function isUnreachable(error) {
  return error instanceof McpError && NO_ANSWER.includes(error.status);
}

/**
 * @typedef {object} RequestOptions
 * @property {string} [token] bearer token
 * @property {AbortSignal} [signal] cancels the request, and on the gateway the call
 * @property {Record<string, unknown>} [meta] more keys of `_meta`
 * @property {Record<string, unknown>} [capabilities] of this client, such as `{elicitation: {}}`
 * @property {boolean} [keepalive] the browser sends the request even if the page is closed meanwhile
 * @property {(notification: {method: string, params?: any}) => void} [onNotification]
 */

let lastId = 0;

/**
 * One request of MCP.
 * @param {string} url
 * @param {string} method
 * @param {Record<string, any>} params
 * @param {RequestOptions} [options]
 * @returns {Promise<any>} the result
 * @throws {McpError} for every answer without a result
 */
export async function request(url, method, params, options = {}) {
  const { token, signal, meta, keepalive, capabilities = {}, onNotification = () => {} } = options;
  const id = ++lastId;
  const message = {
    jsonrpc: '2.0',
    id,
    method,
    params: {
      ...params,
      _meta: {
        [`${META}/protocolVersion`]: VERSION,
        [`${META}/clientInfo`]: CLIENT,
        [`${META}/clientCapabilities`]: capabilities,
        ...meta,
      },
    },
  };
  /** @type {Record<string, string>} */
  const headers = {
    'Content-Type': 'application/json',
    Accept: 'application/json, text/event-stream',
    'MCP-Protocol-Version': VERSION,
    'Mcp-Method': method,
  };
  if (typeof params.name === 'string') headers['Mcp-Name'] = params.name;
  if (token) headers.Authorization = `Bearer ${token}`;
  const body = JSON.stringify(message);
  const init = { method: 'POST', headers, body, signal, keepalive: keepalive && new Blob([body]).size <= KEEPALIVE_BYTES };
  const response = await send(url, init);
  const type = response.headers.get('Content-Type') ?? '';
  if (!response.body || !type.startsWith('text/event-stream')) return resultOf(await jsonOf(response), response.status);
  for await (const data of events(response.body)) {
    const received = parsed(data);
    if (received === null) continue;
    if (received.id === id && ('result' in received || 'error' in received)) return resultOf(received, response.status);
    if (typeof received.method === 'string' && !('id' in received)) onNotification(received);
  }
  return cutOff();
}

/**
 * One call of a tool. `options.params` are further params of the request, such as `inputResponses`.
 * @param {string} url
 * @param {string} name
 * @param {Record<string, unknown>} args
 * @param {RequestOptions & {params?: Record<string, unknown>}} [options]
 */
export function callTool(url, name, args, { params = {}, ...options } = {}) {
  return request(url, 'tools/call', { name, arguments: args, ...params }, options);
}

/**
 * End a call that waits for answers, without an answer; also when the page is being closed.
 * @param {string} url
 * @param {string} name
 * @param {Record<string, unknown>} args those of the call
 * @param {string} requestState its last one
 * @param {RequestOptions} [options]
 */
export function endCall(url, name, args, requestState, options) {
  const ending = { ...options, keepalive: true, meta: { 'pallas/end': true } };
  return callTool(url, name, args, { ...ending, params: { requestState } });
}

/**
 * The object that `get_health` returns.
 * @param {string} url
 * @param {RequestOptions} [options]
 */
export async function getHealth(url, options) {
  const result = await callTool(url, 'get_health', {}, options);
  const health = parsed(result?.content?.[0]?.text ?? '');
  if (health === null) throw new McpError('get_health returned no status.', { status: 200 });
  return health;
}

/**
 * A document as JSON. `accepted` are statuses of errors whose documents are returned as well.
 * @param {string} url
 * @param {{token?: string, signal?: AbortSignal, accepted?: number[]}} [options]
 */
export async function getJson(url, { token, signal, accepted = [] } = {}) {
  const response = await get(url, 'application/json', token, signal);
  const body = await jsonOf(response);
  if (!response.ok && !accepted.includes(response.status)) throw refusal(body, response.status);
  return body;
}

/**
 * A document as text.
 * @param {string} url
 * @param {{token?: string}} [options]
 */
export async function getText(url, { token } = {}) {
  const response = await get(url, 'text/plain', token);
  if (!response.ok) throw refusal(await jsonOf(response), response.status);
  return response.text();
}

/**
 * @param {string} url
 * @param {string} accept
 * @param {string} [token]
 * @param {AbortSignal} [signal]
 */
function get(url, accept, token, signal) {
  /** @type {Record<string, string>} */
  const headers = { Accept: accept };
  if (token) headers.Authorization = `Bearer ${token}`;
  return send(url, { headers, signal });
}

/**
 * The `data` of each event of a stream.
 * @param {ReadableStream<Uint8Array>} stream
 */
export async function* events(stream) {
  const decoder = /** @type {ReadableWritablePair<string, Uint8Array>} */ (new TextDecoderStream());
  const reader = stream.pipeThrough(decoder).getReader();
  let rest = '';
  /** @type {string[]} */
  let data = [];
  try {
    for (;;) {
      const { value, done } = await reader.read().catch(cutOff);
      if (done) return;
      const lines = (rest + value).split('\n');
      rest = lines.pop() ?? '';
      for (const ended of lines) {
        const line = ended.endsWith('\r') ? ended.slice(0, -1) : ended;
        if (line === '' && data.length > 0) {
          yield data.join('\n');
          data = [];
        } else if (line.startsWith('data:')) {
          data.push(line.slice(line[5] === ' ' ? 6 : 5));
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** @returns {never} */
function cutOff() {
  throw new McpError('The connection ended before the answer was complete.');
}

/**
 * Send a request; throws a sentence for the user if there is no response.
 * @param {string} url
 * @param {RequestInit} init
 */
export async function send(url, init) {
  try {
    return await fetch(url, { ...init, credentials: 'omit', redirect: 'error', cache: 'no-store' });
  } catch (error) {
    if (init.signal?.aborted && init.signal.reason?.name !== 'TimeoutError') throw error;
    throw new McpError('The gateway does not answer, or does not allow this page to call it.');
  }
}

/**
 * The object in a response, null if there is none.
 * @param {Response} response
 */
export async function jsonOf(response) {
  return parsed(await response.text().catch(cutOff));
}

/**
 * The object in a text of JSON, null if there is none.
 * @param {string} text
 */
export function parsed(text) {
  try {
    const value = JSON.parse(text);
    return typeof value === 'object' ? value : null;
  } catch {
    return null;
  }
}

/**
 * @param {any} message
 * @param {number} status
 */
function resultOf(message, status) {
  if (message && typeof message.result === 'object') return message.result;
  const error = message?.error;
  if (error && typeof error.message === 'string') {
    throw new McpError(error.message, { status, code: error.code, data: error.data });
  }
  throw refusal(message, status);
}

/**
 * The error of a refused request, with the gateway's sentence.
 * @param {any} body
 * @param {number} status
 */
export function refusal(body, status) {
  const why = body?.error_description ?? (typeof body?.error === 'string' ? body.error : null);
  return new McpError(why ?? `The gateway answered with HTTP status ${status}.`, { status });
}

/** Pauses that double from attempt to attempt, up to 30 s, and do not end while the page is hidden. */
export class Pauses {
  _next = SHORTEST_PAUSE_MS;

  /** Begin with the shortest again. */
  reset() {
    this._next = SHORTEST_PAUSE_MS;
  }

  /** Return the next pause in milliseconds. */
  next() {
    const pause = this._next;
    this._next = Math.min(2 * pause, LONGEST_PAUSE_MS);
    return pause;
  }

  async wait() {
    await new Promise((resolve) => setTimeout(resolve, this.next()));
    await whenShown();
  }
}

/** Wait until the page is not hidden. */
export async function whenShown() {
  if (document.hidden) await new Promise((resolve) => document.addEventListener('visibilitychange', resolve, { once: true }));
}
