// A client of the TypeScript SDK v2 that can be asked, as typescript_client.mjs. A fifth argument is the version of
// 2026-07-28 or later to speak, in which the SDK itself repeats the call with the answers; without one: the initialize era.
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";

const [url, tool, args, answers, version] = process.argv.slice(2);
const replies = JSON.parse(answers);
const asked = [];
const client = new Client(
  { name: "typescript-client", version: "2" },
  {
    capabilities: { elicitation: { form: {}, url: {} } },
    versionNegotiation: { mode: version ? { pin: version } : "legacy" },
  },
);
client.setRequestHandler("elicitation/create", async ({ params }) => {
  asked.push(params);
  return replies.shift();
});
await client.connect(new StreamableHTTPClientTransport(new URL(url)));
const { content } = await client.callTool({ name: tool, arguments: JSON.parse(args) });
await client.close();
console.log(JSON.stringify({ asked, text: content.map((block) => block.text).join("") }));
