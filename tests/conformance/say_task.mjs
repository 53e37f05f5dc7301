// The suite calls its fixture tools with arguments of their own, and an agent's message tool has a `message`. Loaded
// before the suite, this writes the tool's name and those arguments into each call's message; nothing else is touched.
const send = globalThis.fetch;

globalThis.fetch = (url, options) => {
  const request = typeof options?.body === "string" ? JSON.parse(options.body) : undefined;
  if (request?.method !== "tools/call") return send(url, options);
  const { name, arguments: given } = request.params;
  request.params.arguments = { message: JSON.stringify({ tool: name, ...given }) };
  return send(url, { ...options, body: JSON.stringify(request) });
};
