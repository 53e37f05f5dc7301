import assert from 'node:assert/strict';
import { test } from 'node:test';

import { duration, harmless, safeLink, showsHost, visible } from '../../../pallas_gateway/features/console/static/text.js';

test('control and direction characters are shown by their code points', () => {
  assert.equal(harmless('a\u202egnp.exe\u0000\tb\r\nc'), 'a⟨U+202E⟩gnp.exe⟨U+0000⟩\tb\nc');
  assert.equal(harmless(undefined), '');
  assert.equal(harmless('Grüße, שלום, 你好 🙂'), 'Grüße, שלום, 你好 🙂');
});

test('only links of the web and of mail are followed, and show their real host', () => {
  assert.deepEqual(safeLink('https://example.com/a'), { href: 'https://example.com/a', host: 'example.com' });
  assert.equal(safeLink('https://bank.example@evil.example/')?.host, 'evil.example');
  assert.equal(safeLink('https://bänk.example')?.host, 'xn--bnk-qla.example');
  assert.equal(safeLink('mailto:a@example.com')?.host, 'example.com');
  const refused = ['javascript:alert(1)', 'JaVa\nScript:alert(1)', 'data:text/html,x', '/relative', 'vbscript:x', 'file:///etc'];
  for (const address of refused) assert.equal(safeLink(address), null, address);
});

test('a link shows its host by its own text only if that is an address at this very host', () => {
  for (const label of ['https://bank.co', 'http://bank.co/a', 'https://bank.co?b', 'https://bank.co#c']) {
    assert.ok(showsHost(label, 'bank.co'), label);
  }
  for (const label of ['https://bank.com/login', 'https://bank.co.example', 'https://bank.co@evil.example', 'https://bank.co:81', 'bank.co', 'see https://bank.co']) {
    assert.ok(!showsHost(label, 'bank.co'), label);
  }
});

test('durations are short', () => {
  assert.deepEqual([0.25, 2.345, 125, null].map(duration), ['250 ms', '2.3 s', '2 min 5 s', '']);
});

test('what cannot be seen is shown by its code point, and all letters stay', () => {
  const hidden = ['\u0000', '\r', '\u007f', '\u200b', '\u202e', '\ue000', '\u0378', '\u2028', '\u2029', '\ufe0f', '\u{e0041}', '\u{e0100}', '\u180b', '\u034f', '\u3164'];
  for (const one of hidden) assert.equal(visible(`a${one}b`), `a⟨U+${one.codePointAt(0).toString(16).toUpperCase().padStart(4, '0')}⟩b`);
  const shown = 'Grüße,\n שלום, 你好 e\u0301 🙂';
  assert.equal(visible(shown), shown);
});
