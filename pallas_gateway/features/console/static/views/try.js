/** The chat with an agent as its form defines it now, beside the form. */

import { html, useEffect } from '../html.js';
import { bytesOf, withFiles } from '../attachments.js';
import { historyOf } from '../conversations.js';
import { GatewayKeeper } from '../gateway_keeper.js';
import { EMPTY, Session } from '../session.js';
import { isLost, token } from '../state.js';
import { TryCall } from '../try_call.js';
import { LOST, Turns } from './chat.js';
import { Composer } from './composer.js';

const MOST_BYTES = 33_554_432;

/** The conversation of a form, which ends with it. */
export class Trial extends Session {
  constructor() {
    super(/** @type {any} */ ({ name: '', url: '', icons: [], capabilities: {}, registry: '' }));
    this._gateway = new TrialKeeper(this);
  }

  get isOnGateway() {
    return true;
  }

  /** @type {import('../try_call.js').Tried} what answers */
  tried = { name: '', definition: {}, isNew: true };
}

class TrialKeeper extends GatewayKeeper {
  /** @type {GatewayKeeper["callOf"]} */
  callOf(turn, conversation) {
    return new TryCall(turn, conversation, { tried: /** @type {Trial} */ (this._session).tried, token: () => token.value });
  }
}

/**
 * @param {{trial: Trial, title: string, examples: string[], onTry: () => import('../try_call.js').Tried | null,
 *   onRefused: (problems: import('../definition.js').Problem[], definition: Record<string, any>) => void}} props `onTry`: returns the definition, if
 *   nothing is wrong with it; `onRefused`: takes what the gateway finds wrong
 */
export function TrialView({ trial, title, examples, onTry, onRefused }) {
  const { draft, isRunning } = trial;
  useEffect(() => () => trial.stop(), [trial]);
  const call = async (/** @type {() => Promise<unknown>} */ make) => {
    const tried = onTry();
    if (!tried) return;
    trial.tried = tried;
    await make();
    const { problems } = trial.calls.value.at(-1)?.refusal ?? {};
    if (Array.isArray(problems)) onRefused(problems, tried.definition);
  };
  const send = (/** @type {any} */ { message, files, images }) =>
    call(() => {
      draft.value = EMPTY;
      return trial.send(withFiles(message, files), { images });
    });
  const agent = { ...trial.agent, name: title, title };
  const blocked = isLost.value ? LOST : '';
  return html`
    <section class="side trial" aria-labelledby="form-try">
      <div class="side-head">
        <h2 id="form-try">Try it</h2>
        <p class="hint">Answers by what the form says now. Nothing is saved, and nobody else sees it.</p>
        <button type="button" class="quiet small" disabled=${trial.calls.value.length === 0 || isRunning} onClick=${() => trial.begin()}>Clear</button>
      </div>
      <${Turns} session=${trial} agent=${agent} isKept=${false} examples=${examples} mayChange=${!isRunning && !blocked}
        onExample=${(/** @type {string} */ message) => (draft.value = { ...draft.value, message })} onRetry=${(/** @type {number} */ index) => call(() => trial.retry(index))} />
      <${Composer} draft=${draft} place="" room=${() => MOST_BYTES - bytesOf(historyOf(trial.open.value))} most=${MOST_BYTES} agent=${agent} blocked=${blocked} running=${isRunning}
        editing="" hasParameters=${false} onSend=${send} onStop=${() => trial.stop()} onCancelEdit=${() => {}} />
    </section>
  `;
}
