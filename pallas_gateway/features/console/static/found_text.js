/** Marks a text where an element shows it, and scrolls to it. The elements, which Preact draws, are left as they are. */

import { partsOf } from './conversation_search.js';

const NAME = 'found'; // of the highlight in chat.css
const MOST = 500;
const ABOVE = 1 / 3; // of a region's height, above what it is scrolled to

/**
 * Mark a text in a message or an answer, and scroll to its first occurrence, or to the element if it shows the text otherwise.
 * @param {HTMLElement} element
 * @param {string} text
 * @param {HTMLElement} region that scrolls
 * @returns {() => void} takes the marks away
 */
export function showText(element, text, region) {
  const ranges = placesOf(element).flatMap((place) => rangesOf(place, text)).slice(0, MOST);
  scrollTo(ranges[0] ?? element, region);
  if (!('highlights' in CSS)) return () => {}; // the frame around the element is there in any browser
  CSS.highlights.set(NAME, new Highlight(...ranges));
  return () => CSS.highlights.delete(NAME);
}

/**
 * Return what shows the texts of a message or an answer. The answer of a call that this page has made is its last card.
 * @param {HTMLElement} element
 */
function placesOf(element) {
  const own = [...element.querySelectorAll('.message, .answer .markdown, .answer .plain')];
  return own.length ? own : [...element.querySelectorAll('.entries > :last-child > .markdown')].slice(-1);
}

/**
 * @param {Element} place
 * @param {string} text
 * @returns {Range[]}
 */
function rangesOf(place, text) {
  /** @type {{node: Text, at: number}[]} */
  const nodes = [];
  let whole = '';
  const isShown = (/** @type {Node} */ node) => (/** @type {Element} */ (node).tagName === 'BUTTON' ? NodeFilter.FILTER_REJECT : NodeFilter.FILTER_ACCEPT);
  const walker = document.createTreeWalker(place, NodeFilter.SHOW_TEXT | NodeFilter.SHOW_ELEMENT, isShown);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    if (!(node instanceof Text)) continue;
    nodes.push({ node, at: whole.length });
    whole += node.data;
  }
  let at = 0;
  return partsOf(whole, text).flatMap((part) => {
    const begin = at;
    at += part.text.length;
    if (!part.isMatch) return [];
    const range = document.createRange();
    const first = /** @type {{node: Text, at: number}} */ (nodes.findLast((one) => one.at <= begin));
    const last = /** @type {{node: Text, at: number}} */ (nodes.findLast((one) => one.at < at));
    range.setStart(first.node, begin - first.at);
    range.setEnd(last.node, at - last.at);
    return [range];
  });
}

/**
 * Scroll a region, and what scrolls in it.
 * @param {Range | HTMLElement} place
 * @param {HTMLElement} region
 */
function scrollTo(place, region) {
  let outer = place instanceof Range ? place.startContainer.parentElement : place.parentElement;
  for (; outer; outer = outer === region ? null : outer.parentElement) {
    const [inner, frame] = [place.getBoundingClientRect(), outer.getBoundingClientRect()];
    if (outer.scrollHeight > outer.clientHeight) outer.scrollTop += inner.top - frame.top - outer.clientHeight * ABOVE;
    if (inner.left < frame.left || inner.right > frame.right) outer.scrollLeft += inner.left - frame.left;
  }
}
