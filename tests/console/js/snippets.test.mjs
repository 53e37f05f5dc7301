import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { test } from 'node:test';

import { snippets } from '../../../pallas_gateway/features/console/static/snippets.js';

const URL = 'https://gateway.example/agents/a/mcp';
const args = { message: "it's \"quoted\" `$HOME` \\ \n</script>" };

test('the curl command sends exactly the arguments, whatever they hold', () => {
  const text = snippets(URL, args, true).curl.replace(/^curl/, 'printf "%s\\0"');
  const { stdout } = spawnSync('sh', ['-c', text], { encoding: 'utf8', env: { TOKEN: 'mine' } });
  const words = stdout.split('\0');
  assert.ok(words.includes(URL));
  assert.ok(words.includes('Authorization: Bearer mine'));
  assert.deepEqual(JSON.parse(words[words.indexOf('-d') + 1]).params.arguments, args);
});

test('the Python program is valid and holds the arguments, and a token only by name', () => {
  const { Python } = snippets(URL, args, true);
  const check = 'import ast, json, sys; tree = ast.parse(sys.stdin.read()); '
    + 'print(next(json.loads(node.value.args[0].value)["message"] for node in tree.body if isinstance(node, ast.Assign)), end="")';
  const { stdout, stderr } = spawnSync('python3', ['-c', check], { input: Python, encoding: 'utf8' });
  assert.equal(stdout, args.message, stderr);
  assert.match(Python, /os\.environ\['TOKEN'\]/);
});

test('without a token none is mentioned', () => {
  for (const text of Object.values(snippets(URL, args, false))) assert.doesNotMatch(text, /TOKEN|Bearer/);
});
