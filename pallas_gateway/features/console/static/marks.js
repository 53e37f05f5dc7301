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
  const known = agent ?? agentOf(name);
  const broken = useSignal('');
  const icon = known ? iconOf(known.icons, location.origin) : '';
  const kind = `mark ${large ? 'large' : ''} ${hueOf(known?.name ?? name)}`;
  if (icon && icon !== broken.value) {
    return html`<span class=${`${kind} has-icon`} aria-hidden="true"><img src=${icon} alt="" onError=${() => (broken.value = icon)} /></span>`;
  }
  return html`<span class=${kind} aria-hidden="true" data-initials=${initialsOf(known?.title ?? name)}></span>`;
}

/**
 * Return the title of an agent of this gateway by its name; the name of any other.
 * @param {string} name
 */
export function titleOf(name) {
  return agentOf(name)?.title ?? name;
}

/** @param {string} name */
function agentOf(name) {
  return agents.value?.find((one) => one.registry === '' && slug(one.name) === slug(name));
}

/** The owl of Pallas, which is a shield as well: the gateway's own mark. */
/** @param {{asleep?: boolean}} props */
export function Owl({ asleep = false }) {
  const eyes = asleep
    ? html`<path class="lid" d="M14.5 31q7 5.5 14 0M35.5 31q7 5.5 14 0" />`
    : [21.5, 42.5].map((x) => html`<circle class="eye" cx=${x} cy="30" r="8" /><circle class="pupil" cx=${x} cy="30" r="3.5" />`);
  return html`
    <svg class="owl" viewBox="0 0 64 64" aria-hidden="true">
      <path class="shield" d="M9 5c6 6 14 8 23 6 9 2 17 0 23-6 4 13 4 27-3 38-5 8-12 13-20 17-8-4-15-9-20-17C5 32 5 18 9 5Z" />
      ${eyes}
      <path class="beak" d="m32 34 4 5-4 7-4-7Z" />
    </svg>
  `;
}

/**
 * Return a name as it is compared: an agent's name in a URL and in a call may be written in two ways.
 * @param {string} name
 */
export function slug(name) {
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
