import assert from 'node:assert/strict';
import { test } from 'node:test';

import { figuresOf, limitFrom, limitOf, outcomeOf, partial, tokensOf } from '../../../pallas_gateway/features/console/static/outcome.js';

test('an answer that the gateway ended is partial', () => {
  const why = (text) => partial(outcomeOf({ content: [{ type: 'text', text }] }));
  assert.equal(why('Half. [Stopped: the budget is used up]'), 'the gateway stopped the call');
  assert.equal(why('[Stopped: one] [Stopped: two]\n'), 'the gateway stopped the call');
  for (const text of ['Whole.', '[Stopped: in the middle] and on', '[Stopped: open']) assert.equal(why(text), '', text);
});

test('an answer that a budget or a limit ended is partial, and says which', () => {
  const why = (stop_reason) => partial(outcomeOf({ content: [{ type: 'text', text: 'Half.' }], _meta: { 'pallas/call': { stop_reason } } }));
  assert.equal(why('budget'), 'the call has used what one call of this agent may use');
  assert.equal(why('limited'), 'a limit of tokens a day is reached');
  assert.equal(why('endTurn'), '');
});

test('a limit has its rule and its end', () => {
  const limit = limitOf({ isError: true, _meta: { 'pallas/limit': { rule: 'a minute', retry_after_seconds: 12 } } });
  assert.equal(limit.rule, 'a minute');
  assert.ok(Math.abs(limit.until - Date.now() - 12_000) < 1000);
  assert.equal(limitFrom(undefined, '7').rule, '');
  for (const odd of [undefined, null, 'soon', -1, 0, NaN, Infinity, {}]) assert.equal(limitFrom('x', odd), null);
  for (const odd of [null, {}, { _meta: { 'pallas/limit': 'x' } }]) assert.equal(limitOf(odd), null);
});

test('tokens in are those of all kinds', () => {
  assert.deepEqual(tokensOf({ input: 5, cache_read: 3, output: 2 }), { in: 8, out: 2, fromCache: 3, toCache: 0, reasoning: 0 });
  assert.deepEqual(tokensOf(undefined), { in: 0, out: 0, fromCache: 0, toCache: 0, reasoning: 0 });
});

test('the figures of a call are those with its nested calls', () => {
  const facts = { usage: { input: 5 }, usage_with_nested: { input: 1500, output: 2 }, cost: 1, cost_with_nested: 3, iterations: 1 };
  assert.deepEqual(figuresOf(facts), { seconds: null, turns: 1, tokens: '1,500 tokens in, 2 out with nested calls', cost: 3 });
  assert.deepEqual(figuresOf({ usage: {} }), { seconds: null, turns: null, tokens: '', cost: null });
});
