/**
 * A subset of Markdown as data, never as HTML. Pure.
 *
 * The text is untrusted and may be large: every step is linear in its length, nesting is limited, and what is not
 * understood stays text. HTML is text. An image is a link, because the console loads nothing from other hosts.
 */

import { harmless, safeLink } from './text.js';

/**
 * @typedef {string | {type: 'strong' | 'em' | 'del', children: Inline[]} | {type: 'code', text: string}
 *   | {type: 'link' | 'image', href: string, host: string, children: Inline[]} | {type: 'break'}} Inline
 * @typedef {{type: 'paragraph', children: Inline[]} | {type: 'heading', level: number, children: Inline[]}
 *   | {type: 'code', language: string, text: string} | {type: 'rule'} | {type: 'quote', blocks: Block[]}
 *   | {type: 'list', ordered: boolean, start: number, items: Block[][]}
 *   | {type: 'table', head: Inline[][], rows: Inline[][][]}} Block
 */

const DEEPEST = 8;
const LONGEST_LABEL = 1000;
const LONGEST_ADDRESS = 2000;
const MOST_COLUMNS = 30;

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^\s`]{0,40})[^`]{0,200}$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const RULE = /^ {0,3}(?:(?:-\s*){3,}|(?:\*\s*){3,}|(?:_\s*){3,})$/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])( +|$)/;
const QUOTE = /^ {0,3}> ?/;
const ALIGNMENT = /^:?-+:?$/;
const BARE = /https?:\/\/[^\s<>"'`]{1,2000}/y;
const WORD = /[\p{L}\p{N}]/u;

/**
 * Return the blocks of a text.
 * @param {string} text
 * @returns {Block[]}
 */
export function parse(text) {
  return blocksOf(harmless(text).split('\n'), 0);
}

/**
 * Markdown that grows: parts before the last empty line outside a code block are parsed once.
 *
 * `parts` are the parsed parts in order; those before `settled` do not change any more.
 */
export class GrowingMarkdown {
  constructor() {
    /** @type {Block[][]} */
    this.parts = [];
    this.settled = 0;
    this._text = '';
    this._from = 0;
  }

  /**
   * Take the whole text as it is now.
   * @param {string} text
   */
  update(text) {
    if (!text.startsWith(this._text)) {
      this.parts = [];
      this.settled = this._from = 0;
    }
    this._text = text;
    const boundary = lastBoundary(text, this._from);
    this.parts.length = this.settled;
    if (boundary > this._from) {
      this.parts.push(parse(text.slice(this._from, boundary)));
      this.settled = this.parts.length;
      this._from = boundary;
    }
    const rest = text.slice(this._from);
    if (rest.trim()) this.parts.push(parse(rest));
    return this.parts;
  }
}

/**
 * Return where the last part begins: after an empty line that is followed by a line without indent, outside a code block.
 * @param {string} text
 * @param {number} from
 */
function lastBoundary(text, from) {
  let fence = '';
  let boundary = from;
  let wasEmpty = false;
  for (let at = from; at < text.length; ) {
    const end = text.indexOf('\n', at);
    if (end < 0) break;
    const line = text.slice(at, end);
    const isPlain = line !== '' && !/^\s/.test(line) && !ITEM.test(line);
    if (!fence && wasEmpty && isPlain) boundary = at;
    const opened = FENCE.exec(line);
    if (fence) {
      if (closes(line, fence)) fence = '';
    } else if (opened) {
      fence = opened[1];
    }
    wasEmpty = line.trim() === '';
    at = end + 1;
  }
  return boundary;
}

/**
 * @param {string[]} lines
 * @param {number} depth
 * @returns {Block[]}
 */
function blocksOf(lines, depth) {
  /** @type {Block[]} */
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    const take = lines[at].trim() === '' ? null : takerOf(lines, at, depth);
    if (take === null) {
      at += 1;
      continue;
    }
    const [block, next] = take(lines, at, depth);
    blocks.push(block);
    at = next;
  }
  return blocks;
}

/**
 * Return what reads the block that begins at a line.
 * @param {string[]} lines
 * @param {number} at
 * @param {number} depth
 * @returns {(lines: string[], at: number, depth: number) => [Block, number]}
 */
function takerOf(lines, at, depth) {
  const line = lines[at];
  if (FENCE.test(line)) return takeCode;
  if (HEADING.test(line)) return takeHeading;
  if (RULE.test(line)) return (_, from) => [{ type: 'rule' }, from + 1];
  if (depth < DEEPEST && QUOTE.test(line)) return takeQuote;
  if (depth < DEEPEST && ITEM.test(line)) return takeList;
  if (isTable(lines, at)) return takeTable;
  return takeParagraph;
}

/** @type {(lines: string[], at: number) => [Block, number]} */
function takeCode(lines, at) {
  const [, fence, language] = /** @type {RegExpExecArray} */ (FENCE.exec(lines[at]));
  let end = at + 1;
  while (end < lines.length && !closes(lines[end], fence)) end += 1;
  return [{ type: 'code', language, text: lines.slice(at + 1, end).join('\n') }, end + 1];
}

/**
 * @param {string} line
 * @param {string} fence
 */
function closes(line, fence) {
  const text = line.trim();
  return text.length >= fence.length && text === fence[0].repeat(text.length);
}

/** @type {(lines: string[], at: number) => [Block, number]} */
function takeHeading(lines, at) {
  const [, marks, text] = /** @type {RegExpExecArray} */ (HEADING.exec(lines[at]));
  return [{ type: 'heading', level: marks.length, children: inlines(text) }, at + 1];
}

/** @type {(lines: string[], at: number, depth: number) => [Block, number]} */
function takeQuote(lines, at, depth) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  const inner = lines.slice(at, end).map((line) => line.replace(QUOTE, ''));
  return [{ type: 'quote', blocks: blocksOf(inner, depth + 1) }, end];
}

/** @type {(lines: string[], at: number, depth: number) => [Block, number]} */
function takeList(lines, at, depth) {
  const [, , marker] = /** @type {RegExpExecArray} */ (ITEM.exec(lines[at]));
  const ordered = /\d/.test(marker);
  /** @type {string[][]} */
  const items = [];
  let indent = 0;
  let end = at;
  for (; end < lines.length; end += 1) {
    const line = lines[end];
    const item = ITEM.exec(line);
    if (item && (!items.length || leading(line) < indent)) {
      if (/\d/.test(item[2]) !== ordered || RULE.test(line)) break;
      indent = item[0].length;
      items.push([line.slice(indent)]);
    } else if (line.trim() === '') {
      if (leading(lines[end + 1] ?? '') < indent && !ITEM.test(lines[end + 1] ?? '')) break;
      items[items.length - 1].push('');
    } else if (leading(line) >= Math.min(indent, 2)) {
      items[items.length - 1].push(line.slice(Math.min(leading(line), indent)));
    } else if (lines[end - 1].trim() === '' || takerOf(lines, end, depth) !== takeParagraph) {
      break;
    } else {
      items[items.length - 1].push(line);
    }
  }
  const start = ordered ? Number.parseInt(marker, 10) : 1;
  return [{ type: 'list', ordered, start, items: items.map((item) => blocksOf(item, depth + 1)) }, end];
}

/** @param {string} line */
function leading(line) {
  return line.length - line.trimStart().length;
}

/**
 * @param {string[]} lines
 * @param {number} at
 */
function isTable(lines, at) {
  if (!lines[at].includes('|') || !(lines[at + 1] ?? '').includes('-')) return false;
  const marks = cells(lines[at + 1]);
  return marks.length === cells(lines[at]).length && marks.every((mark) => ALIGNMENT.test(mark));
}

/** @type {(lines: string[], at: number) => [Block, number]} */
function takeTable(lines, at) {
  let end = at + 2;
  while (end < lines.length && lines[end].includes('|')) end += 1;
  const head = cells(lines[at]).map((cell) => inlines(cell));
  const rows = lines.slice(at + 2, end).map((line) => cells(line).slice(0, head.length).map((cell) => inlines(cell)));
  return [{ type: 'table', head, rows }, end];
}

/** @param {string} line */
function cells(line) {
  const inner = line.trim().replace(/^\|/, '').replace(/\|$/, '');
  return inner.split('|', MOST_COLUMNS).map((cell) => cell.trim());
}

/** @type {(lines: string[], at: number, depth: number) => [Block, number]} */
function takeParagraph(lines, at, depth) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() !== '' && takerOf(lines, end, depth) === takeParagraph) end += 1;
  return [{ type: 'paragraph', children: inlines(lines.slice(at, end).join('\n').trim()) }, end];
}

/**
 * Return the inline parts of a text.
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
    const children = this.stack[this.stack.length - 1].children;
    const last = children[children.length - 1];
    if (typeof last !== 'string' || !last.endsWith('  ')) return false;
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
    const middle = this.closing(begin);
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
   * Return where the label that begins here ends; -1 if it does not.
   * @param {number} begin
   */
  closing(begin) {
    let open = 1;
    const last = Math.min(this.text.length, begin + LONGEST_LABEL);
    for (let at = begin; at < last; at += 1) {
      if (this.text[at] === '[') open += 1;
      else if (this.text[at] === ']') open -= 1;
      if (open === 0) return at;
    }
    return -1;
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
    const found = BARE.exec(this.text)?.[0].replace(/[.,;:!?*_~)\]]+$/, '');
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
}
