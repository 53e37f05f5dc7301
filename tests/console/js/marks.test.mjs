import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';

const STATIC = '../../../pallas_gateway/features/console/static';
globalThis.document = Object.assign(new EventTarget(), { hidden: false, baseURI: 'http://localhost/console/' });
const { HUES, hueOf, huesOf, iconOf, initialsOf } = await import(`${STATIC}/marks.js`);
const { agents } = await import(`${STATIC}/state.js`);

const named = (count, begin = 'agent') => Array.from({ length: count }, (_, index) => `${begin}-${index}`);

test('up to ten agents have colours of their own, and neighbours of a longer list differ', () => {
  assert.equal(new Set(huesOf(named(HUES)).values()).size, HUES);
  for (const begin of ['agent', 'x', 'desk']) {
    const hues = [...huesOf(named(50, begin)).values()];
    assert.ok(hues.every((hue, index) => hue !== hues[index - 1]));
    assert.ok(HUES <= 10 && hues.every((hue) => hues.filter((one) => one === hue).length <= 7));
  }
});

test('an agent that is added at the end changes no other colour', () => {
  const before = huesOf(named(12));
  const after = huesOf([...named(12), 'newcomer']);
  for (const [name, hue] of before) assert.equal(after.get(name), hue);
});

test('an agent has the colour of its name, however a call writes it, also if the list does not have it', () => {
  agents.value = [{ name: 'news-desk' }, { name: 'echo' }];
  assert.equal(hueOf('News_Desk'), hueOf('news-desk'));
  assert.notEqual(hueOf('echo'), hueOf('news-desk'));
  assert.match(hueOf('helper of echo'), /^hue-\d$/);
  assert.equal(hueOf('helper of echo'), hueOf('helper of echo'));
});

test('initials are the first letters of two words, and no characters that cannot be seen', () => {
  assert.deepEqual(['News desk', 'echo', '\u202eab', '<b>x</b>', '', '!!', '数据 库'].map(initialsOf), ['ND', 'E', 'A', 'BX', '•', '•', '数库']);
});

test('an icon is shown if it is in its URL or of the page’s own host', () => {
  const inside = 'data:image/svg+xml,%3Csvg/%3E';
  const own = 'http://localhost/icons/a.png';
  assert.equal(iconOf(['https://icons.example/a.png', own, inside], 'http://localhost'), own);
  assert.equal(iconOf(['https://icons.example/a.png', inside], 'http://localhost'), inside);
  assert.equal(iconOf(['https://icons.example/a.png', 'data:text/html,x', 'javascript:1', 'a b'], 'http://localhost'), '');
  assert.equal(iconOf([], 'http://localhost'), '');
});

/** The relative luminance of a colour, as WCAG defines it. */
function luminance(hex) {
  const [red, green, blue] = [1, 3, 5].map((at) => {
    const value = parseInt(hex.slice(at, at + 2), 16) / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

function contrast(one, other) {
  const [light, dark] = [luminance(one), luminance(other)].sort((a, b) => b - a);
  return (light + 0.05) / (dark + 0.05);
}

test('each colour has the contrast of AA on all backgrounds, light and dark, and initials have it on each colour', () => {
  const css = readFileSync(new URL(`${STATIC}/app.css`, import.meta.url), 'utf8');
  const schemes = [...css.matchAll(/:root \{([^}]*)\}/g)].map(([, rules]) => Object.fromEntries([...rules.matchAll(/--([\w-]+): (#\w{6})/g)].map(([, name, value]) => [name, value])));
  assert.equal(schemes.length, 2);
  for (const scheme of schemes) {
    for (let hue = 0; hue < HUES; hue += 1) {
      for (const ground of ['bg', 'surface', 'sunken', 'on-accent']) {
        const found = contrast(scheme[`hue-${hue}`], scheme[ground]);
        assert.ok(found >= 4.5, `hue-${hue} on ${ground}: ${found}`);
      }
    }
    for (const ground of ['bg', 'surface', 'sunken']) {
      for (const text of ['text', 'muted', 'accent']) assert.ok(contrast(scheme[text], scheme[ground]) >= 4.5, `${text} on ${ground}`);
      assert.ok(contrast(scheme.control, scheme[ground]) >= 3, `control on ${ground}`);
    }
    for (const state of ['ok', 'degraded', 'error', 'starting', 'unknown']) assert.ok(contrast(scheme[state], scheme[`${state}-bg`]) >= 4.5, state);
  }
});
