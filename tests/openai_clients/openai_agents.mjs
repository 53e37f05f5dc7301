// Talks to an agent with @openai/agents, whole and streamed: `openai_agents.mjs URL MODEL`, JSON on stdout.
import { Agent, OpenAIProvider, Runner } from "@openai/agents";

const [url, model] = process.argv.slice(2);
const modelProvider = new OpenAIProvider({ baseURL: `${url}/v1`, apiKey: "any" });
const runner = new Runner({ modelProvider, tracingDisabled: true });
const agent = new Agent({ name: "cat", instructions: "Be a cat.", model });
const first = await runner.run(agent, "hello");
const stream = await runner.run(agent, [...first.history, { role: "user", content: "add" }], { stream: true });
let streamed = "";
for await (const text of stream.toTextStream()) streamed += text;
await stream.completed;
const { usage } = first.rawResponses[0];
process.stdout.write(JSON.stringify({ whole: first.finalOutput, streamed, id: stream.lastResponseId, tokens: usage.totalTokens }));
