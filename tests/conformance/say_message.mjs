// The suite calls its fixture tools without arguments, and an agent's message tool needs a `message`. Loaded before the
// suite, this gives each such call the tool's own name as message; nothing else it sends is touched.
const send = globalThis.fetch;

globalThis.fetch = (url, options) => {
  const request = typeof options?.body === "string" ? JSON.parse(options.body) : undefined;
  if (request?.method !== "tools/call" || Object.keys(request.params.arguments ?? {}).length) return send(url, options);
  request.params.arguments = { message: request.params.name };
  return send(url, { ...options, body: JSON.stringify(request) });
};
