import assert from 'node:assert/strict';
import { test } from 'node:test';

import { answersOf } from '../../../pallas_gateway/web/console/static/asked.js';
import { newTurn } from '../../../pallas_gateway/web/console/static/conversations.js';
import { RunningCall } from '../../../pallas_gateway/web/console/static/running_call.js';

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
  const running = call.run({ url: 'http://gateway.example/mcp', token: '', args: {} });
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
