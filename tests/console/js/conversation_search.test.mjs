import assert from 'node:assert/strict';
import { test } from 'node:test';

import { excerptOf, foundIn, partsOf, spotOf } from '../../../pallas_gateway/features/console/static/conversation_search.js';
import { newConversation, newTurn } from '../../../pallas_gateway/features/console/static/conversations.js';

test('words are marked without distinction of upper and lower case, and are no pattern', () => {
  assert.deepEqual(partsOf('A (b) a', '(B'), [{ text: 'A ', isMatch: false }, { text: '(b', isMatch: true }, { text: ') a', isMatch: false }]);
  assert.deepEqual(partsOf('ÄÄ', 'ä').map(({ isMatch }) => isMatch), [true, true]);
  assert.deepEqual(partsOf('', 'x'), []);
});

test('an excerpt is one short line around the first match', () => {
  const text = `${'x'.repeat(100)}\n  pears ${'y'.repeat(500)}`;
  const excerpt = excerptOf(text, 'PEARS');
  assert.match(excerpt, /^…x+ pears y+…$/);
  assert.ok(excerpt.length < 150);
  assert.equal(excerptOf('pears', 'pears'), 'pears');
  assert.equal(excerptOf('apples', 'pears'), null);
});

test('a conversation is found by a message, an answer, or its name', () => {
  const turn = { ...newTurn('one'), state: 'complete', result: { content: [{ type: 'text', text: 'the answer' }] } };
  const kept = { ...newConversation('x'), title: 'Named', turns: [turn] };
  assert.equal(foundIn(kept, 'ONE'), 'one');
  assert.equal(foundIn(kept, 'answer'), 'the answer');
  assert.equal(foundIn(kept, 'named'), '');
  assert.equal(foundIn(kept, 'nothing'), null);
});

test('the first turn with a text is found, and whether its message or its answer has it', () => {
  const turns = ['one', 'two', 'three two'].map((message) => ({ ...newTurn(message), state: 'complete', result: { content: [{ type: 'text', text: `heard ${message}` }] } }));
  assert.deepEqual(spotOf(turns, 'TWO'), { index: 1, part: 'message' });
  assert.deepEqual(spotOf(turns, 'heard t'), { index: 1, part: 'answer' });
  assert.equal(spotOf(turns, 'four'), null);
});
