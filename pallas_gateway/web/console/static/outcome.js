/** The result of a call: its texts, images and facts, and why it is partial. Pure. */

/**
 * @typedef {{agent?: string, conversation_id?: string | null, call_id?: string, stop_reason?: string,
 *   iterations?: number, duration_seconds?: number, usage?: Record<string, number>}} Facts
 * @typedef {{text: string, images: {data: string, mimeType: string}[], isError: boolean, facts: Facts,
 *   notes: Record<string, any> | null, traceUrl: unknown}} Outcome
 */

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
  if (outcome.facts.stop_reason === 'maxTokens') return 'the model reached its limit of tokens';
  const begin = outcome.text.lastIndexOf(STOPPED);
  return begin >= 0 && /^[^\]]*\]\s*$/.test(outcome.text.slice(begin)) ? 'the gateway stopped the call' : '';
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
 * @param {unknown} value
 * @returns {Record<string, any> | null}
 */
function object(value) {
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? value : null;
}
