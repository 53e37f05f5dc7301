import assert from 'node:assert/strict';
import { readFileSync, readdirSync } from 'node:fs';
import { test } from 'node:test';

import { parse } from 'acorn';

const STATIC = new URL('../../../pallas_gateway/features/console/static/', import.meta.url);

/** The patterns of the console's modules that repeat something, by their source. */
function patterns() {
  const found = new Map();
  for (const name of readdirSync(STATIC, { recursive: true })) {
    if (!name.endsWith('.js') || name.startsWith('vendor')) continue;
    const onToken = ({ value }) => {
      if (value?.pattern && /[*+{]/.test(value.pattern)) found.set(`${name}: ${value.pattern}`, new RegExp(value.pattern, value.flags.replace(/[gy]/g, '')));
    };
    parse(readFileSync(new URL(name, STATIC), 'utf8'), { ecmaVersion: 'latest', sourceType: 'module', onToken });
  }
  return found;
}

const BEGINNINGS = ['', 'a ', 'a@', '~~~', '- ', '[', 'a="', '/'];
const REPEATED = ['a', ' ', '-', '*', '_', '~', '`', '.', '/', '\\', '="', 'a="', '[Stopped: ', 'a@', '- ', 'https://', '\r', '\u0000', '\u2028', '#'];
const ENDS = ['', 'x', '\r', '\u0000', '`', ' x'];

test('the cost of no pattern grows faster than the text', () => {
  const all = patterns();
  assert.ok(all.size > 15, `${all.size}`);
  const cost = (pattern, text) => {
    const began = process.cpuUsage().user;
    pattern.exec(text);
    return process.cpuUsage().user - began;
  };
  for (const [name, pattern] of all) {
    for (const beginning of BEGINNINGS) for (const repeated of REPEATED) for (const end of ENDS) {
      const text = (length) => beginning + repeated.repeat(length / repeated.length) + end;
      if (cost(pattern, text(2000)) < 1500) continue;
      const [small, large] = [cost(pattern, text(5000)), cost(pattern, text(40_000))];
      assert.ok(large < 30 * Math.max(small, 5000), `${name} ${JSON.stringify([beginning, repeated, end])}: ${small} then ${large} µs`);
    }
  }
});
