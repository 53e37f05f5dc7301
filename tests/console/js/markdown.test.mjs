import assert from 'node:assert/strict';
import { test } from 'node:test';

import { inlines } from '../../../pallas_gateway/features/console/static/inlines.js';
import { GrowingMarkdown, parse } from '../../../pallas_gateway/features/console/static/markdown.js';

const paragraph = (...children) => ({ type: 'paragraph', children });

test('blocks are recognised', () => {
  const text = "# Title\n\nOne\ntwo\n\n---\n\n> quoted\n\n```js\nlet a;\n\n```\nafter";
  assert.deepEqual(parse(text), [
    { type: 'heading', level: 1, children: ['Title'] },
    paragraph('One\ntwo'),
    { type: 'rule' },
    { type: 'quote', blocks: [paragraph('quoted')] },
    { type: 'code', language: 'js', text: 'let a;\n' },
    paragraph('after'),
  ]);
});

test('a heading may be closed by marks after a space', () => {
  for (const [line, text] of [['# a ##', 'a'], ['## C#', 'C#'], ['#\ta b #  ', 'a b'], ['# ##', '']]) {
    assert.deepEqual(parse(line)[0].children, text ? [text] : [], line);
  }
});

test('lists nest and keep their numbers', () => {
  const [list] = parse('3. three\n   - a\n   - b\n4. four\n\n   more');
  assert.equal(list.start, 3);
  assert.deepEqual(list.items[0], [
    paragraph('three'),
    { type: 'list', ordered: false, start: 1, items: [[paragraph('a')], [paragraph('b')]] },
  ]);
  assert.deepEqual(list.items[1], [paragraph('four'), paragraph('more')]);
});

test('a list item under another mark is a new list, and text after a list is no item', () => {
  assert.deepEqual(parse('- a\n- b\n\ntext').map((block) => block.type), ['list', 'paragraph']);
  assert.deepEqual(parse('- a\n1. b').map((block) => block.type), ['list', 'list']);
});

test('tables have cells with inline parts', () => {
  assert.deepEqual(parse("| a | b |\n|---|:-:|\n| `1` | 2 | 3 |\nend"), [
    { type: 'table', head: [['a'], ['b']], rows: [[[{ type: 'code', text: '1' }], ['2']]] },
    paragraph('end'),
  ]);
});

test('emphasis and code', () => {
  assert.deepEqual(inlines("**b** and *i* and ***x*** `c*` ~~d~~"), [
    { type: 'strong', children: ['b'] }, ' and ', { type: 'em', children: ['i'] }, ' and ',
    { type: 'strong', children: [{ type: 'em', children: ['x'] }] }, ' ', { type: 'code', text: 'c*' }, ' ',
    { type: 'del', children: ['d'] },
  ]);
  assert.deepEqual(inlines('snake_case_name 2 * 3 * 4 **open \\*'), ['snake_case_name 2 * 3 * 4 **open *']);
});

test('links show where they lead, and other addresses stay text', () => {
  assert.deepEqual(inlines('[text](https://a.example/x)'), [
    { type: 'link', href: 'https://a.example/x', host: 'a.example', children: ['text'] },
  ]);
  assert.deepEqual(inlines('see https://a.example/x.'), [
    'see ', { type: 'link', href: 'https://a.example/x', host: 'a.example', children: ['https://a.example/x'] }, '.',
  ]);
  assert.deepEqual(inlines('![pic](https://a.example/x.png)'), [
    { type: 'image', href: 'https://a.example/x.png', host: 'a.example', children: ['pic'] },
  ]);
  for (const text of ['[a](javascript:alert(1))', '![a](data:image/png;base64,xx)', '<script>alert(1)</script>', '[a](/x)']) {
    assert.equal(inlines(text).every((part) => typeof part === 'string'), true, text);
  }
});

test('growing text has the same blocks as the whole, and its settled parts stay', () => {
  const text = "# A\n\ntext *one*\n\n- a\n- b\n\n  more\n\n```\ncode\n\nx\n```\n\nend\n\nlast";
  const growing = new GrowingMarkdown();
  for (let end = 1; end <= text.length; end += 1) {
    const settled = growing.parts.slice(0, growing.settled);
    growing.update(text.slice(0, end));
    assert.deepEqual(growing.parts.slice(0, settled.length), settled);
    assert.deepEqual(growing.parts.flat(), parse(text.slice(0, end)));
  }
  assert.deepEqual(growing.update('new').flat(), [paragraph('new')]);
});

test('a text of brackets costs little more than one of letters', () => {
  const cost = (/** @type {string} */ text) => {
    const began = process.cpuUsage().user;
    for (let round = 0; round < 5; round += 1) parse(text);
    return process.cpuUsage().user - began;
  };
  for (const piece of ['a', '[']) cost(piece.repeat(40_000));
  const [letters, brackets] = ['a', '['].map((piece) => cost(piece.repeat(40_000)));
  assert.ok(brackets < 15 * Math.max(letters, 5_000), `${letters} and ${brackets} µs`);
});

test('the label of a link may hold brackets, and ends where they are closed', () => {
  const address = { type: 'link', href: 'https://a.example/', host: 'a.example' };
  assert.deepEqual(parse('[a [b]](https://a.example/)'), [paragraph({ ...address, children: ['a [b]'] })]);
  assert.deepEqual(parse('[x [b](https://a.example/)'), [paragraph('[x ', { ...address, children: ['b'] })]);
  assert.deepEqual(parse(`[${'a'.repeat(1001)}](https://a.example/)`).flat()[0].children[0].slice(0, 2), '[a');
});

test('the cost of hostile text grows no faster than the text', () => {
  const hostile = ['*', '_', '`', '[', '![', '**a', '`a``b', '> ', '- ', '|', '\\', '<', 'https://', '[a](', '~~', '1. ', '  - a\n', '```\n', '*a_', 'a\n', '\u0001\n'];
  const cost = (text) => {
    const began = process.cpuUsage().user;
    parse(text);
    return process.cpuUsage().user - began;
  };
  const texts = hostile.map((piece) => (/** @type {number} */ count) => piece.repeat(count));
  texts.push((count) => `# a${' '.repeat(count)}b`, (count) => `# a${'#'.repeat(count)}b`, (count) => `${'~'.repeat(count)}\``);
  for (const text of texts) cost(text(5000));
  for (const text of texts) {
    const [small, large] = [cost(text(10_000)), cost(text(80_000))];
    assert.ok(large < 30 * Math.max(small, 20_000), `${JSON.stringify(text(5))}: ${small} then ${large} µs`);
  }
});
