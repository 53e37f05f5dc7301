import assert from 'node:assert/strict';
import { test } from 'node:test';

import { apart, attached, folded, takenBy, withFiles } from '../../../pallas_gateway/features/console/static/attachments.js';

const LIMITS = { takes: { images: true, documents: true }, room: 1_000_000, most: 1_000_000 };
const csv = { name: 'a b.csv', text: 'x,y\n1,2' };
const told = { name: 'README', text: '# Fences\n\n```sh\nls\n```\n\nAttached file: b\n```\nno\n```' };

test('text files are code blocks below their names, and are found again', () => {
  assert.equal(withFiles('Sum it up.\n', [csv]), 'Sum it up.\n\nAttached file: a b.csv\n```csv\nx,y\n1,2\n```');
  for (const message of ['Sum it up.', '', 'two\n\nparts with ```code```']) {
    for (const files of [[csv], [told, csv], [csv, told, csv]]) {
      assert.deepEqual(apart(withFiles(message, files)), { message, files });
      assert.deepEqual(apart(`${withFiles(message, files)}\n`), { message, files });
    }
  }
});

test('a file of nothing but fences is sent', () => {
  const files = [{ name: 'fences.md', text: '```\n'.repeat(240_000) }];
  assert.deepEqual(apart(withFiles('Look', files)), { message: 'Look', files });
});

test('other messages are left as they are', () => {
  const texts = ['hello', 'Attached file: x', 'a\n\nAttached file: x\n```\nopen', `${withFiles('a', [csv])}\nand more`, '', withFiles('  kept ', [])];
  for (const text of texts) assert.deepEqual(apart(text), { message: text, files: [] });
});

test('a message of many beginnings is read in no time', () => {
  const hostile = '\n\nAttached file: x\n```\n'.repeat(100_000);
  assert.deepEqual(apart(hostile).files, []);
});

test('an export folds the files', () => {
  const text = folded(withFiles('Look', [{ name: '<b>&.txt', text: 'one' }]));
  assert.equal(text, 'Look\n\n<details><summary>&lt;b>&amp;.txt</summary>\n\n```txt\none\n```\n\n</details>');
});

test('a file is text by its content alone', async () => {
  const read = (content, name = 'f', type = '') => attached(new File([content], name, { type }), LIMITS);
  assert.deepEqual(await read('a: ü\r\n', 'a.yaml', 'application/octet-stream'), { text: { name: 'a.yaml', text: 'a: ü' } });
  assert.deepEqual(await read('\ufeffx', 'bom.txt'), { text: { name: 'bom.txt', text: 'x' } });
  assert.deepEqual(await read('x', 'a\nb\u202e.txt'), { text: { name: 'a b .txt', text: 'x' } });
  assert.match((await read(new Uint8Array([0x25, 0x50, 0xff]), 'a.pdf')).problem, /“a.pdf” cannot be sent: it is binary/);
  assert.match((await read('a\0b')).problem, /binary/);
  assert.match((await read('')).problem, /is empty/);
  assert.match((await read('x'.repeat(1_000_001))).problem, /larger than 1 MB/);
  assert.match((await read('no image', 'x.png', 'image/png')).problem, /is no PNG, JPEG, GIF or WebP image/);
});

test('a PDF is sent as such, but not to a model without documents', async () => {
  globalThis.FileReader = class {
    async readAsDataURL(file) {
      this.result = `data:;base64,${Buffer.from(await file.arrayBuffer()).toString('base64')}`;
      this.onload();
    }
  };
  const report = new File(['%PDF-1.7 \n'], 'Größe.pdf');
  assert.deepEqual(await attached(report, LIMITS), { image: { data: 'JVBERi0xLjcgCg==', mime_type: 'application/pdf', name: 'Größe.pdf' } });
  const none = await attached(report, { ...LIMITS, takes: { images: true, documents: false } });
  assert.equal(none.problem, '“Größe.pdf” is a PDF. The model of this agent accepts no documents.');
  const large = { size: 20_000_001, name: 'a.pdf', type: '', slice: () => report.slice(0, 12) };
  assert.equal((await attached(large, LIMITS)).problem, '“a.pdf” is larger than 20 MB.');
  delete globalThis.FileReader;
});

test('what a model takes is what the registry says, and what it says nothing of is left to the gateway', () => {
  assert.deepEqual(takenBy({}), { images: true, documents: true });
  assert.deepEqual(takenBy({ vision: true }), { images: true, documents: false });
  assert.deepEqual(takenBy({ vision: false, documents: true }), { images: false, documents: true });
});

test('a file that the request has no room for is refused', async () => {
  const file = new File(['"'.repeat(60_000)], 'quotes.txt');
  assert.ok((await attached(file, { ...LIMITS, room: 140_000 })).text);
  assert.match((await attached(file, { ...LIMITS, room: 130_000, most: 33_554_432 })).problem, /does not fit: a request may have 33.5 MB/);
});

test('a folder, which cannot be read, is refused', async () => {
  const folder = { name: 'folder', size: 1, type: '', slice: () => ({ arrayBuffer: () => Promise.reject(new Error('gone')) }) };
  assert.equal((await attached(folder, LIMITS)).problem, '“folder” cannot be read.');
});
