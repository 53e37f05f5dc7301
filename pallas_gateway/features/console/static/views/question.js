/** A question of a call: a form, a page to open, or the approval of a tool. */

import { html, useLayoutEffect, useMemo, useRef, useSignal } from '../html.js';
import { approvalIn, fieldsOf, read } from '../forms.js';
import { harmless, safeLink, visible } from '../text.js';
import { Fields, initialValues } from './fields.js';
import { Plain } from './text.js';

const LONGEST_NAME = 1000;

/** @param {{question: import('../shown_call.js').Question, answer: (answer: {action: string, content?: any}) => void}} props */
export function QuestionForm({ question, answer }) {
  const { params } = question;
  const message = harmless(params.message);
  const approval = approvalIn(params, question.origin);
  const Body = approval ? ApprovalBody : params.url !== undefined ? PageBody : FormBody;
  const form = useRef(/** @type {HTMLElement | null} */ (null));
  useLayoutEffect(() => {
    const element = /** @type {HTMLElement} */ (form.current);
    element.scrollIntoView({ block: 'nearest' });
    if (!isReaderBusy()) element.focus({ preventScroll: true });
    return () => {
      const box = /** @type {HTMLElement | null | undefined} */ (element.closest('.talk')?.querySelector('.composer textarea'));
      if (element.contains(document.activeElement)) box?.focus();
    };
  }, []);
  const give = (/** @type {{action: string, content?: any}} */ one) => {
    form.current?.focus({ preventScroll: true }); // the button that was used is disabled
    answer(one);
  };
  return html`
    <form
      ref=${form}
      class="question"
      role="form"
      tabindex="-1"
      aria-label=${message.slice(0, LONGEST_NAME)}
      aria-busy=${question.sent.value}
      noValidate
      onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}
    >
      <${Body} params=${params} message=${message} approval=${approval} answer=${give} sent=${question.sent.value} />
      ${question.error.value && html`<p class="notice error" role="alert">${harmless(question.error.value)}</p>`}
      ${question.sent.value && html`<p class="hint" role="status">Answer sent.</p>`}
    </form>
  `;
}

/** True while the reader writes, answers a question or reads a dialog: a new question must not take the focus. */
function isReaderBusy() {
  const active = document.activeElement;
  if (document.querySelector('dialog[open]') || active?.closest('.question')) return true;
  return (active instanceof HTMLInputElement || active instanceof HTMLTextAreaElement) && active.value !== '';
}

/** @typedef {{params: any, message: string, approval: any, answer: (answer: any) => void, sent: boolean}} BodyProps */

/** @param {BodyProps} props */
function FormBody({ params, message, answer, sent }) {
  const fields = useMemo(() => fieldsOf(params.requestedSchema), [params]);
  const values = useSignal(initialValues(fields));
  const errors = useSignal(/** @type {Record<string, string>} */ ({}));
  const submit = () => {
    const { content, errors: wrong } = read(fields, values.value);
    errors.value = wrong;
    if (Object.keys(wrong).length === 0) answer({ action: 'accept', content });
  };
  return html`
    <p class="asked">${message}</p>
    <${Fields} fields=${fields} values=${values} errors=${errors.value} />
    <div class="actions">
      <button type="submit" class="primary" disabled=${sent} onClick=${submit}>Submit</button>
      <${Decline} answer=${answer} sent=${sent} />
    </div>
  `;
}

/** @param {BodyProps} props */
function PageBody({ params, message, answer, sent }) {
  const link = safeLink(params.url);
  const web = link && link.href.startsWith('http') ? link : null;
  return html`
    <p class="asked">${message}</p>
    <p>
      ${web
        ? html`<a class="button outside" href=${web.href} target="_blank" rel="noopener noreferrer">Open <strong>${web.host}</strong> in a new tab</a>`
        : 'The address is none of a web page, and cannot be opened:'}
    </p>
    <p class="hint"><code>${harmless(params.url)}</code></p>
    <p class="hint">Open the page only if you know this host. Submit when you have done there what is asked.</p>
    <div class="actions">
      <button type="submit" class="primary" disabled=${sent || !web} onClick=${() => answer({ action: 'accept' })}>Submit</button>
      <${Decline} answer=${answer} sent=${sent} />
    </div>
  `;
}

/** @param {Pick<BodyProps, 'approval' | 'answer' | 'sent'> & {once?: boolean}} props `once`: there is no rest of a call to allow */
export function ApprovalBody({ approval, answer, sent, once = false }) {
  const decide = (/** @type {string} */ decision) => answer({ action: 'accept', content: { decision } });
  return html`
    <p class="asked">May <strong>${visible(approval.agent)}</strong> run the tool <code>${visible(approval.tool)}</code>?</p>
    <${Plain} text=${visible(approval.args)} label="Arguments" />
    <div class="actions">
      <${Decline} answer=${answer} sent=${sent} />
      <button type="button" disabled=${sent} onClick=${() => decide('once')}>Allow once</button>
      ${!once && html`<button type="button" disabled=${sent} onClick=${() => decide('call')}>Allow for this call</button>`}
    </div>
    ${!once && html`<p class="hint">“Allow for this call” allows this and every other tool that needs approval, until the call ends.</p>`}
  `;
}

/** @param {{answer: (answer: any) => void, sent: boolean}} props */
function Decline({ answer, sent }) {
  return html`<button type="button" disabled=${sent} onClick=${() => answer({ action: 'decline' })}>Decline</button>`;
}
