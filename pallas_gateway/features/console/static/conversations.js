/** Conversations: values, their export and import, and the storage of the browser's in IndexedDB. They hold no token. */

import { ANSWERED, answersOf } from './asked.js';
import { PDF, folded } from './attachments.js';
import { outcomeOf } from './outcome.js';
import { cut } from './text.js';

/**
 * @typedef {{data: string, mime_type: string, name?: string}} Image an image, or a PDF with the name of its file
 * @typedef {{at: number, message: any}} Event one notification or answer of the caller, and the milliseconds since the call began
 * @typedef {'running' | 'complete' | 'error' | 'stopped' | 'interrupted' | 'elsewhere'} TurnState `elsewhere`: another tab runs it
 * @typedef {{id: string, message: string, images: Image[], params: Record<string, any>, began: number, state: TurnState,
 *   error: string, result: any, events: Event[], leftOut: number, number?: number, replaces?: number | string, isTimeless?: boolean, model?: string | null,
 *   feedback?: Feedback}} Turn `number` in a thread of the gateway; `replaces`: the first turn with its message, by number or else id; `isTimeless`: the times of its events are not known
 * @typedef {{rating: 'good' | 'bad', note: string, forOwner?: boolean}} Given what the reader thinks of the answer; `forOwner`: the owner of the agent may read it
 * @typedef {Given & {ratedAt: string}} Feedback
 * @typedef {{id: string, agent: string, title: string, created: number, changed: number, turns: Turn[],
 *   isOnGateway?: boolean, threadId?: string}} Conversation `threadId`: of the gateway's, once the gateway has it
 */

const FORMAT = 'pallas-gateway-conversation';
const LONGEST_TITLE = 60;
const LONGEST_NAME = 1000;
const DELTA = 'assistant_delta';
const MOST_EVENTS = 2000;
const STATES = ['complete', 'error', 'stopped', 'interrupted'];

/**
 * @param {string} agent its URL, which tells it from those of other gateways
 * @returns {Conversation}
 */
export function newConversation(agent) {
  const now = Date.now();
  return { id: crypto.randomUUID(), agent, title: '', created: now, changed: now, turns: [] };
}

/**
 * Return a new turn, whose call is to begin.
 * @param {string} message
 * @param {Image[]} images
 * @param {Record<string, any>} params
 * @returns {Turn}
 */
export function newTurn(message, images = [], params = {}) {
  const id = crypto.randomUUID();
  return { id, message, images, params, began: Date.now(), state: 'running', error: '', result: null, events: [], leftOut: 0 };
}

/**
 * Keep an event of a call: live text joined, until the whole text of its LLM turn follows. Of a long call, the latest
 * events are left out, and counted.
 * @param {Turn} turn
 * @param {Event} event
 */
export function keepEvent(turn, event) {
  const [before, data] = [turn.events.at(-1), event].map((one) => one?.message?.params?.data);
  if (isLive(before) && isText(data) && before.agent === data.agent && before.iteration === data.iteration) {
    turn.events.pop();
    const text = `${before.text}${data.text}`;
    const joined = { ...event.message, params: { ...event.message.params, data: { ...data, text } } };
    turn.events.push(data.kind === DELTA ? { at: event.at, message: joined } : event);
    return;
  }
  if (turn.events.length < MOST_EVENTS || event.message?.method === ANSWERED) turn.events.push(event);
  else turn.leftOut += 1;
}

/** @param {any} data */
function isLive(data) {
  return data?.kind === DELTA && isText(data);
}

/** @param {any} data */
function isText(data) {
  return (data?.kind === DELTA || data?.kind === 'assistant_chunk') && typeof data.text === 'string';
}

/**
 * Return a conversation's name: the given one, or the first line of its first message.
 * @param {Conversation} conversation
 */
export function nameOf(conversation) {
  const first = /\S[^\n]*/.exec(conversation.turns[0]?.message ?? '')?.[0].trimEnd();
  const text = conversation.title || first || (conversation.threadId ? unnamed(conversation) : 'New conversation');
  return cut(text, LONGEST_NAME);
}

/** @param {Conversation} conversation */
function unnamed({ created }) {
  return `Conversation of ${new Date(created).toLocaleString(undefined, { dateStyle: 'medium', timeStyle: 'short' })}`;
}

/**
 * Return a conversation's title: the begin of its name.
 * @param {Conversation} conversation
 */
export function titleOf(conversation) {
  return cut(nameOf(conversation), LONGEST_TITLE);
}

/**
 * Return the number or id of the first turn with the message of a turn: a message that was retried has several turns.
 * @param {{replaces?: number | string, number?: number, id: string}} turn
 */
export function firstOf({ replaces, number, id }) {
  return replaces ?? number ?? id;
}

/**
 * Return the indexes of the turns of each message, in order.
 * @param {Turn[]} turns
 */
export function placesOf(turns) {
  /** @type {Map<unknown, number[]>} */
  const places = new Map();
  turns.forEach((turn, index) => places.set(firstOf(turn), [...(places.get(firstOf(turn)) ?? []), index]));
  return [...places.values()];
}

/**
 * Return the turns before `end` as `history`: of each message the latest answer, but none of the message at `end`.
 * @param {Conversation} conversation
 */
export function historyOf(conversation, end = conversation.turns.length) {
  const asked = conversation.turns[end] && firstOf(conversation.turns[end]);
  const places = placesOf(conversation.turns.slice(0, end)).filter(([index]) => firstOf(conversation.turns[index]) !== asked);
  const answered = places.flatMap((place) => place.map((index) => conversation.turns[index]).findLast(({ state }) => state === 'complete') ?? []);
  return answered.flatMap((turn) => {
    const images = turn.images.length ? { images: turn.images } : {};
    return [
      { role: 'user', content: turn.message, ...images },
      { role: 'assistant', content: answerOf(turn) },
    ];
  });
}

/** @param {Turn} turn */
export function answerOf(turn) {
  return outcomeOf(turn.result).text;
}

/** @param {Conversation} conversation */
export function asMarkdown(conversation) {
  const turns = placesOf(conversation.turns).map((place) => {
    const answers = place.map((index, at) => {
      const turn = conversation.turns[index];
      const answer = turn.state === 'complete' ? answerOf(turn) : `(${turn.state}${turn.error ? `: ${turn.error}` : ''})`;
      const given = answersOf(turn).map((text) => `${text}\n\n`).join('');
      return `${given}## Agent${place.length > 1 ? ` (answer ${at + 1} of ${place.length})` : ''}\n\n${answer}\n`;
    });
    const turn = conversation.turns[place[0]];
    const documents = turn.images.filter(({ mime_type: type }) => type === PDF);
    const pictures = turn.images.length - documents.length;
    const sent = [...(pictures ? [`${pictures} images`] : []), ...documents.map(({ name }) => name || 'a PDF')];
    const images = sent.length ? `\n\n(${sent.join(', ')})` : '';
    return `## You\n\n${folded(turn.message)}${images}\n\n${answers.join('\n')}`;
  });
  return `# ${titleOf(conversation)}\n\n${turns.join('\n')}`;
}

/**
 * Return a conversation as JSON that `fromJson` reads.
 * @param {Conversation} conversation
 */
export function asJson(conversation) {
  return JSON.stringify({ format: FORMAT, version: 1, conversation }, null, 2);
}

/**
 * Return the conversation of a file, as a new one with an agent.
 * @param {string} text
 * @param {string} agent
 * @returns {Conversation}
 * @throws {Error} with a sentence for the user, if the file holds none
 */
export function fromJson(text, agent) {
  let document;
  try {
    document = JSON.parse(text);
  } catch {
    throw new Error('The file is not JSON. Choose a file that was exported as JSON.');
  }
  const found = document?.format === FORMAT ? document.conversation : null;
  if (!Array.isArray(found?.turns)) throw new Error('The file holds no conversation. Choose a file that was exported as JSON.');
  const title = typeof found.title === 'string' ? found.title : '';
  const ids = new Map(); // by what the others name them
  const turns = found.turns.filter(isTurn).map((/** @type {any} */ one) => {
    const turn = turnOf(one);
    ids.set(one.number ?? one.id, turn.id);
    return one.replaces === undefined ? turn : { ...turn, replaces: ids.get(one.replaces) };
  });
  return { ...newConversation(agent), title, turns };
}

/**
 * Return a copy of the turns before the one at `end`, as a conversation of the browser.
 * @param {Conversation} conversation
 * @param {number} end
 */
export function copyOf(conversation, end) {
  const turns = conversation.turns.slice(0, end).map((turn) => ({ ...turn, feedback: undefined })); // ratings are not copied
  return fromJson(asJson({ ...conversation, turns }), conversation.agent);
}

/** @param {any} turn */
function isTurn(turn) {
  return typeof turn?.message === 'string';
}

/**
 * @param {any} turn
 * @returns {Turn}
 */
function turnOf(turn) {
  const images = (Array.isArray(turn.images) ? turn.images : []).filter(isImage).map(known);
  return {
    ...newTurn(turn.message, images, typeof turn.params === 'object' && turn.params !== null ? turn.params : {}),
    began: typeof turn.began === 'number' ? turn.began : Date.now(),
    state: STATES.includes(turn.state) ? turn.state : 'interrupted',
    error: typeof turn.error === 'string' ? turn.error : '',
    result: typeof turn.result === 'object' ? turn.result : null,
    events: (Array.isArray(turn.events) ? turn.events : []).filter((/** @type {any} */ one) => typeof one?.at === 'number'),
    leftOut: Number.isInteger(turn.leftOut) ? turn.leftOut : 0,
    ...(typeof turn.model === 'string' && { model: turn.model }),
    ...(isFeedback(turn.feedback) && { feedback: turn.feedback }),
  };
}

/** @param {any} feedback */
function isFeedback(feedback) {
  const { rating, note, ratedAt } = feedback ?? {};
  return ['good', 'bad'].includes(rating) && typeof note === 'string' && !Number.isNaN(Date.parse(ratedAt));
}

/** @param {any} image */
function isImage(image) {
  return typeof image?.data === 'string' && /^(image\/[\w.+-]+|application\/pdf)$/.test(image?.mime_type);
}

/**
 * The members of an image or PDF that the gateway knows; a name that it would refuse is left out.
 * @param {{data: string, mime_type: string, name?: unknown}} image
 */
function known({ data, mime_type, name }) {
  return typeof name === 'string' && /^[^\p{Cc}]{1,200}$/u.test(name) && mime_type === 'application/pdf' ? { data, mime_type, name } : { data, mime_type };
}

/** The conversations of this browser. Without IndexedDB (a private window), they last as long as the page. */
export class Conversations {
  /** @param {string} name of the database */
  constructor(name = 'pallas-gateway-console') {
    this._name = name;
    /** @type {Promise<IDBDatabase | null> | null} */
    this._opened = null;
    /** @type {Map<string, Conversation>} */
    this._memory = new Map();
  }

  /**
   * Return the conversations with an agent, or with all, the one last changed first.
   * @param {string} [agent]
   * @returns {Promise<Conversation[]>}
   */
  async list(agent) {
    const database = await this._open();
    const found = database
      ? await readEach(database, agent)
      : [...this._memory.values()].filter((one) => agent === undefined || one.agent === agent);
    return found.toSorted((/** @type {Conversation} */ a, /** @type {Conversation} */ b) => b.changed - a.changed);
  }

  /**
   * @param {string} id
   * @returns {Promise<Conversation | undefined>}
   */
  async get(id) {
    const database = await this._open();
    return database ? done(database.transaction('conversations').objectStore('conversations').get(id)) : this._memory.get(id);
  }

  /** @param {Conversation} conversation */
  async put(conversation) {
    const database = await this._open();
    if (database) await changed(database, (store) => store.put(conversation));
    else this._memory.set(conversation.id, conversation);
  }

  /** @param {string} id */
  async remove(id) {
    const database = await this._open();
    if (database) await changed(database, (store) => store.delete(id));
    else this._memory.delete(id);
  }

  /** @returns {Promise<IDBDatabase | null>} */
  _open() {
    this._opened ??= opened(this._name).catch(() => null);
    return this._opened;
  }
}

/**
 * Read the conversations with an agent, or with all, one by one: all at once, hundreds of them take longer than a frame.
 * @param {IDBDatabase} database
 * @param {string} [agent]
 * @returns {Promise<Conversation[]>}
 */
async function readEach(database, agent) {
  const store = database.transaction('conversations').objectStore('conversations');
  const keys = await done(store.index('agent').getAllKeys(agent));
  return Promise.all(keys.map((/** @type {IDBValidKey} */ key) => done(store.get(key))));
}

/**
 * Change the stored conversations. The transaction is committed without waiting for its request, since a page that is being
 * left takes no more events: the browser would discard the change.
 * @param {IDBDatabase} database
 * @param {(store: IDBObjectStore) => void} change
 * @returns {Promise<void>}
 */
function changed(database, change) {
  const transaction = database.transaction('conversations', 'readwrite');
  return new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onabort = () => reject(transaction.error);
    change(transaction.objectStore('conversations'));
    transaction.commit();
  });
}

/**
 * @param {string} name
 * @returns {Promise<IDBDatabase>}
 */
function opened(name) {
  const request = indexedDB.open(name, 1);
  request.onupgradeneeded = () => {
    request.result.createObjectStore('conversations', { keyPath: 'id' }).createIndex('agent', 'agent');
  };
  return done(request);
}

/**
 * @param {IDBRequest} request
 * @returns {Promise<any>}
 */
function done(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
