// Calls an agent by the task extension of the TypeScript SDK: `ext_tasks.mjs URL result|cancel`, JSON on stdout.
// It leaves the sending of requests whose answers are tasks to its host, which is here: one POST for each.
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { createApplicationInputHandler, createTaskSessionFromClient } from "@modelcontextprotocol/ext-tasks/client";

const [url, mode] = process.argv.slice(2);
const protocolVersion = "2026-07-28";
const clientInfo = { name: "ext-tasks", version: "1" };
const extensions = { "io.modelcontextprotocol/tasks": {} };
const client = new Client(clientInfo, { capabilities: { extensions }, versionNegotiation: { mode: { pin: protocolVersion } } });
const unexpected = () => Promise.reject(new Error("not asked for"));
const asked = [];
let sent = 0;

async function rawDispatch(request, { signal } = {}) {
  const { name, taskId } = request.params;
  const headers = {
    accept: "application/json, text/event-stream",
    "content-type": "application/json",
    "mcp-protocol-version": protocolVersion,
    "mcp-method": request.method,
    "mcp-name": name ?? taskId,
  };
  const body = JSON.stringify({ jsonrpc: "2.0", id: ++sent, ...request });
  const answer = await (await fetch(url, { method: "POST", headers, body, signal })).text();
  const last = answer.startsWith("{") ? answer : answer.split("\n").findLast((line) => line.startsWith("data:")).slice(5);
  const { result, error } = JSON.parse(last);
  return error ? { kind: "error", error } : { kind: "result", result };
}

await client.connect(new StreamableHTTPClientTransport(new URL(url)));
const session = createTaskSessionFromClient(client, {
  endpointId: url,
  rawDispatch,
  v2RequestFraming: { protocolVersion, clientInfo, clientCapabilities: { elicitation: {}, extensions } },
  onInputRequest: createApplicationInputHandler({
    elicitation: ({ params }) => {
      asked.push(params.message);
      return { action: "accept", content: { decision: "once" } };
    },
    sampling: unexpected,
    roots: unexpected,
  }),
});
const execution = await session.callTool("send_message", { message: "go" });
if (mode === "cancel") await execution.cancel();
const { outcome } = await execution.settle();
const text = outcome.result?.content.map((block) => block.text).join("") ?? null;
console.log(JSON.stringify({ kind: execution.kind, status: outcome.status, asked: asked.length, text }));
await session.close();
await client.close();
