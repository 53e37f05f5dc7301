import assert from 'node:assert/strict';
import { test } from 'node:test';

import { asJson, asMarkdown, copyOf, fromJson, historyOf, placesOf, keepEvent, newConversation, newTurn, titleOf } from '../../../pallas_gateway/features/console/static/conversations.js';

function answered(message, text, state = 'complete') {
  return { ...newTurn(message), state, result: { content: [{ type: 'text', text }] } };
}

function conversation(...turns) {
  return { ...newConversation('https://gateway.example/agents/a/mcp'), turns };
}

test('only answered turns are history, with the images of their messages', () => {
  const image = { data: 'aGk=', mime_type: 'image/png' };
  const kept = conversation({ ...answered('one', '1'), images: [image] }, answered('two', '', 'stopped'), answered('three', '3'));
  assert.deepEqual(historyOf(kept), [
    { role: 'user', content: 'one', images: [image] }, { role: 'assistant', content: '1' },
    { role: 'user', content: 'three' }, { role: 'assistant', content: '3' },
  ]);
  assert.equal(historyOf(kept, 1).length, 2);
});

test('an export comes back as a new conversation', () => {
  const kept = conversation(answered('one', '1'));
  const back = fromJson(asJson(kept), 'other');
  assert.notEqual(back.id, kept.id);
  assert.equal(back.agent, 'other');
  assert.deepEqual(historyOf(back), historyOf(kept));
  assert.match(asMarkdown(kept), /# one\n\n## You\n\none\n\n## Agent\n\n1/);
});

test('an import keeps the ratings of answers and the models, and a copy no rating', () => {
  const feedback = { rating: 'bad', note: 'wrong', ratedAt: '2026-01-01T00:00:00.000Z' };
  const malformed = [{ ...feedback, rating: 'fair' }, { ...feedback, note: 7 }, { ...feedback, ratedAt: 'then' }, null];
  const kept = conversation(...[feedback, ...malformed].map((one) => ({ ...answered('one', '1'), model: 'm', feedback: one })));
  const back = fromJson(asJson(kept), 'other').turns;
  assert.deepEqual(back.map((turn) => turn.feedback), [feedback, undefined, undefined, undefined, undefined]);
  assert.equal(back[0].model, 'm');
  const [copy] = copyOf(kept, 1).turns;
  assert.deepEqual([copy.feedback, copy.model], [undefined, 'm']);
});

test('a file that holds no conversation is refused, and a malformed turn is left out', () => {
  assert.throws(() => fromJson('{', 'a'), /not JSON/);
  for (const text of ["null", "{}", '{"format": "pallas-gateway-conversation", "conversation": {"turns": 7}}']) {
    assert.throws(() => fromJson(text, 'a'), /no conversation/);
  }
  const turns = [null, { message: 7 }, { message: 'ok', state: 'running', images: [{ data: 'x', mime_type: 'text/html' }], events: [null] }];
  const [turn] = fromJson(JSON.stringify({ format: 'pallas-gateway-conversation', conversation: { turns } }), 'a').turns;
  assert.deepEqual([turn.message, turn.state, turn.images, turn.events], ['ok', 'interrupted', [], []]);
});

test('of an imported image only what the gateway takes is kept', () => {
  const pdf = { data: 'JVBERi0=', mime_type: 'application/pdf' };
  const names = ['a.pdf', 5, 'a\nb.pdf', 'x'.repeat(201), ''];
  const images = [...names.map((name) => ({ ...pdf, name })), { data: 'x', mime_type: 'image/png', name: 'a.png', more: 1 }];
  const text = JSON.stringify({ format: 'pallas-gateway-conversation', conversation: { turns: [{ message: 'ok', images }] } });
  const [turn] = fromJson(text, 'a').turns;
  assert.deepEqual(turn.images, [{ ...pdf, name: 'a.pdf' }, pdf, pdf, pdf, pdf, { data: 'x', mime_type: 'image/png' }]);
});

test('titles are short', () => {
  assert.equal(titleOf(conversation()), 'New conversation');
  assert.equal(titleOf(conversation(answered('x'.repeat(100), ''))).length, 60);
});

test('live text is kept joined until the whole text follows, and of a long call the latest events are counted', () => {
  const turn = newTurn('x');
  const live = (kind, text, iteration = 1) => ({ at: 1, message: { params: { data: { kind, agent: 'a', iteration, text } } } });
  for (const text of ['Hel', 'lo']) keepEvent(turn, live('assistant_delta', text));
  assert.deepEqual(turn.events, [live('assistant_delta', 'Hello')]);
  keepEvent(turn, live('assistant_chunk', 'Hello!'));
  keepEvent(turn, live('assistant_delta', 'next', 2));
  assert.deepEqual(turn.events, [live('assistant_chunk', 'Hello!'), live('assistant_delta', 'next', 2)]);
  turn.events = [];
  for (let at = 0; at < 2010; at += 1) keepEvent(turn, { at, message: { method: 'notifications/progress' } });
  assert.deepEqual([turn.events.length, turn.leftOut], [2000, 10]);
});

function retried() {
  const first = answered('one', 'A');
  const again = (text, state) => ({ ...answered('one', text, state), replaces: first.id });
  return conversation(first, again('B'), again('', 'error'), answered('two', 'C'));
}

test('of the answers to a message, the latest complete one is history, and none for another answer', () => {
  const kept = retried();
  assert.deepEqual(placesOf(kept.turns), [[0, 1, 2], [3]]);
  assert.deepEqual(historyOf(kept, 3).map(({ content }) => content), ['one', 'B']);
  assert.deepEqual(historyOf(kept, 1), []);
  assert.deepEqual(historyOf(kept, 2), []);
});

test('answers of the gateway belong to the message by its number', () => {
  const kept = conversation({ ...answered('one', 'A'), number: 1 }, { ...answered('one', 'B'), number: 2, replaces: 1 });
  assert.deepEqual(placesOf(kept.turns), [[0, 1]]);
  assert.deepEqual(placesOf(fromJson(asJson(kept), 'x').turns), [[0, 1]]);
});

test('a copy and an export have all answers', () => {
  const kept = retried();
  const copy = copyOf(kept, 3);
  assert.deepEqual(placesOf(copy.turns), [[0, 1, 2]]);
  assert.notEqual(copy.id, kept.id);
  assert.notEqual(copy.turns[0].id, kept.turns[0].id);
  assert.match(asMarkdown(kept), /## You\n\none\n\n## Agent \(answer 1 of 3\)\n\nA\n\n## Agent \(answer 2 of 3\)\n\nB/);
});
