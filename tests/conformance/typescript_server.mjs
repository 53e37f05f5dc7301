// A server of the TypeScript SDK v1 (initialize era, with sessions) whose tools ask. Prints its URL; its port may be given.
// `count` counts its calls since the start of the server.
// `name` asks by a form on the stream of the call, `pay` by a page on the session's own stream (the SDK's default).
import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";
import { ElicitResultSchema } from "@modelcontextprotocol/sdk/types.js";

const schema = {
  type: "object",
  properties: { name: { type: "string", maxLength: 20 }, age: { type: "integer", default: 7 } },
  required: ["name"],
};

let calls = 0;

function newServer() {
  const server = new McpServer({ name: "asking", version: "1" });
  const told = ({ action, content }) => ({
    content: [{ type: "text", text: `answer: ${JSON.stringify({ action, content: content ?? null })}` }],
  });
  server.registerTool("count", { description: "Count." }, async () => ({
    content: [{ type: "text", text: `call ${++calls}` }],
  }));
  server.registerTool("name", { description: "Ask by a form." }, async ({ sendRequest }) => {
    const params = { mode: "form", message: "What is your name?", requestedSchema: schema };
    return told(await sendRequest({ method: "elicitation/create", params }, ElicitResultSchema));
  });
  server.registerTool("pay", { description: "Ask by a page." }, async () => {
    const page = { message: "Consent to paying 100 EUR", url: "https://pay.example/consent?token=url-secret" };
    return told(await server.server.elicitInput({ mode: "url", elicitationId: randomUUID(), ...page }));
  });
  return server;
}

const transports = new Map();

async function transportOf(request) {
  const known = transports.get(request.headers["mcp-session-id"]);
  if (known) return known;
  const transport = new StreamableHTTPServerTransport({
    sessionIdGenerator: randomUUID,
    onsessioninitialized: (id) => transports.set(id, transport),
    onsessionclosed: (id) => transports.delete(id),
  });
  await newServer().connect(transport);
  return transport;
}

const http = createServer(async (request, response) => (await transportOf(request)).handleRequest(request, response));
http.listen(Number(process.argv[2] ?? 0), "127.0.0.1", () => console.log(`http://127.0.0.1:${http.address().port}/mcp`));
