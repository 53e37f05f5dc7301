import assert from 'node:assert/strict';
import { test } from 'node:test';

import {
  KEYS, LABELS, changedKeys, definitionIn, definitionOf, normalOf, parameterFields, problemsByField, rebased, valuesOf, withKeys,
} from '../../../pallas_gateway/features/console/static/definition.js';
import { SCHEMAS, namesIn } from '../../../pallas_gateway/features/console/static/parameters.js';

const MAY_USE = {
  mayCreate: true, models: ['m'], modelPatterns: ['m'], defaultModel: null, agents: [{ name: 'echo' }], approve: [], most: {},
  servers: [{ name: 'archive', globs: ['search', 'get_*'], tools: [{ name: 'search' }] }, { name: 'notes', globs: ['*'], tools: null }],
};
const WHOLE = {
  title: 'Desk', description: 'Edits.', icon: 'https://example.com/i.svg', instruction: ' You edit.\n', model: 'm', params: { temperature: 0.5, max_tokens: 9 },
  servers: ['archive'], tools: ['archive__search', 'echo__other'], agents: ['echo'], approve: ['destructive', 'archive/get_*'], toolLimits: { 'archive/*': 3 },
  maxIterations: 4, loopRepeatThreshold: 0, callTimeoutSeconds: 2.5, maxInFlight: 1, maxTokensPerCall: 100, humanInput: true, examples: ['What is new?'],
};

const began = (definition) => {
  const fields = parameterFields(SCHEMAS, definition);
  return { fields, values: valuesOf('desk', definition, MAY_USE, fields) };
};
const after = (base, change = () => ({})) => {
  const { fields, values } = began(base);
  return definitionOf({ ...values, ...change(values) }, base, MAY_USE, fields);
};
const picked = (base, servers, more = {}) => after(base, () => ({ servers, isPicked: true, ...more })).definition;

test('a key that is missing stands for what the agent has then', () => {
  assert.deepEqual(['tools', 'maxIterations', 'description'].map(normalOf), ['all tools of its servers', '15 (default)', 'none']);
});

test('the parameters of an agent are those that its tool names', () => {
  assert.deepEqual(namesIn({ type: 'object', description: 'How the model answers: {temperature, top_p}' }), ['temperature', 'top_p']);
  assert.deepEqual(namesIn({ description: 'Any.', propertyNames: { enum: ['temperature', 'top_p'] } }), ['temperature', 'top_p']);
  assert.deepEqual([namesIn({ description: 'Any.' }), namesIn(undefined)], [[], []]);
});

test('a definition that was not changed in the form is the same afterwards', () => {
  assert.deepEqual(after(WHOLE), { definition: WHOLE, problems: [] });
  assert.deepEqual(after({}), { definition: {}, problems: [] });
  assert.deepEqual(after({ tools: [] }).definition, { tools: [] });
  assert.deepEqual(Object.keys(WHOLE).toSorted(), [...KEYS].toSorted());
  assert.ok(KEYS.every((key) => LABELS[key]));
});

test('a document of the gateway has a definition, and other keys', () => {
  const document = { ...WHOLE, name: 'desk', owner: 'key:ada', version: 3, params: { temperature: 0.5, maxTokens: 9 }, maxInFlight: null };
  const { maxInFlight: _, ...expected } = WHOLE;
  assert.deepEqual(definitionIn(document), expected);
  assert.deepEqual(definitionIn({ agents: [], examples: [], toolLimits: {}, params: {}, title: '' }), {});
  assert.deepEqual(definitionIn(null), {});
});

test('texts lose their outer blanks, but for the instruction', () => {
  const { definition } = after({}, () => ({ title: '  A ', instruction: '  x\n', description: '   ', approve: '\n a/b \n\n', examples: [' ', ' b '] }));
  assert.deepEqual(definition, { title: 'A', instruction: '  x\n', approve: ['a/b'], examples: ['b'] });
});

test('ticked servers and tools are a list of tools only where not all of them are meant', () => {
  const whole = { isWhole: true, tools: [] };
  assert.deepEqual(picked({}, { archive: whole, notes: whole }), { servers: ['archive', 'notes'] });
  assert.deepEqual(picked({}, { archive: whole, notes: { isWhole: false, tools: ['list'] } }), {
    servers: ['archive', 'notes'], tools: ['archive__search', 'archive__get_*', 'notes__list'],
  });
  assert.deepEqual(picked({}, { archive: { isWhole: false, tools: [] } }), { servers: ['archive'], tools: [] });
  assert.deepEqual(picked(WHOLE, {}).tools, ['echo__other']); // a tool of a sub-agent, which the form does not show
  assert.deepEqual(picked(WHOLE, {}, { agents: [] }).tools, undefined);
  assert.deepEqual(picked({}, Object.fromEntries([['__proto__', whole]])), { servers: ['__proto__'] });
});

test('the tools of a server are ticked as a whole if they are those that are released', () => {
  const ticked = (tools) => began({ servers: ['archive'], tools }).values.servers.archive;
  assert.deepEqual(ticked(undefined), { isWhole: true, tools: [] });
  assert.deepEqual(ticked(['archive__get_*', 'archive__search']), { isWhole: true, tools: [] });
  assert.deepEqual(ticked(['archive__search']), { isWhole: false, tools: ['search'] });
  assert.deepEqual(ticked([]), { isWhole: false, tools: [] });
  assert.deepEqual(began({ servers: ['gone'], tools: ['gone__x'] }).values.servers.gone, { isWhole: false, tools: ['x'] });
});

test('numbers, limits and parameters that do not fit are named with their fields', () => {
  const wrong = (change) => after({}, change).problems.map(({ path }) => path);
  assert.deepEqual(wrong(({ numbers }) => ({ numbers: { ...numbers, maxIterations: '0', maxInFlight: '1.5', callTimeoutSeconds: 'x' } })), ['maxIterations', 'callTimeoutSeconds', 'maxInFlight']);
  assert.deepEqual(wrong(({ numbers }) => ({ numbers: { ...numbers, callTimeoutSeconds: '1,5', loopRepeatThreshold: '0' } })), []);
  assert.deepEqual(wrong(() => ({ toolLimits: [{ glob: '', calls: '3' }, { glob: 'a/b', calls: '' }, { glob: 'a/c', calls: '-1' }, { glob: '', calls: ' ' }] })), ['toolLimits', 'toolLimits', 'toolLimits']);
  assert.deepEqual(wrong(({ params }) => ({ params: { ...params, temperature: '3', stop: '{' } })), ['params.temperature', 'params.stop']);
});

test('problems of the gateway stand at their fields', () => {
  const paths = ['title', 'call_timeout_seconds', 'servers', 'servers.0', 'servers.9', 'tools.0', 'tools.1', 'agents.0', 'params.maxTokens', 'params.top_p', 'params', 'toolLimits.a/b', 'name', '', 'nowhere.1', 'constructor'];
  const found = problemsByField(paths.map((path) => ({ path, message: path })), WHOLE);
  assert.deepEqual(found, {
    title: ['title'], callTimeoutSeconds: ['call_timeout_seconds'], servers: ['servers', 'servers.9', 'tools.1'], 'servers/archive': ['servers.0', 'tools.0'],
    agents: ['agents.0'], 'params/max_tokens': ['params.maxTokens'], 'params/top_p': ['params.top_p'], params: ['params'], toolLimits: ['toolLimits.a/b'],
    name: ['name'], '': ['', 'nowhere.1', 'constructor'],
  });
});

test('changed keys do not depend on the order of keys', () => {
  assert.deepEqual(changedKeys(WHOLE, { ...WHOLE, params: { max_tokens: 9, temperature: 0.5 } }), []);
  assert.deepEqual(changedKeys({ title: 'a', agents: ['x', 'y'] }, { agents: ['y', 'x'], model: 'm' }), ['title', 'model', 'agents']);
});

test('a form takes what another has saved, but for what was changed in it', () => {
  const { fields, values } = began(WHOLE);
  const typed = { ...values, title: 'Mine', numbers: { ...values.numbers, maxInFlight: '7' } };
  const mine = definitionOf(typed, WHOLE, MAY_USE, fields).definition;
  const { approve: _, ...rest } = WHOLE;
  const theirs = { ...rest, title: 'Theirs', description: 'New.', maxIterations: 5, servers: ['notes'], tools: undefined, params: { temperature: 1 } };
  const theirFields = parameterFields(SCHEMAS, theirs);
  const found = rebased(typed, { base: WHOLE, mine, theirs, mayUse: MAY_USE, fields: theirFields });
  assert.deepEqual(found.clashes, ['title']);
  assert.deepEqual(found.changed, ['title', 'description', 'params', 'servers', 'tools', 'approve', 'maxIterations']);
  const now = definitionOf(found.values, theirs, MAY_USE, theirFields).definition;
  assert.deepEqual(now, definitionIn({ ...theirs, title: 'Mine', maxInFlight: 7 }));
  assert.equal(withKeys(found.values, ['title'], theirs, MAY_USE, theirFields).title, 'Theirs');
});

test('servers and their tools are taken together or not at all', () => {
  const base = { servers: ['archive'], tools: ['archive__search'] };
  const { fields, values } = began(base);
  const typed = { ...values, servers: { ...values.servers, notes: { isWhole: true, tools: [] } }, isPicked: true };
  const mine = definitionOf(typed, base, MAY_USE, fields).definition;
  const theirs = { servers: ['archive'], tools: ['archive__get_x'] };
  const found = rebased(typed, { base, mine, theirs, mayUse: MAY_USE, fields });
  assert.deepEqual(found.clashes, ['tools']);
  assert.deepEqual(definitionOf(found.values, theirs, MAY_USE, fields).definition, mine);
});
