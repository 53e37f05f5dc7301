/** The parameters that callers of an agent may set for a call. */

import { request } from './mcp.js';
import { tokenFor } from './state.js';

/**
 * Return the schema of an agent's `params`: a listing of tools has the names alone, for it stands in the context of
 * every client's model.
 * @param {import('./state.js').Agent} agent
 */
export async function parametersOf(agent) {
  const { tools } = await request(agent.url, 'tools/list', {}, { token: tokenFor(agent) });
  const listed = tools?.[0]?.inputSchema?.properties?.params;
  return { properties: Object.fromEntries(namesIn(listed).map((name) => [name, SCHEMAS[name] ?? {}])) };
}

/**
 * Return the names of the parameters in a listed schema, which stand at the end of its description; a gateway of 0.1.0
 * has them in `propertyNames`.
 * @param {any} listed
 * @returns {string[]}
 */
export function namesIn(listed) {
  const older = listed?.propertyNames?.enum;
  return Array.isArray(older) ? older.map(String) : /\{([\w, ]+)\}$/.exec(String(listed?.description))?.[1].split(', ') ?? [];
}

/**
 * The gateway's parameters by name; a test compares them with those of the configuration.
 * @type {Record<string, any>}
 */
export const SCHEMAS = {
  "temperature": {"anyOf": [{"maximum": 2, "minimum": 0, "type": "number"}, {"type": "null"}], "description": "Sampling temperature, 0 to 2."},
  "top_p": {"anyOf": [{"maximum": 1, "minimum": 0, "type": "number"}, {"type": "null"}], "description": "Nucleus sampling: the share of the most likely tokens, 0 to 1."},
  "top_k": {"anyOf": [{"maximum": 9223372036854775807, "minimum": 1, "type": "integer"}, {"type": "null"}], "description": "Number of the most likely tokens that are sampled."},
  "max_tokens": {"anyOf": [{"maximum": 9223372036854775807, "minimum": 1, "type": "integer"}, {"type": "null"}], "description": "Longest answer of one LLM turn in tokens, up to the model's limit."},
  "stop": {"anyOf": [{"minLength": 1, "type": "string"}, {"items": {"minLength": 1, "type": "string"}, "maxItems": 4, "minItems": 1, "type": "array"}, {"type": "null"}], "description": "Up to 4 texts at which the model stops writing."},
  "presence_penalty": {"anyOf": [{"maximum": 2, "minimum": -2, "type": "number"}, {"type": "null"}], "description": "-2 to 2: above 0, used tokens become less likely."},
  "frequency_penalty": {"anyOf": [{"maximum": 2, "minimum": -2, "type": "number"}, {"type": "null"}], "description": "-2 to 2: the same, the more often they have occurred."},
  "seed": {"anyOf": [{"maximum": 9223372036854775807, "minimum": -9223372036854775808, "type": "integer"}, {"type": "null"}], "description": "For repeatable answers, as far as the provider supports them."},
  "response_format": {"anyOf": [{"additionalProperties": false, "properties": {"type": {"enum": ["text", "json_object", "json_schema"], "type": "string"}, "json_schema": {"additionalProperties": false, "properties": {"name": {"pattern": "^[a-zA-Z0-9_-]{1,64}$", "type": "string"}, "description": {"type": "string"}, "schema": {"type": "object"}, "strict": {"anyOf": [{"type": "boolean"}, {"type": "null"}]}}, "required": ["schema"], "type": "object"}}, "required": ["type"], "type": "object"}, {"type": "null"}], "description": "Format of the answer, as in OpenAI's API: `text`, `json_object` or `json_schema` with a schema."},
  "tool_choice": {"anyOf": [{"enum": ["auto", "none", "required"], "type": "string"}, {"properties": {"type": {"const": "function"}, "function": {"properties": {"name": {"minLength": 1, "type": "string"}}, "required": ["name"], "type": "object"}}, "required": ["type", "function"], "type": "object"}, {"type": "null"}], "description": "`auto`, `none`, `required`, or one tool as in OpenAI's API. The last two apply to the first LLM turn only."},
  "tools_allowlist": {"anyOf": [{"items": {"minLength": 1, "type": "string"}, "maxItems": 1000, "type": "array"}, {"type": "null"}], "description": "The only tools that may be used: `{server}/{tool}`, `{server}/*`, or as the model sees them."},
  "system_append": {"anyOf": [{"minLength": 1, "type": "string"}, {"type": "null"}], "description": "Added to the agent's instruction."},
  "extra": {"anyOf": [{"additionalProperties": true, "type": "object"}, {"type": "null"}], "description": "More keys for the body of the provider's request; null removes a default."},
  "system_override": {"anyOf": [{"minLength": 1, "type": "string"}, {"type": "null"}], "description": "Replaces the agent's instruction."},
  "model": {"anyOf": [{"minLength": 1, "type": "string"}, {"type": "null"}], "description": "The model that answers instead of the agent's own."},
};
