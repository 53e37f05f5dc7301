// Talks to an agent with AI SDK 7, whole and streamed: `ai_sdk.mjs URL MODEL`, JSON on stdout.
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, streamText } from "ai";

const [url, name] = process.argv.slice(2);
const model = createOpenAI({ baseURL: `${url}/v1`, apiKey: "any" })(name);
const settings = { model, maxRetries: 0, instructions: "Be a cat.", providerOptions: { openai: { store: false } } };
const messages = [{ role: "user", content: "hello" }];
const first = await generateText({ ...settings, messages });
const stream = streamText({ ...settings, messages: [...messages, ...first.response.messages, { role: "user", content: "add" }] });
let streamed = "";
for await (const text of stream.textStream) streamed += text;
const { id } = await stream.response;
process.stdout.write(JSON.stringify({ whole: first.text, streamed, id, tokens: first.usage.totalTokens }));
