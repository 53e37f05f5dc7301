/** The result of a call: its texts, images and facts, why it is partial, and the limit that refused it. Pure. */

/**
 * @typedef {{agent?: string, conversation_id?: string | null, call_id?: string, stop_reason?: string,
 *   iterations?: number, duration_seconds?: number, usage?: Record<string, number>, usage_with_nested?: Record<string, number>,
 *   cost?: number, cost_with_nested?: number}} Facts
 * @typedef {{text: string, images: {data: string, mimeType: string}[], isError: boolean, facts: Facts,
 *   notes: Record<string, any> | null, traceUrl: unknown}} Outcome
 * @typedef {{rule: string, until: number}} Limit the rule that refused a call, and the time from which it may allow one, in milliseconds
 */

/** @type {Record<string, string>} reasons by which the gateway ends a call between two LLM turns */
const USED_UP = { budget: 'the call has used what one call of this agent may use', limited: 'a limit of tokens a day is reached' };

/** @type {Record<string, string>} reasons for the end of a call, or of an LLM turn, for people */
const STOPS = {
  endTurn: 'complete', toolUse: 'calls tools', maxTokens: 'the model’s longest answer', budget: 'used up what one call may use', limited: 'a limit is reached',
};

/**
 * Return a stop reason in words.
 * @param {unknown} reason
 */
export function stopOf(reason) {
  return typeof reason === 'string' ? (STOPS[reason] ?? reason) : '';
}

// The sentence that the gateway adds to an answer that it had to end.
const STOPPED = '[Stopped: ';

/**
 * Return what the result of `tools/call` says.
 * @param {any} result
 * @returns {Outcome}
 */
export function outcomeOf(result) {
  const blocks = Array.isArray(result?.content) ? result.content.map(object).filter(Boolean) : [];
  const texts = blocks.filter((/** @type {any} */ block) => block.type === 'text' && typeof block.text === 'string');
  const images = blocks.filter((/** @type {any} */ block) => block.type === 'image' && typeof block.data === 'string');
  return {
    text: texts.map((/** @type {any} */ block) => block.text).join('\n\n'),
    images: images.map((/** @type {any} */ block) => ({ data: block.data, mimeType: String(block.mimeType) })),
    isError: result?.isError === true,
    facts: object(result?._meta?.['pallas/call']) ?? {},
    notes: object(result?._meta?.['pallas/params']),
    traceUrl: result?._meta?.['pallas/trace_url'],
  };
}

/**
 * Return why an answer is only a part of one; an empty text for a whole one.
 * @param {Outcome} outcome
 */
export function partial(outcome) {
  if (outcome.isError) return '';
  const why = USED_UP[String(outcome.facts.stop_reason)];
  if (why) return why;
  if (outcome.facts.stop_reason === 'maxTokens') return 'the model reached its limit of tokens';
  const begin = outcome.text.lastIndexOf(STOPPED);
  return begin >= 0 && /^[^\]]*\]\s*$/.test(outcome.text.slice(begin)) ? 'the gateway stopped the call' : '';
}

/**
 * Return the limit that refused a call; null for every other result.
 * @param {any} result
 * @returns {Limit | null}
 */
export function limitOf(result) {
  const limit = object(result?._meta?.['pallas/limit']);
  return limit ? limitFrom(limit.rule, limit.retry_after_seconds) : null;
}

/**
 * @param {unknown} rule
 * @param {unknown} seconds
 * @returns {Limit | null}
 */
export function limitFrom(rule, seconds) {
  const wait = Number(seconds);
  return Number.isFinite(wait) && wait > 0 ? { rule: typeof rule === 'string' ? rule : '', until: Date.now() + wait * 1000 } : null;
}

/**
 * Return true if the call was ended by another than its client.
 * @param {any} result
 */
export function isEnded(result) {
  return result?.isError === true && result._meta?.['pallas/call']?.stop_reason === 'cancelled';
}

/**
 * Return the tokens of a call: `in` has those from and to the cache, `out` those of reasoning.
 * @param {Record<string, number> | undefined} usage
 */
export function tokensOf(usage = {}) {
  const [input, fromCache, toCache, out, reasoning] = ['input', 'cache_read', 'cache_write', 'output', 'reasoning'].map((kind) => Number(usage[kind]) || 0);
  return { in: input + fromCache + toCache, out, fromCache, toCache, reasoning };
}

/**
 * Return the figures of a call: tokens and cost are with those of nested calls.
 * @param {Facts} facts
 */
export function figuresOf({ usage, usage_with_nested: whole, cost, cost_with_nested: all, ...facts }) {
  const number = (/** @type {unknown} */ value) => (typeof value === 'number' ? value : null);
  const { in: read, out } = tokensOf(whole ?? usage);
  const tokens = read || out ? `${read.toLocaleString()} tokens in, ${out.toLocaleString()} out${whole ? ' with nested calls' : ''}` : '';
  return { seconds: number(facts.duration_seconds), turns: number(facts.iterations), tokens, cost: number(all ?? cost) };
}

/**
 * Return a value of an object that others have written, if it is an object; null otherwise.
 * @param {any} value
 * @returns {Record<string, any> | null}
 */
export function object(value) {
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? value : null;
}
