/** Where a message is written: text, images by paste, drop and picker, and the parameters of the call. */

import { html, useEffect, useId, useLayoutEffect, useRef, useSignal } from '../html.js';
import { fieldsOf, read } from '../forms.js';
import { parametersOf } from '../parameters.js';
import { harmless } from '../text.js';
import { Fields } from './fields.js';

/** @type {Record<string, RegExp>} the first bytes of images by their type */
const BEGINNINGS = { 'image/png': /^\x89PNG\r\n/, 'image/jpeg': /^\xff\xd8\xff/, 'image/gif': /^GIF8[79]a/, 'image/webp': /^RIFF[^]{4}WEBP/ };
const TYPES = Object.keys(BEGINNINGS);
const LARGEST_IMAGE = 20_000_000;
const NO_IMAGE = 'is no PNG, JPEG, GIF or WebP image.';
const MORE = 'Files and parameters';
const NO_VISION = 'The model of this agent accepts no images.';

/**
 * @typedef {{message: string, images: import('../conversations.js').Image[], params: Record<string, any>}} Draft
 * @typedef {{draft: any, agent: import('../state.js').Agent, blocked: string, running: boolean, editing: string,
 *   onSend: (draft: Draft) => void, onStop: () => void, onCancelEdit: () => void}} Props
 */

/** @param {Props} props */
export function Composer({ draft, agent, blocked, running, editing, onSend, onStop, onCancelEdit }) {
  const box = useRef(/** @type {HTMLTextAreaElement | null} */ (null));
  const problem = useSignal('');
  const params = useParameters(agent);
  const mayPickImages = agent.capabilities.vision !== false;
  const id = useId();
  const more = useSignal(false);

  useLayoutEffect(() => grow(box.current), [draft.value.message]);
  useEffect(() => {
    if (editing) box.current?.focus();
  }, [editing]);
  const change = (/** @type {Partial<Draft>} */ part) => (draft.value = { ...draft.value, ...part });
  const add = async (/** @type {Iterable<File>} */ files) => {
    problem.value = '';
    for (const file of files) {
      const image = refusal(file, agent) ? null : await imageOf(file);
      if (image) change({ images: [...draft.value.images, image] });
      else problem.value = refusal(file, agent) || `“${file.name}” ${NO_IMAGE}`;
    }
  };
  const submit = () => {
    if (blocked || running || !draft.value.message.trim()) return;
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
  const onDrop = (/** @type {DragEvent} */ event) => {
    event.preventDefault();
    add([...(event.dataTransfer?.files ?? [])]);
  };
  return html`
    <form
      class="composer"
      aria-label="New message"
      noValidate
      onSubmit=${(/** @type {Event} */ event) => (event.preventDefault(), submit())}
      onDragOver=${(/** @type {Event} */ event) => event.preventDefault()}
      onDrop=${onDrop}
    >
      ${editing && html`<p class="hint">${editing} <button type="button" class="link" onClick=${onCancelEdit}>Keep the old one</button></p>`}
      <${Thumbnails} images=${draft.value.images} onRemove=${(/** @type {number} */ index) => change({ images: draft.value.images.toSpliced(index, 1) })} />
      ${problem.value && html`<p class="notice error" role="alert">${problem.value}</p>`}
      <div id=${`${id}-more`} class="extras" hidden=${!more.value}>
        <label class=${`button quiet ${mayPickImages ? '' : 'off'}`} title=${mayPickImages ? undefined : NO_VISION}>
          Add images
          <input class="hidden" type="file" multiple accept=${TYPES.join(',')} disabled=${!mayPickImages} onChange=${(/** @type {any} */ event) => (add([...event.target.files]), (event.target.value = ''))} />
        </label>
        ${params.form}
      </div>
      ${!more.value && params.set > 0 && html`<p class="hint">${params.set === 1 ? '1 parameter is set.' : `${params.set} parameters are set.`}</p>`}
      <div class="line">
        <button type="button" class="quiet" title=${MORE} aria-label=${MORE} aria-expanded=${more.value} aria-controls=${`${id}-more`} onClick=${() => (more.value = !more.value)}><span class="plus" aria-hidden="true"></span></button>
        <label class="hidden" for=${id}>Message</label>
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
          : html`<button type="submit" class="primary" key="send" disabled=${blocked !== '' || !draft.value.message.trim()} title=${blocked || undefined} aria-describedby=${blocked ? `${id}-blocked` : undefined}>Send</button>`}
        ${blocked && html`<span class="unseen" id=${`${id}-blocked`}>${blocked}</span>`}
      </div>
    </form>
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
    <ul class="thumbnails" aria-label="Images">
      ${images.map(
        (image, index) => html`
          <li>
            ${TYPES.includes(image.mime_type) && html`<img src=${`data:${image.mime_type};base64,${image.data}`} alt=${`Image ${index + 1}`} />`}
            ${onRemove && html`<button type="button" class="quiet" aria-label=${`Remove image ${index + 1}`} onClick=${() => onRemove(index)}>×</button>`}
          </li>
        `,
      )}
    </ul>
  `;
}

/**
 * The form of the parameters that callers of an agent may set.
 * @param {import('../state.js').Agent} agent
 * @returns {{form: any, set: number, read: () => Record<string, any> | null}}
 */
function useParameters(agent) {
  const fields = useSignal(/** @type {import('../forms.js').Field[] | null} */ (null));
  const values = useSignal(/** @type {Record<string, any>} */ ({}));
  const errors = useSignal(/** @type {Record<string, string>} */ ({}));
  const problem = useSignal('');
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

/**
 * @param {File} file
 * @param {import('../state.js').Agent} agent
 */
function refusal(file, agent) {
  if (agent.capabilities.vision === false) return NO_VISION;
  return file.size > LARGEST_IMAGE ? `“${file.name}” is larger than ${LARGEST_IMAGE / 1_000_000} MB.` : '';
}

/**
 * Return the image in a file, with the type that its content has; null if a browser cannot show it.
 * @param {File} file
 * @returns {Promise<import('../conversations.js').Image | null>}
 */
async function imageOf(file) {
  const begin = String.fromCharCode(...new Uint8Array(await file.slice(0, 12).arrayBuffer()));
  const type = TYPES.find((one) => BEGINNINGS[one].test(begin));
  if (!type) return null;
  try {
    (await createImageBitmap(file)).close();
  } catch {
    return null; // its beginning is an image's, and the rest is not
  }
  return { data: await base64Of(file), mime_type: type };
}

/**
 * @param {File} file
 * @returns {Promise<string>}
 */
function base64Of(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(String(reader.result).replace(/^[^,]*,/, ''));
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}
