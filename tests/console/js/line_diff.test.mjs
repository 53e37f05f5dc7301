import assert from 'node:assert/strict';
import { test } from 'node:test';

import { lineDiff, rowsOf } from '../../../pallas_gateway/features/console/static/line_diff.js';

const written = (before, after) => lineDiff(before, after).map(({ kind, text }) => `${{ equal: ' ', added: '+', removed: '-' }[kind]}${text}`);

test('lines that are equal stay, others are removed and added', () => {
  assert.deepEqual(written('a\nb\nc', 'a\nx\nc'), [' a', '-b', '+x', ' c']);
  assert.deepEqual(written('a\nb\nc\nd', 'b\nc\ne\nd'), ['-a', ' b', ' c', '+e', ' d']);
  assert.deepEqual(written('', 'a'), ['-', '+a']);
  assert.deepEqual(written('same\n', 'same\n'), [' same', ' ']);
  assert.deepEqual(written('a\na\na', 'a\na'), [' a', ' a', '-a']);
});

test('both texts can be read back from any difference', () => {
  const some = (seed, count) => Array.from({ length: count }, (_, index) => String((index * seed) % 7)).join('\n');
  for (const [before, after] of [[some(3, 40), some(5, 30)], [some(2, 1), some(4, 50)], ['', ''], [some(1, 9), '']]) {
    const lines = lineDiff(before, after);
    const text = (kind) => lines.filter((line) => line.kind === 'equal' || line.kind === kind).map((line) => line.text).join('\n');
    assert.deepEqual([text('removed'), text('added')], [before, after]);
  }
});

test('texts of many thousand lines that have nothing in common are one block, at once', () => {
  const many = (word) => Array.from({ length: 50_000 }, (_, index) => `${word}${index}`).join('\n');
  const began = performance.now();
  const lines = lineDiff(many('a'), many('b'));
  assert.deepEqual([lines.length, lines[0].kind, lines.at(-1).kind], [100_000, 'removed', 'added']);
  assert.equal(rowsOf(lines).length, 100_000);
  assert.ok(performance.now() - began < 2000);
});

test('equal lines far from a change are counted', () => {
  const before = Array.from({ length: 20 }, (_, index) => `${index}`);
  const rows = rowsOf(lineDiff(before.join('\n'), before.with(10, 'x').join('\n')));
  assert.deepEqual(rows.map((row) => (row.kind === 'gap' ? row.count : row.text)), [7, '7', '8', '9', '10', 'x', '11', '12', '13', 6]);
  assert.deepEqual(rowsOf(lineDiff('a\nb', 'a\nb')), [{ kind: 'gap', count: 2 }]);
});
