import assert from 'node:assert/strict';
import { test } from 'node:test';

import { CallTree, LOGGER, nameOf } from '../../../pallas_gateway/features/console/static/calls.js';
import { outcomeOf, partial } from '../../../pallas_gateway/features/console/static/outcome.js';
import { waterfall } from '../../../pallas_gateway/features/console/static/waterfall.js';

const message = (data) => ({ method: 'notifications/message', params: { level: 'info', logger: LOGGER, data } });
const chunk = (agent, iteration, text, calls = [], more = {}) =>
  message({
    kind: 'assistant_chunk', schema_version: 2, agent, iteration, text, stop_reason: calls.length ? 'toolUse' : 'endTurn',
    tool_calls: calls.map(([id, server, args]) => ({ id, server, name: 'send_message', arguments: args ?? {} })), ...more,
  });
const results = (agent, iteration, ids, more = {}) =>
  message({
    kind: 'assistant_chunk_results', schema_version: 2, agent, iteration,
    results: ids.map((id) => ({ id, server: 's', name: 't', is_error: id === 'bad', text: `of ${id}`, truncated: false, duration_seconds: 0.5 })),
    ...more,
  });
const delta = (text) => message({ kind: 'assistant_delta', schema_version: 2, agent: 'root', iteration: 1, text });
const under = (...path) => ({ schema_version: 3, call_path: path, via_agent: path.map(() => 'x'), parent_call_id: path.at(-1) });

function treeOf(...messages) {
  const tree = new CallTree();
  messages.forEach((one, index) => tree.apply(one, index * 1000));
  return tree;
}

function outline(place, depth = 0) {
  return place.entries.flatMap((entry) => {
    const pad = '  '.repeat(depth);
    if (entry.kind === 'raw') return [`${pad}raw: ${entry.why}`];
    const tools = entry.tools.flatMap((tool) => [`${pad}  ${nameOf(tool)} ${tool.state}`, ...outline(tool, depth + 2)]);
    return [`${pad}${entry.agent} ${entry.iteration}: ${entry.text}`, ...tools];
  });
}

test('sub-agents stand under the tool calls that made them, at any depth, parallel ones apart', () => {
  const tree = treeOf(
    chunk('root', 1, '', [['c1', 'peer'], ['c2', 'peer']]),
    chunk('peer', 1, '', [['d1', 'leaf']], under('c2')),
    chunk('peer', 1, 'first', [], under('c1')),
    chunk('leaf', 1, 'deep', [['e1', 'notes']], under('d1', 'c2')),
    chunk('deepest', 1, 'deeper', [], under('e1', 'd1', 'c2')),
    results('leaf', 1, ['e1'], under('d1', 'c2')),
    results('peer', 1, ['d1'], under('c2')),
    results('root', 1, ['c1', 'c2']),
    chunk('root', 2, 'done'),
  );
  assert.deepEqual(outline(tree.root), [
    'root 1: ', '  peer/send_message completed', '    peer 1: first', '  peer/send_message completed', '    peer 1: ',
    '      leaf/send_message completed', '        leaf 1: deep', '          notes/send_message completed',
    '            deepest 1: deeper', 'root 2: done',
  ]);
});

test('live text grows, and the whole text takes its place', () => {
  const tree = treeOf(delta('Hel'), delta('lo'));
  assert.equal(tree.root.entries[0].text, 'Hello');
  assert.equal(tree.root.entries[0].live, true);
  tree.apply(chunk('root', 1, 'Hello!'));
  tree.apply(delta('late'));
  assert.deepEqual(outline(tree.root), ['root 1: Hello!']);
});

test('an agent that is called twice has two first turns', () => {
  assert.deepEqual(outline(treeOf(chunk('root', 1, 'a'), chunk('root', 1, 'b')).root), ['root 1: a', 'root 1: b']);
});

test('what is not understood is kept raw and changes nothing else', () => {
  const good = [chunk('root', 1, 'hi', [['c1', 's']])];
  const bad = [
    message({ kind: 'assistant_chunk' }), message({ kind: 'assistant_chunk', agent: 'a', iteration: 1, text: 'x', tool_calls: [null] }),
    message({ kind: 'assistant_chunk', agent: 'a', iteration: 1, text: 'x', tool_calls: [{ id: 1, name: 'n' }] }),
    message({ kind: 'assistant_chunk_results', results: [{ id: 'no', text: 'x' }] }),
    message({ kind: 'assistant_chunk_results', results: [{ id: 'c1' }] }), message({ kind: 'toString' }), message({ kind: 'novel' }),
    message(null), message('text'), message([1]), chunk('x', 1, 'x', [], under('nobody')), chunk('x', 1, 'x', [], { call_path: 'c1' }),
    chunk('x', 1, 'x', [], { call_path: Array(1000).fill('c1') }), { method: 'notifications/novel' }, null, 7,
    message({ kind: 'assistant_delta', agent: 'root', iteration: '1', text: 'x' }), message({ __proto__: null, kind: '__proto__' }),
  ];
  const tree = treeOf(...good, ...bad);
  assert.deepEqual(outline(tree.root).slice(0, 2), ['root 1: hi', '  s/send_message running']);
  assert.equal(tree.root.entries.filter((entry) => entry.kind === 'raw').length, bad.length);
});

test('an event below a tool call that is malformed stands there', () => {
  const tree = treeOf(chunk('root', 1, '', [['c1', 'peer']]), message({ kind: 'novel', call_path: ['c1'] }));
  assert.deepEqual(outline(tree.root), ['root 1: ', '  peer/send_message running', '    raw: unknown kind']);
});

test('failed tools, and tools whose result never came', () => {
  const tree = treeOf(chunk('root', 1, '', [['bad', 's'], ['c2', 's']]), results('root', 1, ['bad']));
  tree.finish({ content: [{ type: 'text', text: 'x' }] }, 5000);
  const [failed, lost] = tree.root.entries[0].tools;
  assert.deepEqual([failed.state, failed.result, failed.seconds], ['failed', 'of bad', 0.5]);
  assert.deepEqual([lost.state, lost.ended], ['unknown', 5000]);
});

test('only what an event changes is drawn again', () => {
  const tree = treeOf(chunk('root', 1, '', [['c1', 'peer']]));
  tree.takeChanged();
  tree.apply(chunk('peer', 1, 'x', [], under('c1')), 1);
  const tool = tree.root.entries[0].tools[0];
  assert.deepEqual([...tree.takeChanged()], [tool, tool.entries[0]]);
  tree.apply({ method: 'notifications/progress', params: { progress: 1, message: 'root step 2 (llm)' } });
  assert.deepEqual([...tree.takeChanged()], []);
  assert.equal(tree.now, 'root step 2 (llm)');
});

test('an outcome has the texts, the images and the facts', () => {
  const facts = { stop_reason: 'maxTokens' };
  const content = [{ type: 'text', text: 'a' }, { type: 'text', text: 'b' }, null, { type: 'image', data: 'x', mimeType: 'image/png' }];
  const outcome = outcomeOf({ content, _meta: { 'pallas/call': facts, 'pallas/trace_url': 'https://t.example/1' } });
  assert.deepEqual(outcome, { traceUrl: 'https://t.example/1', text: 'a\n\nb', images: [{ data: 'x', mimeType: 'image/png' }], isError: false, facts, notes: null });
  assert.match(partial(outcome), /limit of tokens/);
  assert.equal(outcomeOf('nonsense').text, '');
});

test('answers that the gateway ended are partial', () => {
  const text = (one) => outcomeOf({ content: [{ type: 'text', text: one }] });
  assert.match(partial(text('so far\n\n[Stopped: the agent reached its limit of steps for one call. This answer is partial.]')), /stopped/);
  assert.equal(partial(text('[Stopped: x] is a title')), '');
});

test('a waterfall shows the wait for a person apart, and not as time of the model', () => {
  const asked = (kind) => message({ kind, schema_version: 2, id: 'q1' });
  const tree = treeOf(chunk('root', 1, '', [['c1', 's']]), asked('question'), asked('answer'), results('root', 1, ['c1']), chunk('root', 2, 'done'));
  assert.deepEqual(waterfall(tree.root).map((row) => [row.label, row.began, row.ended]), [
    ['root turn 1', 0, 0],
    ['s/send_message', 0, 500],
    ['waited for you', 1000, 2000],
    ['root turn 2', 2000, 4000],
  ]);
  const stopped = treeOf(chunk('root', 1, '', [['c1', 's']]), asked('question'));
  stopped.stop(3000);
  assert.equal(waterfall(stopped.root).at(-1).ended, 3000);
});

test('a waterfall lists turns and tools with their times', () => {
  const tree = treeOf(chunk('root', 1, '', [['c1', 'peer']]), chunk('peer', 1, 'x', [], under('c1')), results('root', 1, ['c1']), chunk('root', 2, 'done'));
  assert.deepEqual(waterfall(tree.root).map((row) => [row.depth, row.label, row.began, row.ended]), [
    [0, 'root turn 1', 0, 0], [1, 'peer/send_message', 0, 1000], [2, 'peer turn 1', 0, 1000], [0, 'root turn 2', 1000, 3000],
  ]);
});
