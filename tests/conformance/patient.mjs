// The suite gives up on an answer after half a second to a second and counts it as missing. On a machine that does other
// work beside, an answer may take longer. Loaded before the suite, this makes those times twenty times as long.
const wait = globalThis.setTimeout;

globalThis.setTimeout = (call, milliseconds, ...more) =>
  wait(call, [500, 600, 1000].includes(milliseconds) ? 20 * milliseconds : milliseconds, ...more);
