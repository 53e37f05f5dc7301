// Talks to an agent with LangChain's model, as n8n's OpenAI node does, whole and streamed: `langchain.mjs URL MODEL`, JSON on stdout.
import { HumanMessage, SystemMessage } from "@langchain/core/messages";
import { ChatOpenAI } from "@langchain/openai";

const [url, name] = process.argv.slice(2);
const settings = { model: name, apiKey: "any", maxRetries: 0, useResponsesApi: true, configuration: { baseURL: `${url}/v1` } };
const model = new ChatOpenAI(settings);
const turns = [new SystemMessage("Be a cat."), new HumanMessage("hello")];
const first = await model.invoke(turns);
let streamed = "", id = "";
for await (const chunk of await model.stream([...turns, first, new HumanMessage("add")])) {
  streamed += chunk.text;
  id ||= chunk.response_metadata.id ?? "";
}
process.stdout.write(JSON.stringify({ whole: first.text, streamed, id, tokens: first.usage_metadata.total_tokens }));
