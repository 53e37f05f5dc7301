/** The gateway itself: whether it takes calls, its last reload, and what it is doing. */

import { Card, FactList, html, signal, useEffect } from '../html.js';
import { getJson, getText } from '../mcp.js';
import { agents, checkedAt, isLost, token } from '../state.js';
import { harmless } from '../text.js';
import { Graph } from './graph.js';

/** @typedef {{name: string, labels: Record<string, string>, value: number}} Sample of `/metrics` */

const SAMPLE = /^([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)/;
const LABEL = /(?<!\w)([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"/g;
/** @type {Record<string, string>} */
const ESCAPES = { n: '\n' };
const WORDS = /** @type {Record<string, string>} */ ({ ready: 'ok', draining: 'degraded', starting: 'starting' });
const SENTENCES = /** @type {Record<string, string>} */ ({
  ready: 'The gateway takes calls.',
  draining: 'The gateway is stopping: running calls end, new ones are refused.',
  starting: 'Agents are starting.',
  'not ready': 'The gateway is not ready.',
});

const DOCUMENTS = [
  ['README.md', 'All pages'],
  ['use/console.md', 'The console'],
  ['use/connect.md', 'Connecting programs'],
  ['use/clients.md', 'Writing clients'],
  ['operate/README.md', 'Operating'],
  ['operate/configuration.md', 'Configuration'],
  ['develop/README.md', 'How to make a change'],
];

const ready = signal(/** @type {any} */ (null));
const samples = signal(/** @type {Sample[] | null} */ (null));
const refused = signal('');
/** The last reload, to callers that may know. */
const loading = signal(/** @type {{problems: string[]} | null} */ (null));

export function Gateway() {
  useEffect(() => {
    load();
  }, [checkedAt.value]);
  const status = isLost.value ? undefined : ready.value?.status;
  return html`
    <div class="heading"><h1>Gateway</h1></div>
    <div class="sections">
      <section class="card" aria-labelledby="gateway-state">
        <div class="card-head">
          <h2 id="gateway-state">State</h2>
          <span class=${`badge ${WORDS[status] ?? 'unknown'}`}>${status ?? 'unknown'}</span>
        </div>
        <p>${isLost.value ? 'Not known now.' : (SENTENCES[status] ?? 'Loading the state…')}</p>
        <${NotUp} rows=${isLost.value ? {} : ready.value?.not_up} />
        <${LastReload} />
      </section>
      <${Figures} />
      ${(agents.value ?? []).length > 0 && html`<${Graph} />`}
      <${Card} id="gateway-documents" title="Documentation">
        <ul class="links">${DOCUMENTS.map(([page, title]) => html`<li><a href=${`../docs/${page}`}>${title}</a></li>`)}</ul>
      <//>
    </div>
  `;
}

/** @param {{rows: Record<string, {state: string, reason: string | null}> | undefined}} props */
function NotUp({ rows }) {
  const down = Object.entries(rows ?? {});
  if (down.length === 0) return null;
  return html`<ul>${down.map(([name, { state, reason }]) => html`<li>${name}: ${state}${reason && `: ${reason}`}</li>`)}</ul>`;
}

function LastReload() {
  const problems = loading.value?.problems ?? [];
  const hasFailed = problems.length > 0 || sumOf(samples.value ?? [], 'pallas_config_last_reload_successful') === 0;
  if (!hasFailed) return null;
  return html`
    <div class="notice degraded">
      <p>The last reload failed, and the gateway continues with its earlier configuration.</p>
      ${problems.length > 0
        ? html`<ul aria-label="Problems of the last reload">${problems.map((problem) => html`<li>${harmless(problem)}</li>`)}</ul>`
        : html`<p>${IN_THE_LOG}</p>`}
    </div>
  `;
}

function Figures() {
  const found = samples.value;
  if (!found || isLost.value) {
    const why = isLost.value ? 'Not known now.' : refused.value || 'Loading the figures…';
    return html`<section class="card"><h2>Figures</h2><p>${why}</p></section>`;
  }
  const build = found.find((one) => one.name === 'pallas_build_info')?.labels;
  const at = sumOf(found, 'pallas_config_last_reload_timestamp_seconds');
  const workers = sumOf(found, 'pallas_workers') ?? 1;
  const facts = [
    ['Version', build?.version],
    ['Python', build?.python],
    ['Workers', workers],
    ['Calls running', sumOf(found, 'pallas_calls_in_flight') ?? 0],
    ['Questions open', sumOf(found, 'pallas_questions_open') ?? 0],
    ['Calls answered', sumOf(found, 'pallas_send_message_total', { outcome: 'ok' }) ?? 0],
    ['Calls failed or stopped', sumOf(found, 'pallas_send_message_total', { outcome: 'error' }) ?? 0],
    ['Workers replaced', workers > 1 ? sumOf(found, 'pallas_worker_restarts_total') : null],
    ['Configuration loaded', at && new Date(at * 1000).toLocaleString()],
    ['Reloads', `${sumOf(found, 'pallas_config_reloads_total') ?? 0}`],
  ];
  return html`
    <${Card} id="gateway-figures" title="Figures">
      <${FactList} facts=${facts} />
    <//>
  `;
}

const IN_THE_LOG = 'The gateway’s log and `pallas-gateway check` name the problems; callers with the grant view:gateway see them here.';

async function load() {
  const used = token.value;
  ready.value = await getJson('../readyz', { token: used, accepted: [503] }).catch(() => null);
  loading.value = await getJson('../api/gateway', { token: used }).catch(() => null);
  try {
    samples.value = samplesOf(await getText('../metrics', { token: used }));
  } catch (error) {
    samples.value = null;
    refused.value = `The figures are not shown: ${/** @type {Error} */ (error).message.replace(/\.$/, '')}.`;
  }
}

/**
 * All samples of a text; other lines are left out.
 * @param {string} text
 * @returns {Sample[]}
 */
function samplesOf(text) {
  return text.split('\n').flatMap((line) => {
    const found = SAMPLE.exec(line);
    if (!found) return [];
    const [, name, labels = '', value] = found;
    const pairs = [...labels.matchAll(LABEL)].map(([, key, quoted]) => [key, unescaped(quoted)]);
    return [{ name, labels: Object.fromEntries(pairs), value: Number(value) }];
  });
}

/**
 * The sum of all samples of a name; null without any.
 * @param {Sample[]} samples
 * @param {string} name
 * @param {Record<string, string>} [labels] that the samples must have
 */
function sumOf(samples, name, labels = {}) {
  const wanted = Object.entries(labels);
  const found = samples.filter((one) => one.name === name && wanted.every(([key, value]) => one.labels[key] === value));
  return found.length > 0 ? found.reduce((sum, one) => sum + one.value, 0) : null;
}

/** @param {string} quoted */
function unescaped(quoted) {
  return quoted.replace(/\\(.)/g, (_, one) => ESCAPES[one] ?? one);
}
