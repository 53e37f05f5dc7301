/**
 * Text of agents, tools and callers, made safe to show. Pure.
 *
 * Everything that a call returns is untrusted: its characters must not change the direction of the page's own text,
 * and a link must not hide where it leads.
 */

// C0 and C1 controls but tab and line feed, the marks, embeddings, overrides and isolates of bidirectional text,
// line and paragraph separators, and the byte order mark.
// eslint-disable-next-line no-control-regex
const UNSAFE = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g;
// Controls, formats, tags, surrogates, private and unassigned characters, line and paragraph separators, variation
// selectors, fillers of Hangul and others that Unicode calls ignorable.
const INVISIBLE = /(?!\n)[\p{C}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}]/gu;
const LONGEST_NAME = 80;
const SAFE_PROTOCOLS = ['http:', 'https:', 'mailto:'];

/**
 * Return the text with control characters shown by their code points, and with line feeds as line ends.
 * @param {unknown} text
 */
export function harmless(text) {
  const whole = typeof text === 'string' ? text : String(text ?? '');
  return whole.replaceAll('\r\n', '\n').replace(UNSAFE, codePoint);
}

/**
 * Return a text with all characters that cannot be seen shown by their code points, but for line feeds.
 * @param {string} text
 */
export function visible(text) {
  return text.replace(INVISIBLE, codePoint);
}

/** @param {string} character */
function codePoint(character) {
  return `⟨U+${Number(character.codePointAt(0)).toString(16).toUpperCase().padStart(4, '0')}⟩`;
}

/**
 * Return the address and the host of a link that may be followed; null for any other.
 * @param {unknown} address
 * @returns {{href: string, host: string} | null}
 */
export function safeLink(address) {
  if (typeof address !== 'string' || address.length > 8000) return null;
  let url;
  try {
    url = new URL(address.trim());
  } catch {
    return null;
  }
  if (!SAFE_PROTOCOLS.includes(url.protocol)) return null;
  const host = url.protocol === 'mailto:' ? url.pathname.slice(url.pathname.lastIndexOf('@') + 1) : url.host;
  return host ? { href: url.href, host: harmless(host) } : null;
}

/**
 * Return true if the text of a link to a host begins with an address at that host, and so hides nothing.
 * @param {string} label
 * @param {string} host
 */
export function showsHost(label, host) {
  const address = /^https?:\/\//.exec(label);
  if (!address) return false;
  const rest = label.slice(address[0].length);
  return rest.startsWith(host) && /^(?:[/?#]|$)/.test(rest.slice(host.length));
}

/**
 * Return a value as indented JSON, or as the text that it is.
 * @param {unknown} value
 */
export function shown(value) {
  if (typeof value === 'string') return harmless(value);
  try {
    return harmless(JSON.stringify(value, null, 2) ?? '');
  } catch {
    return '';
  }
}

/**
 * Return a text; of a longer one, the begin with an ellipsis.
 * @param {string} text
 * @param {number} most characters
 */
export function cut(text, most) {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

/**
 * Return a name that others have given, as it is shown in tables and sentences.
 * @param {unknown} name
 */
export function shortName(name) {
  return harmless(cut(String(name ?? ''), LONGEST_NAME));
}

/** @param {number | null | undefined} seconds */
export function duration(seconds) {
  if (typeof seconds !== 'number' || !Number.isFinite(seconds)) return '';
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
}

/**
 * Return how long ago something was, in its largest unit.
 * @param {number} milliseconds
 */
export function ago(milliseconds) {
  const minutes = Math.floor(milliseconds / 60_000);
  if (minutes < 1) return 'just now';
  if (minutes < 60) return `${minutes} min ago`;
  return minutes < 48 * 60 ? `${Math.floor(minutes / 60)} h ago` : `${Math.floor(minutes / 60 / 24)} days ago`;
}

/** @param {number} count */
export function size(count) {
  if (count < 1000) return `${count} characters`;
  return count < 1_000_000 ? `${Math.round(count / 1000)} KB` : `${(count / 1_000_000).toFixed(1)} MB`;
}

/**
 * Return a cost as a text: two decimals, or three digits of one below 1. Pure.
 * @param {number | null} cost
 */
export function costText(cost) {
  if (cost === null) return '';
  return cost.toLocaleString(undefined, cost < 1 ? { maximumSignificantDigits: 3 } : { minimumFractionDigits: 2, maximumFractionDigits: 2 });
}
