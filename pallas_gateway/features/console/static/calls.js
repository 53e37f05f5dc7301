/**
 * One call as a tree, rebuilt from what its client receives. Pure: it knows the wire formats and nothing of the page.
 *
 * A call has entries: the LLM turns of its agents with their tool calls, and what could not be understood. A tool call
 * that a peer answers has entries of its own. `call_path` names that tool call: the ids from the innermost to the one of
 * the agent that was called. Events that are malformed, of an unknown kind, or of a tool call that is not known, are kept
 * as raw entries and change nothing else.
 */

import { ANSWERED, waitingTools } from './asked.js';
import { object, outcomeOf } from './outcome.js';

export const LOGGER = 'pallas.assistant_stream';
export const DEEPEST = 64;

/**
 * @typedef {{kind: 'turn', key: string, agent: string, iteration: number, text: string, live: boolean,
 *   stopReason: string | null, tools: Tool[], began: number, ended: number | null, version: number, note?: string}} Turn
 * @typedef {{kind: 'tool', key: string, id: string, server: string | null, name: string, args: unknown,
 *   state: 'running' | 'completed' | 'failed' | 'unknown', result: string | null, truncated: boolean,
 *   seconds: number | null, began: number, ended: number | null, entries: Entry[], calls: Map<string, Tool>,
 *   waits: Wait[], isAsking: boolean, approval: string, version: number}} Tool
 * @typedef {{kind: 'wait', id: unknown, began: number, ended: number | null}} Wait a question that waits for its answer
 * @typedef {{kind: 'raw', key: string, event: unknown, why: string, version: number}} Raw
 * @typedef {{kind: 'answer', key: string, text: string}} Answered an answer of the caller
 * @typedef {Turn | Raw | Answered} Entry
 * @typedef {{kind: 'call', key: string, entries: Entry[], calls: Map<string, Tool>, waits: Wait[], version: number}} Root
 * @typedef {import('./outcome.js').Outcome} Outcome
 */

/** A call as its client has seen it so far. `now` is the latest message of progress. */
export class CallTree {
  constructor() {
    /** @type {Root} */
    this.root = { kind: 'call', key: 'call', entries: [], calls: new Map(), waits: [], version: 0 };
    this.now = '';
    /** @type {Outcome | null} */
    this.outcome = null;
    this.count = 0;
    /** @type {Set<Root | Turn | Tool>} */
    this.changed = new Set();
    /** @type {Set<Tool>} */
    this._asking = new Set();
    this._keys = 0;
  }

  /**
   * Take one message of the call's stream; `at` is the milliseconds since the call began.
   * @param {any} message a JSON-RPC notification
   * @param {number} at
   */
  apply(message, at = 0) {
    this.count += 1;
    const params = object(message?.params);
    if (message?.method === 'notifications/progress' && params && typeof params.message === 'string') {
      this.now = params.message;
      return;
    }
    if (message?.method === 'notifications/message' && params?.logger === LOGGER) {
      this._payload(params.data, at);
      return;
    }
    if (message?.method === ANSWERED && typeof params?.text === 'string') {
      this._answer(params.text, params.origin);
      return;
    }
    this._raw(this.root, message, 'unknown message');
  }

  /**
   * Take the result of `tools/call`; what still seems to run has ended.
   * @param {any} result
   * @param {number} at
   */
  finish(result, at = 0) {
    this.outcome = outcomeOf(result);
    this._end(this.root, at);
  }

  /**
   * Mark everything that runs as ended: the call was stopped, or its connection was lost.
   * @param {number} at
   */
  stop(at = 0) {
    this._end(this.root, at);
  }

  /**
   * Mark the tool calls that wait for answers of the caller, and no others.
   * @param {Set<Tool>} waiting
   */
  wait(waiting) {
    for (const tool of new Set([...this._asking, ...waiting])) {
      tool.isAsking = waiting.has(tool);
      this._touch(tool);
    }
    this._asking = waiting;
  }

  /** Return the nodes that have changed since the last time. */
  takeChanged() {
    const changed = this.changed;
    this.changed = new Set();
    return changed;
  }

  /**
   * Take an answer of the caller: an approval stands before the tool that it lets run.
   * @param {string} text
   * @param {any} origin of the question
   */
  _answer(text, origin) {
    const approved = origin?.kind === 'approval' ? [...waitingTools(this.root, [origin])].find((tool) => !tool.approval) : undefined;
    if (approved) approved.approval = text;
    else this.root.entries.push({ kind: 'answer', key: this._key(), text });
    this._touch(approved ?? this.root);
  }

  /**
   * @param {any} data
   * @param {number} at
   */
  _payload(data, at) {
    const payload = object(data);
    const place = payload ? this._place(payload) : null;
    if (!payload || !place) {
      this._raw(this.root, data, 'no known tool call');
      return;
    }
    const take = { assistant_chunk: this._chunk, assistant_chunk_results: this._results, assistant_delta: this._delta };
    const known = /** @type {any} */ (take)[String(payload.kind)];
    if (payload.kind === 'question' || payload.kind === 'answer') { // drawn as forms, kept as raw events
      wait(place, payload, at);
      return;
    }
    if (!Object.hasOwn(take, String(payload.kind)) || !known.call(this, place, payload, at)) {
      this._raw(place, data, Object.hasOwn(take, String(payload.kind)) ? 'malformed' : 'unknown kind');
    }
  }

  /**
   * Return the call or the tool call that a payload belongs to; null if it names none.
   * @param {Record<string, any>} payload
   * @returns {Root | Tool | null}
   */
  _place(payload) {
    const path = payload.call_path ?? [];
    if (!Array.isArray(path) || path.length > DEEPEST) return null;
    /** @type {Root | Tool} */
    let place = this.root;
    for (const id of path.toReversed()) {
      /** @type {Root | Tool | undefined} */
      const below = place.calls.get(id);
      if (!below) return null;
      place = below;
    }
    return place;
  }

  /**
   * @param {Root | Tool} place
   * @param {Record<string, any>} payload
   * @param {number} at
   */
  _delta(place, payload, at) {
    if (typeof payload.text !== 'string' || !isTurn(payload)) return false;
    const turn = this._turn(place, payload, at);
    if (!turn.live) return true; // the whole text is known
    turn.text += payload.text;
    this._touch(turn);
    return true;
  }

  /**
   * @param {Root | Tool} place
   * @param {Record<string, any>} payload
   * @param {number} at
   */
  _chunk(place, payload, at) {
    const calls = payload.tool_calls ?? [];
    if (typeof payload.text !== 'string' || !isTurn(payload) || !Array.isArray(calls)) return false;
    if (!calls.every((call) => typeof object(call)?.id === 'string' && typeof call.name === 'string')) return false;
    let turn = this._turn(place, payload, at);
    if (!turn.live) turn = this._newTurn(place, payload, at); // the same number again: the agent was called again
    turn.text = payload.text;
    turn.live = false;
    turn.ended = at;
    turn.stopReason = typeof payload.stop_reason === 'string' ? payload.stop_reason : null;
    for (const call of calls) {
      const tool = this._tool(call, at);
      place.calls.set(tool.id, tool);
      turn.tools.push(tool);
    }
    this._touch(turn);
    return true;
  }

  /**
   * @param {Root | Tool} place
   * @param {Record<string, any>} payload
   * @param {number} at
   */
  _results(place, payload, at) {
    const results = payload.results;
    if (!Array.isArray(results)) return false;
    if (!results.every((one) => place.calls.has(object(one)?.id) && typeof one.text === 'string')) return false;
    for (const one of results) {
      const tool = /** @type {Tool} */ (place.calls.get(one.id));
      tool.result = one.text;
      tool.truncated = one.truncated === true;
      tool.state = one.is_error === true ? 'failed' : 'completed';
      tool.seconds = typeof one.duration_seconds === 'number' ? one.duration_seconds : null;
      const ended = tool.seconds === null ? at : Math.min(at, tool.began + tool.seconds * 1000);
      tool.ended = tool.entries.reduce((latest, entry) => Math.max(latest, (entry.kind === 'turn' && entry.ended) || 0), ended);
      this._end(tool, at);
      this._touch(tool);
    }
    return true;
  }

  /**
   * @param {Root | Tool} place
   * @param {Record<string, any>} payload
   * @param {number} at
   * @returns {Turn}
   */
  _turn(place, payload, at) {
    for (let index = place.entries.length - 1; index >= 0 && index >= place.entries.length - 50; index -= 1) {
      const entry = place.entries[index];
      if (entry.kind === 'turn' && entry.agent === payload.agent && entry.iteration === payload.iteration) return entry;
    }
    return this._newTurn(place, payload, at);
  }

  /**
   * @param {Root | Tool} place
   * @param {Record<string, any>} payload
   * @param {number} at
   * @returns {Turn}
   */
  _newTurn(place, payload, at) {
    const { agent, iteration } = payload;
    /** @type {Turn} */
    const turn = {
      kind: 'turn', key: this._key(), agent, iteration, text: '', live: true, stopReason: null, tools: [],
      began: beginOf(place, agent, at), ended: null, version: 0,
    };
    place.entries.push(turn);
    this._touch(place);
    return turn;
  }

  /**
   * @param {Record<string, any>} call
   * @param {number} at
   * @returns {Tool}
   */
  _tool(call, at) {
    return {
      kind: 'tool', key: this._key(), id: call.id, server: typeof call.server === 'string' ? call.server : null,
      name: call.name, args: call.arguments ?? {}, state: 'running', result: null, truncated: false, seconds: null,
      began: at, ended: null, entries: [], calls: new Map(), waits: [], isAsking: false, approval: '', version: 0,
    };
  }

  /**
   * @param {Root | Tool} place
   * @param {unknown} event
   * @param {string} why
   */
  _raw(place, event, why) {
    place.entries.push({ kind: 'raw', key: this._key(), event, why, version: 0 });
    this._touch(place);
  }

  /**
   * End what runs below a place.
   * @param {Root | Tool} place
   * @param {number} at
   */
  _end(place, at) {
    for (const one of place.waits) one.ended ??= at;
    for (const entry of place.entries) {
      if (entry.kind !== 'turn') continue;
      if (entry.live) {
        entry.live = false;
        entry.ended = at;
        this._touch(entry);
      }
      for (const tool of entry.tools) {
        if (tool.state !== 'running') continue;
        tool.state = 'unknown';
        tool.ended = at;
        this._end(tool, at);
        this._touch(tool);
      }
    }
  }

  _key() {
    this._keys += 1;
    return `n${this._keys}`;
  }

  /** @param {Root | Turn | Tool} node */
  _touch(node) {
    node.version += 1;
    this.changed.add(node);
  }
}

/**
 * Return a tool call's name as `server/tool`.
 * @param {{server: string | null, name: string}} tool
 */
export function nameOf(tool) {
  return tool.server === null ? tool.name : `${tool.server}/${tool.name}`;
}

/**
 * Return when a turn of an agent began: with the call, or when the tools of its last turn, and the person's answers, had ended.
 * @param {Root | Tool} place
 * @param {string} agent
 * @param {number} at
 */
function beginOf(place, agent, at) {
  const before = place.entries.findLast((entry) => entry.kind === 'turn' && entry.agent === agent);
  if (before?.kind !== 'turn') return place.kind === 'tool' ? place.began : Math.min(at, 0);
  const ends = before.tools.map((tool) => tool.ended ?? at);
  return Math.min(at, Math.max(before.ended ?? 0, ...ends, ...place.waits.map((one) => one.ended ?? 0)));
}

/**
 * Note that a question was asked, or closed.
 * @param {Root | Tool} place
 * @param {Record<string, any>} payload
 * @param {number} at
 */
function wait(place, payload, at) {
  const asked = place.waits.find((one) => one.id === payload.id);
  if (payload.kind === 'question') place.waits.push({ kind: 'wait', id: payload.id, began: at, ended: null });
  else if (asked) asked.ended = at;
}

/** @param {Record<string, any>} payload */
function isTurn(payload) {
  return typeof payload.agent === 'string' && Number.isInteger(payload.iteration);
}
