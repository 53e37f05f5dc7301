/**
 * The inline parts of Markdown as data: emphasis, code, links. Pure.
 *
 * It reads a text once from its begin to its end; emphasis is matched by a stack of limited depth.
 */

import { safeLink } from './text.js';

/**
 * @typedef {string | {type: 'strong' | 'em' | 'del', children: Inline[]} | {type: 'code', text: string}
 *   | {type: 'link' | 'image', href: string, host: string, children: Inline[]} | {type: 'break'}} Inline
 */

const DEEPEST = 8;
const LONGEST_LABEL = 1000;
const LONGEST_ADDRESS = 2000;
const BARE = /https?:\/\/[^\s<>"'`]{1,2000}/y;
const WORD = /[\p{L}\p{N}]/u;

/**
 * @param {string} text
 * @param {number} depth
 * @returns {Inline[]}
 */
export function inlines(text, depth = 0) {
  return new InlineReader(text, depth).read();
}

/** Reads the inline parts of one text from its begin to its end. Emphasis is matched by a stack of limited depth. */
class InlineReader {
  /**
   * @param {string} text
   * @param {number} depth
   */
  constructor(text, depth) {
    this.text = text;
    this.depth = depth;
    this.at = 0;
    /** @type {{mark: string, children: Inline[]}[]} */
    this.stack = [{ mark: '', children: [] }];
    /** @type {Set<number>} */
    this.unclosed = new Set(); // lengths of runs of backticks that no later run closes
  }

  read() {
    /** @type {Record<string, (() => boolean)>} */
    const readers = {
      '\\': this.escape, '`': this.code, '!': this.image, '[': this.link, '<': this.angle, '\n': this.lineEnd,
      '*': this.emphasis, _: this.emphasis, '~': this.emphasis, h: this.bare,
    };
    while (this.at < this.text.length) {
      const reader = readers[this.text[this.at]];
      if (!reader || !reader.call(this)) {
        this.add(this.text[this.at]);
        this.at += 1;
      }
    }
    while (this.stack.length > 1) this.unwrap();
    return this.stack[0].children;
  }

  /** @param {Inline} part */
  add(part) {
    const children = this.stack[this.stack.length - 1].children;
    const last = children.length - 1;
    if (typeof part === 'string' && typeof children[last] === 'string') children[last] += part;
    else children.push(part);
  }

  /** Put the innermost open emphasis back as text. */
  unwrap() {
    const open = /** @type {{mark: string, children: Inline[]}} */ (this.stack.pop());
    this.add(open.mark);
    for (const child of open.children) this.add(child);
  }

  escape() {
    const next = this.text[this.at + 1];
    if (!next || !/[!-/:-@[-`{-~]/.test(next)) return false;
    this.add(next);
    this.at += 2;
    return true;
  }

  lineEnd() {
    // Of the text, not of what was read: a string that grows is copied each time that its end is looked at.
    if (!this.text.startsWith('  ', this.at - 2)) return false;
    this.add({ type: 'break' });
    this.at += 1;
    return true;
  }

  code() {
    const run = this.run("`");
    const begin = this.at + run;
    if (this.unclosed.has(run)) return this.literal(run);
    for (let at = this.text.indexOf("`", begin); at >= 0; ) {
      let end = at;
      while (this.text[end] === "`") end += 1;
      if (end - at === run) {
        this.add({ type: 'code', text: this.text.slice(begin, at).replaceAll('\n', ' ').replace(/^ (.+) $/, '$1') });
        this.at = end;
        return true;
      }
      at = this.text.indexOf("`", end);
    }
    this.unclosed.add(run);
    return this.literal(run);
  }

  /** @param {number} count */
  literal(count) {
    this.add(this.text.slice(this.at, this.at + count));
    this.at += count;
    return true;
  }

  /** @param {string} character */
  run(character) {
    let end = this.at;
    while (this.text[end] === character) end += 1;
    return end - this.at;
  }

  image() {
    if (this.text[this.at + 1] !== '[') return false;
    return this.bracket('image', this.at + 2);
  }

  link() {
    return this.bracket('link', this.at + 1);
  }

  /**
   * @param {'link' | 'image'} type
   * @param {number} begin
   */
  bracket(type, begin) {
    const middle = this.closing(begin - 1);
    if (middle < 0 || this.text[middle + 1] !== '(') return false;
    const end = this.text.slice(middle + 2, middle + 2 + LONGEST_ADDRESS).search(/[)\n]/);
    if (end < 0 || this.text[middle + 2 + end] !== ')') return false;
    const [address] = this.text.slice(middle + 2, middle + 2 + end).trim().split(/\s/, 1);
    const link = safeLink(address.replace(/^<(.*)>$/, '$1'));
    const label = this.text.slice(begin, middle);
    const children = this.depth < DEEPEST && type === 'link' ? inlines(label, DEEPEST) : [label];
    if (link) this.add({ type, ...link, children: children.length && label ? children : [link.href] });
    else this.add(this.text.slice(this.at, middle + 3 + end)); // an address that is not followed is shown as it is
    this.at = middle + 3 + end;
    return true;
  }

  /**
   * Return where the bracket that opens here is closed; -1 if it is not, or too late for a label.
   * @param {number} opened
   */
  closing(opened) {
    this.brackets ??= bracketsOf(this.text);
    const at = this.brackets.get(opened) ?? -1;
    return at - opened <= LONGEST_LABEL ? at : -1;
  }

  angle() {
    const end = this.text.slice(this.at, this.at + LONGEST_ADDRESS).search(/[>\s]/);
    if (end < 0 || this.text[this.at + end] !== '>') return false;
    const link = safeLink(this.text.slice(this.at + 1, this.at + end));
    if (!link) return false;
    this.add({ type: 'link', ...link, children: [this.text.slice(this.at + 1, this.at + end)] });
    this.at += end + 1;
    return true;
  }

  bare() {
    if (this.depth >= DEEPEST || (this.at > 0 && WORD.test(this.text[this.at - 1]))) return false;
    BARE.lastIndex = this.at;
    const found = BARE.exec(this.text)?.[0].replace(/(?<![.,;:!?*_~)\]])[.,;:!?*_~)\]]+$/, '');
    const link = found ? safeLink(found) : null;
    if (!found || !link) return false;
    this.add({ type: 'link', ...link, children: [found] });
    this.at += found.length;
    return true;
  }

  emphasis() {
    const character = this.text[this.at];
    let run = this.run(character);
    const before = this.text[this.at - 1] ?? ' ';
    const after = this.text[this.at + run] ?? ' ';
    if ((character === '~' && run !== 2) || run > 3) return this.literal(run);
    const inWord = character === '_' && WORD.test(before) && WORD.test(after);
    const mayOpen = !/\s/.test(after) && !inWord;
    const mayClose = !/\s/.test(before) && !inWord;
    while (mayClose && run > 0 && this.close(character, run)) run -= this.closed;
    if (run > 0 && mayOpen && this.stack.length <= DEEPEST) this.open(character, run);
    else if (run > 0) this.literal(run);
    return true;
  }

  /**
   * Close the innermost emphasis of this character that the run is long enough for.
   * @param {string} character
   * @param {number} run
   */
  close(character, run) {
    for (let level = this.stack.length - 1; level > 0; level -= 1) {
      const { mark } = this.stack[level];
      if (mark[0] !== character || mark.length > run) continue;
      while (this.stack.length - 1 > level) this.unwrap();
      const { children } = /** @type {{mark: string, children: Inline[]}} */ (this.stack.pop());
      const type = character === '~' ? 'del' : mark.length === 2 ? 'strong' : 'em';
      this.add({ type, children });
      this.at += mark.length;
      this.closed = mark.length;
      return true;
    }
    return false;
  }

  /**
   * @param {string} character
   * @param {number} run
   */
  open(character, run) {
    if (run >= 2) this.stack.push({ mark: character.repeat(2), children: [] });
    if (run !== 2) this.stack.push({ mark: character, children: [] });
    this.at += run;
  }

  closed = 0;
  /** @type {Map<number, number> | null} */
  brackets = null;
}

/**
 * Return the end of each pair of brackets by its begin.
 * @param {string} text
 */
function bracketsOf(text) {
  const open = [];
  const pairs = new Map();
  for (let at = text.indexOf('['); at >= 0 && at < text.length; at += 1) {
    if (text[at] === '[') open.push(at);
    else if (text[at] === ']' && open.length) pairs.set(open.pop(), at);
  }
  return pairs;
}
