/** A call over MCP: its requests, the answers to its questions, and its end when the page stops it or is closed. */

import { own } from './forms.js';
import { signal } from './html.js';
import { McpError, callTool, endCall } from './mcp.js';
import { isEnded, limitOf } from './outcome.js';
import { ShownCall } from './shown_call.js';

const INVALID_PARAMS = -32602;
const UNAUTHORIZED = 401;
const CAPABILITIES = { elicitation: { form: {}, url: {} } };

/** @typedef {import('./shown_call.js').Question} Question */

export class RunningCall extends ShownCall {
  /**
   * Make the call; returns when it has ended, in whatever way.
   * @param {{url: string, token: () => string, args: Record<string, any>}} call `token`: for a request now; it may be renewed during the call
   */
  async run({ url, token, args }) {
    this._call = { url, token, args };
    const send = (/** @type {Record<string, any>} */ params) =>
      callTool(url, 'send_message', args, { ...this._options(token()), params });
    try {
      const result = await this._answered(send);
      await this._drawn();
      this.limit = limitOf(result);
      this._end(isEnded(result) ? 'stopped' : result.isError ? 'error' : 'complete', { result });
    } catch (error) {
      await this._drawn();
      if (this._controller.signal.aborted) {
        this._end('stopped', {});
        await this._left;
      } else this._end('error', { error: sentence(error) });
    }
  }

  /** End the call on the gateway. */
  stop() {
    this._controller.abort();
    this._left = this.leave();
    this.questions.value = [];
    this._wake();
  }

  /** End the call on the gateway if it may wait for answers; it ends a call whose client leaves during a request itself. */
  async leave() {
    if (!this._call || !this._state) return;
    const { url, token, args } = this._call;
    try {
      await endCall(url, 'send_message', args, this._state, { token: token() });
    } catch {
      // It ends by itself when the state expires.
    }
  }

  /**
   * @param {Question} question
   * @param {{action: string, content?: any}} answer
   */
  answer(question, answer) {
    super.answer(question, answer);
    this._answers.set(question.id, answer);
    this._wake();
  }

  /**
   * Send the request, and again with the answers for as long as its result are questions.
   * @param {(params: Record<string, any>) => Promise<any>} send
   */
  async _answered(send) {
    let result = await send({});
    while (result?.resultType === 'input_required') {
      this._state = result.requestState;
      await this._drawn();
      this._ask(result.inputRequests ?? {}, result._meta?.['pallas/questions'] ?? {});
      result = await this._withAnswers(send);
      const open = result?.resultType === 'input_required' ? (result.inputRequests ?? {}) : {};
      for (const question of this.questions.value) if (!Object.hasOwn(open, question.id)) this._close(question);
    }
    this.questions.value = [];
    return result;
  }

  /** @param {(params: Record<string, any>) => Promise<any>} send */
  async _withAnswers(send) {
    for (;;) {
      await this._anAnswer();
      const inputResponses = Object.fromEntries(this._answers);
      const requestState = this._state;
      this._answers = new Map();
      try {
        return await send({ inputResponses, requestState });
      } catch (error) {
        const isUnfit = error instanceof McpError && error.code === INVALID_PARAMS && error.message.startsWith('inputResponses');
        const refused = isUnfit || (error instanceof McpError && error.status === UNAUTHORIZED); // another token may be accepted
        if (!refused) throw error;
        for (const question of this.questions.value.filter((/** @type {Question} */ one) => Object.hasOwn(inputResponses, one.id))) {
          question.sent.value = false;
          question.error.value = /** @type {Error} */ (error).message;
        }
        this._mark();
      }
    }
  }

  async _anAnswer() {
    while (this._answers.size === 0) {
      if (this._controller.signal.aborted) throw new Error('stopped');
      await new Promise((resolve) => {
        this._wake = () => resolve(undefined);
        if (this._controller.signal.aborted) resolve(undefined);
      });
    }
    if (this._controller.signal.aborted) throw new Error('stopped');
  }

  /**
   * Show the open questions; those that were shown before stay as they are.
   * @param {Record<string, any>} requests
   * @param {Record<string, any>} origins of the questions, as the gateway says
   */
  _ask(requests, origins) {
    const before = new Map(this.questions.value.map((/** @type {Question} */ one) => [one.id, one]));
    // One that was answered and is asked again, because its answer did not fit, takes another answer.
    for (const [id, question] of before) question.sent.value = this._answers.has(id);
    this.questions.value = Object.entries(requests).map(
      ([id, request]) => before.get(id) ?? { id, params: request?.params ?? {}, origin: own(origins, id), error: signal(''), sent: signal(false) },
    );
    this._mark();
  }

  /** @param {string} token */
  _options(token) {
    return {
      token,
      signal: this._controller.signal,
      capabilities: CAPABILITIES,
      meta: { progressToken: this.turn.id, 'io.modelcontextprotocol/logLevel': 'info', 'pallas/stream': 'delta' },
      onNotification: (/** @type {any} */ message) => this._take(message),
    };
  }

  /** @type {Map<string, any>} */
  _answers = new Map();
  _wake = () => {};
  /** @type {string | null} */
  _state = null;
  /** @type {{url: string, token: () => string, args: Record<string, any>} | null} */
  _call = null;
  /** @type {Promise<void> | undefined} */
  _left = undefined;
}

/** @param {unknown} error */
function sentence(error) {
  if (error instanceof McpError && error.code === INVALID_PARAMS && /requestState/.test(error.message)) {
    return 'The question is no longer open: it has expired, or the gateway was started again. Send the message again.';
  }
  return error instanceof Error ? error.message : String(error);
}

