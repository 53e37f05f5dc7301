/** Where a message is written: text, files by paste, drop and picker, and the parameters of the call. */

import { html, signal, useEffect, useId, useLayoutEffect, useMemo, useRef, useSignal } from '../html.js';
import { IMAGE_TYPES, PDF, attached, bytesOf, takenBy } from '../attachments.js';
import { fieldsOf, read } from '../forms.js';
import { parametersOf } from '../parameters.js';
import { harmless, size } from '../text.js';
import { Fields } from './fields.js';
import { Plain } from './text.js';

const MORE = 'Files and parameters';

/**
 * @typedef {{message: string, files: import('../attachments.js').TextFile[], images: import('../conversations.js').Image[], params: Record<string, any>}} Draft
 * @typedef {{draft: any, place: string, room: () => number, most: number, agent: import('../state.js').Agent, blocked: string,
 *   running: boolean, editing: string, hasParameters?: boolean,
 *   onSend: (draft: Draft) => void, onStop: () => void, onCancelEdit: () => void}} Props `place`: the conversation, which gets the focus; `room`: the bytes of a request that are left, of `most`
 */

/** @param {Props} props */
export function Composer({ draft, place, room, most, agent, blocked, running, editing, hasParameters = true, onSend, onStop, onCancelEdit }) {
  const box = useRef(/** @type {HTMLTextAreaElement | null} */ (null));
  const problem = useSignal('');
  const params = useParameters(agent);
  const id = useId();
  const more = useSignal(false);

  useLayoutEffect(() => grow(box.current), [draft.value.message]);
  useEffect(() => {
    if (editing) box.current?.focus();
  }, [editing]);
  useEffect(() => {
    if (place && mayTakeFocus()) box.current?.focus({ preventScroll: true });
  }, [place]);
  useEffect(() => {
    if (running && document.activeElement === document.body && mayTakeFocus()) box.current?.focus({ preventScroll: true }); // Retry, which is gone, had it
  }, [running]);
  const change = (/** @type {Partial<Draft>} */ part) => (draft.value = { ...draft.value, ...part });
  const add = async (/** @type {Iterable<File>} */ files) => {
    const problems = [];
    for (const file of files) {
      const left = room() - bytesOf(draft.value);
      const { image, text, problem: refusal } = await attached(file, { takes: takenBy(agent.capabilities), room: left, most });
      if (image) change({ images: [...draft.value.images, image] });
      else if (text) change({ files: [...draft.value.files, text] });
      else problems.push(refusal);
    }
    problem.value = problems.join(' ');
  };
  useDrop(add);
  const isEmpty = !draft.value.message.trim() && draft.value.files.length === 0;
  const submit = () => {
    if (blocked || running || isEmpty) return;
    const values = params.read();
    if (!values) {
      more.value = true;
      return;
    }
    problem.value = '';
    onSend({ ...draft.value, params: values });
    box.current?.focus(); // the button that was used is gone
  };
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    submit();
  };
  const onPaste = (/** @type {ClipboardEvent} */ event) => {
    const files = [...(event.clipboardData?.files ?? [])];
    if (!files.length) return;
    event.preventDefault();
    add(files);
  };
  return html`
    <form
      class="composer"
      aria-label="New message"
      noValidate
      onSubmit=${(/** @type {Event} */ event) => (event.preventDefault(), submit())}
    >
      ${editing && html`<p class="hint">${editing} <button type="button" class="link" onClick=${onCancelEdit}>Keep the old one</button></p>`}
      <${Files} files=${draft.value.files} onRemove=${(/** @type {number} */ index) => change({ files: draft.value.files.toSpliced(index, 1) })} />
      <${Thumbnails} images=${draft.value.images} onRemove=${(/** @type {number} */ index) => change({ images: draft.value.images.toSpliced(index, 1) })} />
      ${problem.value && html`<p class="notice error" role="alert">${problem.value}</p>`}
      <div id=${`${id}-more`} class="extras" hidden=${!more.value}>
        <label class="button quiet">
          Add files
          <input class="unseen" type="file" multiple onChange=${(/** @type {any} */ event) => (add([...event.target.files]), (event.target.value = ''))} />
        </label>
        ${hasParameters && params.form}
      </div>
      ${!more.value && params.set > 0 && html`<p class="hint">${params.set === 1 ? '1 parameter is set.' : `${params.set} parameters are set.`}</p>`}
      <div class="line">
        <button type="button" class="quiet" title=${MORE} aria-label=${MORE} aria-expanded=${more.value} aria-controls=${`${id}-more`} onClick=${() => (more.value = !more.value)}><span class="plus" aria-hidden="true"></span></button>
        <label class="unseen" for=${id}>Message</label>
        <textarea
          id=${id}
          ref=${box}
          rows="1"
          enterkeyhint="send"
          placeholder=${`Message ${harmless(agent.title)}`}
          title="Enter sends, Shift+Enter starts a new line"
          value=${draft.value.message}
          onInput=${(/** @type {any} */ event) => change({ message: event.target.value })}
          onKeyDown=${onKeyDown}
          onPaste=${onPaste}
        />
        ${running
          ? html`<button type="button" class="primary" key="stop" onClick=${() => (onStop(), box.current?.focus())}>Stop</button>`
          : html`<button type="submit" class="primary" key="send" disabled=${blocked !== '' || isEmpty} title=${blocked || undefined} aria-describedby=${blocked ? `${id}-blocked` : undefined}>Send</button>`}
        ${blocked && html`<span class="unseen" id=${`${id}-blocked`}>${blocked}</span>`}
      </div>
    </form>
  `;
}

/** True if a conversation that a person has opened may take the focus: nothing else is used, and no keyboard opens on the screen. */
function mayTakeFocus() {
  if (matchMedia('(pointer: coarse)').matches || document.querySelector('dialog[open]')) return false;
  const active = document.activeElement;
  const isOpener = active?.closest('.conversations, .menu') && !active.matches('input');
  return !active || active === document.body || active.matches('main') || isOpener;
}

/**
 * Take files that are dropped anywhere on the page, which would else be left for them.
 * @param {(files: File[]) => void} add
 */
function useDrop(add) {
  const take = useRef(add);
  take.current = add;
  useEffect(() => {
    const onDrag = (/** @type {DragEvent} */ event) => {
      if (!event.dataTransfer?.types.includes('Files')) return;
      event.preventDefault();
      if (event.type === 'drop' && !document.querySelector('dialog[open]')) take.current([...event.dataTransfer.files]);
    };
    for (const type of ['dragover', 'drop']) document.addEventListener(type, /** @type {any} */ (onDrag));
    return () => ['dragover', 'drop'].forEach((type) => document.removeEventListener(type, /** @type {any} */ (onDrag)));
  }, []);
}

/** Text files of a message, folded. */
/** @param {{files: import('../attachments.js').TextFile[], onRemove?: (index: number) => void}} props */
export function Files({ files, onRemove }) {
  if (!files.length) return null;
  return html`
    <ul class="files" aria-label="Files">
      ${files.map((file, index) => html`<${FileChip} file=${file} onRemove=${onRemove && (() => onRemove(index))} />`)}
    </ul>
  `;
}

/** @param {{file: import('../attachments.js').TextFile, onRemove?: () => void}} props */
function FileChip({ file, onRemove }) {
  const opened = useSignal(false);
  const name = harmless(file.name);
  return html`
    <li>
      <details open=${opened.value} onToggle=${(/** @type {any} */ event) => (opened.value = event.target.open)}>
        <summary><span class="file-name">${name}</span> <small>${size(file.text.length)}</small></summary>
        ${opened.value && html`<${Plain} text=${file.text} label=${name} />`}
      </details>
      ${onRemove && html`<button type="button" class="quiet small" aria-label=${`Remove ${name}`} onClick=${onRemove}>×</button>`}
    </li>
  `;
}

/**
 * Give a box the height of its text, in browsers whose styles cannot.
 * @param {HTMLTextAreaElement | null} box
 */
function grow(box) {
  if (!box || CSS.supports('field-sizing', 'content')) return;
  box.style.height = 'auto';
  box.style.height = `${box.scrollHeight + box.offsetHeight - box.clientHeight}px`;
}

/** @param {{images: import('../conversations.js').Image[], onRemove?: (index: number) => void}} props */
export function Thumbnails({ images, onRemove }) {
  if (!images.length) return null;
  return html`
    <ul class="thumbnails" aria-label=${images.some(({ mime_type: type }) => type === PDF) ? 'Images and documents' : 'Images'}>
      ${images.map(
        (image, index) => html`
          <li>
            ${IMAGE_TYPES.includes(image.mime_type) && html`<img src=${`data:${image.mime_type};base64,${image.data}`} alt=${`Image ${index + 1}`} />`}
            ${image.mime_type === PDF && html`<span class="file-name">${harmless(image.name || 'PDF')}</span>`}
            ${onRemove && html`<button type="button" class="quiet" aria-label=${`Remove ${image.mime_type === PDF ? 'document' : 'image'} ${index + 1}`} onClick=${() => onRemove(index)}>×</button>`}
          </li>
        `,
      )}
    </ul>
  `;
}

/** Return the state of a form of parameters. */
export function newParameters() {
  return {
    fields: signal(/** @type {import('../forms.js').Field[] | null} */ (null)),
    values: signal(/** @type {Record<string, any>} */ ({})),
    errors: signal(/** @type {Record<string, string>} */ ({})),
    problem: signal(''),
  };
}

/**
 * The form of the parameters that callers of an agent may set.
 * @param {import('../state.js').Agent} agent
 * @param {ReturnType<typeof newParameters>} [kept] the state of the form, if it outlives its view
 * @returns {{form: any, set: number, read: () => Record<string, any> | null}}
 */
export function useParameters(agent, kept) {
  const own = useMemo(newParameters, []);
  const { fields, values, errors, problem } = kept ?? own;
  const open = async (/** @type {any} */ event) => {
    if (!event.target.open || fields.value) return;
    problem.value = '';
    try {
      fields.value = fieldsOf(await parametersOf(agent));
    } catch (error) {
      problem.value = /** @type {Error} */ (error).message;
    }
  };
  const set = Object.values(values.value).filter((value) => value !== '' && value !== undefined).length;
  const form = html`
    <details class="params" onToggle=${open}>
      <summary>Parameters${set > 0 && ` (${set} set)`}</summary>
      ${fields.value === null && !problem.value && html`<p class="hint" role="status">Reading the agent’s parameters…</p>`}
      ${fields.value?.length === 0 && html`<p class="hint">Callers of this agent may set no parameters.</p>`}
      ${problem.value && html`<p class="notice error">${problem.value}</p>`}
      ${fields.value && html`<div class="grid"><${Fields} fields=${fields.value} values=${values} errors=${errors.value} /></div>`}
    </details>
  `;
  const take = () => {
    const { content, errors: wrong } = read(fields.value ?? [], values.value);
    errors.value = wrong;
    return Object.keys(wrong).length ? null : content;
  };
  return { form, set, read: take };
}
