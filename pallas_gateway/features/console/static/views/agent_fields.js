/** The fields of an agent's form: texts, numbers, lists, and the servers, tools and agents to tick. */

import { html, useComputed, useId } from '../html.js';
import { LABELS } from '../definition.js';
import { cut, harmless } from '../text.js';

/**
 * @typedef {import('../definition.js').Values} Values
 * @typedef {{values: any, problems: any, mayUse: import('../definition.js').MayUse, set: (part: Partial<Values>) => void}} Form
 *   the signals of what it holds and of its problems by field
 */

const LONGEST_HINT = 200;

/**
 * Return one value of a form; the component is drawn again when that one changes.
 * @param {Form} form
 * @param {keyof Values} key
 */
export function usePart(form, key) {
  return useComputed(() => form.values.value[key]).value;
}

/**
 * @param {Form} form
 * @param {string} field
 * @returns {string[]}
 */
function useProblems(form, field) {
  return useComputed(() => form.problems.value[field]).value ?? [];
}

/** @param {{id: string, hint?: string, problems: string[]}} props */
function Note({ id, hint = '', problems }) {
  if (!hint && problems.length === 0) return null;
  return html`<p class="hint" id=${id}>${hint}${problems.map((text) => html` <strong class="wrong">${harmless(cut(text, 1000))}</strong>`)}</p>`;
}

/** One field with its label, its hint and its problems. */
/** @param {{form: Form, field: string, label?: string, hint?: string, isRequired?: boolean, children: (common: Record<string, any>) => any}} props */
export function Field({ form, field, label = LABELS[field], hint = '', isRequired = false, children }) {
  const id = useId();
  const problems = useProblems(form, field);
  const common = {
    id,
    'aria-invalid': problems.length ? 'true' : undefined,
    'aria-describedby': hint || problems.length ? `${id}-about` : undefined,
    'aria-required': isRequired ? 'true' : undefined,
  };
  return html`<div class="field"><label for=${id}>${label}${isRequired && html` <span class="hint" aria-hidden="true">(required)</span>`}</label>${children(common)}<${Note} id=${`${id}-about`} hint=${hint} problems=${problems} /></div>`;
}

/**
 * A text of the form.
 * @param {{form: Form, field: 'name' | 'title' | 'description' | 'icon' | 'instruction' | 'approve', hint?: string, rows?: number, placeholder?: string,
 *   isRequired?: boolean, isCode?: boolean}} props
 */
export function TextField({ form, field, rows = 0, placeholder = '', isCode = false, ...props }) {
  const value = usePart(form, field);
  const typed = (/** @type {any} */ event) => form.set({ [field]: event.target.value });
  return html`<${Field} form=${form} field=${field} ...${props}>
    ${(/** @type {any} */ common) =>
      rows
        ? html`<textarea ...${common} rows=${rows} value=${value} placeholder=${placeholder} spellcheck=${!isCode} class=${isCode ? 'code' : undefined} onInput=${typed} />`
        : html`<input ...${common} value=${value} placeholder=${placeholder} autocomplete="off" onInput=${typed} />`}
  <//>`;
}

/** @param {{form: Form, field: string, hint: string, placeholder: string}} props */
export function NumberField({ form, field, hint, placeholder }) {
  const numbers = usePart(form, 'numbers');
  const most = form.mayUse.most?.[field];
  const bound = typeof most === 'number' ? ` At most ${most.toLocaleString()}.` : '';
  const typed = (/** @type {any} */ event) => form.set({ numbers: { ...numbers, [field]: event.target.value } });
  return html`<${Field} form=${form} field=${field} hint=${`${hint}${bound}`}>
    ${(/** @type {any} */ common) => html`<input ...${common} inputmode="decimal" autocomplete="off" value=${numbers[field]} placeholder=${placeholder} onInput=${typed} />`}
  <//>`;
}

/** @param {{label: string, checked: boolean, onChange: (checked: boolean) => void, hint?: string}} props */
export function Check({ label, checked, onChange, hint = '' }) {
  const id = useId();
  return html`
    <div>
      <label class="check"><input type="checkbox" checked=${checked} aria-describedby=${hint ? id : undefined} onChange=${(/** @type {any} */ event) => onChange(event.target.checked)} /><span>${label}</span></label>
      ${hint && html`<p class="hint under-check" id=${id}>${hint}</p>`}
    </div>
  `;
}

/** Fields that belong together, with their problems. */
/** @param {{form: Form, field: string, label: any, hint?: string, children?: any}} props */
function Group({ form, field, label, hint = '', children }) {
  const id = useId();
  const problems = useProblems(form, field);
  return html`
    <fieldset class="field group" aria-describedby=${hint || problems.length ? id : undefined} data-wrong=${problems.length ? 'true' : undefined}>
      <legend>${label}</legend>
      <${Note} id=${id} hint=${hint} problems=${problems} />
      ${children}
    </fieldset>
  `;
}

/** The model, from those that are released; with patterns among them any name may be written. */
/** @param {{form: Form}} props */
export function ModelField({ form }) {
  const model = usePart(form, 'model');
  const { models, modelPatterns: patterns, defaultModel } = form.mayUse;
  const names = [...new Set([...models, ...(model ? [model] : [])])];
  const isOpen = patterns.some((one) => /[*?[]/.test(one));
  const typed = (/** @type {any} */ event) => form.set({ model: event.target.value });
  const none = defaultModel ? `Default of the gateway (${harmless(defaultModel)})` : 'Choose…';
  return html`<${Field} form=${form} field="model" hint=${isOpen ? `Released are: ${harmless(cut(patterns.join(', '), LONGEST_HINT))}.` : ''}>
    ${(/** @type {any} */ common) =>
      isOpen
        ? html`
            <input ...${common} list=${`${common.id}-list`} value=${model} placeholder=${defaultModel ? none : ''} autocomplete="off" onInput=${typed} />
            <datalist id=${`${common.id}-list`}>${names.map((name) => html`<option value=${name} />`)}</datalist>
          `
        : html`
            <select ...${common} value=${model} onChange=${typed}>
              <option value="">${none}</option>
              ${names.map((name) => html`<option value=${name}>${harmless(name)}${models.includes(name) ? '' : ' (not released)'}</option>`)}
            </select>
          `}
  <//>`;
}

/** The servers to tick, each with its tools. */
/** @param {{form: Form}} props */
export function Servers({ form }) {
  const ticked = usePart(form, 'servers');
  const names = [...new Set([...form.mayUse.servers.map(({ name }) => name), ...Object.keys(ticked)])];
  return html`
    <${Group} form=${form} field="servers" label="Servers" hint=${names.length ? '' : 'No server is released for agents that are made here.'}>
      ${names.map((name) => html`<${Server} key=${name} form=${form} name=${name} ticked=${Object.hasOwn(ticked, name) ? ticked[name] : null} />`)}
    <//>
  `;
}

/** @param {{form: Form, name: string, ticked: import('../definition.js').Ticked | null}} props */
function Server({ form, name, ticked }) {
  const released = form.mayUse.servers.find((one) => one.name === name);
  const change = (/** @type {import('../definition.js').Ticked | null} */ next) => {
    const others = Object.entries(form.values.value.servers).filter(([one]) => one !== name);
    const all = next ? [...others, [name, next]] : others; // a server may have any name, such as `__proto__`
    form.set({ servers: Object.fromEntries(/** @type {any} */ (all)), isPicked: true });
  };
  const label = html`<label class="check"><input type="checkbox" checked=${ticked !== null} onChange=${(/** @type {any} */ event) => change(event.target.checked ? { isWhole: true, tools: [] } : null)} /><span>${harmless(name)}</span></label>`;
  const names = ticked ? '' : harmless(cut((released?.tools ?? []).map((tool) => tool.name).join(', '), LONGEST_HINT));
  const hint = released ? names : 'This server is not released.';
  return html`<${Group} form=${form} field=${`servers/${name}`} label=${label} hint=${hint}>
    ${ticked && html`<${Tools} server=${released} ticked=${ticked} change=${change} />`}
  <//>`;
}

/** @param {{server: import('../definition.js').Released | undefined, ticked: import('../definition.js').Ticked, change: (next: any) => void}} props */
function Tools({ server, ticked, change }) {
  const known = server?.tools ?? [];
  const names = [...new Set([...known.map(({ name }) => name), ...ticked.tools])];
  const about = new Map(known.map(({ name, description }) => [name, description]));
  const some = (/** @type {string[]} */ tools) => change({ isWhole: false, tools });
  const present = ticked.isWhole ? known.map(({ name }) => name) : ticked.tools;
  const toggle = (/** @type {string} */ tool, /** @type {boolean} */ isOn) => some(isOn ? [...present, tool] : present.filter((one) => one !== tool));
  return html`<div class="inside">
    <${Check} label="All released tools" checked=${ticked.isWhole} hint=${!server || server.tools ? 'Also those that are released later.' : harmless(cut(server.globs.join(', '), LONGEST_HINT))}
      onChange=${(/** @type {boolean} */ isOn) => change({ isWhole: isOn, tools: [] })} />
    ${(names.length > 0 || !ticked.isWhole) &&
    html`<div class="tool-choices">
      ${names.map((tool) => html`<${Check} key=${tool} label=${harmless(tool)} checked=${present.includes(tool)} hint=${harmless(cut(about.get(tool) ?? '', LONGEST_HINT))} onChange=${(/** @type {boolean} */ isOn) => toggle(tool, isOn)} />`)}
      ${!server?.tools && !ticked.isWhole && html`<${Named} reason=${server?.reason} onAdd=${(/** @type {string} */ tool) => toggle(tool, true)} known=${names} />`}
    </div>`}
  </div>`;
}

/** Adds a tool by its name, where the tools are not known. */
/** @param {{reason?: string, known: string[], onAdd: (tool: string) => void}} props */
function Named({ reason, known, onAdd }) {
  const id = useId();
  const add = (/** @type {any} */ event) => {
    if (event.type === 'keydown' && event.key !== 'Enter') return;
    event.preventDefault();
    const input = /** @type {HTMLInputElement} */ (document.getElementById(id));
    const tool = input.value.trim();
    if (tool && !known.includes(tool)) onAdd(tool);
    input.value = '';
    input.focus();
  };
  return html`
    <div class="field">
      <p class="hint">The tools of this server are not known now. ${reason && harmless(reason)}</p>
      <label for=${id}>Name or pattern of a tool</label>
      <div class="row"><input id=${id} autocomplete="off" onKeyDown=${add} /><button type="button" onClick=${add}>Add</button></div>
    </div>
  `;
}

/** @param {{form: Form}} props */
export function SubAgents({ form }) {
  const ticked = usePart(form, 'agents');
  const own = form.values.value.name;
  const known = form.mayUse.agents.filter(({ name }) => name !== own);
  const names = [...new Set([...known.map(({ name }) => name), ...ticked])];
  const titles = new Map(known.map(({ name, title, description }) => [name, description || title]));
  const toggle = (/** @type {string} */ name, /** @type {boolean} */ isOn) =>
    form.set({ agents: isOn ? [...ticked, name] : ticked.filter((/** @type {string} */ one) => one !== name) });
  return html`<${Group} form=${form} field="agents" label="Sub-agents" hint=${names.length ? 'It can call these agents as it calls tools.' : 'No agent is released as a sub-agent.'}>
    ${names.map((name) => html`<${Check} key=${name} label=${harmless(name)} checked=${ticked.includes(name)} hint=${titles.has(name) ? harmless(titles.get(name)) : 'This agent is not released.'} onChange=${(/** @type {boolean} */ isOn) => toggle(name, isOn)} />`)}
  <//>`;
}

/** @param {{form: Form}} props */
export function ToolLimits({ form }) {
  const rows = usePart(form, 'toolLimits');
  const set = (/** @type {any[]} */ next) => form.set({ toolLimits: next });
  return html`<${Rows} form=${form} field="toolLimits" rows=${rows} hint="Calls of tools in one call, by SERVER/TOOL, also with * and ?." what="limit" empty=${{ glob: '', calls: '' }} set=${set}>
    ${(/** @type {any} */ row, /** @type {number} */ index) => {
      const typed = (/** @type {string} */ key) => (/** @type {any} */ event) => set(rows.with(index, { ...row, [key]: event.target.value }));
      return html`
        <input aria-label=${`Tool of limit ${index + 1}`} value=${row.glob} placeholder="search/*" autocomplete="off" onInput=${typed('glob')} />
        <input class="short" aria-label=${`Calls of limit ${index + 1}`} value=${row.calls} placeholder="10" inputmode="numeric" autocomplete="off" onInput=${typed('calls')} />
      `;
    }}
  <//>`;
}

/** @param {{form: Form}} props */
export function Examples({ form }) {
  const rows = usePart(form, 'examples');
  const set = (/** @type {string[]} */ next) => form.set({ examples: next });
  return html`<${Rows} form=${form} field="examples" rows=${rows} hint="Messages that people may send it." what="example" empty="" set=${set}>
    ${(/** @type {string} */ text, /** @type {number} */ index) =>
      html`<textarea rows="2" aria-label=${`Example ${index + 1}`} value=${text} onInput=${(/** @type {any} */ event) => set(rows.with(index, event.target.value))} />`}
  <//>`;
}

/** Rows that are added and removed; a new one gets the focus. */
/** @param {{form: Form, field: string, rows: any[], hint: string, what: string, empty: any, set: (rows: any[]) => void, children: (row: any, index: number) => any}} props */
function Rows({ form, field, rows, hint, what, empty, set, children }) {
  const id = useId();
  const focus = (/** @type {string} */ selector) => setTimeout(() => /** @type {HTMLElement | null} */ (document.getElementById(id)?.querySelector(selector))?.focus());
  const add = () => {
    set([...rows, empty]);
    focus('li:last-child :is(input, textarea)');
  };
  const remove = (/** @type {number} */ index) => {
    set(rows.toSpliced(index, 1));
    focus(':scope > button'); // the one that was pressed is gone
  };
  return html`<${Group} form=${form} field=${field} label=${LABELS[field]} hint=${hint}>
    <div id=${id} class="rows">
      <ul aria-label=${LABELS[field]}>
        ${rows.map((row, index) => html`<li class="row">${children(row, index)}<button type="button" class="quiet" aria-label=${`Remove ${what} ${index + 1}`} onClick=${() => remove(index)}>×</button></li>`)}
      </ul>
      <button type="button" onClick=${add}>Add ${what === 'example' ? 'an' : 'a'} ${what}</button>
    </div>
  <//>`;
}
