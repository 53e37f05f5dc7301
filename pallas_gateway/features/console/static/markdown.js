/**
 * A subset of Markdown as data, never as HTML. Pure.
 *
 * The text is untrusted and may be large: every step is linear in its length, nesting is limited, and what is not
 * understood stays text. HTML is text. An image is a link, because the console loads nothing from other hosts.
 */

import { inlines } from './inlines.js';
import { harmless } from './text.js';

/**
 * @typedef {import('./inlines.js').Inline} Inline
 * @typedef {{type: 'paragraph', children: Inline[]} | {type: 'heading', level: number, children: Inline[]}
 *   | {type: 'code', language: string, text: string} | {type: 'rule'} | {type: 'quote', blocks: Block[]}
 *   | {type: 'list', ordered: boolean, start: number, items: Block[][]}
 *   | {type: 'table', head: Inline[][], rows: Inline[][][]}} Block
 */

const DEEPEST = 8;
const MOST_COLUMNS = 30;

// No pattern may try a run of equal characters at each of its places: the page would stand still.
const FENCE = /^ {0,3}(`{3,}(?!`)|~{3,}(?!~))\s*(?!\s)([^\s`]{0,40})[^`]{0,200}$/;
const HEADING = /^ {0,3}(#{1,6})\s/;
const RULE = /^ {0,3}(?:(?:-\s*){3,}|(?:\*\s*){3,}|(?:_\s*){3,})$/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])( +|$)/;
const QUOTE = /^ {0,3}> ?/;
const ALIGNMENT = /^:?-+:?$/;

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
  const [begin, marks] = /** @type {RegExpExecArray} */ (HEADING.exec(lines[at]));
  const text = withoutMarks(lines[at].slice(begin.length).trim());
  return [{ type: 'heading', level: marks.length, children: inlines(text) }, at + 1];
}

/**
 * Return the text of a heading without the marks that may close it.
 * @param {string} text
 */
function withoutMarks(text) {
  let end = text.length;
  while (text[end - 1] === '#') end -= 1;
  return end === 0 || /\s/.test(text[end - 1]) ? text.slice(0, end).trimEnd() : text;
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
