/** The same message to two agents, or to one agent with two sets of parameters, side by side. */

import { html, signal, useEffect } from '../html.js';
import { bytesOf, takenBy, withFiles } from '../attachments.js';
import { Side, figuresOf } from '../comparison.js';
import { historyOf } from '../conversations.js';
import { address, route } from '../route.js';
import { EMPTY } from '../session.js';
import { agentById, agents, isLost } from '../state.js';
import { duration, harmless } from '../text.js';
import { costText } from '../usage.js';
import { Badge } from './agents.js';
import { LOST, Log, useBlock, useDetails, useLimit } from './chat.js';
import { Composer, useParameters } from './composer.js';
import { TurnView } from './turn.js';

const NAMES = ['A', 'B'];
const STATES = /** @type {Record<string, string>} */ ({ running: 'running', error: 'failed', stopped: 'stopped', interrupted: 'interrupted' });
const RECENT = 10;

/** @typedef {import('../state.js').Agent} Agent */

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
    if (last) toBoth((side, params) => side.again(last.message, { images: last.images, params }));
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
        <p class="hint">Each side is kept as a conversation of its agent, in this browser. “Send again” replaces the last answers.</p>
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
  const calls = side.calls.value;
  const id = `${side.id}-agent`;
  const retry = (/** @type {number} */ index) => {
    const { message, images, params } = calls[index].turn;
    side.send(message, { images, params, at: index });
  };
  const mayRetry = (/** @type {number} */ index) => !side.isRunning && !column.blocked && !isLost.value && index === calls.length - 1;
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
      <${Log} key=${side.open.value.id} empty=${calls.length === 0} reading=${false} agent=${agent} examples=${[]} onExample=${() => {}}>
        ${calls.map((/** @type {any} */ call, /** @type {number} */ index) => html`
          <${TurnView} key=${call.turn.id} call=${call} agent=${agent} args=${() => side.argumentsOf(index)} isRecent=${index >= calls.length - RECENT}
            onRate=${(/** @type {any} */ feedback) => side.rate(call.turn, feedback)} onRetry=${mayRetry(index) ? () => retry(index) : null} />
        `)}
      <//>
    </section>
  `;
}

/** Duration, LLM turns, tokens and cost of both last answers. */
/** @param {{both: Side[]}} props */
function Figures({ both }) {
  const all = both.map(({ calls }) => figuresOf(calls.value.at(-1)));
  if (all.every((one) => one === null)) return null;
  const hasCost = all.some((one) => one?.cost !== null && one !== null);
  const text = (/** @type {number | null | undefined} */ value) => value?.toLocaleString() ?? '';
  return html`
    <table class="figures" aria-label="Comparison of the last answers">
      <thead><tr><td></td><th scope="col">Duration</th><th scope="col">LLM turns</th><th scope="col">Tokens in</th><th scope="col">Tokens out</th>${hasCost && html`<th scope="col">Cost</th>`}</tr></thead>
      <tbody>
        ${both.map(({ agent, id }, index) => {
          const one = all[index];
          const state = STATES[one?.state ?? ''] ?? '';
          return html`<tr key=${id}>
            <th scope="row">${NAMES[index]} <small>${harmless(agent.title)}</small></th>
            <td>${[state, duration(one?.seconds)].filter(Boolean).join(', ')}</td>
            <td>${text(one?.turns)}</td><td>${text(one?.in)}</td><td>${text(one?.out)}</td>
            ${hasCost && html`<td>${costText(one?.cost ?? null)}</td>`}
          </tr>`;
        })}
      </tbody>
    </table>
  `;
}
