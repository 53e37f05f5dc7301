import assert from 'node:assert/strict';
import { test } from 'node:test';

import { byTokens, costText, tokensIn } from '../../../pallas_gateway/features/console/static/usage.js';

const row = (agent, calls, ...[input, cachedInput, cacheWrite, output]) => ({ agent, calls, tokens: { input, cachedInput, cacheWrite, output } });

test('rows are in the order of their tokens of all kinds, then of their calls', () => {
  const rows = [row('a', 1, 5, 0, 0, 0), row('b', 1, 0, 3, 3, 3), row('c', 2, 5, 0, 0, 0)];
  assert.deepEqual(byTokens(rows).map(({ agent }) => agent), ['b', 'c', 'a']);
  assert.equal(tokensIn(rows[1].tokens), 6);
});

test('a cost has two decimals, and a small one three digits', () => {
  assert.deepEqual([1234.5, 1, 0.0012345, 0, null].map(costText), ['1,234.50', '1.00', '0.00123', '0', '']);
});
