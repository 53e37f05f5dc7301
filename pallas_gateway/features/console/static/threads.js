/**
 * A client of the gateway's threads (`/api/v1`): conversations that the gateway keeps. Their turns and the results of
 * calls have the form that conversations of the browser have.
 */

import { LOGGER } from './calls.js';
import { newTurn } from './conversations.js';
import { request } from './gateway_api.js';
import { McpError, events, jsonOf, parsed } from './mcp.js';

const PAGE = 200;
const STOPPED = 'The call was cancelled.';

/**
 * @typedef {import('./conversations.js').Turn} Turn
 * @typedef {{id: string, agent: string, title: string | null, createdAt: string, updatedAt: string, turns: number}} Thread
 */

/**
 * Return the caller's threads with an agent, the one last changed first.
 * @param {string} agent
 * @param {string} token
 * @returns {Promise<Thread[]>}
 */
export async function listThreads(agent, token) {
  return threadsAt(`agents/${encodeURIComponent(agent)}/threads?limit=${PAGE}`, token);
}

/**
 * Return the caller's threads with rated answers, with one agent or with all.
 * @param {string} token
 * @param {string} [agent]
 * @returns {Promise<Thread[]>}
 */
export async function listRated(token, agent) {
  return threadsAt(`${agent ? `agents/${encodeURIComponent(agent)}/` : ''}threads?rated=true&limit=${PAGE}`, token);
}

/**
 * @param {string} path
 * @param {string} token
 */
function threadsAt(path, token) {
  return pages(token, (after) => (after === null ? path : `${path}&cursor=${after}`), 'threads', 'nextCursor');
}

/**
 * Return one page of the caller's threads with all agents that have a text, and where the next page begins; null on the last.
 * @param {{text: string, cursor: string | null}} wanted
 * @param {string} token
 * @param {AbortSignal} signal
 * @returns {Promise<{threads: Thread[], nextCursor: string | null}>}
 */
export async function searchThreads({ text, cursor }, token, signal) {
  const query = new URLSearchParams({ limit: '50', search: text, ...(cursor ? { cursor } : {}) });
  return jsonOf(await request(`threads?${query}`, { token, signal }));
}

/**
 * Return the turns of a thread with an agent, with their tool calls.
 * @param {{id: string, agent: string, after?: number}} thread `after`: the number of the turn before the first one
 * @param {string} token
 * @returns {Promise<Turn[]>}
 */
export async function readTurns({ id, agent, after: first = 0 }, token) {
  const path = `threads/${id}/messages?limit=${PAGE}&tools=true&after=`;
  const messages = await pages(token, (after) => `${path}${after ?? first}`, 'messages', 'nextAfter');
  /** @type {Map<number, any[]>} */
  const turns = new Map();
  for (const message of messages) turns.set(message.turnIndex, [...(turns.get(message.turnIndex) ?? []), message]);
  return [...turns.values()].map((found) => {
    const turn = turnOf(id, found[0], found.slice(1).at(-1));
    return turn.state === 'running' ? turn : { ...turn, ...stepsIn(found.slice(1, -1), agent) };
  });
}

/**
 * @param {string} id
 * @param {string} title
 * @param {string} token
 */
export async function renameThread(id, title, token) {
  await request(`threads/${id}`, { method: 'PATCH', token, body: { title: title || null } });
}

/**
 * Rate the answer of a turn; null takes the rating away.
 * @param {string} id
 * @param {number} turn
 * @param {import('./conversations.js').Given | null} feedback
 * @param {string} token
 * @returns {Promise<import('./conversations.js').Feedback | undefined>} as it is stored
 */
export async function rateTurn(id, turn, feedback, token) {
  const response = await request(`threads/${id}/turns/${turn}/feedback`, feedback ? { method: 'PUT', token, body: feedback } : { method: 'DELETE', token });
  return feedback ? jsonOf(response) : undefined;
}

/**
 * Copy a thread, up to one of its turns, to a new thread.
 * @param {string} id
 * @param {number} turns the number of the last one
 * @param {string} token
 * @returns {Promise<Thread>}
 */
export async function forkThread(id, turns, token) {
  return jsonOf(await request(`threads/${id}/fork`, { method: 'POST', token, body: { turns } }));
}

/**
 * Delete a thread; one that is not there any more is deleted.
 * @param {string} id
 * @param {string} token
 */
export async function deleteThread(id, token) {
  try {
    await request(`threads/${id}`, { method: 'DELETE', token });
  } catch (error) {
    if (!(error instanceof McpError && error.status === 404)) throw error;
  }
}

/**
 * End the call of a thread, if one runs.
 * @param {string} id
 * @param {string} token
 */
export async function cancelCall(id, token) {
  await request(`threads/${id}/cancel`, { method: 'POST', token, body: {} });
}

/**
 * Answer questions; the call goes on, and its events with it.
 * @param {string} path
 * @param {Record<string, any>} answers
 * @param {string} token
 */
export async function giveAnswers(path, answers, token) {
  const controller = new AbortController();
  await request(path, { ...streamed({ answers }), token, signal: controller.signal });
  controller.abort();
}

/**
 * The events of a call: of a new message, or of the call that runs in a thread.
 * @param {string} path
 * @param {Record<string, any>} body
 * @param {string} token
 * @param {AbortSignal} signal
 * @returns {AsyncGenerator<any>}
 */
export async function* callEvents(path, body, token, signal) {
  const response = await request(path, { ...streamed(body), token, signal });
  for await (const data of events(/** @type {ReadableStream<Uint8Array>} */ (response.body))) {
    const event = parsed(data);
    if (event !== null) yield event;
  }
}

/**
 * Return the result of a call as `tools/call` has it.
 * @param {any} answer the event `final`, or a message
 * @param {{seconds?: number}} [more]
 */
export function resultOf(answer, { seconds } = {}) {
  const images = Array.isArray(answer.images) ? answer.images : [];
  const facts = { conversation_id: answer.threadId, call_id: answer.callId, stop_reason: answer.stopReason, usage: answer.usage ?? {}, duration_seconds: seconds, ...(answer.usageWithNested ? { usage_with_nested: answer.usageWithNested, cost_with_nested: answer.costWithNested } : {}) };
  return {
    content: [
      { type: 'text', text: String(answer.content ?? '') },
      ...images.map((/** @type {any} */ image) => ({ type: 'image', data: image.data, mimeType: image.mime_type })),
    ],
    _meta: { 'pallas/call': facts, 'pallas/trace_url': answer.traceUrl, ...(answer.params ? { 'pallas/params': answer.params } : {}) },
  };
}

/**
 * Return who ended a call, as a sentence; an empty text for one that its own client has stopped.
 * @param {unknown} message of an error with the reason `cancelled`
 */
export function endedBy(message) {
  return typeof message === 'string' && message !== STOPPED ? message : '';
}

/** @param {Record<string, any>} body */
function streamed(body) {
  return { method: 'POST', body: { background: true, assistantStream: true, ...body }, accept: 'text/event-stream' };
}

/**
 * @param {string} token
 * @param {(after: any) => string} path of the page after another one
 * @param {string} entries
 * @param {string} next
 * @returns {Promise<any[]>}
 */
async function pages(token, path, entries, next) {
  const found = [];
  for (let after = null; ; ) {
    const page = await jsonOf(await request(path(after), { token }));
    found.push(...(Array.isArray(page?.[entries]) ? page[entries] : []));
    after = page?.[next] ?? null;
    if (after === null) return found;
  }
}

/**
 * Return the events of stored steps: what the model asked for, and the results of its tools. Their times are not stored.
 * @param {any[]} messages
 * @param {string} agent
 */
function stepsIn(messages, agent) {
  /** @type {any[]} */
  const data = [];
  for (const { role, content, toolCalls = [], toolCallId: id, toolName, ok } of messages) {
    const text = String(content ?? '');
    if (role === 'tool') data.at(-1)?.results.push({ id, ...namesOf(toolName), is_error: ok === false, text });
    else {
      const tools = toolCalls.map((/** @type {any} */ call) => ({ id: call.id, ...namesOf(call.toolName), arguments: call.args }));
      data.push({ kind: 'assistant_chunk', agent, iteration: data.length / 2 + 1, text, tool_calls: tools, stop_reason: 'toolUse' }, { kind: 'assistant_chunk_results', results: [] });
    }
  }
  return data.length ? { isTimeless: true, events: data.map((one) => ({ at: 0, message: { method: 'notifications/message', params: { logger: LOGGER, data: one } } })) } : {};
}

/** @param {unknown} toolName `server/tool`, or a tool alone */
function namesOf(toolName) {
  const [, server, name] = /^(?:([^/]*)\/)?([^]*)$/.exec(String(toolName)) ?? [];
  return { server: server ?? null, name };
}

/**
 * @param {string} id
 * @param {any} asked
 * @param {any} answer
 * @returns {Turn}
 */
function turnOf(id, asked, answer) {
  const began = Date.parse(asked.createdAt);
  const begun = { ...newTurn(String(asked.content ?? ''), asked.images ?? [], asked.params ?? {}), id: `${id}/${asked.turnIndex}`, number: asked.turnIndex, began, replaces: asked.replaces };
  const turn = { ...begun, model: answer?.model ?? null, feedback: answer?.feedback };
  if (answer?.status === 'complete') {
    const seconds = (Date.parse(answer.createdAt) - began) / 1000;
    return { ...turn, state: 'complete', result: resultOf({ ...answer, threadId: id }, { seconds }) };
  }
  if (answer?.status !== 'error') return turn; // it runs, or waits for answers
  const isStopped = answer.error?.reason === 'cancelled';
  return { ...turn, state: isStopped ? 'stopped' : 'error', error: isStopped ? endedBy(answer.error?.message) : String(answer.error?.message ?? 'The call failed.') };
}
