/** What a call asks its caller: the tool calls that wait for an answer, and the answers in words. Pure. */

import { approvalIn, fieldsOf } from './forms.js';
import { cut, safeLink } from './text.js';

/** The method of the events in which the page itself keeps the caller's answers. */
export const ANSWERED = 'console/answer';
const LONGEST_VALUE = 200;

/**
 * Return the tool calls that wait for the answers to questions.
 *
 * A question names its server or tool, and no tool call: of parallel calls of one server, all wait.
 * @param {import('./calls.js').Root} root
 * @param {any[]} origins of the open questions
 * @returns {Set<import('./calls.js').Tool>}
 */
export function waitingTools(root, origins) {
  const running = origins.length ? runningTools(root) : [];
  const waiting = origins.flatMap((origin) => {
    const able = running.filter(({ tool }) => asks(tool, origin));
    const own = able.filter(({ agent }) => agent === origin?.agent);
    return (own.length ? own : able).map(({ tool }) => tool);
  });
  return new Set(waiting);
}

/**
 * @param {import('./calls.js').Root | import('./calls.js').Tool} place
 * @returns {{agent: string, tool: import('./calls.js').Tool}[]}
 */
function runningTools(place) {
  return place.entries.flatMap((entry) => {
    if (entry.kind !== 'turn') return [];
    const running = entry.tools.filter((tool) => tool.state === 'running');
    return running.flatMap((tool) => [{ agent: entry.agent, tool }, ...runningTools(tool)]);
  });
}

/**
 * @param {import('./calls.js').Tool} tool
 * @param {any} origin
 */
function asks(tool, origin) {
  if (origin?.kind === 'approval') return origin.tool === (tool.server === null ? tool.name : `${tool.server}/${tool.name}`);
  if (origin?.kind === 'human_input') return tool.name.endsWith('human_input');
  return typeof origin?.server === 'string' && tool.server === origin.server;
}

/**
 * Return an answer as a sentence. It has no secret: neither passwords nor the path of a page.
 * @param {any} params of the elicitation
 * @param {any} origin of the question
 * @param {{action: string, content?: any}} answer
 */
export function answerText(params, origin, { action, content }) {
  const approval = approvalIn(params, origin);
  if (approval) return approved(approval.tool, action === 'accept' ? content?.decision : '');
  const question = `“${cut(String(params?.message ?? ''), LONGEST_VALUE)}”`;
  if (action !== 'accept') return `You declined ${question}.`;
  if (params?.url !== undefined) return `You submitted the page at ${safeLink(params.url)?.host ?? 'an unknown host'}.`;
  const values = fieldsOf(params?.requestedSchema).filter(({ name }) => Object.hasOwn(content ?? {}, name));
  const written = values.map(({ name, label, secret }) => `${label}: ${secret ? '(hidden)' : valueText(content[name])}`);
  return `You submitted ${written.join(', ') || question}.`;
}

/**
 * @param {string} tool
 * @param {string} decision
 */
function approved(tool, decision) {
  if (decision === 'once') return `You allowed ${tool} once.`;
  return decision === 'call' ? `You allowed ${tool} and all other tools for this call.` : `You declined ${tool}.`;
}

/** @param {any} value */
function valueText(value) {
  if (typeof value === 'boolean') return value ? 'yes' : 'no';
  return cut(Array.isArray(value) ? value.join(', ') : typeof value === 'object' ? JSON.stringify(value) : String(value), LONGEST_VALUE);
}

/**
 * Return the answers that the caller of a turn gave, as sentences.
 * @param {import('./conversations.js').Turn} turn
 * @returns {string[]}
 */
export function answersOf(turn) {
  const answers = turn.events.map(({ message }) => (message?.method === ANSWERED ? message.params?.text : null));
  return answers.filter((text) => typeof text === 'string');
}
