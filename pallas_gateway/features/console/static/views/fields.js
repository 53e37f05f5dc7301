/** The fields of a form that a JSON schema describes. */

import { own } from '../forms.js';
import { html, useId } from '../html.js';

/**
 * @typedef {import('../forms.js').Field} Field
 * @typedef {import('../vendor/preact-signals.js').Signal<Record<string, any>>} Values
 */

/** @param {{fields: Field[], values: any, errors: Record<string, string>}} props */
export function Fields({ fields, values, errors }) {
  return fields.map((field) => html`<${OneField} key=${field.name} field=${field} values=${values} error=${own(errors, field.name) ?? ''} />`);
}

/** @param {Field[]} fields */
export function initialValues(fields) {
  return Object.fromEntries(fields.map((field) => [field.name, field.initial]));
}

/** @param {{field: Field, values: any, error: string}} props */
function OneField({ field, values, error }) {
  const id = useId();
  const value = own(values.value, field.name);
  const set = (/** @type {any} */ next) => (values.value = { ...values.value, [field.name]: next });
  const about = `${id}-about`;
  const common = {
    id,
    'aria-invalid': error ? 'true' : undefined,
    'aria-describedby': field.description || error ? about : undefined,
    'aria-required': field.required ? 'true' : undefined,
  };
  const note = html`<p class="hint" id=${about}>${field.description}${error && html` <strong class="wrong">${error}</strong>`}</p>`;
  if (field.kind === 'boolean') {
    return html`<div class="field"><label class="check"><input type="checkbox" ...${common} checked=${value} onChange=${(/** @type {any} */ event) => set(event.target.checked)} />${field.label}</label>${note}</div>`;
  }
  if (field.kind === 'choices') return html`<${Choices} field=${field} value=${value ?? []} set=${set} note=${note} />`;
  return html`<div class="field"><label for=${id}>${field.label}${field.required && html` <span class="hint">(required)</span>`}</label>${control(field, value, set, common)}${note}</div>`;
}

/**
 * @param {Field} field
 * @param {any} value
 * @param {(value: any) => void} set
 * @param {Record<string, any>} common
 */
function control(field, value, set, common) {
  const typed = (/** @type {any} */ event) => set(event.target.value);
  if (field.kind === 'choice') {
    const index = field.choices.findIndex((choice) => choice.value === value);
    const chosen = (/** @type {any} */ event) => set(field.choices[Number(event.target.value)]?.value);
    return html`
      <select ...${common} value=${String(index)} onChange=${chosen}>
        <option value="-1">${field.required ? 'Choose…' : '(none)'}</option>
        ${field.choices.map((choice, at) => html`<option value=${String(at)}>${choice.label}</option>`)}
      </select>
    `;
  }
  if (field.kind === 'lines' || field.kind === 'json') {
    return html`<textarea ...${common} rows="3" spellcheck=${field.kind === 'lines'} value=${value} onInput=${typed} placeholder=${field.kind === 'json' ? 'JSON' : ''} />`;
  }
  return html`<input ...${common} type=${typeOf(field)} inputmode=${field.kind === 'text' ? undefined : 'decimal'} autocomplete="off" value=${value} onInput=${typed} />`;
}

/** @param {Field} field */
function typeOf(field) {
  if (field.secret) return 'password';
  const types = /** @type {Record<string, string>} */ ({ email: 'email', uri: 'url', date: 'date', 'date-time': 'datetime-local' });
  return field.kind === 'text' ? (types[field.format] ?? 'text') : 'text';
}

/** @param {{field: Field, value: any[], set: (value: any[]) => void, note: any}} props */
function Choices({ field, value, set, note }) {
  const toggle = (/** @type {any} */ choice, /** @type {boolean} */ on) =>
    set(on ? [...value, choice] : value.filter((one) => one !== choice));
  return html`
    <fieldset class="field">
      <legend>${field.label}</legend>
      ${field.choices.map(
        (choice) => html`<label class="check"><input type="checkbox" checked=${value.includes(choice.value)} onChange=${(/** @type {any} */ event) => toggle(choice.value, event.target.checked)} />${choice.label}</label>`,
      )}
      ${note}
    </fieldset>
  `;
}
