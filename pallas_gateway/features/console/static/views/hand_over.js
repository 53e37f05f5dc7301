/** The dialog that hands an agent of the database over to another owner. */

import { giveAgent, readAgent } from '../definitions.js';
import { Dialog } from '../dialog.js';
import { fieldsOf, read } from '../forms.js';
import { html, useRef, useSignal } from '../html.js';
import { address } from '../route.js';
import { refreshAgain, token } from '../state.js';
import { harmless } from '../text.js';
import { Fields } from './fields.js';

const NAME = { type: 'string', minLength: 1 };
/** Kinds of owners: the fields that name one, the owner as the API takes it, and as the dialog names it. */
const KINDS = {
  key: {
    label: 'The holder of a key',
    fields: fieldsOf({ properties: { key: { ...NAME, title: 'Name of the key', description: 'One of gateway.auth.tokens.' } }, required: ['key'] }),
    ownerOf: (/** @type {any} */ { key }) => `key:${key}`,
    shown: (/** @type {any} */ { key }) => key,
  },
  person: {
    label: 'A person who signs in',
    fields: fieldsOf({
      properties: {
        issuer: { ...NAME, title: 'Issuer', description: 'The iss of the tokens.' },
        subject: { ...NAME, title: 'Subject', description: 'Their sub, which is not the name of the person.' },
      },
      required: ['issuer', 'subject'],
    }),
    ownerOf: (/** @type {any} */ { issuer, subject }) => ({ issuer, subject }),
    shown: (/** @type {any} */ { subject }) => subject,
  },
  anonymous: { label: 'Callers without a token', fields: [], ownerOf: () => 'anonymous', shown: () => 'all callers without a token' },
};

/**
 * @param {{agent: import('../state.js').Agent, owner: string, onClose: () => void}} props `owner`: the present one
 */
export function HandOver({ agent: { name, title }, owner, onClose }) {
  const kind = useSignal(/** @type {keyof typeof KINDS} */ ('key'));
  const values = useSignal(/** @type {Record<string, any>} */ ({}));
  const errors = useSignal(/** @type {Record<string, string>} */ ({}));
  const problem = useSignal('');
  const isBusy = useSignal(false);
  const form = useRef(/** @type {HTMLFormElement | null} */ (null));
  const { fields, ownerOf, shown } = KINDS[kind.value];
  const choose = (/** @type {keyof typeof KINDS} */ next) => ([kind.value, errors.value, problem.value] = [next, {}, '']);
  const show = (/** @type {Record<string, string>} */ wrong) => {
    errors.value = wrong;
    setTimeout(() => /** @type {HTMLElement | null} */ (form.current?.querySelector('[aria-invalid]'))?.focus());
  };
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    const { content, errors: wrong } = read(fields, values.value);
    problem.value = '';
    if (Object.keys(wrong).length) return show(wrong);
    [isBusy.value, errors.value] = [true, {}];
    try {
      const { etag } = await readAgent(name, token.value); // of now: the question is about the agent, not about a version
      await giveAgent(name, ownerOf(content), etag, token.value);
    } catch (error) {
      isBusy.value = false;
      return refused(/** @type {import('../mcp.js').McpError} */ (error));
    }
    await leave();
    return undefined;
  };
  const refused = (/** @type {import('../mcp.js').McpError} */ error) => {
    const problems = /** @type {any} */ (error.data)?.problems;
    const ofOwner = Array.isArray(problems) ? problems.filter(({ path }) => path === 'owner').map(({ message }) => String(message)) : [];
    if (ofOwner.length && fields.length) show({ [fields[0].name]: harmless(ofOwner.join(' ')) });
    else problem.value = error.message;
  };
  const leave = async () => {
    const isSeen = await readAgent(name, token.value).then(() => true, () => false);
    if (isSeen) onClose();
    else location.hash = address('agents');
    await refreshAgain();
  };
  return html`
    <${Dialog} title=${`Hand over ${title}?`} onClose=${onClose}>
      <form class="sections" noValidate ref=${form} onSubmit=${submit}>
        <fieldset class="field">
          <legend>New owner</legend>
          ${Object.entries(KINDS).map(
            ([key, { label }]) => html`<label class="check"><input type="radio" name="kind" checked=${kind.value === key} onChange=${() => choose(/** @type {any} */ (key))} /><span>${label}</span></label>`,
          )}
        </fieldset>
        ${kind.value === 'anonymous' && html`<p class="hint">They own agents only where the grants of anonymous include create:agents.</p>`}
        <${Fields} key=${kind.value} fields=${fields} values=${values} errors=${errors.value} />
        <p role="status">The owner changes from ${harmless(owner)} to ${harmless(shown(values.value) || '…')}.</p>
        <ul>
          <li>The new owner can read the instruction, and change, hand over and delete the agent.</li>
          <li>${harmless(owner)} can no longer change, hand over or delete the agent, nor see or run it, unless a grant allows it.</li>
          <li>This is saved as a new version with the same definition. Running calls go on, and conversations stay with the callers that had them.</li>
        </ul>
        ${problem.value && html`<p class="notice error" role="alert">${harmless(problem.value)}</p>`}
        <div class="actions">
          <button type="submit" class="primary" disabled=${isBusy.value}>Hand over</button>
          <button type="button" onClick=${onClose}>Cancel</button>
        </div>
      </form>
    <//>
  `;
}
