import assert from 'node:assert/strict';
import { test } from 'node:test';

import { answersOf } from '../../../pallas_gateway/features/console/static/asked.js';
import { newTurn } from '../../../pallas_gateway/features/console/static/conversations.js';
import { RunningCall } from '../../../pallas_gateway/features/console/static/running_call.js';

globalThis.document = { hidden: false };
globalThis.requestAnimationFrame = setImmediate;

const asks = (...ids) => ({ resultType: 'input_required', requestState: 's', inputRequests: Object.fromEntries(ids.map((id) => [id, {}])) });

test('a question that is asked again after its answer takes another one', async () => {
  const results = [asks('a', 'b'), asks('a', 'b'), { content: [] }];
  const sent = [];
  globalThis.fetch = async (_, { body }) => {
    const { id, params } = JSON.parse(body);
    sent.push(params.inputResponses);
    return new Response(JSON.stringify({ id, result: results.shift() }), { headers: { 'Content-Type': 'application/json' } });
  };
  const call = new RunningCall(newTurn('hi'));
  const running = call.run({ url: 'http://gateway.example/mcp', token: () => '', args: {} });
  const answer = { action: 'accept' };
  for (const _ of [1, 2]) {
    for (let round = 0; round < 50; round += 1) await new Promise((resolve) => setImmediate(resolve));
    const [first, second] = call.questions.value;
    assert.deepEqual([first.sent.value, second.sent.value], [false, false]);
    call.answer(first, answer);
  }
  await running;
  assert.deepEqual(sent, [undefined, { a: answer }, { a: answer }]);
  assert.deepEqual(answersOf(call.turn), ['You submitted “”.']);
});

test('a call that another has ended, or a limit refuses, says so', async () => {
  const ran = async (text, meta) => {
    globalThis.fetch = async (_, { body }) => {
      const result = { content: [{ type: 'text', text }], isError: true, _meta: meta };
      return new Response(JSON.stringify({ id: JSON.parse(body).id, result }), { headers: { 'Content-Type': 'application/json' } });
    };
    const call = new RunningCall(newTurn('hi'));
    await call.run({ url: 'http://gateway.example/mcp', token: () => '', args: {} });
    return call;
  };
  const ended = await ran('The call was ended by key:ops.', { 'pallas/call': { stop_reason: 'cancelled' } });
  assert.deepEqual([ended.state.value, ended.error.value, ended.limit], ['stopped', 'The call was ended by key:ops.', null]);
  const refused = await ran('No more calls.', { 'pallas/call': { stop_reason: 'limited' }, 'pallas/limit': { rule: 'mine', retry_after_seconds: 5 } });
  assert.deepEqual([refused.state.value, refused.error.value, refused.limit.rule], ['error', 'No more calls.', 'mine']);
});

test('an answer is sent with the token of its time', async () => {
  const results = [asks('a'), null, { content: [] }];
  const [sent, tokens] = [[], ['before', 'ended', 'after']];
  globalThis.fetch = async (_, { body, headers }) => {
    sent.push(headers.Authorization);
    const result = results.shift();
    if (!result) return new Response(JSON.stringify({ error_description: 'The token has expired.' }), { status: 401 });
    return new Response(JSON.stringify({ id: JSON.parse(body).id, result }), { headers: { 'Content-Type': 'application/json' } });
  };
  const until = async (isTrue) => {
    while (!isTrue()) await new Promise((resolve) => setImmediate(resolve));
  };
  const call = new RunningCall(newTurn('hi'));
  const running = call.run({ url: 'http://gateway.example/mcp', token: () => tokens.shift(), args: {} });
  await until(() => call.questions.value.length === 1);
  const [question] = call.questions.value;
  call.answer(question, { action: 'accept' });
  await until(() => question.error.value);
  assert.deepEqual([question.error.value, question.sent.value], ['The token has expired.', false]);
  call.answer(question, { action: 'accept' });
  await running;
  assert.deepEqual([sent, call.state.value], [['Bearer before', 'Bearer ended', 'Bearer after'], 'complete']);
});
