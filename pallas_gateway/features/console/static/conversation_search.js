/** The search in conversations: what a text matches, and the part of it that is shown. Pure. */

import { answerOf, nameOf } from './conversations.js';

const BEFORE = 30;
const LONGEST = 120;

/**
 * @typedef {{text: string, isMatch: boolean}} Part
 * @typedef {import('./conversations.js').Conversation} Conversation
 */

/**
 * Return a text in parts, of which some are what is searched for, without distinction of upper and lower case.
 * @param {string} text
 * @param {string} query
 * @returns {Part[]}
 */
export function partsOf(text, query) {
  const words = query.replace(/[.*+?^${}()|[\]\\]/g, '\\$&');
  if (!words) return [{ text, isMatch: false }];
  return text.split(new RegExp(`(${words})`, 'giu')).map((part, index) => ({ text: part, isMatch: index % 2 === 1 })).filter((part) => part.text);
}

/**
 * Return the part of a text around the first match, on one line; null if it has none.
 * @param {string} text
 * @param {string} query
 */
export function excerptOf(text, query) {
  const [before, match] = partsOf(text, query);
  const at = before?.isMatch ? 0 : match ? before.text.length : -1;
  if (at < 0) return null;
  const begin = Math.max(0, at - BEFORE);
  const line = text.slice(begin, begin + LONGEST + query.length).replace(/\s+/g, ' ').trim();
  return `${begin > 0 ? '…' : ''}${line}${begin + LONGEST + query.length < text.length ? '…' : ''}`;
}

/**
 * Return the first turn that has a text, by its index, and whether its message or its answer has it; null if none has.
 * @param {import('./conversations.js').Turn[]} turns
 * @param {string} query
 * @returns {{index: number, part: 'message' | 'answer'} | null}
 */
export function spotOf(turns, query) {
  for (const [index, turn] of turns.entries()) {
    if (excerptOf(turn.message, query) !== null) return { index, part: 'message' };
    if (excerptOf(answerOf(turn), query) !== null) return { index, part: 'answer' };
  }
  return null;
}

/**
 * Return where a conversation has a text: in its name (an empty excerpt), or in a message or an answer; null if nowhere.
 * @param {Conversation} conversation
 * @param {string} query
 * @returns {string | null}
 */
export function foundIn(conversation, query) {
  const spot = spotOf(conversation.turns, query);
  if (spot) {
    const turn = conversation.turns[spot.index];
    return excerptOf(spot.part === 'message' ? turn.message : answerOf(turn), query);
  }
  return excerptOf(nameOf(conversation), query) === null ? null : '';
}
