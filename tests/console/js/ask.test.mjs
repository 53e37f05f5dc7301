import assert from 'node:assert/strict';
import { test } from 'node:test';

const STATIC = '../../../pallas_gateway/features/console/static';
const { addressed, blockOf, mentionOf, suggestionsOf } = await import(`${STATIC}/ask.js`);
const { ago } = await import(`${STATIC}/text.js`);

const choice = (name, title = name, why = '') => ({ agent: { id: name, name, title }, why });
const CHOICES = [choice('news', 'News desk'), choice('echo', 'Echo'), choice('broken', 'Echo of old', 'error: no key')];

test('a name is being written as long as it is all of the message', () => {
  assert.deepEqual(['@', '@ne', '@ne ', 'hello @ne', '', '@ne\nx'].map(mentionOf), ['', 'ne', null, null, null, null]);
});

test('agents are suggested by the beginning of their names and of words of their titles, and none that takes no messages', () => {
  const names = (written) => suggestionsOf(written, CHOICES).map(({ agent }) => agent.name);
  assert.deepEqual(['', 'N', 'desk', 'ec', 'broken', 'x('].map(names), [['news', 'echo'], ['news'], ['news'], ['echo'], [], []]);
  assert.equal(suggestionsOf('', Array.from({ length: 50 }, (_, index) => choice(`agent-${index}`))).length, 8);
});

test('a message is for the agent whose whole name it begins with, if that takes messages', () => {
  assert.deepEqual(addressed('@ECHO say\nthis', CHOICES), { agent: CHOICES[1].agent, rest: 'say\nthis' });
  for (const text of ['@ech say', '@broken say', '@echo', 'say @echo this', '@ x']) assert.equal(addressed(text, CHOICES), null);
});

test('an agent in error, one that starts and one that may not be run take no messages, each with the reason', () => {
  assert.equal(blockOf('ok', '', ''), '');
  assert.equal(blockOf('degraded', 'Unreachable: notes', ''), '');
  assert.equal(blockOf('unknown', '', ''), ''); // not known yet
  assert.equal(blockOf('unknown', 'A token is required.', ''), 'A token is required.');
  assert.equal(blockOf('error', 'no key', ''), 'error: no key');
  assert.equal(blockOf('error', 'x'.repeat(500), '').length, 80);
  assert.equal(blockOf('starting', '', ''), 'starting');
  assert.equal(blockOf('ok', '', 'This token may not run it.'), 'This token may not run it.');
});

test('times that have passed are told in their largest unit', () => {
  const minute = 60_000;
  assert.deepEqual([-5, 59_999, minute, 59 * minute, 60 * minute, 47.9 * 60 * minute, 48 * 60 * minute].map(ago), ['just now', 'just now', '1 min ago', '59 min ago', '1 h ago', '47 h ago', '2 days ago']);
});
