/** Agents and their downstreams as a graph: callers at the left, what they call at the right. */

import { endedCalls } from '../call_list.js';
import { Card, html, signal, useEffect, useId } from '../html.js';
import { hueOf, slug } from '../marks.js';
import { address } from '../route.js';
import { agents, checkedAt, downstreamsOf, statusOf, token } from '../state.js';

/** @typedef {{id: string, title: string, status: string, name: string, isAgent: boolean, column: number, row: number}} Node */

const WIDTH = 200;
const HEIGHT = 44;
const GAP_X = 80;
const GAP_Y = 16;
const MOST_CALLS = 1000; // that the gateway lists
const HOUR_MS = 3600 * 1000;
const USES = { worked: 'worked in the last hour', failed: 'failed in the last hour', unused: 'not used in the last hour' };

/** @typedef {import('../call_list.js').EndedCall} EndedCall */
/** With the names of agents as `slug` returns them. */
const ended = signal(/** @type {EndedCall[]} */ ([]));

/**
 * Return how the latest use of a downstream by an agent ended, in the calls that the caller may see.
 * @param {string} agent
 * @param {string} server
 * @returns {keyof typeof USES}
 */
function useOf(agent, server) {
  const [since, name] = [Date.now() - HOUR_MS, slug(agent)];
  const uses = ended.value
    .filter((call) => call.agent === name && Date.parse(call.endedAt) >= since)
    .flatMap((call) => call.tools.filter(({ name }) => name.startsWith(`${server}/`)).map(({ start, ok }) => ({ at: Date.parse(call.startedAt) + start * 1000, ok })));
  const latest = uses.sort((a, b) => b.at - a.at)[0];
  return latest ? (latest.ok ? 'worked' : 'failed') : 'unused';
}

export function Graph() {
  const heading = useId();
  useEffect(() => {
    const leaving = new AbortController();
    endedCalls(MOST_CALLS, token.value, leaving.signal).then(({ calls }) => (ended.value = calls.map((call) => ({ ...call, agent: slug(call.agent) }))), () => (ended.value = [])); // without a token that may
    return () => leaving.abort();
  }, [checkedAt.value]);
  const { nodes, edges } = layout(links());
  if (edges.length === 0) return null;
  const columns = Math.max(...nodes.map((node) => node.column)) + 1;
  const rows = Math.max(...nodes.map((node) => node.row)) + 1;
  const width = columns * (WIDTH + GAP_X) - GAP_X + 2;
  const height = rows * (HEIGHT + GAP_Y) - GAP_Y + 2;
  const byId = new Map(nodes.map((node) => [node.id, node]));
  const isTaken = (/** @type {number} */ column, /** @type {number} */ row) => nodes.some((node) => node.column === column && node.row === row);
  const calls = edges.map(([from, to, use]) => `${byId.get(from)?.title} calls ${byId.get(to)?.title} (${USES[use]})`).join('. ');
  return html`
    <${Card} id=${heading} title="Agents and servers">
      <p class="unseen">${calls}.</p>
      <p class="legend" role="group" aria-label="Legend">${Object.entries(USES).map(([use, words]) => html`<span><svg class="graph" width="36" height="8" aria-hidden="true"><path class=${use} d="M0 4H36" /></svg> ${words}</span>`)}</p>
      <div class="scroll" tabindex="0" role="group" aria-label="Graph">
        <svg class="graph" width=${width} height=${height} viewBox=${`-1 -1 ${width} ${height}`}>
          ${edges.map(([from, to, use]) => html`<path class=${use} d=${curve(byId.get(from), byId.get(to), isTaken)} />`)}
          ${nodes.map((node) => html`<${Box} key=${node.id} node=${node} />`)}
        </svg>
      </div>
    <//>
  `;
}

/** @param {{node: Node}} props */
function Box({ node }) {
  const content = html`
    <rect width=${WIDTH} height=${HEIGHT} rx="6" class=${node.isAgent ? `agent ${hueOf(node.name)}` : ''} />
    <text x="10" y="18">${`${shortened(node.title)} `}</text>
    <text x="10" y="35" class=${`state ${node.status}`}>${node.status}</text>
  `;
  const place = `translate(${node.column * (WIDTH + GAP_X)} ${node.row * (HEIGHT + GAP_Y)})`;
  if (!node.isAgent) return html`<g transform=${place}><title>${node.title}</title>${content}</g>`;
  return html`<a transform=${place} href=${address('agents', node.id, 'details')}>${content}</a>`;
}

/** @param {string} title */
function shortened(title) {
  return title.length > 24 ? `${title.slice(0, 23)}…` : title;
}

/** All agents with what they call, as `get_health` lists it; a downstream with the name of an agent is that agent. */
function links() {
  const known = agents.value ?? [];
  return known.map((agent) => {
    const targets = downstreamsOf(agent.id).map((row) => {
      const peer = known.find((one) => one.name === row.name && one.registry === agent.registry);
      const use = agent.registry ? 'unused' : useOf(agent.name, String(row.name));
      return peer ? { id: peer.id, use } : { use, id: `downstream ${agent.registry} ${row.name}`, title: String(row.name), status: row.status };
    });
    return { agent, targets };
  });
}

/**
 * A column for each length of the longest way to a node, a row for each node in it.
 * @param {ReturnType<typeof links>} found
 * @returns {{nodes: Node[], edges: [string, string, keyof typeof USES][]}}
 */
function layout(found) {
  /** @type {Map<string, Node>} */
  const nodes = new Map();
  for (const { agent } of found) {
    nodes.set(agent.id, { id: agent.id, title: agent.title, status: statusOf(agent.id), name: agent.name, isAgent: true, column: 0, row: 0 });
  }
  /** @type {[string, string, keyof typeof USES][]} */
  const edges = [];
  for (const { agent, targets } of found) {
    for (const target of targets) {
      if (!nodes.has(target.id)) {
        const { id, title = '', status = 'unknown' } = target;
        nodes.set(id, { id, title, status, name: '', isAgent: false, column: 0, row: 0 });
      }
      edges.push([agent.id, target.id, target.use]);
    }
  }
  // A circle of peers would never settle; no way is longer than the number of nodes.
  for (let round = 0, moved = true; moved && round < nodes.size; round += 1) {
    moved = false;
    for (const [from, to] of edges) {
      const [caller, called] = [nodes.get(from), nodes.get(to)];
      if (caller && called && called.column <= caller.column && caller.column + 1 < nodes.size) {
        called.column = caller.column + 1;
        moved = true;
      }
    }
  }
  /** @type {number[]} */
  const rows = [];
  const used = [...new Set([...nodes.values()].map((node) => node.column))].sort((a, b) => a - b);
  for (const node of nodes.values()) {
    node.column = used.indexOf(node.column);
    node.row = rows[node.column] ?? 0;
    rows[node.column] = node.row + 1;
  }
  return { nodes: [...nodes.values()], edges };
}

/**
 * A line between two boxes; in columns between them it goes through the gap below a row, and so behind no box.
 * @param {Node | undefined} from
 * @param {Node | undefined} to
 * @param {(column: number, row: number) => boolean} isTaken
 */
function curve(from, to, isTaken) {
  if (!from || !to) return '';
  const x1 = from.column * (WIDTH + GAP_X) + WIDTH;
  const y1 = from.row * (HEIGHT + GAP_Y) + HEIGHT / 2;
  const y2 = to.row * (HEIGHT + GAP_Y) + HEIGHT / 2;
  const bend = (/** @type {number} */ x, /** @type {number} */ y, /** @type {number} */ nextY) => `C${x + GAP_X / 2} ${y} ${x + GAP_X / 2} ${nextY} ${x + GAP_X} ${nextY}`;
  let [x, y, path] = [x1, y1, `M${x1} ${y1}`];
  for (let column = from.column + 1; column < to.column; column += 1, x += WIDTH + GAP_X) {
    const nextY = isTaken(column, from.row) ? from.row * (HEIGHT + GAP_Y) + HEIGHT + GAP_Y / 2 : y1;
    path += ` ${bend(x, y, nextY)} H${x + GAP_X + WIDTH}`;
    y = nextY;
  }
  return `${path} ${bend(x, y, y2)}`;
}
