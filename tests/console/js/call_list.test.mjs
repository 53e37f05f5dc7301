import assert from 'node:assert/strict';
import { test } from 'node:test';

import { nested, stateOf, treeOf } from '../../../pallas_gateway/features/console/static/call_list.js';
import { waterfall } from '../../../pallas_gateway/features/console/static/waterfall.js';

const call = (id, parent, more = {}) => ({ id, parent, agent: `agent-${id}`, tokens: 0, outcome: 'ok', stopReason: 'endTurn', seconds: 1, tools: [], ...more });
const at = (seconds) => new Date(1e12 + seconds * 1000).toISOString();

test('nested calls are below their parents, and those of unknown parents are at the top', () => {
  const calls = [call('c', 'b'), call('a', null), call('d', 'gone'), call('b', 'a'), call('e', 'a')];
  assert.deepEqual(nested(calls).map((one) => [one.call.id, one.depth]), [['a', 0], ['b', 1], ['c', 2], ['e', 1], ['d', 0]]);
});

test('each nested call is in the tool call that made it, and in one of its own if none did', () => {
  const root = call('a', null, {
    startedAt: at(0),
    seconds: 10,
    tools: [{ name: 'agent-b', start: 1, seconds: 4, ok: true }, { name: 'agent-c', start: 1, seconds: 4, ok: false }],
  });
  const calls = [
    root,
    call('c', 'a', { startedAt: at(1.1), seconds: 3, outcome: 'error' }),
    call('b', 'a', { startedAt: at(1.2), seconds: 3, tools: [{ name: 'search', start: 1, seconds: 1, ok: true }] }),
    call('late', 'a', { startedAt: at(8), seconds: 1, outcome: 'error' }),
  ];
  const tree = treeOf(root, calls);
  assert.deepEqual(
    waterfall(tree).map(({ label, depth, began, ended }) => [label, depth, began, ended]),
    [
      ['agent-a', 0, 0, 10000],
      ['agent-b', 1, 1000, 5000],
      ['agent-b', 2, 1200, 4200],
      ['search', 3, 2200, 3200],
      ['agent-c', 1, 1000, 5000],
      ['agent-c', 2, 1100, 4100],
      ['agent-late', 1, 8000, 9000],
      ['agent-late', 2, 8000, 9000],
    ],
  );
  const [turn] = tree.entries;
  assert.deepEqual(turn.tools.map(({ state }) => state), ['completed', 'failed', 'failed']);
});

test('a long call that no worker runs says where it is, what it did last, and how often it was continued', () => {
  const task = { waiting: false, worker: null, atRest: true, statusMessage: 'solo step 2 (llm)', runs: 2 };
  assert.equal(stateOf(task), 'at rest, solo step 2 (llm), run 2');
  assert.equal(stateOf({ ...task, atRest: false, statusMessage: '', runs: 1 }), 'at another replica');
  assert.equal(stateOf({ ...task, waiting: true, runs: 1 }), 'waiting for its caller, solo step 2 (llm)');
  assert.equal(stateOf({ waiting: false, worker: 1 }), '');
});

test('calls that name each other as parents end the tree at its greatest depth', () => {
  const root = call('a', 'a', { startedAt: at(0) });
  assert.equal(waterfall(treeOf(root, [root])).length > 64, true);
});
