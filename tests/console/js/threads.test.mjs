import assert from 'node:assert/strict';
import { test } from 'node:test';

import { CallTree } from '../../../pallas_gateway/features/console/static/calls.js';
import { readTurns } from '../../../pallas_gateway/features/console/static/threads.js';

const said = (turnIndex) => ({ turnIndex, role: 'user', status: 'complete', createdAt: '2026-11-24T10:00:00.000Z', content: `m${turnIndex}`, images: [] });
const answer = (turnIndex, more = {}) => ({ turnIndex, role: 'assistant', status: 'complete', createdAt: '2026-11-24T10:00:02.000Z', content: 'done', images: [], callId: 'c', stopReason: 'endTurn', usage: null, error: null, ...more });
const asks = (turnIndex, ...tools) => ({ turnIndex, role: 'assistant', status: 'complete', createdAt: null, content: 'I look.', images: [], toolCalls: tools.map(([id, toolName]) => ({ id, toolName, args: { of: id } })) });
const gave = (turnIndex, id, toolName, more = {}) => ({ turnIndex, role: 'tool', status: 'complete', createdAt: null, content: `result of ${id}`, images: [], toolCallId: id, toolName, ok: true, ...more });

/** Read a thread whose pages are these; returns the turns and the requested addresses. */
async function read(pages, place = {}) {
  const requested = [];
  globalThis.fetch = async (url) => {
    requested.push(url);
    return new Response(JSON.stringify(pages.shift()), { headers: { 'Content-Type': 'application/json' } });
  };
  return { turns: await readTurns({ id: 't', agent: 'desk', ...place }, ''), requested };
}

const treeOf = (turn) => {
  const tree = new CallTree();
  for (const { at, message } of turn.events) tree.apply(message, at);
  return tree.root;
};

test('the steps of a turn are those of a call that was seen', async () => {
  const messages = [
    said(1), asks(1, ['a', 'notes/search'], ['b', 'local']), gave(1, 'a', 'notes/search'), gave(1, 'b', 'local', { ok: false }),
    asks(1, ['c', 'notes/a/b']), gave(1, 'c', 'notes/a/b'), answer(1), said(2), answer(2),
  ];
  const { turns } = await read([{ messages, nextAfter: null }]);
  assert.deepEqual(turns.map(({ message, state, number }) => [message, state, number]), [['m1', 'complete', 1], ['m2', 'complete', 2]]);
  const [first, second] = treeOf(turns[0]).entries;
  assert.deepEqual([first.agent, first.iteration, first.text, second.iteration], ['desk', 1, 'I look.', 2]);
  assert.deepEqual(first.tools.map(({ server, name, state, result, args }) => [server, name, state, result, args.of]), [
    ['notes', 'search', 'completed', 'result of a', 'a'], [null, 'local', 'failed', 'result of b', 'b'],
  ]);
  assert.deepEqual(second.tools.map(({ server, name }) => [server, name]), [['notes', 'a/b']]);
  assert.deepEqual([turns[0].isTimeless, turns[1].isTimeless, turns[1].events], [true, undefined, []]);
  assert.equal(turns[0].result.content[0].text, 'done');
});

test('a turn that runs has no steps yet: its events come from its call', async () => {
  const messages = [said(1), asks(1, ['a', 'notes/search']), gave(1, 'a', 'notes/search'), answer(1, { status: 'pending', content: null })];
  const { turns } = await read([{ messages, nextAfter: null }]);
  assert.deepEqual([turns[0].state, turns[0].events], ['running', []]);
});

test('later turns are read page by page', async () => {
  const { turns, requested } = await read([{ messages: [said(4), answer(4)], nextAfter: 4 }, { messages: [said(5), answer(5)], nextAfter: null }], { after: 3 });
  assert.deepEqual(turns.map(({ number }) => number), [4, 5]);
  assert.deepEqual(requested.map((url) => new URL(url, 'http://x/y/').search), ['?limit=200&tools=true&after=3', '?limit=200&tools=true&after=4']);
});

test('steps of an unknown form do no harm', async () => {
  const odd = [{ ...gave(1, 'a', undefined), content: undefined }, { ...asks(1), toolCalls: undefined }, gave(1, 'x', null)];
  const { turns } = await read([{ messages: [said(1), ...odd, answer(1)], nextAfter: null }]);
  assert.equal(treeOf(turns[0]).entries.some(({ kind }) => kind === 'turn'), true);
});
