/** The address of the conversation that is open: `#/agents/{agent}/conversations/{id}`. It follows the page, and the page follows it. */

import { useEffect, useRef } from './html.js';
import { address, go } from './route.js';

/** @typedef {import('./conversations.js').Conversation} Conversation */

/**
 * Return the parts of the address of a conversation; those of its agent for one that nothing is kept of yet.
 * @param {string} agent its id
 * @param {Conversation} conversation
 */
export function placeOf(agent, { id, threadId, isOnGateway, turns }) {
  const kept = isOnGateway ? threadId : turns.length > 0 && id;
  return kept ? ['agents', agent, 'conversations', kept] : ['agents', agent];
}

/**
 * Return the whole URL of a conversation.
 * @param {string} agent
 * @param {Conversation} conversation
 */
export function linkTo(agent, conversation) {
  return new URL(address(...placeOf(agent, conversation)), location.href).href;
}

/**
 * Keep the address and the open conversation of a session the same.
 * @param {string} agent
 * @param {import('./session.js').Session} session
 * @param {string | undefined} wanted the conversation that the address names
 */
export function useConversationAddress(agent, session, wanted) {
  void session.calls.value; // a first message makes a new conversation one that is kept
  const place = () => placeOf(agent, session.open.value);
  const before = useRef(session.open.value);
  const told = useRef(/** @type {string | undefined} */ (undefined)); // another may have been opened since the address was set to it
  useEffect(() => {
    if (wanted === told.current) return;
    told.current = wanted;
    if (wanted && wanted !== place()[3]) session.find(wanted);
    else if (!wanted && place()[3]) session.begin(); // back to a new conversation
  }, [wanted]);
  useEffect(() => {
    const [left, open, own] = [before.current, session.open.value, place()[3]];
    before.current = open;
    const isMissing = !own && wanted === session.missing.value;
    if (own === wanted || session.wanted.value || isMissing) return;
    told.current = own;
    go(place(), { isAStep: left !== open && placeOf(agent, left).length > 2 && session.has(left) });
  }, [place().join('/'), session.open.value, session.wanted.value]);
}
