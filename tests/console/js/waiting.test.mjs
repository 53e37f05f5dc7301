import assert from 'node:assert/strict';
import { test } from 'node:test';

const STATIC = '../../../pallas_gateway/features/console/static';

/** The page, whose timers end at once. */
const page = Object.assign(new EventTarget(), { hidden: false, baseURI: 'http://localhost/console/' });
globalThis.document = page;
const { Pauses } = await import(`${STATIC}/mcp.js`);
const { GatewayKeeper } = await import(`${STATIC}/gateway_keeper.js`);
const { isLost } = await import(`${STATIC}/state.js`);
let pauses = [];
const setTimer = globalThis.setTimeout;
globalThis.setTimeout = (run, ms) => {
  pauses.push(ms);
  setTimer(run, 0);
};

/** Answer the page's requests: its registry with `registry`, the turns of a thread with those of `turns` in order. */
function answering({ registry = () => new Response('{"servers": []}'), turns }) {
  globalThis.fetch = async (url) => {
    if (url.endsWith('/api/rights')) return new Response('{}');
    if (!url.includes('/threads/')) return registry();
    return new Response(JSON.stringify({ messages: turns.shift(), nextAfter: null }));
  };
}

const ASKED = { role: 'user', turnIndex: 1, content: 'hi', createdAt: '2026-01-01T00:00:00Z' };
const ANSWER = { role: 'assistant', turnIndex: 1, status: 'complete', content: 'Done.', createdAt: '2026-01-01T00:00:01Z' };

/** A call that streams nothing; its end is only known from its thread. */
function lostCall(reached) {
  const state = { value: 'running' };
  const call = { turn: { number: 1 }, state, run: async () => reached.length > 0 && ((call.wasReached = reached.shift()), true) };
  call.endAs = (turn) => Object.assign(call, { ended: turn }) && (state.value = turn.state);
  return call;
}

test('a call whose stream has broken is looked for after longer and longer pauses, and ends as its thread says', async () => {
  const keeper = new GatewayKeeper({ agent: { registry: '' } });
  pauses = [];
  answering({ turns: [[ASKED], [ASKED], [ASKED], [ASKED, ANSWER]] });
  const call = lostCall([true, false, false, true, true]);
  await keeper.run(call, { threadId: 't' });
  assert.deepEqual(pauses, [1000, 2000, 4000, 1000]);
  assert.deepEqual([call.ended.state, call.ended.result.content[0].text], ['complete', 'Done.']);
});

test('a call of a gateway that cannot be reached is looked for once the gateway answers', async () => {
  const keeper = new GatewayKeeper({ agent: { registry: '' } });
  const answers = [null, null, new Response('{}', { status: 502 }), new Response('{"servers": []}')];
  const seen = [];
  answering({
    registry: () => {
      seen.push(isLost.value);
      const answer = answers.shift();
      if (!answer) throw new TypeError('failed to fetch');
      return answer;
    },
    turns: [[ASKED, ANSWER]],
  });
  await keeper.run(lostCall([true]), { threadId: 't' });
  assert.deepEqual([seen, isLost.value, answers], [[false, true, true, true], false, []]);
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
