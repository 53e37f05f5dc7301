/** Runs one tool of an agent: a form from its schema, and the result. What was typed stays until the page is closed. */

import { Dialog } from '../dialog.js';
import { fieldsOf, read } from '../forms.js';
import { requestAt } from '../gateway_api.js';
import { html, signal, useMemo, useRef } from '../html.js';
import { callTool } from '../mcp.js';
import { outcomeOf } from '../outcome.js';
import { tokenFor } from '../state.js';
import { duration, harmless } from '../text.js';
import { ToolCard } from './activity.js';
import { Copy } from './copy.js';
import { Fields, initialValues } from './fields.js';
import { ApprovalBody } from './question.js';
import { Plain } from './text.js';

/**
 * @typedef {import('../state.js').Agent} Agent
 * @typedef {{title: string, agent: string, tool: string, args: Record<string, any>}} Approval of a tool that waits for it
 */

const IMAGE_TYPES = ['image/png', 'image/jpeg', 'image/gif', 'image/webp'];
const WHOLE = fieldsOf({ properties: { json: { type: 'object', title: 'Arguments as JSON' } } });
const NO_OBJECT = 'This is not a JSON object, such as {"name": "value"}.';

/** @type {Map<string, Run>} */
const runs = new Map();

/** The arguments and the latest result of one tool. */
class Run {
  /**
   * @param {Agent} agent
   * @param {string | null} server the downstream; null for a tool of the agent itself
   * @param {any} tool
   */
  constructor(agent, server, tool) {
    this.agent = agent;
    this.server = server;
    this.name = String(tool.name);
    this.fields = fieldsOf(tool.inputSchema);
    this.isOpen = signal(false);
    this.values = signal(initialValues(this.fields));
    this.errors = signal(/** @type {Record<string, string>} */ ({}));
    this.whole = signal(/** @type {Record<string, any> | null} */ (null)); // the value of `WHOLE`, if the arguments are written as JSON
    this.problem = signal('');
    this.approval = signal(/** @type {Approval | null} */ (null));
    this.result = signal(/** @type {any} */ (null));
    this.working = signal(/** @type {AbortController | null} */ (null));
  }

  /** Change between fields and JSON; what is in the fields is kept. */
  toggle() {
    this.errors.value = {};
    this.whole.value = this.whole.value ? null : { json: JSON.stringify(read(this.fields, this.values.value).content) };
  }

  submit() {
    const { content, errors } = this.whole.value ? read(WHOLE, this.whole.value) : read(this.fields, this.values.value);
    const args = this.whole.value ? (content.json ?? {}) : content;
    this.errors.value = typeof args !== 'object' || Array.isArray(args) ? { json: NO_OBJECT } : errors;
    if (Object.keys(this.errors.value).length === 0) this.run(args, false);
  }

  /**
   * @param {Record<string, any>} args
   * @param {boolean} approved a person has seen these arguments and allowed them once
   */
  async run(args, approved) {
    const working = (this.working.value = new AbortController());
    const began = performance.now();
    this.approval.value = null;
    this.problem.value = '';
    try {
      const answer = await this._answer(args, approved, working.signal);
      this.result.value = { ...shownResult(answer), args, seconds: answer.seconds ?? (performance.now() - began) / 1000 };
    } catch (failure) {
      const error = /** @type {import('../mcp.js').McpError} */ (failure);
      const question = /** @type {any} */ (error.data)?.question;
      if (working.signal.aborted) this.problem.value = 'The call was stopped.';
      else if (question) this.approval.value = { title: String(question.message).split('\n')[0], agent: String(question.agent), tool: String(question.tool), args };
      else this.problem.value = error.message;
    }
    this.working.value = null;
  }

  /**
   * @param {Record<string, any>} args
   * @param {boolean} approved
   * @param {AbortSignal} abort
   */
  async _answer(args, approved, abort) {
    const token = tokenFor(this.agent);
    if (this.server === null) return callTool(this.agent.url, this.name, args, { token, signal: abort });
    const path = [this.agent.name, 'tools', this.server, this.name].map(encodeURIComponent).join('/');
    const body = approved ? { arguments: args, approved } : { arguments: args };
    return (await requestAt(`${this.agent.registry || '..'}/api/agents/${path}`, { method: 'POST', token, body, signal: abort })).json();
  }
}

/**
 * Return what is shown of a result: its texts, images, structured content, and blocks of other kinds.
 * @param {any} answer
 */
function shownResult(answer) {
  const blocks = Array.isArray(answer?.content) ? answer.content : [];
  const { text, images, isError } = outcomeOf(answer);
  const drawn = images.filter(({ mimeType }) => IMAGE_TYPES.includes(mimeType));
  const others = blocks.filter((/** @type {any} */ one) => one?.type !== 'text' && !(one?.type === 'image' && IMAGE_TYPES.includes(one.mimeType)));
  return { text, images: drawn, others, structured: answer?.structuredContent, isError };
}

/** @param {{agent: Agent, server: string | null, tool: any}} props */
export function RunTool({ agent, server, tool }) {
  const key = JSON.stringify([agent.id, server, tool.name, tool.inputSchema]);
  const run = useMemo(() => {
    if (!runs.has(key)) runs.set(key, new Run(agent, server, tool));
    return /** @type {Run} */ (runs.get(key));
  }, [key]);
  if (!run.isOpen.value) return html`<p><button type="button" onClick=${() => (run.isOpen.value = true)}>Run this tool</button></p>`;
  return html`<div class="run-tool"><${RunForm} run=${run} /></div>`;
}

/** @param {{run: Run}} props */
function RunForm({ run }) {
  const form = useRef(/** @type {HTMLFormElement | null} */ (null));
  const name = harmless(run.name);
  const isWhole = run.whole.value !== null;
  const isWorking = run.working.value !== null;
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    if (isWorking) return;
    run.submit();
    if (Object.keys(run.errors.value).length > 0) setTimeout(() => /** @type {HTMLElement | null} */ (form.current?.querySelector('[aria-invalid]'))?.focus());
  };
  // Stop and Run have keys: if one element became the other during its click, the click would submit the form.
  return html`
    <form ref=${form} class="run" aria-label=${`Run ${name}`} aria-busy=${isWorking} noValidate onSubmit=${submit}>
      <${Fields} fields=${isWhole ? WHOLE : run.fields} values=${isWhole ? run.whole : run.values} errors=${run.errors.value} />
      ${!isWhole && run.fields.length === 0 && html`<p class="hint">The tool has no arguments.</p>`}
      <div class="actions">
        ${isWorking
          ? html`<button key="stop" type="button" onClick=${() => run.working.value?.abort()}>Stop</button>`
          : html`<button key="run" type="submit" class="primary">${run.result.value ? 'Run again' : 'Run'}</button>`}
        <button type="button" class="quiet" onClick=${() => run.toggle()}>${isWhole ? 'Use the fields' : 'Write the arguments as JSON'}</button>
      </div>
      <p class="hint" role="status">${isWorking ? 'The tool is running…' : run.result.value && `The tool ${run.result.value.isError ? 'reported an error' : 'has answered'} after ${duration(run.result.value.seconds)}.`}</p>
      ${run.problem.value && html`<p class="notice error" role="alert">${harmless(run.problem.value)}</p>`}
    </form>
    ${run.result.value && html`<${Result} run=${run} />`}
    ${run.approval.value && html`<${ApprovalDialog} run=${run} approval=${run.approval.value} />`}
  `;
}

/** @param {{run: Run}} props */
function Result({ run }) {
  const { text, images, others, structured, args, seconds, isError } = run.result.value;
  const name = harmless(run.name);
  const tool = useMemo(() => ({
    kind: 'tool', key: 'run', id: 'run', server: run.server, name: run.name, args, state: isError ? 'failed' : 'completed', result: text || null, truncated: false,
    seconds, began: 0, ended: seconds * 1000, entries: [], calls: new Map(), waits: [], isAsking: false, approval: '', version: 0,
  }), [run.result.value]);
  return html`
    <${ToolCard} key=${tool} tool=${tool} open />
    ${images.length > 0 &&
    html`<ul class="pictures" aria-label="Images of the result">${images.map((/** @type {any} */ one, /** @type {number} */ at) => html`<li><img src=${`data:${one.mimeType};base64,${one.data}`} alt=${`Image ${at + 1}`} /></li>`)}</ul>`}
    ${[['Structured content', structured], ['Other content', others.length > 0 ? others : undefined]]
      .filter(([, value]) => value !== undefined)
      .map(([label, value]) => html`<details><summary>${label}</summary><div class="code"><${Plain} text=${JSON.stringify(value, null, 2)} label=${label} /><${Copy} text=${() => JSON.stringify(value, null, 2)} what=${`the ${String(label).toLowerCase()} of ${name}`} /></div></details>`)}
  `;
}

/** @param {{run: Run, approval: Approval}} props */
function ApprovalDialog({ run, approval }) {
  const { title, agent, tool, args } = approval;
  const answer = ({ action = '' }) => (action === 'accept' ? run.run(args, true) : close());
  const close = () => (run.approval.value = null);
  return html`
    <${Dialog} title=${harmless(title)} onClose=${close} wide>
      <${ApprovalBody} approval=${{ agent, tool, args: JSON.stringify(args, null, 2) }} answer=${answer} sent=${false} once />
    <//>
  `;
}
