/** Rated answers as cases for evaluations; docs/use/cases.md describes the format. Pure. */

import { answerOf, historyOf } from './conversations.js';
import { outcomeOf } from './outcome.js';

/**
 * Return the rated answers of a conversation as cases.
 * @param {{id: string, turns: import('./conversations.js').Turn[]}} conversation
 * @param {{name: string, url: string}} agent its URL as clients see it
 */
export function casesOf({ id, turns }, agent) {
  return turns.flatMap((turn, index) => {
    const { feedback, message, images, params, model, state, number } = turn;
    if (!feedback || state !== 'complete') return [];
    return [{
      id: `${id}/${number ?? index + 1}`,
      agent: agent.name,
      url: agent.url,
      model: model ?? null,
      params,
      history: historyOf(/** @type {any} */ ({ turns }), index),
      message,
      images,
      output: answerOf(turn),
      output_images: outcomeOf(turn.result).images.length,
      tools: toolsOf(turn),
      rating: feedback.rating,
      note: feedback.note,
      asked_at: new Date(turn.began).toISOString(),
      rated_at: feedback.ratedAt,
    }];
  });
}

/**
 * Return the names of the tools that the agent called itself, each once.
 * @param {import('./conversations.js').Turn} turn
 */
function toolsOf({ events }) {
  const own = events.map(({ message }) => message?.params?.data).filter((data) => data?.kind === 'assistant_chunk' && !data.call_path?.length);
  const calls = own.flatMap(({ tool_calls: made }) => (Array.isArray(made) ? made : []));
  return [...new Set(calls.map(({ server, name }) => (server ? `${server}/${name}` : String(name))))];
}

/** @param {any[]} cases */
export function asCases(cases) {
  return JSON.stringify({ format: 'pallas-gateway-cases', version: 1, cases }, null, 2);
}
