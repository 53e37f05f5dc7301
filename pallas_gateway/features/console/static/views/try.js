/** The chat with an agent as its form defines it now, beside the form. */

import { html, signal, useEffect } from '../html.js';
import { bytesOf, withFiles } from '../attachments.js';
import { historyOf, newConversation, newTurn } from '../conversations.js';
import { EMPTY } from '../session.js';
import { isLost, token } from '../state.js';
import { TryCall } from '../try_call.js';
import { LOST, Log } from './chat.js';
import { Composer } from './composer.js';
import { TurnView } from './turn.js';

const MOST_BYTES = 33_554_432;
const RECENT = 10;

/** Return the conversation of a form, which ends with it. */
export function newTrial() {
  return { conversation: newConversation(''), calls: signal(/** @type {TryCall[]} */ ([])), message: signal(EMPTY) };
}

/**
 * @param {{trial: ReturnType<typeof newTrial>, title: string, examples: string[], onTry: () => import('../try_call.js').Tried | null,
 *   onRefused: (problems: import('../definition.js').Problem[], definition: Record<string, any>) => void}} props `onTry`: returns the definition, if
 *   nothing is wrong with it; `onRefused`: takes what the gateway finds wrong
 */
export function Trial({ trial, title, examples, onTry, onRefused }) {
  const { conversation, calls, message } = trial;
  const running = calls.value.find((/** @type {TryCall} */ { state }) => state.value === 'running');
  useEffect(() => () => trial.calls.peek().forEach((/** @type {TryCall} */ call) => call.state.peek() === 'running' && call.stop()), [trial]);
  const send = async (/** @type {any} */ written, index = calls.value.length) => {
    const tried = onTry();
    if (!tried) return;
    message.value = EMPTY;
    const turn = newTurn(withFiles(written.message, written.files ?? []), written.images);
    conversation.turns = [...conversation.turns.slice(0, index), turn];
    const call = new TryCall(turn, conversation, { tried, token: () => token.value });
    calls.value = [...calls.value.slice(0, index), call];
    if (await call.run()) call.fail(call.loss.value);
    const { problems } = call.refusal ?? {};
    if (Array.isArray(problems)) onRefused(problems, tried.definition);
  };
  const agent = /** @type {any} */ ({ name: title, title, icons: [], capabilities: {} });
  const blocked = isLost.value ? LOST : '';
  return html`
    <section class="side trial" aria-labelledby="form-try">
      <div class="side-head">
        <h2 id="form-try">Try it</h2>
        <p class="hint">Answers by what the form says now. Nothing is saved, and nobody else sees it.</p>
        <button type="button" class="quiet small" disabled=${calls.value.length === 0 || running !== undefined} onClick=${() => ((conversation.turns = []), (calls.value = []))}>Clear</button>
      </div>
      <${Log} empty=${calls.value.length === 0} reading=${false} agent=${agent} examples=${examples} onExample=${(/** @type {string} */ text) => (message.value = { ...message.value, message: text })}>
        ${calls.value.map((/** @type {TryCall} */ call, /** @type {number} */ index) => html`
          <${TurnView} key=${call.turn.id} call=${call} agent=${agent} isRecent=${index >= calls.value.length - RECENT}
            onRetry=${!running && !blocked && index === calls.value.length - 1 ? () => send(call.turn, index) : null} />
        `)}
      <//>
      <${Composer} draft=${message} place="" room=${() => MOST_BYTES - bytesOf(historyOf(conversation))} most=${MOST_BYTES} agent=${agent} blocked=${blocked} running=${running !== undefined}
        editing="" hasParameters=${false} onSend=${send} onStop=${() => running?.stop()} onCancelEdit=${() => {}} />
    </section>
  `;
}
