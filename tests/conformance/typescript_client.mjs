// A client of the TypeScript SDK v1 (initialize era) that can be asked. Calls one tool of the server at a URL and answers
// its questions in turn. Arguments: URL, tool, arguments and answers as JSON. Prints {"asked": [...], "text": "..."}.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { ElicitRequestSchema } from "@modelcontextprotocol/sdk/types.js";

const [url, tool, args, answers] = process.argv.slice(2);
const replies = JSON.parse(answers);
const asked = [];
const client = new Client(
  { name: "typescript-client", version: "1" },
  { capabilities: { elicitation: { form: {}, url: {} } } },
);
client.setRequestHandler(ElicitRequestSchema, async ({ params }) => {
  asked.push(params);
  return replies.shift();
});
await client.connect(new StreamableHTTPClientTransport(new URL(url)));
const { content } = await client.callTool({ name: tool, arguments: JSON.parse(args) });
await client.close();
console.log(JSON.stringify({ asked, text: content.map((block) => block.text).join("") }));
