import assert from 'node:assert/strict';
import { test } from 'node:test';

import { agentsOf } from '../../../pallas_gateway/web/console/static/registry.js';

test('agents of gateways at one host have ids of their own', () => {
  const document = { servers: [{ server: { name: 'g/echo', remotes: [{ url: 'https://a.example/agents/echo/mcp' }] } }] };
  const registries = ['', 'https://a.example/one', 'https://a.example/two', 'https://a.example:8443/one'];
  const found = registries.flatMap((registry) => agentsOf(document, registry));
  assert.deepEqual(found.map(({ id }) => id), ['echo', 'a.example/one~echo', 'a.example/two~echo', 'a.example:8443/one~echo']);
  assert.deepEqual(found.slice(1, 3).map(({ url }) => url), registries.slice(1, 3).map((one) => `${one}/agents/echo/mcp`));
});
