import assert from 'node:assert/strict';
import { test } from 'node:test';

import { costText } from '../../../pallas_gateway/features/console/static/text.js';
import { added, byTokens, callsOf, failed, hasWholeDay, tokensIn, weekOf } from '../../../pallas_gateway/features/console/static/usage.js';

const row = (agent, calls, ...[input, cachedInput, cacheWrite, output]) => ({ agent, calls, tokens: { input, cachedInput, cacheWrite, output } });

test('rows are in the order of their tokens of all kinds, then of their calls', () => {
  const rows = [row('a', 1, 5, 0, 0, 0), row('b', 1, 0, 3, 3, 3), row('c', 2, 5, 0, 0, 0)];
  assert.deepEqual(byTokens(rows).map(({ agent }) => agent), ['b', 'c', 'a']);
  assert.equal(tokensIn(rows[1].tokens), 6);
});

const ofDay = (day, caller, calls, failures, cost = null) => ({ ...row('a', calls, 5, 1, 1, 3), day, caller, refused: 1, nestedCalls: 2, estimatedTokens: 0, failures, cost });

test('rows of days are added up by caller and agent, with the reasons of failures', () => {
  const rows = [ofDay('2026-03-01', 'x', 1, { busy: 1 }), ofDay('2026-02-28', 'x', 2, { busy: 2, deadline: 1 }, 0.5), ofDay('2026-02-28', 'y', 4, {})];
  const [x, y] = added(rows);
  assert.deepEqual([x.calls, callsOf(x), x.failures, failed(x), x.cost, tokensIn(x.tokens)], [3, 9, { busy: 3, deadline: 1 }, 4, 0.5, 14]);
  assert.deepEqual([y.calls, failed(y), y.cost], [4, 0, null]);
  assert.equal(failed(row('in memory', 1, 0, 0, 0, 0)), 0);
});

test('a week has seven days, over the end of a month, and none before the first that is stored', () => {
  const week = weekOf([ofDay('2026-03-01', 'x', 1, {}), ofDay('2026-03-01', 'y', 2, {})], '2026-03-02', '2026-02-26');
  assert.deepEqual(week.map(({ day, sum }) => [day, sum && sum.calls]), [
    ['2026-02-24', null], ['2026-02-25', null], ['2026-02-26', 0], ['2026-02-27', 0], ['2026-02-28', 0], ['2026-03-01', 3], ['2026-03-02', 0],
  ]);
});

test('a gateway that was started today has not counted the whole day', () => {
  const began = ['2026-11-27T19:12:57Z', '2026-11-26T23:59:59Z', '2026-11-27T00:00:00Z'];
  assert.deepEqual(began.map((since) => hasWholeDay({ since, day: '2026-11-27' })), [false, true, false]);
});

test('a cost has two decimals, and a small one three digits', () => {
  assert.deepEqual([1234.5, 1, 0.0012345, 0, null].map(costText), ['1,234.50', '1.00', '0.00123', '0', '']);
});
