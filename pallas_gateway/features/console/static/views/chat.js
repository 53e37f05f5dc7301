/** The conversations with one agent. */

import { html, useEffect, useLayoutEffect, useMemo, useRef, useSignal } from '../html.js';
import { apart, bytesOf, withFiles } from '../attachments.js';
import { useConversationAddress } from '../conversation_address.js';
import { spotOf } from '../conversation_search.js';
import { historyOf, placesOf } from '../conversations.js';
import { showText } from '../found_text.js';
import { Mark } from '../marks.js';
import { McpError, getJson } from '../mcp.js';
import { address } from '../route.js';
import { EMPTY, sessionOf } from '../session.js';
import { callerOf, checkAgent, checkedAt, isLost, reasonOf, refusalFor, statusOf, tokenFor } from '../state.js';
import { cut, harmless } from '../text.js';
import { Badge } from './agents.js';
import { Composer } from './composer.js';
import { ConversationActions, ConversationList } from './conversation_list.js';
import { Place } from './place.js';
import { TurnView } from './turn.js';

const NEAR_END_PIXELS = 48;
const BLOCKED_SECONDS = 3;
const LONGEST_TIMER_MS = 2 ** 31 - 1;
const LONGEST_RULE = 100;
const LONGEST_USES = 300;
const RECENT = 10; // turns whose stored steps are shown at once
const UNKNOWN = { mayRun: true, examples: /** @type {string[]} */ ([]), uses: '', maxBodyBytes: 33_554_432 };
const IN_A_COPY = 'Sending begins a copy of the conversation, without the message and all that follows it. This one stays as it is.';
const MISSING = 'The conversation of this link is not here: it was deleted, is kept in another browser, or belongs to another caller.';
export const LOST = 'The gateway cannot be reached.';

/** @param {{agent: import('../state.js').Agent, wanted?: string}} props `wanted`: the conversation that the address names */
export function Chat({ agent, wanted }) {
  const session = sessionOf(agent);
  const editing = useSignal(/** @type {number | null} */ (null));
  const { draft } = session;
  const calls = session.calls.value;
  const conversation = session.open.value;
  useConversationAddress(agent.id, session, wanted);
  const running = session.isRunning;
  const details = useDetails(agent);
  const unusable = useBlock(agent, details.mayRun);
  const limited = useLimit(session);
  const blocked = isLost.value ? LOST : unusable || limited || (session.isElsewhere ? 'Another tab runs a call of this conversation. It goes on here when that has ended.' : '');

  useEffect(() => {
    editing.value = null;
  }, [conversation.id]);
  useLayoutEffect(() => {
    document.body.classList.add('fills-window');
    return () => document.body.classList.remove('fills-window');
  }, []);
  const send = async (/** @type {any} */ written) => {
    const edited = editing.value;
    editing.value = null;
    draft.value = EMPTY;
    if (await session.send(withFiles(written.message, written.files), { ...written, at: edited ?? calls.length })) return;
    editing.value = edited;
    draft.value = written;
  };
  const edit = (/** @type {number} */ index) => {
    const { message, images, params } = calls[index].turn;
    editing.value = index;
    draft.value = { ...apart(message), images, params };
  };
  const room = () => details.maxBodyBytes - (conversation.isOnGateway ? 0 : bytesOf(historyOf(conversation, editing.value ?? calls.length)));
  return html`
    <div class="chat">
      <${ConversationList} session=${session} />
      <section class="talk" aria-label=${agent.title}>
        <header class="talk-head">
          <${Mark} agent=${agent} large />
          <h1>${agent.title}</h1>
          <${Badge} id=${agent.id} />
          <a class="more" href=${address('agents', agent.id, 'details')} aria-label=${`Details of ${agent.title}`}>Details</a>
          <${ConversationActions} session=${session} />
        </header>
        <${HealthNotice} agent=${agent} blocked=${blocked} />
        <${Turns} session=${session} examples=${details.examples} uses=${details.uses} mayChange=${!running && blocked === ''}
          onExample=${(/** @type {string} */ message) => (draft.value = { ...draft.value, message })} onEdit=${edit} />
        <${Composer} draft=${draft} place=${conversation.id} room=${room} most=${details.maxBodyBytes} agent=${agent} blocked=${blocked} running=${running}
          editing=${editing.value === null ? '' : IN_A_COPY} onSend=${send} onStop=${() => session.stop()} onCancelEdit=${() => ((editing.value = null), (draft.value = EMPTY))} />
      </section>
    </div>
  `;
}

/**
 * The turns of a session's open conversation: each message with its answers.
 * @param {{session: import('../session.js').Session, agent?: import('../state.js').Agent, isKept?: boolean, examples?: string[], uses?: string, mayChange: boolean,
 *   onExample?: (message: string) => void, onEdit?: (index: number) => void, onRetry?: (index: number) => void}} props `isKept`: answers can be rated
 */
export function Turns({ session, agent = session.agent, isKept = true, examples = [], uses, mayChange, onExample = () => {}, onEdit, onRetry = (index) => session.retry(index) }) {
  const calls = session.calls.value;
  const conversation = session.open.value;
  const turns = calls.map((/** @type {any} */ { turn }) => turn);
  const places = placesOf(turns);
  const foundText = session.foundText(conversation);
  const spot = useMemo(() => (foundText ? spotOf(turns, foundText) : null), [calls, foundText]);
  const viewOf = (/** @type {number[]} */ place, /** @type {number} */ index) => html`
    <${TurnView} key=${calls[index].turn.id} call=${calls[index]} agent=${agent} isRecent=${index >= calls.length - RECENT}
      found=${spot?.index === index || (spot?.part === 'message' && place.includes(spot.index)) ? spot.part : ''}
      args=${isKept ? () => session.argumentsOf(index) : undefined}
      onRate=${isKept ? (/** @type {any} */ feedback) => session.rate(calls[index].turn, feedback) : undefined}
      onEdit=${onEdit && (mayChange ? () => onEdit(place[0]) : null)}
      onRetry=${mayChange && place === places.at(-1) ? () => onRetry(/** @type {number} */ (place.at(-1))) : null} />
  `;
  return html`
    <${Log} key=${conversation.id} session=${session} agent=${agent} examples=${examples} uses=${uses} found=${spot && session.found.value} onExample=${onExample}>
      ${places.map((place) => html`
        <${Place} key=${calls[place[0]].turn.id} calls=${place.map((index) => calls[index])}
          found=${spot?.part === 'answer' && place.includes(spot.index) ? place.indexOf(spot.index) : null}
          turnOf=${(/** @type {number} */ answer) => viewOf(place, place[answer])} />
      `)}
    <//>
  `;
}

/** @param {{agent: import('../state.js').Agent, blocked: string}} props */
function HealthNotice({ agent, blocked }) {
  if (isLost.value) return null; // said once, above all views
  if (blocked) return html`<p class="notice error" role="status">${harmless(blocked)}</p>`;
  if (statusOf(agent.id) !== 'degraded') return null;
  return html`<p class="notice degraded" role="status">This agent is degraded, and its answers may lack something. ${harmless(reasonOf(agent.id))}</p>`;
}

/**
 * Return why the agent takes no messages now; an empty text if it does. While it takes none, its health is requested
 * every few seconds.
 * @param {import('../state.js').Agent} agent
 * @param {boolean} mayRun
 */
export function useBlock(agent, mayRun) {
  const status = statusOf(agent.id);
  const isBlocked = status === 'error' || status === 'starting';
  useEffect(() => {
    if (!isBlocked) return undefined;
    const timer = setInterval(() => checkAgent(agent), BLOCKED_SECONDS * 1000);
    return () => clearInterval(timer);
  }, [isBlocked, agent.id]);
  if (!mayRun) return refusalFor(agent);
  if (!isBlocked) return '';
  const what = status === 'starting' ? 'This agent is starting.' : 'This agent takes no messages now.';
  return `${what} ${reasonOf(agent.id)}`.trim();
}

/**
 * Return which limit refuses calls now, and until when; an empty text if none does.
 * @param {import('../session.js').Session} session
 */
export function useLimit(session) {
  const limit = session.limited.value;
  useEffect(() => {
    if (!limit) return undefined;
    const timer = setTimeout(() => (session.limited.value = null), Math.min(limit.until - Date.now(), LONGEST_TIMER_MS));
    return () => clearTimeout(timer);
  }, [limit]);
  if (!limit || limit.caller !== callerOf(session.agent)) return '';
  const until = new Date(limit.until);
  const when = until.toDateString() === new Date().toDateString() ? until.toLocaleTimeString() : until.toLocaleString();
  return `${limit.rule ? `The limit “${cut(limit.rule, LONGEST_RULE)}”` : 'A limit'} is reached. You can send again at ${when}.`;
}

/**
 * Return whether the caller may run the agent, true if the gateway does not say, and messages that people may send it.
 * @param {import('../state.js').Agent} agent
 * @returns {{mayRun: boolean, examples: string[], uses: string, maxBodyBytes: number}} `uses`: the servers and agents that it calls; `maxBodyBytes`: of a request
 */
export function useDetails(agent) {
  const details = useSignal(UNKNOWN);
  const asking = callerOf(agent);
  useEffect(() => {
    details.value = UNKNOWN;
  }, [agent.id, asking]);
  useEffect(() => {
    let isGone = false;
    detailsOf(agent).then((found) => isGone || (details.value = found));
    return () => {
      isGone = true;
    };
  }, [agent.id, asking, checkedAt.value]);
  return details.value;
}

/** @param {import('../state.js').Agent} agent */
async function detailsOf(agent) {
  try {
    const details = await getJson(`${agent.registry || '..'}/api/agents/${encodeURIComponent(agent.name)}`, { token: tokenFor(agent) });
    const examples = Array.isArray(details?.examples) ? details.examples.map(String) : [];
    const maxBodyBytes = Number.isInteger(details?.max_body_bytes) ? details.max_body_bytes : UNKNOWN.maxBodyBytes;
    const servers = Array.isArray(details?.servers) ? details.servers : [];
    const uses = servers.map((/** @type {any} */ { name, tools }) => `${name}${Array.isArray(tools) ? ` (${tools.map((tool) => tool.name).join(', ')})` : ''}`).join('; ');
    return { mayRun: details?.may_run !== false, examples, uses: cut(uses, LONGEST_USES), maxBodyBytes };
  } catch (error) {
    return { ...UNKNOWN, mayRun: !(error instanceof McpError && [401, 403].includes(error.status)) }; // otherwise the call says why
  }
}

/**
 * The turns in a region that scrolls: it follows the end for as long as the reader is there. It begins at the turn that a search
 * has found, whose text it marks.
 * @param {{session: import('../session.js').Session, agent: import('../state.js').Agent, examples: string[], uses?: string, onExample: (message: string) => void, found?: {text: string, wasShown?: boolean} | null, children?: any}} props
 */
function Log({ session, agent, examples, uses = '', onExample, found = null, children }) {
  const [empty, reading] = [session.calls.value.length === 0, session.isReading.value];
  const region = useRef(/** @type {HTMLElement | null} */ (null));
  const content = useRef(/** @type {HTMLElement | null} */ (null));
  const follows = useRef(true);
  const top = useRef(0);
  useLayoutEffect(() => {
    const element = /** @type {HTMLElement} */ (region.current);
    const observer = new ResizeObserver(() => {
      if (follows.current) element.scrollTop = element.scrollHeight;
    });
    observer.observe(/** @type {HTMLElement} */ (content.current));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  useLayoutEffect(() => {
    const part = /** @type {HTMLElement | null | undefined} */ (found && content.current?.querySelector('.found'));
    if (!part || !found) return undefined;
    found.wasShown = true;
    follows.current = false;
    if (mayLoseFocus()) part.focus({ preventScroll: true });
    return showText(part, found.text, /** @type {HTMLElement} */ (region.current));
  }, [found]);
  const onScroll = (/** @type {any} */ { currentTarget: element }) => {
    // An event may come after the text has grown again: only the reader scrolls up.
    const isAtEnd = element.scrollHeight - element.scrollTop - element.clientHeight < NEAR_END_PIXELS;
    if (isAtEnd || element.scrollTop < top.current) follows.current = isAtEnd;
    top.current = element.scrollTop;
  };
  return html`
    <div class="log" role="log" aria-label="Conversation" tabindex="0" ref=${region} onScroll=${onScroll}>
      <div class="log-content" ref=${content}>
        ${empty && session.missing.value && html`<p class="notice error" role="alert">${MISSING}</p>`}
        ${reading && html`<p class="empty" role="status">Reading the conversation…</p>`}
        ${empty && !reading && agent.description !== agent.title && html`<p>${harmless(agent.description)}</p>`}
        ${empty && !reading && uses && html`<p class="hint">It can use ${harmless(uses)}.</p>`}
        ${empty && !reading && html`<p class="empty">Write a message to ${agent.title}. It reads this conversation, and nothing of the others.</p>`}
        ${empty && !reading && examples.length > 0 && html`<${Examples} examples=${examples} onChoose=${onExample} />`}
        ${children}
      </div>
    </div>
  `;
}

/** True if nothing is being written, and no dialog is open. */
function mayLoseFocus() {
  return !(/** @type {any} */ (document.activeElement)?.value) && !document.querySelector('dialog[open]');
}

/** Messages that people may send: one that is chosen is written into the box, and not sent. */
/** @param {{examples: string[], onChoose: (message: string) => void}} props */
function Examples({ examples, onChoose }) {
  const choose = (/** @type {string} */ text) => {
    onChoose(text);
    /** @type {HTMLElement | null} */ (document.querySelector('.composer textarea'))?.focus();
  };
  return html`<ul class="examples" aria-label="Examples">${examples.map((text) => html`<li><button type="button" class="quiet" onClick=${() => choose(text)}>${harmless(text)}</button></li>`)}</ul>`;
}
