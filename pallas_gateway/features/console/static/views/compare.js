/** The same message to two agents, or to one agent with two sets of parameters, side by side. */

import { html, signal, useEffect } from '../html.js';
import { bytesOf, takenBy, withFiles } from '../attachments.js';
import { historyOf } from '../conversations.js';
import { figuresOf } from '../outcome.js';
import { address, route } from '../route.js';
import { EMPTY, Session, reload } from '../session.js';
import { agentById, agents, isLost } from '../state.js';
import { costText, duration, harmless } from '../text.js';
import { Badge } from './agents.js';
import { LOST, Turns, useBlock, useDetails, useLimit } from './chat.js';
import { Composer, newParameters, useParameters } from './composer.js';

const NAMES = ['A', 'B'];
const STATES = /** @type {Record<string, string>} */ ({ running: 'running', error: 'failed', stopped: 'stopped', interrupted: 'interrupted' });

/** @typedef {import('../state.js').Agent} Agent */

/** One side: a new conversation with an agent that the browser keeps. It shows no other one. */
class Side extends Session {
  id = `side-${crypto.randomUUID()}`;
  parameters = newParameters();

  get isOnGateway() {
    return false;
  }

  /** @type {Session["_follow"]} */
  async _follow(conversation, index) {
    await super._follow(conversation, index);
    reload(this.agent);
  }
}

/** @type {import('../vendor/preact-signals.js').Signal<Side[] | null>} both sides; they outlive the view */
const sides = signal(null);
/** @type {any} the message that is being written */
const draft = signal(EMPTY);

/** @param {Agent[]} chosen */
function begin(chosen) {
  for (const side of sides.value ?? []) side.stop();
  const before = sides.value ?? [];
  sides.value = chosen.map((agent, index) => {
    const side = new Side(agent);
    side.keepOnLeaving();
    if (before[index]?.agent.id === agent.id) side.parameters = before[index].parameters;
    return side;
  });
  history.replaceState(null, '', address('compare', ...chosen.map(({ id }) => id)));
}

export function Compare() {
  const known = agents.value ?? [];
  const ids = route.value.slice(1);
  useEffect(() => {
    const [first, second = first] = ids.map(agentById);
    const [left, right = left] = known;
    if (first && second && sides.value?.map(({ agent }) => agent.id).join() !== [first.id, second.id].join()) begin([first, second]);
    else if (!sides.value && left) begin([left, right]);
  }, [ids.join('/'), known.length > 0]);
  if (!sides.value) return html`<p class="empty" role="status">${agents.value ? 'There is no agent to compare.' : 'Loading the agents…'}</p>`;
  return html`<${Both} both=${sides.value} />`;
}

/** @param {{both: Side[]}} props */
function Both({ both }) {
  const columns = [useColumn(both[0]), useColumn(both[1])];
  const hasTurns = both.some(({ calls }) => calls.value.length > 0);
  const running = both.some(({ isRunning }) => isRunning);
  const open = columns.filter(({ blocked }) => !blocked);
  const blocked = isLost.value ? LOST : open.length ? '' : columns.map(({ blocked: why }, index) => `${NAMES[index]}: ${why}`).join(' ');
  const most = Math.min(...columns.map(({ most: one }) => one));
  const room = () => most - Math.max(...both.map((side) => bytesOf(historyOf(side.open.value))));

  /** @param {(side: Side, params: Record<string, any>) => void} send */
  const toBoth = (send) => {
    const params = columns.map(({ form }) => form.read());
    if (params.includes(null)) return false;
    both.forEach((side, index) => columns[index].blocked || send(side, params[index] ?? {}));
    return true;
  };
  const onSend = (/** @type {any} */ { message, files, images }) => {
    if (toBoth((side, params) => side.send(withFiles(message, files), { images, params }))) draft.value = EMPTY;
  };
  const sendAgain = () => {
    const last = both.map((side) => side.open.value.turns.at(-1)).filter(Boolean).toSorted((one, other) => other.began - one.began)[0];
    if (!last) return;
    toBoth((side, params) => {
      const { turns } = side.open.value;
      return turns.at(-1)?.message === last.message ? side.retry(turns.length - 1, params) : side.send(last.message, { images: last.images, params });
    });
  };
  const taken = both.map(({ agent }) => takenBy(agent.capabilities));
  const capabilities = { vision: taken.every(({ images }) => images), documents: taken.every(({ documents }) => documents) };
  const agent = { ...both[0].agent, title: 'both', capabilities };
  return html`
    <div class="comparison">
      <header class="heading">
        <h1>Compare</h1>
        <button type="button" class="quiet" disabled=${running} onClick=${() => (sides.value = both.toReversed())}>Swap</button>
        <button type="button" class="quiet" disabled=${running || blocked !== '' || !hasTurns} onClick=${sendAgain}>Send again</button>
        <button type="button" class="quiet" disabled=${!hasTurns} onClick=${() => begin(both.map((side) => side.agent))}>New comparison</button>
        <p class="hint">Each side is kept as a conversation of its agent, in this browser. “Send again” asks for other answers to the last message.</p>
      </header>
      <div class="sides">
        ${both.map((side, index) => html`<${Column} key=${side.id} side=${side} name=${NAMES[index]} column=${columns[index]}
          onAgent=${(/** @type {Agent} */ chosen) => begin(both.map((one) => (one === side ? chosen : one.agent)))} />`)}
      </div>
      <${Figures} both=${both} />
      <${Composer} draft=${draft} place=${both[0].id} room=${room} most=${most} agent=${agent} blocked=${blocked} running=${running} editing=""
        hasParameters=${false} onSend=${onSend} onStop=${() => both.forEach((side) => side.stop())} onCancelEdit=${() => {}} />
    </div>
  `;
}

/**
 * Return the form of a side, why it takes no message, and the longest request.
 * @param {Side} side
 */
function useColumn(side) {
  const form = useParameters(side.agent, side.parameters);
  const { mayRun, maxBodyBytes: most } = useDetails(side.agent);
  const unusable = useBlock(side.agent, mayRun);
  const limited = useLimit(side);
  return { form, most, blocked: unusable || limited };
}

/** @param {{side: Side, name: string, column: ReturnType<typeof useColumn>, onAgent: (agent: Agent) => void}} props */
function Column({ side, name, column, onAgent }) {
  const { agent } = side;
  const id = `${side.id}-agent`;
  return html`
    <section class="side" aria-label=${`${name}: ${harmless(agent.title)}`}>
      <div class="side-head">
        <label for=${id}>Agent ${name}</label>
        <select id=${id} value=${agent.id} onChange=${(/** @type {any} */ event) => onAgent(agentById(event.target.value) ?? agent)}>
          ${(agents.value ?? [agent]).map((one) => html`<option key=${one.id} value=${one.id} selected=${one.id === agent.id}>${harmless(one.title)}${one.registry && ` (${new URL(one.registry).host})`}</option>`)}
        </select>
        <${Badge} id=${agent.id} />
        ${side.isRunning && html`<button type="button" class="small" onClick=${() => side.stop()}>Stop</button>`}
      </div>
      ${column.form.form}
      ${column.blocked && html`<p class="notice error" role="status">${harmless(column.blocked)}</p>`}
      ${side.problem.value && html`<p class="notice error" role="alert">${harmless(side.problem.value)}</p>`}
      <${Turns} session=${side} mayChange=${!side.isRunning && !column.blocked && !isLost.value} />
    </section>
  `;
}

/** Duration, LLM turns, tokens and cost of both last answers. */
/** @param {{both: Side[]}} props */
function Figures({ both }) {
  const all = both.map(({ calls }) => {
    const call = calls.value.at(-1);
    return { state: STATES[call?.state.value] ?? '', ...figuresOf(call?.outcome.value?.facts ?? {}) };
  });
  if (both.every(({ calls }) => calls.value.length === 0)) return null;
  const hasCost = all.some(({ cost }) => cost !== null);
  return html`
    <table class="figures" aria-label="Comparison of the last answers">
      <thead><tr><td></td><th scope="col">Duration</th><th scope="col">LLM turns</th><th scope="col">Tokens</th>${hasCost && html`<th scope="col">Cost</th>`}</tr></thead>
      <tbody>
        ${both.map(({ agent, id }, index) => {
          const { state, seconds, turns, tokens, cost } = all[index];
          return html`<tr key=${id}>
            <th scope="row">${NAMES[index]} <small>${harmless(agent.title)}</small></th>
            <td>${[state, duration(seconds)].filter(Boolean).join(', ')}</td>
            <td>${turns}</td><td>${tokens}</td>
            ${hasCost && html`<td>${costText(cost)}</td>`}
          </tr>`;
        })}
      </tbody>
    </table>
  `;
}
