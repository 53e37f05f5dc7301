/** What a client sees of an agent: its tools with their schemas, its state, and its downstreams. */

import { html, useEffect, useSignal } from '../html.js';
import { request } from '../mcp.js';
import { address } from '../route.js';
import { health, reasonOf, statusOf, tokenFor } from '../state.js';
import { Badge } from './badge.js';
import { DownstreamTable, Facts } from './agents.js';
import { Copy } from './connect.js';

/** @param {{agent: import('../state.js').Agent}} props */
export function Details({ agent }) {
  const tools = useSignal(/** @type {any[] | null} */ (null));
  const error = useSignal('');
  useEffect(() => {
    const stop = new AbortController();
    request(agent.url, 'tools/list', {}, { token: tokenFor(agent), signal: stop.signal }).then(
      (listed) => (tools.value = Array.isArray(listed.tools) ? listed.tools : []),
      (failure) => !stop.signal.aborted && (error.value = failure.message),
    );
    return () => stop.abort();
  }, [agent.id]);
  const known = health.value[agent.id];
  const reason = reasonOf(agent.id);
  return html`
    <div class="heading">
      <h1>${agent.title} <${Badge} id=${agent.id} /></h1>
      <a class="button" href=${address('agents', agent.id)}>Chat</a>
    </div>
    <div class="sections">
      <section class="card" aria-label="Agent">
        <p>${agent.description}</p>
        ${reason && html`<p class=${`notice ${statusOf(agent.id)}`}>${reason}</p>`}
        <${Facts} agent=${agent} llm=${known?.llm} />
        <div class="copied">
          <code>${agent.publicUrl}</code>
          <${Copy} text=${agent.publicUrl} what="the MCP URL" />
        </div>
      </section>
      <section class="card" aria-labelledby="details-downstreams">
        <h2 id="details-downstreams">Downstreams</h2>
        ${known?.downstream?.length ? html`<${DownstreamTable} rows=${known.downstream} />` : html`<p class="hint">This agent has no remote downstream.</p>`}
      </section>
      <section class="card" aria-labelledby="details-tools">
        <h2 id="details-tools">Tools, as clients see them</h2>
        ${error.value && html`<p class="notice error" role="alert">${error.value}</p>`}
        ${!tools.value && !error.value && html`<p role="status">Loading the tools…</p>`}
        ${(tools.value ?? []).map((tool) => html`<${Tool} key=${tool.name} tool=${tool} />`)}
      </section>
    </div>
  `;
}

/** @param {{tool: any}} props */
function Tool({ tool }) {
  return html`
    <details>
      <summary><code>${String(tool.name)}</code></summary>
      ${tool.description && html`<p class="described">${String(tool.description)}</p>`}
      <pre tabindex="0" role="region" aria-label=${`Input schema of ${tool.name}`}><code>${JSON.stringify(tool.inputSchema, null, 2)}</code></pre>
    </details>
  `;
}
