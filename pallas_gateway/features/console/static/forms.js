/**
 * Forms from JSON schemas: those of questions (flat objects of texts, numbers, booleans and choices) and of `params`. Pure.
 *
 * A schema is a server's text: no pattern, no reference and no nesting of it is evaluated. A value whose type has no field
 * of its own is written as JSON.
 */

import { harmless } from './text.js';

/**
 * @typedef {{name: string, kind: 'text' | 'lines' | 'number' | 'integer' | 'boolean' | 'choice' | 'choices' | 'json',
 *   label: string, description: string, required: boolean, initial: any, choices: {value: any, label: string}[],
 *   min?: number, max?: number, minLength?: number, maxLength?: number, minItems?: number, maxItems?: number,
 *   format: string, secret: boolean}} Field
 */

const SECRET = /pass(word|phrase)|secret|token|api[_-]?key|credential/i;
const COMPOSED = ['$ref', 'allOf', 'anyOf', 'oneOf', 'not', 'properties', 'items'];
const EMAIL = /^[^\s@]+@[^\s@.]+(?:\.[^\s@.]+)+$/;

/**
 * Return the fields of a schema, in its order.
 * @param {any} schema
 * @returns {Field[]}
 */
export function fieldsOf(schema) {
  const required = Array.isArray(schema?.required) ? schema.required : [];
  return Object.entries(object(schema?.properties)).map(([name, value]) => fieldOf(name, value, required.includes(name)));
}

/**
 * @param {string} name
 * @param {any} written
 * @param {boolean} required
 * @returns {Field}
 */
function fieldOf(name, written, required) {
  const outer = object(written);
  const schema = { ...withoutNull(outer), ...described(outer) };
  const choices = choicesOf(schema) ?? choicesOf(object(schema.items)) ?? [];
  const kind = kindOf(schema, choices);
  return {
    name, kind, required, choices,
    label: harmless(typeof schema.title === 'string' && schema.title ? schema.title : name),
    description: harmless(typeof schema.description === 'string' ? schema.description : ''),
    initial: initialOf(kind, schema.default),
    min: number(schema.minimum), max: number(schema.maximum),
    minLength: number(schema.minLength), maxLength: number(schema.maxLength),
    minItems: number(schema.minItems), maxItems: number(schema.maxItems),
    format: typeof schema.format === 'string' ? schema.format : '',
    secret: schema.format === 'password' || (kind === 'text' && SECRET.test(name)),
  };
}

/** @param {Record<string, any>} schema */
function described(schema) {
  const kept = Object.entries(schema).filter(([key]) => ['title', 'description', 'default'].includes(key));
  return Object.fromEntries(kept);
}

/**
 * @param {Record<string, any>} schema
 * @returns {Record<string, any>}
 */
function withoutNull(schema) {
  if (Array.isArray(schema.type)) return { ...schema, type: schema.type.find((/** @type {any} */ one) => one !== 'null') };
  if (!Array.isArray(schema.anyOf) || 'const' in object(schema.anyOf[0])) return schema;
  const others = schema.anyOf.map(object).filter((/** @type {any} */ one) => one.type !== 'null');
  return others.length === 1 ? others[0] : { ...schema, type: 'any', anyOf: undefined };
}

/**
 * @param {Record<string, any>} schema
 * @param {{value: any}[]} choices
 * @returns {Field['kind']}
 */
function kindOf(schema, choices) {
  if (schema.type === 'boolean') return 'boolean';
  if (schema.type === 'array') return choices.length ? 'choices' : 'json';
  if (choices.length) return 'choice';
  if (schema.type === 'number' || schema.type === 'integer') return schema.type;
  if (schema.type === 'string') return (number(schema.maxLength) ?? 0) > 200 ? 'lines' : 'text';
  return schema.type === undefined && !COMPOSED.some((key) => key in schema) ? 'text' : 'json';
}

/**
 * @param {Record<string, any>} schema
 * @returns {{value: any, label: string}[] | null}
 */
function choicesOf(schema) {
  if (Array.isArray(schema.enum)) {
    const names = Array.isArray(schema.enumNames) ? schema.enumNames : [];
    return schema.enum.map((/** @type {any} */ value, /** @type {number} */ index) => ({ value, label: harmless(names[index] ?? value) }));
  }
  const titled = schema.oneOf ?? schema.anyOf;
  if (!Array.isArray(titled) || !titled.every((one) => 'const' in object(one))) return null;
  return titled.map(object).map((one) => ({ value: one.const, label: harmless(one.title ?? one.const) }));
}

/**
 * @param {Field['kind']} kind
 * @param {any} value
 */
function initialOf(kind, value) {
  if (kind === 'boolean') return value === true;
  if (kind === 'choices') return Array.isArray(value) ? value : [];
  if (kind === 'choice') return value;
  if (value === undefined || value === null) return '';
  return kind === 'json' ? JSON.stringify(value) : String(value);
}

/**
 * Return a value of an object that others have written; undefined for names that every object has, such as `constructor`.
 * @param {Record<string, any>} object
 * @param {string} name
 */
export function own(object, name) {
  return Object.hasOwn(object, name) ? object[name] : undefined;
}

/**
 * Return the content of a form as it was filled in, and by field what does not fit.
 * @param {Field[]} fields
 * @param {Record<string, any>} raw by field: a text, a boolean, a choice, or a list of choices
 * @returns {{content: Record<string, any>, errors: Record<string, string>}}
 */
export function read(fields, raw) {
  /** @type {[string, any][]} */
  const content = []; // a field may have any name, such as `__proto__`
  /** @type {[string, string][]} */
  const errors = [];
  for (const field of fields) {
    const given = own(raw, field.name);
    if (isEmpty(field, given)) {
      if (field.required) errors.push([field.name, 'This field is required.']);
      continue;
    }
    const { value, error } = valueOf(field, given);
    if (error) errors.push([field.name, error]);
    else content.push([field.name, value]);
  }
  return { content: Object.fromEntries(content), errors: Object.fromEntries(errors) };
}

/**
 * @param {Field} field
 * @param {any} given
 */
function isEmpty(field, given) {
  if (field.kind === 'boolean') return given === undefined;
  if (field.kind === 'choices') return (given ?? []).length === 0 && !field.required && !field.minItems;
  return given === undefined || given === '';
}

/**
 * @param {Field} field
 * @param {any} given
 * @returns {{value?: any, error?: string}}
 */
function valueOf(field, given) {
  if (field.kind === 'number' || field.kind === 'integer') return numberOf(field, given);
  if (field.kind === 'json') return jsonOf(given);
  if (field.kind === 'choices') return { value: given ?? [], error: outside(field.minItems, field.maxItems, (given ?? []).length, 'choices') };
  if (field.kind === 'text' || field.kind === 'lines') return textOf(field, String(given));
  return { value: given };
}

/**
 * @param {Field} field
 * @param {any} given
 */
function numberOf(field, given) {
  const value = Number(String(given).trim().replace(',', '.'));
  if (!Number.isFinite(value)) return { error: 'This is not a number.' };
  if (field.kind === 'integer' && !Number.isSafeInteger(value)) return { error: 'This is not a whole number.' };
  if (field.min !== undefined && value < field.min) return { error: `The number must be at least ${field.min}.` };
  if (field.max !== undefined && value > field.max) return { error: `The number must be at most ${field.max}.` };
  return { value };
}

/** @param {any} given */
function jsonOf(given) {
  try {
    return { value: JSON.parse(given) };
  } catch {
    return { error: 'This is not JSON. Put quotation marks around a text.' };
  }
}

/**
 * @param {Field} field
 * @param {string} text
 */
function textOf(field, text) {
  const error = outside(field.minLength, field.maxLength, [...text].length, 'characters') ?? misformed(field.format, text);
  if (error) return { error };
  return { value: field.format === 'date-time' ? new Date(text).toISOString() : text };
}

/**
 * @param {string} format
 * @param {string} text
 */
function misformed(format, text) {
  if (format === 'email' && !EMAIL.test(text)) return 'This is not an e-mail address.';
  if (format === 'uri' && !URL.canParse(text)) return 'This is not an address with a scheme, such as https://example.com.';
  if ((format === 'date' || format === 'date-time') && Number.isNaN(Date.parse(text))) return 'This is not a date.';
  return undefined;
}

/**
 * @param {number | undefined} least
 * @param {number | undefined} most
 * @param {number} count
 * @param {string} unit
 */
function outside(least, most, count, unit) {
  if (least !== undefined && count < least) return `At least ${least} ${unit} are required.`;
  return most !== undefined && count > most ? `At most ${most} ${unit} are allowed.` : undefined;
}

/**
 * Return the agent, the tool and the arguments of an approval; null if a question is none.
 *
 * An approval is known by its origin, which the gateway alone writes: a downstream cannot get an approval by the wording of its question.
 * @param {any} params of the elicitation
 * @param {any} origin `kind`, `agent` and `tool` of the question
 */
export function approvalIn(params, origin) {
  if (origin?.kind !== 'approval') return null;
  const [, ...args] = String(params?.message ?? '').split('\n');
  return { agent: String(origin.agent), tool: String(origin.tool), args: args.join('\n') };
}

/** @param {unknown} value */
function number(value) {
  return typeof value === 'number' ? value : undefined;
}

/**
 * @param {unknown} value
 * @returns {Record<string, any>}
 */
function object(value) {
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? value : {};
}
