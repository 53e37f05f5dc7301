/** An agent's definition: as the gateway has it (`/api/v1/agents`), as its form has it, and how two of them differ. Pure. */

import { fieldsOf, read } from './forms.js';

/** The keys of a definition, in the order of the form. */
export const KEYS = /** @type {const} */ ([
  'title', 'description', 'icon', 'instruction', 'model', 'params', 'servers', 'tools', 'agents', 'approve', 'toolLimits', 'maxIterations',
  'loopRepeatThreshold', 'callTimeoutSeconds', 'maxInFlight', 'maxTokensPerCall', 'humanInput', 'examples',
]);

/** @type {Record<string, string>} the keys as the form names them */
export const LABELS = {
  name: 'Name', title: 'Title', description: 'Description', icon: 'Icon', instruction: 'Instruction', model: 'Model', params: 'Parameters',
  servers: 'Servers', tools: 'Tools', agents: 'Sub-agents', approve: 'Tools to approve', toolLimits: 'Limits of tools', maxIterations: 'LLM turns in a call',
  loopRepeatThreshold: 'Equal tool rounds', callTimeoutSeconds: 'Seconds of a call', maxInFlight: 'Calls at once', maxTokensPerCall: 'Tokens of a call',
  humanInput: 'May ask the caller', examples: 'Examples',
};

/** The numbers of a definition: the smallest value, the default, and a hint. */
export const NUMBERS = [
  { key: 'maxIterations', min: 1, normal: '15', hint: 'The call ends with a partial answer after them.' },
  { key: 'callTimeoutSeconds', min: 0, normal: '600', hint: 'Longest duration of a call.' },
  { key: 'maxTokensPerCall', min: 1, normal: 'any number', hint: 'With the calls of its sub-agents.' },
  { key: 'maxInFlight', min: 1, normal: 'no limit of its own', hint: 'For each worker process.' },
  { key: 'loopRepeatThreshold', min: 0, normal: '3', hint: 'After so many in a row the call is stopped; 0: never.' },
];

/** @type {Record<string, string>} what an agent has whose definition does not have the key */
const NORMAL = {
  tools: 'all tools of its servers', model: 'that of the gateway', humanInput: 'no',
  ...Object.fromEntries(NUMBERS.map(({ key, normal }) => [key, `${normal} (default)`])),
};

/**
 * Return what holds where a definition does not have a key, as a text.
 * @param {string} key
 */
export function normalOf(key) {
  return Object.hasOwn(NORMAL, key) ? NORMAL[key] : 'none';
}

const TEXTS = /** @type {const} */ (['title', 'description', 'icon', 'instruction', 'model']);
const DESTRUCTIVE = 'destructive';
const WHOLE = ['callTimeoutSeconds'];

/**
 * @typedef {Record<string, any>} Definition by `KEYS`; those without a value are absent
 * @typedef {{isWhole: boolean, tools: string[]}} Ticked the tools of a server: all that are released, or some
 * @typedef {{name: string, title: string, description: string, icon: string, instruction: string, model: string,
 *   params: Record<string, any>, servers: Record<string, Ticked>, isPicked: boolean, agents: string[], isDestructive: boolean,
 *   approve: string, toolLimits: {glob: string, calls: string}[], numbers: Record<string, string>, humanInput: boolean,
 *   examples: string[]}} Values what the form holds; `isPicked`: servers or tools were changed in it
 * @typedef {{name: string, description?: string}} Tool
 * @typedef {{name: string, globs: string[], tools: Tool[] | null, reason?: string}} Released a server; its tools are null if they are not known
 * @typedef {{mayCreate: boolean, models: string[], modelPatterns: string[], defaultModel: string | null, servers: Released[], agents: {name: string, title?: string, description?: string}[],
 *   approve: string[], most: Record<string, number>}} MayUse
 * @typedef {{path: string, message: string}} Problem
 */

/**
 * @param {any} document
 * @returns {Definition}
 */
export function definitionIn(document) {
  const known = KEYS.map((key) => [key, key === 'params' ? snakeCased(document?.params) : document?.[key]]);
  return Object.fromEntries(known.filter(([key, value]) => !isEmpty(value) && (key === 'tools' || !isEmptyList(value))));
}

/**
 * Return the fields of the default parameters, with the values that a definition has.
 * @param {Record<string, any>} schemas
 * @param {Definition} definition
 */
export function parameterFields(schemas, definition) {
  const properties = Object.entries(schemas).map(([name, schema]) => [name, { ...schema, default: definition.params?.[name] }]);
  return fieldsOf({ properties: Object.fromEntries(properties) });
}

/**
 * @param {string} name
 * @param {Definition} definition
 * @param {MayUse} mayUse
 * @param {import('./forms.js').Field[]} fields of its parameters
 * @returns {Values}
 */
export function valuesOf(name, definition, mayUse, fields) {
  const approve = listOf(definition.approve);
  return {
    name,
    .../** @type {any} */ (Object.fromEntries(TEXTS.map((key) => [key, textOf(definition[key])]))),
    params: Object.fromEntries(fields.map((field) => [field.name, field.initial])),
    servers: Object.fromEntries(listOf(definition.servers).map((server) => [server, tickedIn(definition, server, mayUse)])),
    isPicked: false,
    agents: listOf(definition.agents),
    isDestructive: approve.includes(DESTRUCTIVE),
    approve: approve.filter((one) => one !== DESTRUCTIVE).join('\n'),
    toolLimits: Object.entries(definition.toolLimits ?? {}).map(([glob, calls]) => ({ glob, calls: String(calls) })),
    numbers: Object.fromEntries(NUMBERS.map(({ key }) => [key, textOf(definition[key])])),
    humanInput: definition.humanInput === true,
    examples: listOf(definition.examples),
  };
}

/**
 * Return the definition that a form holds, and what is wrong with it before the gateway has seen it.
 * @param {Values} values
 * @param {Definition} base the one with which the form began
 * @param {MayUse} mayUse
 * @param {import('./forms.js').Field[]} fields
 * @returns {{definition: Definition, problems: Problem[]}}
 */
export function definitionOf(values, base, mayUse, fields) {
  /** @type {Problem[]} */
  const problems = [];
  const { content, errors } = read(fields, values.params);
  for (const [name, message] of Object.entries(errors)) problems.push({ path: `params.${name}`, message });
  const numbers = NUMBERS.map((field) => [field.key, numberOf(field, values.numbers[field.key], problems)]);
  const approve = [...(values.isDestructive ? [DESTRUCTIVE] : []), ...linesOf(values.approve)];
  const definition = {
    ...Object.fromEntries(TEXTS.map((key) => [key, values[key].trim() === '' ? '' : key === 'instruction' ? values[key] : values[key].trim()])),
    params: { ...withoutKeys(base.params, fields.map(({ name }) => name)), ...content },
    ...(values.isPicked ? pickedIn(values, base, mayUse) : { servers: base.servers, tools: base.tools }),
    agents: values.agents,
    approve,
    toolLimits: limitsOf(values.toolLimits, problems),
    ...Object.fromEntries(numbers),
    humanInput: values.humanInput || (base.humanInput === undefined ? undefined : false),
    examples: values.examples.map((text) => text.trim()).filter(Boolean),
  };
  return { definition: definitionIn(definition), problems };
}

/**
 * Return what the form has no field for.
 * @param {Record<string, any> | undefined} params
 * @param {string[]} names
 */
function withoutKeys(params, names) {
  return Object.fromEntries(Object.entries(params ?? {}).filter(([name]) => !names.includes(name)));
}

/**
 * @param {Definition} before
 * @param {Definition} after
 * @returns {string[]}
 */
export function changedKeys(before, after) {
  return KEYS.filter((key) => canonical(before[key]) !== canonical(after[key]));
}

/**
 * Bring what another has saved meanwhile into a form: what was not changed in it takes the saved values.
 * @param {Values} values
 * @param {{base: Definition, mine: Definition, theirs: Definition, mayUse: MayUse, fields: import('./forms.js').Field[]}} versions
 * @returns {{values: Values, changed: string[], clashes: string[]}} `changed` by the other, `clashes`: by both, in different ways
 */
export function rebased(values, { base, mine, theirs, mayUse, fields }) {
  const [own, changed] = [changedKeys(base, mine), changedKeys(base, theirs)];
  const kept = own.includes('servers') || own.includes('tools') ? ['servers', 'tools'] : [];
  const taken = changed.filter((key) => !own.includes(key) && !kept.includes(key));
  const clashes = changed.filter((key) => !taken.includes(key) && canonical(mine[key]) !== canonical(theirs[key]));
  return { values: withKeys(values, taken, theirs, mayUse, fields), changed, clashes };
}

/**
 * Return what a form holds with the values of some keys from a definition.
 * @param {Values} values
 * @param {string[]} keys
 * @param {Definition} definition
 * @param {MayUse} mayUse
 * @param {import('./forms.js').Field[]} fields of the parameters of that definition
 * @returns {Values}
 */
export function withKeys(values, keys, definition, mayUse, fields) {
  const theirs = valuesOf(values.name, definition, mayUse, fields);
  const next = /** @type {any} */ ({ ...values, numbers: { ...values.numbers } });
  for (const key of keys) {
    if (key in values.numbers) next.numbers[key] = theirs.numbers[key];
    else if (key === 'tools' || key === 'servers') Object.assign(next, { servers: theirs.servers, isPicked: false });
    else if (key === 'approve') Object.assign(next, { approve: theirs.approve, isDestructive: theirs.isDestructive });
    else next[key] = /** @type {any} */ (theirs)[key];
  }
  return next;
}

/**
 * Return the problems by the field that shows each: a key of the form, `servers/NAME`, `params/NAME`, or an empty text.
 * @param {Problem[]} problems
 * @param {Definition} definition the one that was checked
 * @returns {Record<string, string[]>}
 */
export function problemsByField(problems, definition) {
  /** @type {Map<string, string[]>} */
  const found = new Map();
  for (const { path, message } of problems) {
    const field = fieldAt(String(path ?? '').split('.'), definition);
    found.set(field, [...(found.get(field) ?? []), String(message)]);
  }
  return Object.fromEntries(found);
}

/**
 * @param {string[]} path
 * @param {Definition} definition
 */
function fieldAt([first, second = ''], definition) {
  const key = camelCased(first);
  if ((key === 'servers' || key === 'tools') && !second) return 'servers';
  if (key === 'servers') return placeOfServer(definition.servers?.[Number(second)]);
  if (key === 'tools') return placeOfServer(listOf(definition.servers).find((server) => String(definition.tools?.[Number(second)]).startsWith(`${server}__`)));
  if (key === 'params') return second ? `params/${snake(second)}` : 'params';
  return Object.hasOwn(LABELS, key) ? key : '';
}

/** @param {unknown} server */
function placeOfServer(server) {
  return typeof server === 'string' ? `servers/${server}` : 'servers';
}

/**
 * @param {Definition} definition
 * @param {string} server
 * @param {MayUse} mayUse
 * @returns {Ticked}
 */
function tickedIn(definition, server, mayUse) {
  if (definition.tools === undefined) return { isWhole: true, tools: [] };
  const tools = listOf(definition.tools).filter((entry) => entry.startsWith(`${server}__`)).map((entry) => entry.slice(server.length + 2));
  const globs = mayUse.servers.find(({ name }) => name === server)?.globs ?? [];
  const isWhole = tools.length > 0 && canonical(tools.toSorted()) === canonical(globs.toSorted());
  return { isWhole, tools: isWhole ? [] : tools };
}

/**
 * Return the servers and tools that are ticked. Tools of sub-agents, which the form does not show, are kept.
 * @param {Values} values
 * @param {Definition} base
 * @param {MayUse} mayUse
 */
function pickedIn({ servers: ticked, agents }, base, mayUse) {
  const servers = Object.keys(ticked);
  const others = listOf(base.tools).filter((entry) => agents.some((agent) => entry.startsWith(`${agent}__`)) && !servers.some((one) => entry.startsWith(`${one}__`)));
  if (servers.every((one) => ticked[one].isWhole) && others.length === 0) return { servers, tools: undefined };
  const globsOf = (/** @type {string} */ server) => mayUse.servers.find(({ name }) => name === server)?.globs ?? ['*'];
  const tools = servers.flatMap((one) => (ticked[one].isWhole ? globsOf(one) : ticked[one].tools).map((tool) => `${one}__${tool}`));
  return { servers, tools: [...tools, ...others] };
}

/**
 * @param {{key: string, min: number}} field
 * @param {string} text
 * @param {Problem[]} problems
 */
function numberOf({ key, min }, text, problems) {
  if (text.trim() === '') return undefined;
  const value = Number(text.trim().replace(',', '.'));
  const note = (/** @type {string} */ message) => problems.push({ path: key, message });
  if (!Number.isFinite(value)) note('This is not a number.');
  else if (!WHOLE.includes(key) && !Number.isSafeInteger(value)) note('This is not a whole number.');
  else if (value < min) note(`The number must be at least ${min}.`);
  return value;
}

/**
 * @param {Values['toolLimits']} rows
 * @param {Problem[]} problems
 */
function limitsOf(rows, problems) {
  /** @type {[string, any][]} */
  const limits = []; // a glob may be any text, such as `__proto__`
  for (const { glob, calls } of rows) {
    if (!glob.trim() && !calls.trim()) continue;
    const value = Number(calls.trim() || NaN);
    if (!glob.trim()) problems.push({ path: 'toolLimits', message: `Which tool may be called ${calls.trim()} times?` });
    else if (!Number.isSafeInteger(value) || value < 0) problems.push({ path: 'toolLimits', message: `How often may ${glob.trim()} be called? Enter a whole number.` });
    else limits.push([glob.trim(), value]);
  }
  return Object.fromEntries(limits);
}

/** @param {unknown} value */
function isEmpty(value) {
  if (value === undefined || value === null || value === '') return true;
  if (Array.isArray(value)) return false;
  return typeof value === 'object' && Object.keys(value).length === 0;
}

/** @param {unknown} value */
function isEmptyList(value) {
  return Array.isArray(value) && value.length === 0; // `tools: []` allows none
}

/**
 * Return a value as text that is the same for equal values.
 * @param {unknown} value
 */
function canonical(value) {
  return JSON.stringify(value, (_, one) => (one && typeof one === 'object' && !Array.isArray(one) ? Object.fromEntries(Object.entries(one).toSorted(([a], [b]) => (a < b ? -1 : 1))) : one)) ?? '';
}

/** @param {unknown} value */
function textOf(value) {
  return value === undefined || value === null ? '' : String(value);
}

/**
 * @param {unknown} value
 * @returns {string[]}
 */
function listOf(value) {
  return Array.isArray(value) ? value.map(String) : [];
}

/** @param {string} text */
function linesOf(text) {
  return text.split('\n').map((line) => line.trim()).filter(Boolean);
}

/** @param {unknown} params */
function snakeCased(params) {
  return params && typeof params === 'object' ? Object.fromEntries(Object.entries(params).map(([name, value]) => [snake(name), value])) : undefined;
}

/** @param {string} name */
function snake(name) {
  return name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}

/** @param {string} name */
function camelCased(name) {
  return name.replace(/_([a-z])/g, (_, letter) => letter.toUpperCase());
}
