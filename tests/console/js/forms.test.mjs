import assert from 'node:assert/strict';
import { test } from 'node:test';

import { approvalIn, fieldsOf, read } from '../../../pallas_gateway/features/console/static/forms.js';

const formOf = (properties, required = []) => fieldsOf({ type: 'object', properties, required });
const errorOf = (schema, value) => read(formOf({ x: schema }), { x: value }).errors.x;

test('each type has its field', () => {
  const kinds = {
    text: { type: 'string' }, lines: { type: 'string', maxLength: 4000 }, number: { type: 'number' }, integer: { type: 'integer' },
    boolean: { type: 'boolean' }, choice: { type: 'string', enum: ['a'] }, choices: { type: 'array', items: { enum: ['a'] } },
    json: { type: 'object' },
  };
  assert.deepEqual(formOf(kinds).map((field) => field.kind), Object.keys(kinds));
  assert.deepEqual(formOf({ a: { anyOf: [{ type: 'number', minimum: 0 }, { type: 'null' }] } })[0].kind, 'number');
  assert.deepEqual(formOf({ a: { type: ['integer', 'null'] } })[0].kind, 'integer');
  assert.deepEqual(formOf({ a: { anyOf: [{ type: 'string' }, { type: 'array' }, { type: 'null' }] } })[0].kind, 'json');
});

test('a value whose schema is a reference or a union is written as JSON', () => {
  const kinds = [{ $ref: '#/$defs/Shape' }, { allOf: [{ $ref: '#/$defs/Shape' }] }, { oneOf: [{ type: 'integer' }, { type: 'string' }] }, { properties: {} }];
  for (const schema of kinds) assert.equal(formOf({ a: schema })[0].kind, 'json', JSON.stringify(schema));
  assert.equal(formOf({ a: {} })[0].kind, 'text');
});

test('titles, choices and defaults', () => {
  const [size, on, count] = formOf({
    size: { type: 'string', title: 'Size', oneOf: [{ const: 's', title: 'Small' }, { const: 'm' }], default: 'm' },
    on: { type: 'boolean', default: true },
    count: { type: 'integer', default: 7 },
  });
  assert.deepEqual(size.choices, [{ value: 's', label: 'Small' }, { value: 'm', label: 'm' }]);
  assert.deepEqual([size.label, size.initial, on.initial, count.initial], ['Size', 'm', true, '7']);
  assert.deepEqual(formOf({ a: { enum: ['x'], enumNames: ['X'] } })[0].choices, [{ value: 'x', label: 'X' }]);
});

test('values are read by their types, and empty optional ones are left out', () => {
  const fields = formOf({ name: { type: 'string' }, age: { type: 'integer' }, on: { type: 'boolean' }, extra: { type: 'object' }, tags: { type: 'array', items: { enum: ['a', 'b'] } } });
  assert.deepEqual(read(fields, { name: "Ada", age: " 36 ", on: false, extra: '{"a": 1}', tags: ["b"] }).content, { name: "Ada", age: 36, on: false, extra: { a: 1 }, tags: ["b"] });
  assert.deepEqual(read(fields, { name: '', age: '' }), { content: {}, errors: {} });
  assert.match(read(formOf({ name: { type: 'string' } }, ['name']), { name: '' }).errors.name, /required/);
});

test('a value that does not fit is refused with the reason', () => {
  assert.match(errorOf({ type: 'integer' }, '1.5'), /whole number/);
  assert.match(errorOf({ type: 'number' }, 'many'), /not a number/);
  assert.match(errorOf({ type: 'number', minimum: 2 }, '1'), /at least 2/);
  assert.match(errorOf({ type: 'number', maximum: 2 }, '3'), /at most 2/);
  assert.match(errorOf({ type: 'string', minLength: 3 }, 'ab'), /At least 3 characters/);
  assert.match(errorOf({ type: 'string', maxLength: 3 }, 'abcd'), /At most 3/);
  assert.equal(errorOf({ type: 'string', maxLength: 1 }, '🙂'), undefined);
  assert.match(errorOf({ type: 'string', format: 'email' }, 'ada'), /e-mail/);
  assert.match(errorOf({ type: 'string', format: 'uri' }, 'ada'), /address/);
  assert.match(errorOf({ type: 'string', format: 'date' }, 'ada'), /date/);
  assert.match(errorOf({ type: 'object' }, '{'), /JSON/);
  assert.match(errorOf({ type: 'array', items: { enum: ['a', 'b'] }, maxItems: 1 }, ['a', 'b']), /At most 1/);
});

test('a hostile schema has no effect', () => {
  const { content } = read(fieldsOf(JSON.parse('{"properties": {"__proto__": {"type": "object"}}}')), { ['__proto__']: '{"x": 1}' });
  assert.deepEqual([Object.keys(content), content.x], [['__proto__'], undefined]);
  for (const schema of [null, 7, 'x', [], { properties: [] }, { properties: { a: null, b: 7, c: { enum: 7 } }, required: 7 }, { properties: { a: { anyOf: [] } } }]) {
    assert.ok(Array.isArray(fieldsOf(schema)));
  }
});

test('only what the gateway marks is an approval', () => {
  const message = 'user: May the tool files/rm run with these arguments?\n{"path":\n"/"}';
  const origin = { kind: 'approval', agent: 'user', tool: 'files/rm' };
  assert.deepEqual(approvalIn({ message }, origin), { agent: 'user', tool: 'files/rm', args: '{"path":\n"/"}' });
  for (const other of [undefined, null, { ...origin, kind: 'form' }]) assert.equal(approvalIn({ message }, other), null);
});
