/** A call as text for other clients. Pure. A token is never part of it: `$TOKEN` stands for it. */

/**
 * Return the call as curl, Python and TypeScript.
 * @param {string} url of the agent
 * @param {Record<string, any>} args of `send_message`
 * @param {boolean} needsToken
 * @returns {Record<string, string>}
 */
export function snippets(url, args, needsToken) {
  return { curl: curl(url, args, needsToken), Python: python(url, args, needsToken), TypeScript: typescript(url, args, needsToken) };
}

/** @type {(url: string, args: Record<string, any>, needsToken: boolean) => string} */
function curl(url, args, needsToken) {
  const body = { jsonrpc: '2.0', id: 1, method: 'tools/call', params: { name: 'send_message', arguments: args, _meta: { progressToken: 1 } } };
  const token = needsToken ? ' \\\n  -H "Authorization: Bearer $TOKEN"' : '';
  return `curl -N ${quoted(url)} -H 'Content-Type: application/json' \\
  -H 'Accept: application/json, text/event-stream' -H 'MCP-Protocol-Version: 2025-11-25'${token} \\
  -d ${quoted(JSON.stringify(body))}\n`;
}

/** @type {(url: string, args: Record<string, any>, needsToken: boolean) => string} */
function python(url, args, needsToken) {
  const headers = needsToken ? '{"Authorization": f"Bearer {os.environ[\'TOKEN\']}"}' : '{}';
  return `import asyncio
import json${needsToken ? '\nimport os' : ''}

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

ARGUMENTS = json.loads(${JSON.stringify(JSON.stringify(args))})


async def main() -> None:
    async with httpx2.AsyncClient(headers=${headers}, timeout=600) as http:
        async with Client(streamable_http_client(${JSON.stringify(url)}, http_client=http)) as client:
            result = await client.call_tool("send_message", ARGUMENTS)
            print("\\n".join(block.text for block in result.content if block.type == "text"))


asyncio.run(main())
`;
}

/** @type {(url: string, args: Record<string, any>, needsToken: boolean) => string} */
function typescript(url, args, needsToken) {
  const init = needsToken ? ', {\n  requestInit: { headers: { Authorization: `Bearer ${process.env.TOKEN}` } },\n}' : '';
  return `${imported('Client', 'index.js')}
${imported('StreamableHTTPClientTransport', 'streamableHttp.js')}

const client = new Client({ name: 'example', version: '1' });
await client.connect(new StreamableHTTPClientTransport(new URL(${JSON.stringify(url)})${init}));
const result = await client.callTool({ name: 'send_message', arguments: ${JSON.stringify(args, null, 2)} }, undefined, {
  timeout: 600_000, // the default is a minute
});
console.log(result.content);
await client.close();
`;
}

/** @type {(name: string, file: string) => string} */
function imported(name, file) {
  return `import { ${name} } from ${JSON.stringify(`@modelcontextprotocol/sdk/client/${file}`)};`;
}

/** @param {string} text */
function quoted(text) {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}
