/**
 * The mark of an agent: its icon, or its initials on a colour of its own. The colour follows from the agent's name; its
 * classes, `hue-0` to `hue-9`, are in app.css. Names stand next to marks, which are not read out.
 */

import { computed, html, useSignal } from './html.js';
import { agents } from './state.js';

export const HUES = 10;

/** By the agent's name as `slug` returns it. */
const hues = computed(() => huesOf((agents.value ?? []).map(({ name }) => name)));

/**
 * Return the class that has an agent's colour.
 * @param {string} name
 */
export function hueOf(name) {
  const key = slug(name);
  return `hue-${hues.value.get(key) ?? hash(key) % HUES}`;
}

/**
 * Return colours for agents: that of the name's hash, or the next one that fewer agents before it in the list have.
 * So up to ten agents have colours of their own, neighbours in the list differ, and an agent that is added at the end
 * changes no other. Pure.
 * @param {string[]} names
 * @returns {Map<string, number>}
 */
export function huesOf(names) {
  const taken = new Map();
  const uses = Array.from({ length: HUES }, () => 0);
  let last = -1;
  for (const key of new Set(names.map(slug))) {
    const first = hash(key) % HUES;
    const order = uses.map((_, step) => (first + step) % HUES).filter((hue) => hue !== last);
    last = order.reduce((best, hue) => (uses[hue] < uses[best] ? hue : best));
    uses[last] += 1;
    taken.set(key, last);
  }
  return taken;
}

/**
 * Return the first letters of the first two words of a title. Pure.
 * @param {string} title
 */
export function initialsOf(title) {
  const words = title.match(/[\p{L}\p{N}]+/gu) ?? [];
  return words.slice(0, 2).map((word) => String.fromCodePoint(Number(word.codePointAt(0)))).join('').toUpperCase() || '•';
}

/**
 * Return the first icon that the page's policy lets it show: one of its own host, or one that is in its URL. Pure.
 * @param {string[]} icons
 * @param {string} origin the page's
 */
export function iconOf(icons, origin) {
  return icons.find((src) => /^data:image\//i.test(src) || (URL.canParse(src) && new URL(src).origin === origin)) ?? '';
}

/**
 * @param {{agent?: import('./state.js').Agent | null, name?: string, large?: boolean}} props `name`: an agent of this
 *   gateway, or one that a call names
 */
export function Mark({ agent, name = '', large = false }) {
  const known = agent ?? agents.value?.find((one) => one.registry === '' && slug(one.name) === slug(name));
  const broken = useSignal('');
  const icon = known ? iconOf(known.icons, location.origin) : '';
  const kind = `mark ${large ? 'large' : ''} ${hueOf(known?.name ?? name)}`;
  if (icon && icon !== broken.value) {
    return html`<span class=${`${kind} has-icon`} aria-hidden="true"><img src=${icon} alt="" onError=${() => (broken.value = icon)} /></span>`;
  }
  return html`<span class=${kind} aria-hidden="true" data-initials=${initialsOf(known?.title ?? name)}></span>`;
}

/** @param {string} name */
function slug(name) {
  return name.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, '-');
}

/**
 * FNV-1a.
 * @param {string} text
 */
function hash(text) {
  let value = 0x811c9dc5;
  for (const byte of new TextEncoder().encode(text)) value = Math.imul(value ^ byte, 0x01000193) >>> 0;
  return value;
}
