import assert from 'node:assert/strict';
import { test } from 'node:test';

import { asCases, casesOf } from '../../../pallas_gateway/features/console/static/cases.js';
import { newTurn } from '../../../pallas_gateway/features/console/static/conversations.js';

const AGENT = { name: 'desk', url: 'https://gateway.example/agents/desk/mcp' };
const chunk = (more) => ({ at: 0, message: { params: { data: { kind: 'assistant_chunk', ...more } } } });
const image = { data: 'aGk=', mime_type: 'image/png' };

function answered(message, text, more = {}) {
  const content = [{ type: 'text', text }, { type: 'image', data: 'aGk=', mimeType: 'image/png' }];
  return { ...newTurn(message), state: 'complete', began: 0, result: { content }, ...more };
}

test('a rated answer is a case with what came before it; others are not', () => {
  const events = [
    chunk({ tool_calls: [{ id: '1', server: 'notes', name: 'search' }, { id: '2', server: null, name: 'now' }] }),
    chunk({ tool_calls: [{ id: '3', server: 'notes', name: 'search' }] }),
    chunk({ call_path: ['1'], tool_calls: [{ id: '4', server: 'other', name: 'nested' }] }),
    chunk({}),
    { at: 1, message: null },
  ];
  const feedback = { rating: 'bad', note: 'No.', ratedAt: '2026-11-24T10:00:00.000Z' };
  const turns = [
    { ...answered('one', '1'), images: [image] },
    { ...newTurn('failed'), state: 'error', feedback },
    answered('two', '2', { feedback, events, model: 'm', params: { top_k: 1 } }),
    answered('three', '3', { feedback: { ...feedback, rating: 'good', note: '' }, number: 7 }),
  ];
  const [second, third, ...others] = casesOf({ id: 'c', turns }, AGENT);
  assert.deepEqual(second, {
    id: 'c/3', agent: 'desk', url: AGENT.url, model: 'm', params: { top_k: 1 },
    history: [{ role: 'user', content: 'one', images: [image] }, { role: 'assistant', content: '1' }],
    message: 'two', images: [], output: '2', output_images: 1, tools: ['notes/search', 'now'], rating: 'bad', note: 'No.',
    asked_at: '1970-01-01T00:00:00.000Z', rated_at: '2026-11-24T10:00:00.000Z',
  });
  assert.deepEqual([third.id, third.model, third.rating, third.history.length, others.length], ['c/7', null, 'good', 4, 0]);
  assert.deepEqual(Object.keys(JSON.parse(asCases([second]))), ['format', 'version', 'cases']);
});
