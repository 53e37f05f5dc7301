import assert from 'node:assert/strict';
import { test } from 'node:test';

import { ANSWERED, answerText, answersOf, waitingTools } from '../../../pallas_gateway/features/console/static/asked.js';
import { CallTree, LOGGER, nameOf } from '../../../pallas_gateway/features/console/static/calls.js';
import { asMarkdown, keepEvent, newConversation, newTurn } from '../../../pallas_gateway/features/console/static/conversations.js';

const accept = (content) => ({ action: 'accept', content });
const approval = { kind: 'approval', agent: 'desk', tool: 'bookings/cancel' };
const form = {
  message: 'bookings: Which room?',
  requestedSchema: { properties: { room: { type: 'string', title: 'Room' }, days: { type: 'array' }, quiet: { type: 'boolean' }, api_token: { type: 'string' } } },
};

test('an answer is a sentence without secrets', () => {
  const origin = { kind: 'form', server: 'bookings' };
  const page = { message: 'Pay', url: 'https://pay.example/consent?token=secret' };
  const cases = [
    [{}, approval, accept({ decision: 'once' }), 'You allowed bookings/cancel once.'],
    [{}, approval, accept({ decision: 'call' }), 'You allowed bookings/cancel and all other tools for this call.'],
    [{}, approval, { action: 'decline' }, 'You declined bookings/cancel.'],
    [form, origin, accept({ room: 'Blue', days: [1, 2], quiet: true, api_token: 'secret' }), 'You submitted Room: Blue, days: 1, 2, quiet: yes, api_token: (hidden).'],
    [form, origin, accept({ room: 'x'.repeat(1000) }), `You submitted Room: ${'x'.repeat(199)}….`],
    [form, origin, { action: 'decline' }, 'You declined “bookings: Which room?”.'],
    [page, { kind: 'url' }, accept(), 'You submitted the page at pay.example.'],
  ];
  for (const [params, from, answer, text] of cases) assert.equal(answerText(params, from, answer), text);
});

test('answers are kept in the events of a call, also of a long one, and in its export', () => {
  const turn = newTurn('book');
  for (let at = 0; at < 2100; at += 1) keepEvent(turn, { at, message: { method: 'notifications/progress' } });
  keepEvent(turn, { at: 2100, message: { method: ANSWERED, params: { text: 'You allowed x once.' } } });
  assert.deepEqual(answersOf(turn), ['You allowed x once.']);
  assert.match(asMarkdown({ ...newConversation('a'), turns: [turn] }), /You allowed x once\./);
  const tree = new CallTree();
  tree.apply(turn.events.at(-1).message);
  assert.equal(tree.root.entries[0].text, 'You allowed x once.');
  tree.apply({ method: ANSWERED, params: { text: 7 } });
  assert.equal(tree.root.entries[1].kind, 'raw');
});

test('the tool calls that wait are those of the server, the tool and the agent of a question', () => {
  const tree = new CallTree();
  const chunk = (agent, calls, path = []) =>
    tree.apply({
      method: 'notifications/message',
      params: { logger: LOGGER, data: { kind: 'assistant_chunk', agent, iteration: 1, text: '', tool_calls: calls.map(([id, server, name]) => ({ id, server, name })), call_path: path } },
    });
  chunk('boss', [['1', 'desk', 'send_message'], ['2', 'bookings', 'cancel']]);
  chunk('desk', [['3', 'bookings', 'cancel'], ['4', 'notes', 'find'], ['5', null, '__human_input']], ['1']);
  const waiting = (...origins) => [...waitingTools(tree.root, origins)].map((tool) => `${tool.id} ${nameOf(tool)}`);
  assert.deepEqual(waiting(), []);
  assert.deepEqual(waiting(approval), ['3 bookings/cancel']);
  assert.deepEqual(waiting({ kind: 'form', agent: 'inner', server: 'notes' }, { kind: 'human_input', agent: 'desk' }), ['4 notes/find', '5 __human_input']);
  assert.deepEqual(waiting(undefined), []);
  const [tool] = waitingTools(tree.root, [approval]);
  tree.takeChanged();
  tree.wait(new Set([tool]));
  assert.equal(tool.isAsking, true);
  tree.wait(new Set());
  assert.equal(tool.isAsking, false);
  assert.deepEqual([...tree.takeChanged()], [tool]);
});
