import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { test } from 'node:test';

import { SignInError, SignedIn, begin, claimsIn, codeIn, readServer, redeem, revoke, serverIn, tokensIn } from '../../../pallas_gateway/features/console/static/sign_in.js';

const ISSUER = 'https://login.example/realms/one';
const OFFER = { issuer: ISSUER, client_id: 'console', scopes: ['openid', 'offline_access'], resource: 'https://gateway.example' };
const METADATA = { issuer: ISSUER, authorization_endpoint: `${ISSUER}/auth?kind=1`, token_endpoint: `${ISSUER}/token`, revocation_endpoint: `${ISSUER}/revoke` };
const SERVER = serverIn(METADATA, ISSUER);
const NOW = Date.parse('2026-01-01T00:00:00Z');
const CLAIMS = { iss: ISSUER, aud: 'console', exp: NOW / 1000 + 600, nonce: 'n', sub: 'ada' };
const jwt = (claims) => `e30.${Buffer.from(JSON.stringify(claims)).toString('base64url')}.c2ln`;
const answer = (more = {}, claims = CLAIMS) => ({ access_token: 'a1', refresh_token: 'r1', token_type: 'Bearer', expires_in: 100, id_token: jwt(claims), ...more });

/** Answer requests by `responses`, in order; returns the forms that were sent. */
function answering(...responses) {
  const sent = [];
  globalThis.fetch = async (url, { body }) => {
    sent.push([url, Object.fromEntries(body ?? [])]);
    const response = await responses.shift();
    if (response instanceof Error) throw response;
    const [status, document] = response;
    return new Response(JSON.stringify(document), { status });
  };
  return sent;
}

/** Return a person whose tokens are valid for 100 s from a clock that the test moves. */
function person(tokens = {}) {
  const clock = { now: NOW };
  const renewed = [];
  const attempt = { offer: OFFER, server: SERVER, nonce: 'n' };
  const first = tokensIn(answer(tokens), { offer: OFFER, nonce: 'n', now: NOW });
  const one = new SignedIn(attempt, first, { now: () => clock.now, onRenewed: (token) => renewed.push(token) });
  const at = async (seconds) => {
    clock.now = NOW + seconds * 1000;
    one.check();
    await one._renewing;
    clearTimeout(one._timer);
  };
  return { one, at, renewed };
}

test('the endpoints are those of the issuer', () => {
  assert.deepEqual(SERVER, { authorization: `${ISSUER}/auth?kind=1`, token: `${ISSUER}/token`, revocation: `${ISSUER}/revoke`, endSession: '', sendsIss: false });
  const wrong = [
    [{ issuer: `${ISSUER}/` }, /of another issuer/],
    [{ issuer: undefined }, /of another issuer/],
    [{ token_endpoint: 'https://evil.example/token' }, /token_endpoint of the authorization server is not at https:\/\/login.example,/],
    [{ token_endpoint: 'http://login.example/token' }, /token_endpoint/],
    [{ authorization_endpoint: 'javascript:alert(1)' }, /authorization_endpoint/],
    [{ authorization_endpoint: null }, /authorization_endpoint/],
    [{ code_challenge_methods_supported: ['plain'] }, /PKCE with S256/],
  ];
  for (const [more, message] of wrong) assert.throws(() => serverIn({ ...METADATA, ...more }, ISSUER), { message });
  assert.equal(serverIn({ ...METADATA, revocation_endpoint: 'https://evil.example/' }, ISSUER).revocation, '');
});

test('metadata is that of OpenID Connect, else of RFC 8414', async () => {
  const sent = answering([404, {}], [200, METADATA]);
  assert.deepEqual(await readServer(OFFER), SERVER);
  assert.deepEqual(sent.map(([url]) => url), [`${ISSUER}/.well-known/openid-configuration`, 'https://login.example/.well-known/oauth-authorization-server/realms/one']);
  answering([404, {}], [404, {}]);
  await assert.rejects(readServer(OFFER), { message: 'login.example has no metadata of an authorization server.' });
  answering(new TypeError('Failed to fetch'));
  await assert.rejects(readServer(OFFER), { message: /^login.example does not answer/, mayPass: true });
});

test('a sign-in has secrets of its own, and shows the digest of the verifier alone', async () => {
  const [one, two] = [await begin(OFFER, SERVER, 'https://g.example/console/signed-in'), await begin(OFFER, SERVER, 'https://g.example/')];
  const { searchParams, origin, pathname } = new URL(one.url);
  assert.equal(`${origin}${pathname}`, `${ISSUER}/auth`);
  const { state, nonce, code_challenge, ...rest } = Object.fromEntries(searchParams);
  assert.deepEqual([state, nonce], [one.state, one.nonce]);
  assert.equal(code_challenge, createHash('sha256').update(one.verifier).digest('base64url'));
  assert.deepEqual(rest, {
    kind: '1', response_type: 'code', client_id: 'console', redirect_uri: 'https://g.example/console/signed-in', scope: 'openid offline_access', code_challenge_method: 'S256',
    resource: 'https://gateway.example', prompt: 'consent',
  });
  assert.equal(new Set([one.state, one.nonce, one.verifier, two.state, two.nonce, two.verifier]).size, 6);
  assert.match(one.verifier, /^[\w-]{43}$/);
  const plain = new URL((await begin({ ...OFFER, scopes: ['run:agents'], resource: null }, SERVER, 'https://g.example/')).url).searchParams;
  assert.deepEqual(['nonce', 'prompt', 'resource'].map((name) => plain.has(name)), [false, false, false]);
});

test('of an answer of another issuer nothing is taken', () => {
  const code = (given, sendsIss = true) => codeIn(given, { offer: OFFER, server: { ...SERVER, sendsIss } });
  assert.equal(code({ iss: ISSUER, code: 'c' }), 'c');
  assert.equal(code({ code: 'c' }, false), 'c');
  assert.throws(() => code({ code: 'c' }), { message: 'The answer does not name its issuer.' });
  for (const sends of [true, false]) assert.throws(() => code({ iss: 'https://evil.example', error: 'x' }, sends), { message: /^The answer is that of another issuer/ });
  assert.throws(() => code({ iss: ISSUER }), { message: 'login.example has sent no code.' });
  assert.throws(() => code({ iss: ISSUER, error: 'access_denied' }), { message: 'login.example has refused the sign-in.' });
  assert.throws(() => code({ iss: ISSUER, error: 'server_error', error_description: 'Too \u202ebad.' }), { message: 'login.example has refused: Too ⟨U+202E⟩bad.' });
});

test('an ID token is for this sign-in, or refused', () => {
  const taken = (claims, before) => tokensIn(answer({}, claims), { offer: OFFER, nonce: 'n', before, now: NOW });
  const first = taken(CLAIMS);
  assert.deepEqual(first, { access: 'a1', refresh: 'r1', claims: CLAIMS, seconds: 100 });
  const wrong = [
    ['iss', { iss: 'https://evil.example' }], ['aud', { aud: 'other' }], ['aud', { aud: [] }], ['aud', { aud: ['console', 'other'] }], ['exp', { exp: NOW / 1000 - 61 }], ['exp', { exp: 'soon' }],
    ['nonce', { nonce: 'x' }], ['nonce', { nonce: undefined }], ['sub', { sub: undefined }], ['sub', { sub: '' }],
  ];
  for (const [name, more] of wrong) assert.throws(() => taken({ ...CLAIMS, ...more }), { message: `The ID token of login.example is not accepted: its claim ${name} is wrong.` });
  assert.equal(taken({ ...CLAIMS, aud: ['console', 'other'], azp: 'console' }).access, 'a1');
  assert.equal(taken({ ...CLAIMS, nonce: undefined }, first).access, 'a1'); // of a renewal
  assert.throws(() => taken({ ...CLAIMS, sub: 'eve' }, first), { message: /claim sub/ });
  assert.throws(() => taken({ ...CLAIMS, nonce: 'x' }, first), { message: /claim nonce/ });
});

test('an answer without a token is refused, and a renewal keeps what it does not replace', () => {
  const taken = (more, before) => tokensIn(answer(more), { offer: OFFER, nonce: 'n', before, now: NOW });
  for (const [more, message] of [[{ access_token: '' }, /no access token/], [{ token_type: 'DPoP' }, /no bearer token/], [{ id_token: undefined }, /no ID token/], [{ id_token: 'x' }, /no ID token/]]) {
    assert.throws(() => taken(more), { message });
  }
  const renewed = taken({ access_token: 'a2', refresh_token: undefined, id_token: undefined, expires_in: undefined }, taken({}));
  assert.deepEqual(renewed, { access: 'a2', refresh: 'r1', claims: CLAIMS, seconds: Infinity });
  assert.throws(() => taken({ id_token: 'x' }, taken({})), { message: /no ID token/ });
  assert.equal(claimsIn('a.%.c'), null);
  assert.deepEqual(claimsIn(jwt({ name: 'Zoë ✓' })), { name: 'Zoë ✓' });
});

test('the code is redeemed with the verifier', async () => {
  const sent = answering([200, answer({}, { ...CLAIMS, exp: Date.now() / 1000 + 60 })], [400, { error: 'invalid_grant' }]);
  const attempt = { offer: OFFER, server: SERVER, redirectUri: 'https://g.example/s', nonce: 'n', verifier: 'v' };
  assert.equal((await redeem(attempt, 'c')).access, 'a1');
  const form = { grant_type: 'authorization_code', code: 'c', redirect_uri: 'https://g.example/s', code_verifier: 'v', client_id: 'console', resource: 'https://gateway.example' };
  assert.deepEqual(sent, [[`${ISSUER}/token`, form]]);
  await assert.rejects(redeem(attempt, 'c'), new SignInError('login.example has refused: invalid_grant.'));
});

test('a token is renewed after 80 % of its lifetime, once', async () => {
  const { one, at, renewed } = person();
  const sent = answering([200, answer({ access_token: 'a2', refresh_token: 'r2' })], [200, answer({ access_token: 'a3' })]);
  await at(79);
  assert.deepEqual(sent, []);
  one._now = () => NOW + 80_000;
  one.check();
  one.check();
  await one._renewing;
  assert.deepEqual(sent, [[`${ISSUER}/token`, { grant_type: 'refresh_token', refresh_token: 'r1', client_id: 'console', resource: 'https://gateway.example' }]]);
  assert.deepEqual([renewed, one.token, one.notice.value], [['a2'], 'a2', '']);
  one._now = () => NOW + 190_000; // the computer has slept
  one.check();
  assert.deepEqual([one.notice.value, one.hasEnded], ['', true]);
  await one._renewing;
  clearTimeout(one._timer);
  assert.equal(sent[1][1].refresh_token, 'r2');
  assert.deepEqual([renewed, one.hasEnded], [['a2', 'a3'], false]);
});

test('a renewal without an answer is tried again, and a refused one is not', async () => {
  const { one, at, renewed } = person();
  const sent = answering(new TypeError('Failed to fetch'), [503, null], [200, answer({ access_token: 'a2' })], [400, { error: 'invalid_grant', error_description: 'Revoked.' }]);
  await at(80);
  await at(80.5);
  assert.deepEqual([sent.length, one.token, one.notice.value], [1, 'a1', '']);
  await at(101);
  assert.equal(one.notice.value, 'Your sign-in has ended: sign in again. login.example has refused: HTTP status 503.');
  await at(110);
  assert.deepEqual([renewed, one.notice.value], [['a2'], '']);
  await at(195);
  assert.match(one.notice.value, /^Your sign-in ends at .*: sign in again before. login.example has refused: Revoked.$/);
  await at(200);
  assert.equal(one.token, 'a2');
  await at(211);
  assert.match(one.notice.value, /^Your sign-in has ended: sign in again./);
  assert.equal(sent.length, 4);
});

test('a token of another person is no renewal', async () => {
  const { one, at, renewed } = person();
  answering([200, answer({ access_token: 'a2' }, { ...CLAIMS, sub: 'eve' })]);
  await at(80);
  assert.deepEqual([one.token, renewed], ['a1', []]);
  assert.match(one.notice.value, /its claim sub is wrong/);
});

test('without a refresh token the person learns when the sign-in ends', async () => {
  const { one, at } = person({ refresh_token: undefined });
  await at(79);
  assert.equal(one.notice.value, '');
  await at(80);
  assert.match(one.notice.value, /^Your sign-in ends at .*: sign in again before.$/);
  const unknown = person({ refresh_token: undefined, expires_in: undefined });
  await unknown.at(1e6);
  assert.equal(unknown.one.notice.value, '');
});

test('who leaves during a renewal has the new tokens revoked, too', async () => {
  const { one, renewed } = person();
  let release;
  const sent = answering(new Promise((resolve) => (release = resolve)), [200, {}], [200, {}]);
  one._now = () => NOW + 80_000;
  one.check();
  const left = one.leave();
  release([200, answer({ access_token: 'a2', refresh_token: 'r2' })]);
  assert.deepEqual([await left, await one.leave(), one.token, renewed], ['', '', '', []]);
  assert.deepEqual(sent.slice(1).map(([, form]) => form), [
    { token: 'r2', token_type_hint: 'refresh_token', client_id: 'console' },
    { token: 'a2', token_type_hint: 'access_token', client_id: 'console' },
  ]);
});

test('it is said why tokens are not revoked', async () => {
  const tokens = { access: 'a', refresh: 'r' };
  answering([400, { error: 'invalid_client' }]);
  assert.equal(await revoke({ offer: OFFER, server: SERVER }, tokens), 'login.example has refused: invalid_client.');
  answering([200, null], [400, { error: 'unsupported_token_type' }]);
  assert.equal(await revoke({ offer: OFFER, server: SERVER }, tokens), '');
  answering(new TypeError('Failed to fetch'));
  assert.match(await revoke({ offer: OFFER, server: SERVER }, tokens), /does not answer/);
  assert.match(await revoke({ offer: OFFER, server: { ...SERVER, revocation: '' } }, tokens), /does not offer to revoke them/);
});

test('a person has a name, which is text', () => {
  const named = (more) => person({ id_token: jwt({ ...CLAIMS, ...more }) }).one.name;
  assert.deepEqual([named({ name: 'Ada', preferred_username: 'al' }), named({ name: ' ', preferred_username: 'al' }), named({ name: 7 })], ['Ada', 'al', 'ada']);
  assert.equal(named({ name: `\u202e${'x'.repeat(99)}` }).length, 60);
});
