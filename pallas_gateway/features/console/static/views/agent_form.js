/** The form that makes an agent, or changes one of the gateway's database. */

import { Card, html, signal, useComputed, useEffect, useRef, useSignal } from '../html.js';
import { NUMBERS, LABELS, changedKeys, definitionIn, definitionOf, parameterFields, problemsByField, rebased, valuesOf, withKeys } from '../definition.js';
import { createAgent, readMayUse, readVersions, readWritten, replaceAgent, untilListed } from '../definitions.js';
import { McpError } from '../mcp.js';
import { SCHEMAS } from '../parameters.js';
import { address } from '../route.js';
import { caller, howToBeKnown, token } from '../state.js';
import { harmless } from '../text.js';
import { Check, Examples, ModelField, NumberField, Servers, SubAgents, TextField, ToolLimits, usePart } from './agent_fields.js';
import { Difference } from './difference.js';
import { Fields } from './fields.js';
import { Markdown } from './text.js';
import { Trial, TrialView } from './try.js';

const NOT_FOR_DEFINITIONS = ['extra', 'model', 'system_override'];
const PARAMETERS = Object.fromEntries(Object.entries(SCHEMAS).filter(([name]) => !NOT_FOR_DEFINITIONS.includes(name)));
const LONGEST_REASON = 500;
const BASIC = ['name', 'title', 'description', 'instruction', 'model', 'servers', 'agents', 'examples', '']; // not under “Advanced”
const NOTHING_WRONG = 'The gateway has checked this definition and found nothing wrong.';

/**
 * @typedef {import('../definition.js').Definition} Definition
 * @typedef {{caller: number, form: import('./agent_fields.js').Form, base: Definition, began: string, etag: string, version: number, fields: import('../forms.js').Field[], trial: Trial}} Draft
 *   `began`: what the form held at first
 * @typedef {{version: number, editor: string, before: Definition, theirs: Definition, clashes: string[]}} Conflict
 */

/** @type {Map<string, Draft>} forms that were left without saving, by their places */
const drafts = new Map();

/** @param {{name?: string, copyOf?: string}} props `name`: of the agent to change; else a new one, like `copyOf` */
export function AgentForm({ name = '', copyOf = '' }) {
  const place = JSON.stringify([name, copyOf]);
  const draft = useSignal(/** @type {Draft | null} */ (null));
  const problem = useSignal('');
  const isFound = useSignal(false);
  useEffect(() => {
    let isGone = false;
    const known = drafts.get(place);
    isFound.value = known?.caller === caller.value && isChanged(known);
    if (isFound.value) {
      draft.value = /** @type {Draft} */ (known);
      return undefined;
    }
    draft.value = null;
    newDraft(name, copyOf).then(
      (made) => {
        if (isGone) return;
        drafts.set(place, made);
        draft.value = made;
        problem.value = '';
      },
      (error) => isGone || (problem.value = error.message),
    );
    return () => {
      isGone = true;
    };
  }, [place, caller.value]);
  const title = name ? `Edit ${name}` : copyOf ? `Copy of ${copyOf}` : 'New agent';
  const back = name || copyOf ? address('agents', name || copyOf, 'details') : address('agents');
  const leave = () => {
    drafts.delete(place);
    location.hash = back;
  };
  return html`
    <div class="heading"><h1>${title}</h1></div>
    ${problem.value && html`<p class="notice error" role="alert">${harmless(problem.value)}</p>`}
    ${!draft.value && !problem.value && html`<p class="empty" role="status">Loading the form…</p>`}
    ${isFound.value && html`<p class="notice">This is what you had typed here before. It is not saved.</p>`}
    ${draft.value && html`<${Form} key=${place} draft=${draft.value} name=${name} onDone=${() => drafts.delete(place)} onCancel=${leave} />`}
  `;
}

/**
 * @param {string} name
 * @param {string} copyOf
 * @returns {Promise<Draft>}
 */
async function newDraft(name, copyOf) {
  const asking = caller.value;
  const [mayUse, stored] = await Promise.all([readMayUse(), name || copyOf ? readWritten(name || copyOf) : { document: {}, written: {}, etag: '' }]);
  if (!name && !mayUse.mayCreate) throw new McpError(token.value ? 'This token may not create agents.' : `Callers without a token may not create agents. ${howToBeKnown()}`);
  const base = definitionIn(stored.written);
  const fields = parameterFields(PARAMETERS, base);
  const values = signal(valuesOf(name, base, mayUse, fields));
  const form = { values, problems: signal({}), mayUse, set: (/** @type {any} */ part) => (values.value = { ...values.value, ...part }) };
  return { caller: asking, form, base, began: JSON.stringify(values.value), etag: stored.etag, version: stored.document.version, fields, trial: new Trial() };
}

/** @param {Draft} draft */
function isChanged({ form, began }) {
  return JSON.stringify(form.values.peek()) !== began;
}

/** @param {{draft: Draft, name: string, onDone: () => void, onCancel: () => void}} props */
function Form({ draft, name, onDone, onCancel }) {
  const { form } = draft;
  const busy = useSignal('');
  const said = useSignal({ text: '', isError: false });
  const conflict = useSignal(/** @type {Conflict | null} */ (null));
  const wrong = useSignal(/** @type {string[] | null} */ (null)); // problems that belong to no field; null if there is no problem
  const element = useRef(/** @type {HTMLFormElement | null} */ (null));
  const isSaved = useRef(false);
  const why = useSignal('');
  useEffect(() => {
    const ask = (/** @type {Event} */ event) => isChanged(draft) && !isSaved.current && event.preventDefault();
    window.addEventListener('beforeunload', ask);
    return () => window.removeEventListener('beforeunload', ask);
  }, [draft]);
  useEffect(() => {
    if (wrong.value || conflict.value) focusFirst(element.current);
  }, [wrong.value, conflict.value]);

  const show = (/** @type {import('../definition.js').Problem[]} */ problems, /** @type {Definition} */ definition) => {
    const { '': general = [], ...byField } = problemsByField(problems, definition);
    form.problems.value = byField;
    wrong.value = general;
  };
  const written = (/** @type {import('../definition.js').Problem[]} */ more) => {
    const { definition, problems } = definitionOf(form.values.value, draft.base, form.mayUse, draft.fields);
    form.problems.value = {};
    wrong.value = null;
    if (more.length + problems.length === 0) return definition;
    show([...more, ...problems], definition);
    return null;
  };
  const tried = () => {
    const definition = written([]);
    return definition && { name: name || form.values.value.name.trim(), definition, isNew: !name };
  };
  const title = useComputed(() => form.values.value.title.trim() || name || form.values.value.name.trim() || 'Unsaved');
  const examples = useComputed(() => form.values.value.examples.filter((/** @type {string} */ text) => text.trim()));
  const send = async (/** @type {boolean} */ isCheck) => {
    if (busy.value) return;
    conflict.value = null;
    said.value = { text: '', isError: false };
    const own = name || form.values.value.name.trim();
    const definition = written(own ? [] : [{ path: 'name', message: 'Enter a name.' }]);
    if (!definition) return;
    busy.value = isCheck ? 'check' : 'save';
    try {
      await (name ? replaceAgent(name, definition, draft.etag, isCheck, why.value) : createAgent({ name: own, ...definition }, isCheck));
      if (isCheck) said.value = { text: NOTHING_WRONG, isError: false };
      else await saved(own);
    } catch (error) {
      await refused(/** @type {McpError} */ (error), definition);
    } finally {
      busy.value = '';
    }
  };
  const saved = async (/** @type {string} */ own) => {
    isSaved.current = true;
    onDone();
    await untilListed(own, true);
    location.hash = address('agents', own, 'details');
  };
  const refused = async (/** @type {McpError} */ error, /** @type {Definition} */ definition) => {
    const { reason, problems } = /** @type {any} */ (error.data ?? {});
    if (error.status === 422 && Array.isArray(problems)) show(problems, definition);
    else if (reason === 'name_taken') show([{ path: 'name', message: error.message }], definition);
    else if (error.status === 412) await takeTheirs(definition);
    else said.value = { text: error.message, isError: true };
  };
  const takeTheirs = async (/** @type {Definition} */ mine) => {
    try {
      const [stored, versions] = await Promise.all([readWritten(name), readVersions(name)]);
      const [before, theirs] = [draft.base, definitionIn(stored.written)];
      const fields = parameterFields(PARAMETERS, theirs);
      const { values, clashes } = rebased(form.values.value, { base: before, mine, theirs, mayUse: form.mayUse, fields });
      form.values.value = values;
      Object.assign(draft, { base: theirs, etag: stored.etag, version: stored.document.version });
      const editor = versions.find(({ version }) => version === stored.document.version)?.editor ?? 'another';
      conflict.value = { version: stored.document.version, editor, before, theirs, clashes };
    } catch (error) {
      said.value = { text: /** @type {Error} */ (error).message, isError: true };
    }
  };
  const take = (/** @type {string} */ key, /** @type {Conflict} */ at) => {
    form.values.value = withKeys(form.values.value, [key], at.theirs, form.mayUse, parameterFields(PARAMETERS, at.theirs));
    conflict.value = { ...at, clashes: at.clashes.filter((one) => one !== key) };
  };
  return html`
    <div class="halves">
    <form ref=${element} class="agent-form sections" aria-label="Agent" noValidate onSubmit=${(/** @type {Event} */ event) => (event.preventDefault(), send(false))}>
      ${conflict.value && html`<${Meanwhile} conflict=${conflict.value} onTake=${(/** @type {string} */ key) => take(key, /** @type {Conflict} */ (conflict.value))} />`}
      ${wrong.value && html`<${Wrong} general=${wrong.value} />`}
      <${About} form=${form} name=${name} />
      <${Card} id="form-tools" title="Tools">
        <${Servers} form=${form} />
        <${SubAgents} form=${form} />
      <//>
      <section class="card" aria-label="Examples"><${Examples} form=${form} /></section>
      <${Advanced} form=${form} fields=${draft.fields} />
      <div class="form-actions actions">
        ${name && html`<input aria-label="Reason of the change" placeholder="Why? (optional)" maxlength=${LONGEST_REASON} value=${why.value} onInput=${(/** @type {any} */ event) => (why.value = event.target.value)} />`}
        <button type="submit" class="primary" disabled=${busy.value !== ''}>${busy.value === 'save' ? 'Saving…' : 'Save'}</button>
        <button type="button" disabled=${busy.value !== ''} onClick=${() => send(true)}>${busy.value === 'check' ? 'Checking…' : 'Check'}</button>
        <button type="button" class="quiet" onClick=${onCancel}>Cancel</button>
        <p class=${said.value.isError ? 'wrong' : 'hint'} role=${said.value.isError ? 'alert' : 'status'}>${harmless(said.value.text)}</p>
      </div>
    </form>
    <${TrialView} trial=${draft.trial} title=${title.value} examples=${examples.value} onTry=${tried} onRefused=${show} />
    </div>
  `;
}

/** @param {{form: import('./agent_fields.js').Form, name: string}} props */
function About({ form, name }) {
  const isPreviewed = useSignal(false);
  return html`
    <${Card} id="form-about" title="About">
      ${name
        ? html`<p class="hint">Its name <code>${name}</code> is part of its address, and stays.</p>`
        : html`<${TextField} form=${form} field="name" isRequired hint="Letters, digits and - _ . at most 64. It is part of the agent’s address." />`}
      <${TextField} form=${form} field="title" hint="As people read it." />
      <${TextField} form=${form} field="description" hint="One line about what it does; other agents read it, too." />
      <${TextField} form=${form} field="instruction" rows=${14} isRequired isCode hint="The system prompt. {{currentDate}} and {{serverInstructions}} are replaced in each call." />
      <div class="actions"><button type="button" class="quiet" aria-pressed=${isPreviewed.value ? 'true' : 'false'} onClick=${() => (isPreviewed.value = !isPreviewed.value)}>Preview</button></div>
      ${isPreviewed.value && html`<${Preview} form=${form} />`}
      <${ModelField} form=${form} />
    <//>
  `;
}

/** @param {{form: import('./agent_fields.js').Form}} props */
function Preview({ form }) {
  const text = usePart(form, 'instruction');
  return html`<div class="preview-of" role="region" tabindex="0" aria-label="Preview of the instruction">${text.trim() ? html`<${Markdown} text=${text} />` : html`<p class="hint">The instruction is empty.</p>`}</div>`;
}

/** What few agents need; it is open while something in it is wrong. */
/** @param {{form: import('./agent_fields.js').Form, fields: import('../forms.js').Field[]}} props */
function Advanced({ form, fields }) {
  const [params, isDestructive, humanInput] = [usePart(form, 'params'), usePart(form, 'isDestructive'), usePart(form, 'humanInput')];
  const problems = form.problems.value;
  const errors = Object.fromEntries(fields.map(({ name }) => [name, problems[`params/${name}`]?.join(' ') ?? '']).filter(([, text]) => text));
  const set = Object.values(params).filter((value) => value !== '' && value !== undefined).length;
  const isWrong = Object.keys(problems).some((key) => !BASIC.includes(key.split('/')[0]));
  const isOpen = useSignal(false);
  const areOpen = useSignal(false);
  const values = { get value() { return params; }, set value(next) { form.set({ params: next }); } };
  const always = form.mayUse.approve ?? [];
  const hint = `One SERVER/TOOL a line, also with * and ?. The caller is asked before such a tool runs.${always.length ? ` Always asked for here: ${harmless(always.join(', '))}.` : ''}`;
  const toggled = (/** @type {any} */ open) => (/** @type {any} */ event) => event.target === event.currentTarget && (open.value = event.target.open);
  return html`
    <details class="card" open=${isOpen.value || isWrong} onToggle=${toggled(isOpen)}>
      <summary><h2>Advanced</h2></summary>
      <div class="sections">
      <${TextField} form=${form} field="icon" hint="URL of an image." />
      <details class="params" open=${areOpen.value || Object.keys(errors).length > 0} onToggle=${toggled(areOpen)}>
        <summary>Parameters of its calls${set > 0 && ` (${set} set)`}</summary>
        ${problems.params && html`<p class="hint"><strong class="wrong">${harmless(problems.params.join(' '))}</strong></p>`}
        <div class="grid"><${Fields} fields=${fields} values=${values} errors=${errors} /></div>
      </details>
      <${Check} label="Ask before destructive tools" checked=${isDestructive} hint="Those that say so themselves." onChange=${(/** @type {boolean} */ on) => form.set({ isDestructive: on })} />
      <${TextField} form=${form} field="approve" rows=${3} isCode hint=${hint} />
      <${Check} label=${LABELS.humanInput} checked=${humanInput} hint="The model gets a tool by which it asks the person who called it." onChange=${(/** @type {boolean} */ on) => form.set({ humanInput: on })} />
      <div class="grid">${NUMBERS.map(({ key, normal, hint: about }) => html`<${NumberField} key=${key} form=${form} field=${key} hint=${about} placeholder=${normal} />`)}</div>
      <${ToolLimits} form=${form} />
      </div>
    </details>
  `;
}

/** @param {{general: string[]}} props */
function Wrong({ general }) {
  return html`<div class="notice error" role="alert" tabindex="-1">
    ${general.length ? general.map((text) => html`<p>${harmless(text)}</p>`) : html`<p>Some fields are wrong.</p>`}
  </div>`;
}

/** What another has saved meanwhile. */
/** @param {{conflict: Conflict, onTake: (key: string) => void}} props */
function Meanwhile({ conflict: { version, editor, before, theirs, clashes }, onTake }) {
  const isSame = changedKeys(before, theirs).length === 0;
  return html`
    <section class="card conflict" aria-labelledby="form-meanwhile" tabindex="-1" data-first>
      <h2 id="form-meanwhile">Saved meanwhile</h2>
      <p role="alert">Version ${version} was saved by ${harmless(editor)} while you were editing. Nothing of yours is saved yet. What you typed is kept; save again to
        store it as the next version.</p>
      ${!isSame && html`<${Difference} before=${before} after=${theirs} names=${['Before', `Version ${version}`]} />`}
      ${clashes.map((key) => html`<p key=${key} class="actions"><span>You changed ${LABELS[key]} as well.</span><button type="button" onClick=${() => onTake(key)}>Take ${LABELS[key]} of version ${version}</button></p>`)}
    </section>
  `;
}

/** @param {HTMLElement | null} form */
function focusFirst(form) {
  const found = form?.querySelector('[data-first], [aria-invalid="true"], [data-wrong] :is(input, textarea, button)') ?? form?.querySelector('[role="alert"]');
  /** @type {HTMLElement | undefined} */ (found)?.focus();
}
