/** The versions of an agent of the database: who made them, how two of them differ, and the way back to an earlier one. */

import { Dialog } from '../dialog.js';
import { definitionIn } from '../definition.js';
import { readAgent, readVersion, readVersions, restoreVersion } from '../definitions.js';
import { Card, Table, html, useEffect, useId, useSignal } from '../html.js';
import { address } from '../route.js';
import { caller, refreshAgain } from '../state.js';
import { cut, harmless, shortName } from '../text.js';
import { Difference } from './difference.js';

const VERSIONS_OF_A_PAGE = 100;
const LONGEST_REASON = 500;

/**
 * @typedef {import('../definitions.js').Version} Version
 * @typedef {{versions: Version[], etag: string, running: number | null, mayChange: boolean}} Known
 */

/** @param {{agent: import('../state.js').Agent}} props */
export function Versions({ agent: { name, title } }) {
  const known = useSignal(/** @type {Known | null} */ (null));
  const problem = useSignal('');
  const compared = useSignal(/** @type {[number, number] | null} */ (null)); // the older and the newer one
  const asked = useSignal(/** @type {Version | null} */ (null));
  const said = useSignal({ text: '', isError: false });
  const read = async () => {
    try {
      const [versions, { document, etag }] = await Promise.all([readVersions(name), readAgent(name)]);
      known.value = { versions, etag, running: document.runningVersion ?? null, mayChange: document.mayEdit !== false };
      problem.value = '';
      if (versions.length > 1) compared.value = [versions[1].version, versions[0].version];
    } catch (error) {
      known.value = null;
      problem.value = /** @type {Error} */ (error).message;
    }
  };
  useEffect(() => {
    read();
  }, [name, caller.value]);
  const restore = async (/** @type {Version} */ version, /** @type {string} */ why) => {
    asked.value = null;
    try {
      await restoreVersion(name, version.version, /** @type {Known} */ (known.value).etag, why);
      said.value = { text: `Version ${version.version} is restored.`, isError: false };
    } catch (error) {
      const { status, message } = /** @type {import('../mcp.js').McpError} */ (error);
      const why = status === 412 ? 'another change was saved meanwhile. The list is up to date now.' : message;
      said.value = { text: `Version ${version.version} is not restored: ${why}`, isError: true };
    }
    await Promise.all([read(), refreshAgain()]);
    document.getElementById('main')?.focus({ preventScroll: true }); // the button may be gone
  };
  return html`
    <div class="heading">
      <h1>Versions of ${title}</h1>
      <a class="button" href=${address('agents', name, 'details')}>Details</a>
    </div>
    <div class="sections">
      <p class=${said.value.text ? `notice ${said.value.isError ? 'error' : ''}` : 'unseen'} role="status">${harmless(said.value.text)}</p>
      ${problem.value && html`<p class="notice error" role="alert">${harmless(problem.value)}</p>`}
      ${!known.value && !problem.value && html`<p class="empty" role="status">Loading the versions…</p>`}
      ${known.value && html`<${List} known=${known.value} compared=${compared} onAsk=${(/** @type {Version} */ version) => (asked.value = version)} />`}
      ${known.value && compared.value && html`<${Compared} key=${compared.value.join()} name=${name} versions=${compared.value} />`}
    </div>
    ${asked.value && html`<${Confirmation} version=${asked.value} onRestore=${restore} onClose=${() => (asked.value = null)} />`}
  `;
}

/** @param {{known: Known, compared: any, onAsk: (version: Version) => void}} props */
function List({ known: { versions, running, mayChange }, compared, onAsk }) {
  const most = useSignal(VERSIONS_OF_A_PAGE);
  const rest = versions.length - most.value;
  return html`
    <${Card} id="versions-all" title="All versions">
      <${Table} by="versions-all" kind="calls versions" columns=${['Version', 'Saved by', 'Time', 'Why', html`<span class="unseen">Actions</span>`]}>
        ${versions.slice(0, most.value).map((one, index) => {
          const before = versions[index + 1];
          return html`<tr key=${one.version}>
            <th scope="row">${one.version}${one.version === running && html` <span class="badge ok">runs</span>`}</th>
            <td>${shortName(one.editor)}</td>
            <td class="wraps">${new Date(one.updatedAt).toLocaleString()}</td>
            <td class="wraps">${harmless(cut(one.why ?? '', LONGEST_REASON))}</td>
            <td class="act">
              ${before && html`<button type="button" class="quiet small" aria-label=${`Changes of version ${one.version}`} aria-pressed=${compared.value?.join() === `${before.version},${one.version}` ? 'true' : 'false'} onClick=${() => (compared.value = [before.version, one.version])}>Changes</button> `}
              ${index > 0 && mayChange && html`<button type="button" class="quiet small" aria-label=${`Restore version ${one.version}`} onClick=${() => onAsk(one)}>Restore</button>`}
            </td>
          </tr>`;
        })}
      <//>
      ${rest > 0 && html`<button type="button" class="quiet" onClick=${() => (most.value += VERSIONS_OF_A_PAGE)}>Show ${Math.min(rest, VERSIONS_OF_A_PAGE)} more versions</button>`}
      ${versions.length > 1 && html`<${Choice} versions=${versions} compared=${compared} />`}
    <//>
  `;
}

/** Chooses any two versions to compare. */
/** @param {{versions: Version[], compared: any}} props */
function Choice({ versions, compared }) {
  const [before, after] = compared.value ?? [];
  const select = (/** @type {string} */ label, /** @type {number} */ index, /** @type {number} */ value) => html`
    <label>${label} <select value=${String(value)} onChange=${(/** @type {any} */ event) => (compared.value = compared.value.with(index, Number(event.target.value)))}>
      ${versions.map(({ version }) => html`<option value=${String(version)}>${version}</option>`)}
    </select></label>
  `;
  return html`<div class="actions compare">${select('Compare version', 0, before)} ${select('with version', 1, after)}</div>`;
}

/** @param {{name: string, versions: [number, number]}} props */
function Compared({ name, versions: [before, after] }) {
  const found = useSignal(/** @type {any[] | null} */ (null));
  const problem = useSignal('');
  useEffect(() => {
    Promise.all([readVersion(name, before), readVersion(name, after)]).then(
      (documents) => (found.value = documents.map(definitionIn)),
      (error) => (problem.value = error.message),
    );
  }, []);
  return html`
    <${Card} id="versions-difference" title=${`From version ${before} to version ${after}`}>
      ${problem.value && html`<p class="notice error" role="alert">${harmless(problem.value)}</p>`}
      ${!found.value && !problem.value && html`<p role="status">Loading both versions…</p>`}
      ${found.value && html`<${Difference} before=${found.value[0]} after=${found.value[1]} names=${[`Version ${before}`, `Version ${after}`]} />`}
    <//>
  `;
}

/** @param {{version: Version, onRestore: (version: Version, why: string) => void, onClose: () => void}} props */
function Confirmation({ version, onRestore, onClose }) {
  const why = useSignal('');
  const id = useId();
  return html`
    <${Dialog} title=${`Restore version ${version.version}?`} onClose=${onClose}>
      <p>Its definition becomes a new version. Running calls end with the version with which they began.</p>
      <div class="field"><label for=${id}>Why? (optional)</label><input id=${id} maxlength=${LONGEST_REASON} value=${why.value} onInput=${(/** @type {any} */ event) => (why.value = event.target.value)} /></div>
      <div class="actions"><button type="button" class="primary" onClick=${() => onRestore(version, why.value)}>Restore</button><button type="button" onClick=${onClose}>Cancel</button></div>
    <//>
  `;
}
