import assert from 'node:assert/strict';
import { test } from 'node:test';

import { answersOf } from '../../../pallas_gateway/features/console/static/asked.js';
import { newTurn } from '../../../pallas_gateway/features/console/static/conversations.js';
import { ThreadCall } from '../../../pallas_gateway/features/console/static/thread_call.js';
import { TryCall } from '../../../pallas_gateway/features/console/static/try_call.js';

globalThis.document = { hidden: false };
globalThis.requestAnimationFrame = setImmediate;

const THREAD = { type: 'thread', threadId: 't', turnIndex: 1 };
const QUESTION = { type: 'question', id: 'q', agent: 'solo', callPath: [], kind: 'form', mode: 'form', message: 'Who?', schema: {} };

/** Make a call whose requests are answered by `responses`, in order; returns it, its requests and what `run` returns. */
async function ran(...responses) {
  const requests = [];
  globalThis.fetch = async (url, { method, body }) => {
    requests.push([method, url, JSON.parse(body)]);
    const [status, events] = responses.shift();
    if (status !== 200) return new Response(JSON.stringify({ error_description: 'No.', limit: { rule: 'mine' } }), { status, headers: { 'Retry-After': '9' } });
    const lines = events.map((event) => `data: ${JSON.stringify(event)}\n\n`).join('');
    return new Response(`${lines}data: [DONE]\n\n`, { headers: { 'Content-Type': 'text/event-stream' } });
  };
  const call = new ThreadCall(newTurn('hi'), {}, { agent: 'solo', token: () => '', onBegun: () => {} });
  return { call, requests, isUnknown: await call.run() };
}

test('a stream that breaks is gone on with, and one that was refused is an error', async () => {
  const broken = await ran([200, [THREAD]]);
  assert.deepEqual([broken.isUnknown, broken.call.state.value, broken.call.turn.number], [true, 'running', 1]);
  const [[method, url, body]] = broken.requests;
  assert.deepEqual([method, url, body], ['POST', '../api/v1/agents/solo/chat', { message: 'hi', background: true, assistantStream: true }]);
  const early = await ran([200, []]);
  assert.deepEqual([early.isUnknown, early.call.state.value], [false, 'error']);
  const call = new ThreadCall({ ...newTurn('hi'), number: 1 }, { threadId: 't' }, { agent: 'solo', token: () => '', onBegun: () => {} });
  globalThis.fetch = async () => new Response(JSON.stringify({ error_description: 'The token has expired.' }), { status: 401 });
  assert.deepEqual([await call.run(), call.state.value, call.loss.value], [true, 'running', 'The token has expired.']);
  const refused = await ran([403]);
  assert.deepEqual([refused.isUnknown, refused.call.error.value], [false, 'No.']);
});

test('an end of the stream that is none of the turn is looked up', async () => {
  for (const [reason, expected] of [['stopping', [true, 'running']], ['lease_lost', [true, 'running']], ['cancelled', [false, 'stopped']], ['llm_error', [false, 'error']]]) {
    const { call, isUnknown } = await ran([200, [THREAD, { type: 'error', reason, message: 'No.' }]]);
    assert.deepEqual([isUnknown, call.state.value], expected, reason);
  }
});

test('a call that another has ended says who', async () => {
  const ended = async (message) => (await ran([200, [THREAD, { type: 'error', reason: 'cancelled', message }]])).call;
  const call = await ended('The call was ended by key:ops.');
  assert.deepEqual([call.state.value, call.error.value], ['stopped', 'The call was ended by key:ops.']);
  assert.equal((await ended('The call was cancelled.')).error.value, '');
});

test('a call that a limit refuses knows the rule and until when', async () => {
  const { call } = await ran([429]);
  assert.deepEqual([call.state.value, call.error.value, call.limit.rule], ['error', 'No.', 'mine']);
  assert.ok(Math.abs(call.limit.until - Date.now() - 9000) < 1000);
  assert.equal((await ran([503])).call.limit, null);
  const limit = { rule: 'daily', retryAfterSeconds: 60 };
  const { call: begun } = await ran([200, [THREAD, { type: 'error', reason: 'limited', message: 'No more.', limit }]]);
  assert.deepEqual([begun.state.value, begun.error.value, begun.limit.rule], ['error', 'No more.', 'daily']);
});

test('a question is shown once, and one that is closed elsewhere leaves a line', async () => {
  const { call } = await ran([200, [THREAD, QUESTION, QUESTION, { type: 'answer', id: 'q', action: 'accept' }, { type: 'odd' }, { type: 'final', content: 'Done.' }]]);
  assert.deepEqual([call.questions.value, call.state.value, call.outcome.value.text], [[], 'complete', 'Done.']);
  assert.deepEqual(answersOf(call.turn), ['A question was answered elsewhere.']);
  assert.deepEqual(call.tree.root.entries.map(({ kind }) => kind), ['answer', 'raw']);
  assert.equal(call.tree.root.waits.length, 1);
});

test('a stream that begins again takes the place of what was seen, and one without steps leaves it', async () => {
  const delta = (text) => ({ type: 'assistant', data: { kind: 'assistant_delta', agent: 'solo', iteration: 1, text } });
  const { call } = await ran([200, [THREAD, delta('One'), QUESTION]]);
  const texts = () => call.tree.root.entries.map(({ kind, text }) => [kind, text]);
  const open = call.questions.value;
  globalThis.fetch = async () => { throw new TypeError('failed to fetch'); };
  assert.equal(await call.run(), true);
  assert.deepEqual([texts(), call.state.value], [[['turn', 'One']], 'running']);
  assert.match(call.loss.value, /does not answer/);
  const again = async (...events) => {
    globalThis.fetch = async () => new Response(events.map((event) => `data: ${JSON.stringify(event)}\n\n`).join(''), { headers: { 'Content-Type': 'text/event-stream' } });
    return call.run();
  };
  assert.equal(await again(THREAD, QUESTION), true);
  assert.deepEqual([texts(), call.questions.value], [[['turn', 'One']], open]);
  assert.equal(await again(THREAD, delta('One'), delta(' two'), QUESTION, { type: 'final', content: 'One two' }), false);
  assert.deepEqual([texts(), call.state.value, call.loss.value], [[['turn', 'One two']], 'complete', '']);
});

test('a call of an unsaved definition sends it with the answered turns, and what is wrong with it is known', async () => {
  const [earlier, turn, requests] = [{ ...newTurn('hi'), state: 'complete', result: { content: [{ type: 'text', text: 'ho' }] } }, newTurn('and?'), []];
  const tried = { name: 'new', definition: { instruction: 'Be.' }, isNew: true };
  const call = new TryCall(turn, { turns: [earlier, turn] }, { tried, token: () => '' });
  globalThis.fetch = async (url, { body }) => {
    requests.push([url, JSON.parse(body)]);
    return new Response(JSON.stringify({ error_description: 'No.', problems: [{ path: 'model' }] }), { status: 422 });
  };
  assert.deepEqual([await call.run(), call.state.value, call.refusal.problems], [false, 'error', [{ path: 'model' }]]);
  const messages = [{ role: 'user', content: 'hi' }, { role: 'assistant', content: 'ho' }];
  const definition = { name: 'new', instruction: 'Be.' };
  assert.deepEqual(requests, [['../api/v1/agents/try', { definition, message: 'and?', messages, assistantStream: true }]]);
});
