/** The head of the first page: a box to ask any agent, and the calls that run now. */

import { addressed, blockOf, mentionOf, suggestionsOf } from '../ask.js';
import { endedCalls, nested, runningCalls, stateOf } from '../call_list.js';
import { html, signal, useEffect, useId, useRef, useSignal } from '../html.js';
import { Mark, Owl, hueOf, slug } from '../marks.js';
import { getJson } from '../mcp.js';
import { poll } from '../polling.js';
import { address } from '../route.js';
import { agents, caller, howToBeKnown, isLost, mayListCalls, reasonOf, refusalFor, runnable, statusOf, token, tokenFor, tokenRefusal } from '../state.js';
import { ago, cut, duration, harmless } from '../text.js';
import { lastCalls } from './agents.js';

const EVERY_MS = 2000;
const ENDED_MS = 60_000; // ended calls are read less often, unless one of the running calls is gone
const MOST_ENDED = 500;
const MOST_SHOWN = 12;
const MOST_EXAMPLES = 3;
const LONGEST_NAME = 80;

/** What is being written, and the id of the agent that it is for; both outlive the view. */
const text = signal('');
const chosen = signal('');

/** @param {{prepare: () => void}} props `prepare`: load what a chat needs */
export function Front({ prepare }) {
  return html`
    <${Ask} prepare=${prepare} />
    ${mayListCalls.value && !isLost.value ? html`<${Running} key=${caller.value} />` : html`<${Asleep} />`}
  `;
}

function choicesNow() {
  return (agents.value ?? []).map((agent) => {
    const mayNot = agent.registry === '' && runnable.value && !runnable.value.some((name) => slug(name) === slug(agent.name));
    return { agent, why: blockOf(statusOf(agent.id), reasonOf(agent.id), mayNot ? refusalFor(agent) : '') };
  });
}

/** @param {{prepare: () => void}} props */
function Ask({ prepare }) {
  const id = useId();
  const box = useRef(/** @type {HTMLTextAreaElement | null} */ (null));
  const active = useSignal(0);
  const isClosed = useSignal(false);
  const problem = useSignal('');
  const choices = choicesNow();
  const choice = choices.find(({ agent }) => agent.id === chosen.value) ?? choices.find(({ why }) => why === '') ?? null;
  const examples = useExamples(choice?.why === '' ? choice.agent : null);
  const mention = isClosed.value ? null : mentionOf(text.value);
  const suggested = mention === null ? [] : suggestionsOf(mention, choices);
  const blocked = isLost.value ? 'The gateway cannot be reached.' : (choice?.why ?? whyNone());

  const choose = (/** @type {import('../state.js').Agent} */ agent, rest = '') => {
    chosen.value = agent.id;
    text.value = rest;
    box.current?.focus();
  };
  const write = (/** @type {any} */ event) => {
    text.value = event.target.value;
    isClosed.value = false;
    active.value = 0;
    const to = addressed(text.value, choices);
    if (to) choose(to.agent, to.rest);
  };
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    if (!choice || blocked || !text.value.trim()) return;
    try {
      await send(choice.agent, text.value);
      text.value = '';
    } catch (error) {
      problem.value = `The message was not sent: ${/** @type {Error} */ (error).message}`;
    }
  };
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    if (event.isComposing) return;
    if (suggested.length > 0 && steer(event)) event.preventDefault();
    else if (event.key === 'Enter' && !event.shiftKey) submit(event);
  };
  /** @param {KeyboardEvent} event */
  const steer = ({ key, shiftKey }) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[key];
    if (step) active.value = (active.value + step + suggested.length) % suggested.length;
    else if (key === 'Escape') isClosed.value = true;
    else if ((key === 'Enter' || key === 'Tab') && !shiftKey) choose(suggested[active.value].agent);
    else return false;
    return true;
  };
  const begin = () => {
    chosen.value = choice?.agent.id ?? ''; // it stays, whatever states change meanwhile
    prepare();
  };
  return html`
    <form class="ask" noValidate onSubmit=${submit}>
      <label class="display" for=${id}>Ask an agent</label>
      <div class="ask-box">
        <textarea
          id=${id} ref=${box} rows="2" value=${text.value} disabled=${choices.every(({ why }) => why !== '')}
          placeholder="Write a message; @ chooses the agent" aria-describedby=${blocked ? `${id}-why` : undefined}
          aria-autocomplete="list" aria-haspopup="listbox" aria-controls=${suggested.length ? `${id}-list` : undefined}
          aria-activedescendant=${suggested.length ? `${id}-${active.value}` : undefined}
          onFocus=${begin} onInput=${write} onKeyDown=${onKeyDown} onBlur=${() => (isClosed.value = true)}
        />
        <${Suggested} id=${id} suggested=${suggested} active=${active.value} onChoose=${choose} />
        <div class="ask-foot">
          ${choice && html`<${Mark} agent=${choice.agent} />`}
          <${Choice} choices=${choices} choice=${choice} />
          <button type="submit" class="primary" disabled=${blocked !== '' || !text.value.trim()}>Ask</button>
        </div>
      </div>
      ${problem.value && html`<p class="notice error" role="alert">${problem.value}</p>`}
      <${Reason} id=${id} title=${choice?.agent.title ?? ''} blocked=${blocked} />
      <div class="suggestions" role="group" aria-label="Examples">
        ${!blocked && examples.map((example) => html`<button type="button" class="quiet small" key=${example} onClick=${() => ((text.value = example), box.current?.focus())}>${harmless(example)}</button>`)}
      </div>
    </form>
  `;
}

/** Return why no agent takes messages. */
function whyNone() {
  return tokenRefusal() ? `The gateway has to know who you are. ${howToBeKnown()}` : 'No agent takes messages now.';
}

/** @param {{choices: import('../ask.js').Choice[], choice: import('../ask.js').Choice | null}} props */
function Choice({ choices, choice }) {
  if (!choice && tokenRefusal()) return null; // all would have the same reason
  return html`
    <select aria-label="Agent" value=${choice?.agent.id} onChange=${(/** @type {any} */ event) => (chosen.value = event.target.value)}>
      ${choices.map(({ agent, why }) => html`<option key=${agent.id} value=${agent.id} disabled=${why !== ''}>${why ? `${agent.title} (${harmless(why)})` : agent.title}</option>`)}
    </select>
  `;
}

/** The agents whose names begin with what is written after `@`. */
/** @param {{id: string, suggested: import('../ask.js').Choice[], active: number, onChoose: (agent: import('../state.js').Agent) => void}} props */
function Suggested({ id, suggested, active, onChoose }) {
  if (suggested.length === 0) return null;
  const choose = (/** @type {Event} */ event, /** @type {import('../state.js').Agent} */ agent) => {
    event.preventDefault(); // the box keeps the focus
    onChoose(agent);
  };
  return html`
    <ul class="suggested" id=${`${id}-list`} role="listbox" aria-label="Agents">
      ${suggested.map(
        ({ agent }, index) => html`
          <li key=${agent.id} id=${`${id}-${index}`} role="option" aria-selected=${index === active} onPointerDown=${(/** @type {Event} */ event) => choose(event, agent)}>
            <${Mark} agent=${agent} /> <span>${agent.title}</span> <span class="hint">@${agent.name}</span>
          </li>
        `,
      )}
    </ul>
  `;
}

/** The reason for which the box takes no message now. */
/** @param {{id: string, title: string, blocked: string}} props */
function Reason({ id, title, blocked }) {
  if (!blocked || isLost.value) return null; // that the gateway is lost is said above all views
  return html`<p class="hint" id=${`${id}-why`}>${title ? `${title} takes no messages: ${harmless(blocked)}` : blocked}</p>`;
}

/**
 * Open a new conversation with an agent, and send it a message.
 * @param {import('../state.js').Agent} agent
 * @param {string} message
 */
async function send(agent, message) {
  const { sessionOf } = await import('../session.js');
  const session = sessionOf(agent);
  session.begin();
  session.send(message); // it goes on in the agent's chat, which shows how it ends
  location.hash = address('agents', agent.id);
}

/**
 * Return messages that people may send an agent.
 * @param {import('../state.js').Agent | null} agent
 * @returns {string[]}
 */
function useExamples(agent) {
  const known = useSignal({ id: '', examples: /** @type {string[]} */ ([]) });
  const isKnown = agent !== null && statusOf(agent.id) !== 'unknown';
  useEffect(() => {
    if (!agent || !isKnown || agent.id === known.peek().id) return undefined;
    const leaving = new AbortController();
    getJson(`${agent.registry || '..'}/api/agents/${encodeURIComponent(agent.name)}`, { token: tokenFor(agent), signal: leaving.signal })
      .then((found) => (Array.isArray(found?.examples) ? found.examples.map(String) : []))
      .catch(() => []) // what an agent is asked for needs no example
      .then((examples) => leaving.signal.aborted || (known.value = { id: agent.id, examples: examples.slice(0, MOST_EXAMPLES) }));
    return () => leaving.abort();
  }, [agent?.id, isKnown]);
  return agent?.id === known.value.id ? known.value.examples : [];
}

/** The calls that run now; the owl sleeps while there is none. */
function Running() {
  const calls = useSignal(/** @type {import('../call_list.js').Call[]} */ ([]));
  useEffect(() => {
    const leaving = new AbortController();
    let readAt = 0;
    const read = async () => {
      const { calls: found } = await runningCalls(token.value, leaving.signal);
      const ids = new Set(found.map(({ id }) => id));
      if (Date.now() - readAt > ENDED_MS || calls.peek().some(({ id }) => !ids.has(id))) {
        showLast((await endedCalls(MOST_ENDED, token.value, leaving.signal)).calls);
        readAt = Date.now();
      }
      calls.value = found;
    };
    const onRefused = () => {
      calls.value = [];
    };
    poll(read, { milliseconds: EVERY_MS, onRefused, gone: leaving.signal });
    return () => leaving.abort();
  }, []);
  const rows = nested(calls.value);
  if (rows.length === 0) return html`<${Asleep} />`;
  return html`
    <section class="running" aria-labelledby="running-now">
      <h2 id="running-now"><span class="dot" aria-hidden="true"></span>Running now</h2>
      <div class="running-calls">
        ${rows.slice(0, MOST_SHOWN).map(
          ({ call, depth }) => html`
            <a key=${call.id} href=${address('calls')} class=${`running-call ${hueOf(call.agent)} ${depth > 0 ? 'nested' : ''}`} style=${{ marginLeft: `${Math.min(depth, 6)}rem` }}>
              <${Mark} name=${call.agent} />
              <span class="speaker">${depth > 0 && html`<span class="unseen">nested call of </span>`}${harmless(cut(call.agent, LONGEST_NAME))}</span>
              <span class="hint step">${harmless(cut(stateOf(call) || (call.step ?? ''), LONGEST_NAME))}</span>
              <span class="hint time">${duration(Math.round(call.seconds))}</span>
            </a>
          `,
        )}
      </div>
      ${rows.length > MOST_SHOWN && html`<a class="more" href=${address('calls')}>${rows.length - MOST_SHOWN} more running calls</a>`}
    </section>
  `;
}

function Asleep() {
  return html`<div class="asleep"><${Owl} asleep /></div>`;
}

/**
 * Show when the last call of each agent ended.
 * @param {import('../call_list.js').EndedCall[]} ended the last one first
 */
function showLast(ended) {
  lastCalls.value = new Map(
    ended.toReversed().map(({ agent, endedAt }) => [slug(agent), { text: ago(Date.now() - Date.parse(endedAt)), at: new Date(endedAt) }]),
  );
}
