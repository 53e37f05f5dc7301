// A server of the TypeScript SDK v2 (2026-07-28 alone, without sessions) whose tools ask by their results. Prints its URL.
// `name` asks by a form, `pay` by a page.
import { createServer } from "node:http";
import { toNodeHandler } from "@modelcontextprotocol/node";
import { createMcpHandler, inputRequired, McpServer } from "@modelcontextprotocol/server";

const schema = {
  type: "object",
  properties: { name: { type: "string", maxLength: 20 }, age: { type: "integer", default: 7 } },
  required: ["name"],
};
const form = inputRequired.elicit({ message: "What is your name?", requestedSchema: schema });
const url = "https://pay.example/consent?token=url-secret";
const page = inputRequired.elicitUrl({ message: "Consent to paying 100 EUR", url });

function newServer() {
  const server = new McpServer({ name: "asking", version: "2" });
  const asking = (request) => async (context) => {
    const answer = context.mcpReq.inputResponses?.question;
    if (!answer) return inputRequired({ inputRequests: { question: request } });
    const { action, content } = answer;
    return { content: [{ type: "text", text: `answer: ${JSON.stringify({ action, content: content ?? null })}` }] };
  };
  server.registerTool("name", { description: "Ask by a form." }, asking(form));
  server.registerTool("pay", { description: "Ask by a page." }, asking(page));
  return server;
}

const http = createServer(toNodeHandler(createMcpHandler(newServer, { legacy: "reject" })));
http.listen(0, "127.0.0.1", () => console.log(`http://127.0.0.1:${http.address().port}/mcp`));
