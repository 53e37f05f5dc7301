import assert from 'node:assert/strict';
import { test } from 'node:test';

import { agentsOf } from '../../../pallas_gateway/features/console/static/registries.js';

test('agents of gateways at one host have ids of their own', () => {
  const document = { servers: [{ server: { name: 'g/echo', remotes: [{ url: 'https://a.example/agents/echo/mcp' }] } }] };
  const registries = ['', 'https://a.example/one', 'https://a.example/two', 'https://a.example:8443/one'];
  const found = registries.flatMap((registry) => agentsOf(document, registry));
  assert.deepEqual(found.map(({ id }) => id), ['echo', 'a.example/one~echo', 'a.example/two~echo', 'a.example:8443/one~echo']);
  assert.deepEqual(found.slice(1, 3).map(({ url }) => url), registries.slice(1, 3).map((one) => `${one}/agents/echo/mcp`));
});

test('entries of another registry are at its origin, whatever they name', () => {
  const entry = (name, url) => ({ server: { name, remotes: [{ url }] } });
  const servers = [entry('g/echo', 'https://evil.example/agents/echo/mcp'), entry('g/own', 'https://a.example:8443/mcp'), entry('g/far', 'https://evil.example/mcp'), entry('g/port', 'https://a.example/mcp')];
  const found = agentsOf({ servers }, 'https://a.example');
  assert.deepEqual(found.map(({ url, publicUrl }) => [url, publicUrl]), [
    ['https://a.example/agents/echo/mcp', 'https://a.example/agents/echo/mcp'],
    ['https://a.example/mcp', 'https://a.example/mcp'],
  ]);
  assert.equal(agentsOf({ servers }).length, 4);
});
