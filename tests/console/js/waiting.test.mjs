import assert from 'node:assert/strict';
import { test } from 'node:test';

const STATIC = '../../../pallas_gateway/web/console/static';

/** The page, whose timers end at once. */
const page = Object.assign(new EventTarget(), { hidden: false, baseURI: 'http://localhost/console/' });
globalThis.document = page;
const { Pauses } = await import(`${STATIC}/waiting.js`);
const { GatewayKeeper } = await import(`${STATIC}/gateway_keeper.js`);
let pauses = [];
const setTimer = globalThis.setTimeout;
globalThis.setTimeout = (run, ms) => {
  pauses.push(ms);
  setTimer(run, 0);
};

test('a call that cannot be reached is looked for after longer and longer pauses', async () => {
  const keeper = new GatewayKeeper({});
  for (const wasReached of [true, false, false, true]) assert.equal(await keeper.run({ wasReached, run: async () => true }), true);
  assert.equal(await keeper.run({ wasReached: true, run: async () => false }), false);
  assert.deepEqual(pauses, [1000, 2000, 4000, 1000]);
});

test('pauses double up to 30 s, and begin again with the shortest', async () => {
  pauses = [];
  const waiting = new Pauses();
  for (let count = 0; count < 7; count += 1) await waiting.wait();
  waiting.reset();
  await waiting.wait();
  assert.deepEqual(pauses, [1000, 2000, 4000, 8000, 16_000, 30_000, 30_000, 1000]);
});

test('a hidden page waits until it is shown', async () => {
  page.hidden = true;
  let isOver = false;
  const waiting = new Pauses().wait().then(() => (isOver = true));
  await new Promise((resolve) => setTimer(resolve, 5));
  assert.equal(isOver, false);
  page.hidden = false;
  page.dispatchEvent(new Event('visibilitychange'));
  await waiting;
});
