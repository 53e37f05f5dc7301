import assert from 'node:assert/strict';
import { test } from 'node:test';

import { outcomeOf, partial, tokensOf } from '../../../pallas_gateway/web/console/static/outcome.js';

test('an answer that the gateway ended is partial', () => {
  const why = (text) => partial(outcomeOf({ content: [{ type: 'text', text }] }));
  assert.equal(why('Half. [Stopped: the budget is used up]'), 'the gateway stopped the call');
  assert.equal(why('[Stopped: one] [Stopped: two]\n'), 'the gateway stopped the call');
  for (const text of ['Whole.', '[Stopped: in the middle] and on', '[Stopped: open']) assert.equal(why(text), '', text);
});

test('tokens in are those of all kinds', () => {
  assert.deepEqual(tokensOf({ input: 5, cache_read: 3, output: 2 }), { in: 8, out: 2, fromCache: 3, toCache: 0, reasoning: 0 });
  assert.deepEqual(tokensOf(undefined), { in: 0, out: 0, fromCache: 0, toCache: 0, reasoning: 0 });
});
