/** Requests of the gateway's own API (`/api/v1`). */

import { jsonOf, refusal, send } from './mcp.js';

const API = '../api/v1/';

/**
 * Return the response to a request of `/api/v1`; see `requestAt`.
 * @param {string} path
 * @param {Parameters<typeof requestAt>[1]} options
 */
export function request(path, options) {
  return requestAt(`${API}${path}`, options);
}

/**
 * Return the response to a request.
 * @param {string} url
 * @param {{method?: string, token: string, body?: any, accept?: string, match?: string, signal?: AbortSignal}} options `match`: the `ETag` that
 *   what is changed must still have
 * @throws {import('./mcp.js').McpError} for every answer that is an error
 */
export async function requestAt(url, { method = 'GET', token, body, accept = 'application/json', match, signal }) {
  /** @type {Record<string, string>} */
  const headers = { Accept: accept };
  if (token) headers.Authorization = `Bearer ${token}`;
  if (body !== undefined) headers['Content-Type'] = 'application/json';
  if (match !== undefined) headers['If-Match'] = match;
  const response = await send(url, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), signal });
  if (!response.ok) {
    const body = await jsonOf(response);
    const error = refusal(body, response.status);
    error.data = { rule: body?.limit?.rule, retryAfter: response.headers.get('Retry-After'), reason: body?.error, problems: body?.problems, question: body?.question };
    throw error;
  }
  return response;
}
