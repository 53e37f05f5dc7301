/**
 * Signing in at the gateway's authorization server: authorization code with PKCE (RFC 6749, RFC 7636, RFC 9207, OpenID Connect).
 *
 * Tokens are in memory alone. The access token is for the gateway, the refresh token for the issuer's token endpoint. Of the ID token
 * the claims are checked; it comes from the token endpoint itself, where TLS takes the place of its signature (OpenID Connect Core 3.1.3.7).
 */

import { computed, signal } from './html.js';
import { Pauses, parsed } from './mcp.js';
import { cut, harmless } from './text.js';

const ANSWER_SECONDS = 20; // a server that takes longer is not there
const RENEWED_AFTER = 0.8; // of the lifetime of a token
const LONGEST_TIMER_MS = 30_000; // the computer may sleep meanwhile
const LEEWAY_SECONDS = 60; // of the clocks of the issuer and of this computer
const LONGEST_NAME = 60;
const LONGEST_REASON = 300;

/**
 * @typedef {import('./state.js').SignInOffer} Offer
 * @typedef {{authorization: string, token: string, revocation: string, endSession: string, sendsIss: boolean}} Server its endpoints; optional
 *   ones are empty if it has none. `sendsIss`: its responses name the issuer
 * @typedef {{offer: Offer, server: Server, redirectUri: string, url: string, state: string, nonce: string, verifier: string}} Attempt
 * @typedef {{access: string, refresh: string, claims: Record<string, any> | null, seconds: number}} Tokens `claims`: of the ID token
 */

/** A sign-in or a renewal that has failed. `mayPass`: another attempt may not fail. */
export class SignInError extends Error {
  /**
   * @param {string} message
   * @param {boolean} [mayPass]
   */
  constructor(message, mayPass = false) {
    super(message);
    this.mayPass = mayPass;
  }
}

/** @param {string} issuer */
export function hostOf(issuer) {
  return new URL(issuer).host;
}

/**
 * Read the metadata of the authorization server: of OpenID Connect, else of RFC 8414.
 * @param {Offer} offer
 * @returns {Promise<Server>}
 */
export async function readServer({ issuer }) {
  const { origin, pathname } = new URL(issuer);
  const path = pathname.replace(/\/$/, '');
  const places = [`${origin}${path}/.well-known/openid-configuration`, `${origin}/.well-known/oauth-authorization-server${path}`];
  for (const place of places) {
    const { ok, body } = await ask(issuer, place);
    if (ok && body) return serverIn(body, issuer);
  }
  throw new SignInError(`${hostOf(issuer)} has no metadata of an authorization server.`);
}

/**
 * Return the endpoints in the metadata. Pure.
 * @param {any} metadata
 * @param {string} issuer
 * @returns {Server}
 */
export function serverIn(metadata, issuer) {
  const { origin } = new URL(issuer);
  if (metadata.issuer !== issuer) throw new SignInError(`The metadata is that of another issuer: “${short(metadata.issuer)}” and not “${issuer}”.`);
  const methods = metadata.code_challenge_methods_supported;
  if (Array.isArray(methods) && !methods.includes('S256')) throw new SignInError(`${hostOf(issuer)} does not offer PKCE with S256.`);
  const isThere = (/** @type {unknown} */ url) => typeof url === 'string' && URL.canParse(url) && new URL(url).origin === origin;
  const required = (/** @type {string} */ name) => {
    if (isThere(metadata[name])) return metadata[name];
    throw new SignInError(`The ${name} of the authorization server is not at ${origin}, the only origin that this page may call: “${short(metadata[name])}”.`);
  };
  const optional = (/** @type {string} */ name) => (isThere(metadata[name]) ? metadata[name] : '');
  return {
    authorization: required('authorization_endpoint'),
    token: required('token_endpoint'),
    revocation: optional('revocation_endpoint'),
    endSession: optional('end_session_endpoint'),
    sendsIss: metadata.authorization_response_iss_parameter_supported === true,
  };
}

/**
 * Begin a sign-in: its secrets, and the address at which a person continues.
 * @param {Offer} offer
 * @param {Server} server
 * @param {string} redirectUri
 * @returns {Promise<Attempt>}
 */
export async function begin(offer, server, redirectUri) {
  if (!globalThis.crypto?.subtle) throw new SignInError('Browsers sign in at pages with HTTPS or on localhost only. Open the console there, or use a key.');
  const [state, nonce, verifier] = [randomText(), randomText(), randomText()];
  const challenge = base64url(new Uint8Array(await crypto.subtle.digest('SHA-256', new TextEncoder().encode(verifier))));
  const url = new URL(server.authorization);
  const parameters = {
    response_type: 'code',
    client_id: offer.client_id,
    redirect_uri: redirectUri,
    scope: offer.scopes.join(' '),
    state,
    nonce: isOpenId(offer) ? nonce : '',
    code_challenge: challenge,
    code_challenge_method: 'S256',
    resource: offer.resource ?? '',
    // OpenID Connect Core 11: without it a server ignores the request for a refresh token.
    prompt: offer.scopes.includes('offline_access') ? 'consent' : '',
  };
  for (const [name, value] of Object.entries(parameters)) if (value) url.searchParams.set(name, value);
  return { offer, server, redirectUri, url: url.href, state, nonce, verifier };
}

/**
 * Return the code in the server's answer to a sign-in. Pure.
 * @param {{iss?: string, code?: string, error?: string, error_description?: string}} answer
 * @param {Pick<Attempt, 'offer' | 'server'>} attempt
 */
export function codeIn({ iss, code, error, error_description: why }, { offer, server }) {
  // Of an answer that another server may have sent, nothing else is looked at (RFC 9207).
  if (iss === undefined ? server.sendsIss : iss !== offer.issuer) {
    throw new SignInError(iss === undefined ? 'The answer does not name its issuer.' : `The answer is that of another issuer: “${short(iss)}” and not “${offer.issuer}”.`);
  }
  if (error) throw new SignInError(refusal(hostOf(offer.issuer), error, why));
  if (!code) throw new SignInError(`${hostOf(offer.issuer)} has sent no code.`);
  return code;
}

/**
 * Exchange the code for tokens.
 * @param {Attempt} attempt
 * @param {string} code
 */
export async function redeem({ offer, server, redirectUri, verifier, nonce }, code) {
  const body = await askTokens(offer, server, { grant_type: 'authorization_code', code, redirect_uri: redirectUri, code_verifier: verifier });
  return tokensIn(body, { offer, nonce });
}

/**
 * Return the tokens of an answer of the token endpoint. Pure.
 * @param {any} body
 * @param {{offer: Offer, nonce: string, before?: Tokens, now?: number}} expected `before`: those that the new ones replace
 * @returns {Tokens}
 */
export function tokensIn(body, { offer, nonce, before, now = Date.now() }) {
  const host = hostOf(offer.issuer);
  if (typeof body?.access_token !== 'string' || !body.access_token) throw new SignInError(`${host} has sent no access token.`);
  if (String(body.token_type).toLowerCase() !== 'bearer') throw new SignInError(`${host} has sent a token that is no bearer token.`);
  const claims = typeof body.id_token === 'string' ? claimsIn(body.id_token) : null;
  if (claims) checkClaims(claims, { offer, nonce, before: before?.claims ?? null, now });
  else if (body.id_token || (isOpenId(offer) && !before)) throw new SignInError(`${host} has sent no ID token.`);
  return {
    access: body.access_token,
    refresh: typeof body.refresh_token === 'string' ? body.refresh_token : (before?.refresh ?? ''),
    claims: claims ?? before?.claims ?? null,
    seconds: body.expires_in > 0 ? Number(body.expires_in) : Infinity,
  };
}

/**
 * Return the claims of an ID token, null if it has none. Pure.
 * @param {string} token
 * @returns {Record<string, any> | null}
 */
export function claimsIn(token) {
  const part = token.split('.')[1] ?? '';
  try {
    const bytes = Uint8Array.from(atob(part.replaceAll('-', '+').replaceAll('_', '/')), (character) => Number(character.codePointAt(0)));
    return parsed(new TextDecoder().decode(bytes));
  } catch {
    return null;
  }
}

/**
 * Throw if an ID token is not for this sign-in (OpenID Connect Core 3.1.3.7 and 12.2).
 * @param {Record<string, any>} claims
 * @param {{offer: Offer, nonce: string, before: Record<string, any> | null, now: number}} expected
 */
function checkClaims({ iss, aud, azp, exp, nonce: named, sub }, { offer, nonce, before, now }) {
  const audience = [aud].flat();
  const right = {
    iss: iss === offer.issuer,
    aud: audience.includes(offer.client_id) && (audience.length === 1 || azp === offer.client_id),
    exp: typeof exp === 'number' && exp + LEEWAY_SECONDS > now / 1000,
    nonce: named === nonce || (before !== null && named === undefined),
    sub: typeof sub === 'string' && sub !== '' && (before === null || sub === before.sub),
  };
  const wrong = Object.entries(right).find(([, isRight]) => !isRight);
  if (wrong) throw new SignInError(`The ID token of ${hostOf(offer.issuer)} is not accepted: its claim ${wrong[0]} is wrong.`);
}

/** A person who has signed in: renews the token before it ends, until it is left or a renewal is refused. */
export class SignedIn {
  /**
   * @param {Attempt} attempt
   * @param {Tokens} tokens
   * @param {{now?: () => number, onRenewed: (token: string) => void}} options
   */
  constructor(attempt, tokens, { now = Date.now, onRenewed }) {
    this._attempt = attempt;
    this._now = now;
    this._onRenewed = onRenewed;
    this.host = hostOf(attempt.offer.issuer);
    this.endSession = attempt.server.endSession && `${attempt.server.endSession}?${new URLSearchParams({ client_id: attempt.offer.client_id })}`;
    /** @type {Tokens} */
    this._tokens = tokens;
    this._renewAt = 0;
    this._endsAt = 0;
    this._take(tokens);
  }

  /** Their name, as the ID token has it. */
  get name() {
    const { name, preferred_username: user, sub } = this._tokens.claims ?? {};
    const found = [name, user, sub].find((one) => typeof one === 'string' && one.trim());
    return found ? cut(harmless(found), LONGEST_NAME) : 'Signed in';
  }

  get token() {
    return this._tokens.access;
  }

  /** @param {SignedIn} other */
  isSamePerson(other) {
    const [one, two] = [this._tokens.claims, other._tokens.claims];
    return one !== null && two !== null && one.iss === two.iss && one.sub === two.sub;
  }

  get hasEnded() {
    return this._now() >= this._endsAt;
  }

  /** Begin to look at the clock: also after the computer has slept, and when the network is back. */
  start() {
    const { signal: gone } = this._gone;
    for (const event of ['focus', 'online', 'pageshow']) window.addEventListener(event, () => this.check(), { signal: gone });
    document.addEventListener('visibilitychange', () => this.check(), { signal: gone });
    this.check();
  }

  /** Renew the token if it is time. */
  check() {
    if (this._gone.signal.aborted) return;
    const now = this._now();
    if (this._tokens.refresh && now >= Math.max(this._renewAt, this._notBefore)) this._renewing ??= this._renew();
    if (now < this._endsAt) this.state.value = now >= this._renewAt && !this._tokens.refresh ? 'ending' : 'current';
    else if (!this._renewing || this._hasFailed) this.state.value = 'ended';
    clearTimeout(this._timer);
    this._timer = setTimeout(() => this.check(), this._untilNext(now));
  }

  /** Renew a token that the gateway has refused before its end; return false if it is not renewed. */
  async renew() {
    if (!this._tokens.refresh || this._gone.signal.aborted) return false;
    await (this._renewing ??= this._renew());
    return !this._hasFailed;
  }

  /** Forget the tokens, and revoke them where the server offers it. Returns why they are not revoked; an empty text if they are. */
  leave() {
    this._left ??= this._leave();
    return this._left;
  }

  async _leave() {
    this._gone.abort();
    clearTimeout(this._timer);
    await this._renewing;
    const { access, refresh } = this._tokens;
    this._tokens = { ...this._tokens, access: '', refresh: '' };
    return revoke(this._attempt, { access, refresh });
  }

  async _renew() {
    const { offer, server, nonce } = this._attempt;
    try {
      const body = await askTokens(offer, server, { grant_type: 'refresh_token', refresh_token: this._tokens.refresh });
      this._take(tokensIn(body, { offer, nonce, before: this._tokens, now: this._now() }));
      if (!this._gone.signal.aborted) this._onRenewed(this._tokens.access);
    } catch (error) {
      this._hasFailed = true;
      const { message, mayPass } = /** @type {SignInError} */ (error);
      this._problem = message;
      if (mayPass) this._notBefore = this._now() + this._pauses.next();
      else this._tokens = { ...this._tokens, refresh: '' };
    } finally {
      this._renewing = null;
      this.check();
    }
  }

  /** @param {Tokens} tokens */
  _take(tokens) {
    this._tokens = tokens;
    this._hasFailed = false;
    this._problem = '';
    this._pauses.reset();
    this._renewAt = this._now() + tokens.seconds * RENEWED_AFTER * 1000;
    this._endsAt = this._now() + tokens.seconds * 1000;
  }

  /** @param {number} now */
  _untilNext(now) {
    const times = [Math.max(this._renewAt, this._notBefore), this._endsAt].filter((time) => time > now);
    return Math.min(LONGEST_TIMER_MS, ...times.map((time) => time - now));
  }

  /** `ending`: the token cannot be renewed, and ends soon; `ended`: it has. */
  state = signal(/** @type {'current' | 'ending' | 'ended'} */ ('current'));
  /** What the person has to know of it; empty while there is nothing. */
  notice = computed(() => {
    if (this.state.value === 'current') return '';
    const why = this._problem ? ` ${this._problem}` : '';
    if (this.state.value === 'ended') return `Your sign-in has ended: sign in again.${why}`;
    return `Your sign-in ends at ${new Date(this._endsAt).toLocaleTimeString()}: sign in again before.${why}`;
  });
  /** Why the last renewal has failed. */
  _problem = '';
  /** @type {Promise<string> | undefined} */
  _left = undefined;
  _gone = new AbortController();
  _pauses = new Pauses();
  /** @type {Promise<void> | null} */
  _renewing = null;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  _timer = undefined;
  _hasFailed = false;
  _notBefore = 0;
}

/**
 * Revoke tokens (RFC 7009), the refresh token first. Returns why they are not revoked.
 * @param {Pick<Attempt, 'offer' | 'server'>} attempt
 * @param {Pick<Tokens, 'access' | 'refresh'>} tokens
 */
export async function revoke({ offer, server }, { access, refresh }) {
  const host = hostOf(offer.issuer);
  if (!server.revocation) return `${host} does not offer to revoke them; they end by themselves.`;
  for (const [hint, token] of [['refresh_token', refresh], ['access_token', access]]) {
    if (!token) continue;
    try {
      const { ok, body } = await ask(offer.issuer, server.revocation, { token, token_type_hint: hint, client_id: offer.client_id });
      // A server need not know how to revoke access tokens.
      if (!ok && body?.error !== 'unsupported_token_type') return refusal(host, body?.error, body?.error_description);
    } catch (error) {
      return /** @type {Error} */ (error).message;
    }
  }
  return '';
}

/**
 * @param {Offer} offer
 * @param {Server} server
 * @param {Record<string, string>} parameters
 */
async function askTokens(offer, server, parameters) {
  const form = { ...parameters, client_id: offer.client_id, ...(offer.resource === null ? {} : { resource: offer.resource }) };
  const { ok, status, body } = await ask(offer.issuer, server.token, /** @type {Record<string, string>} */ (form));
  if (ok) return body;
  throw new SignInError(refusal(hostOf(offer.issuer), body?.error ?? `HTTP status ${status}`, body?.error_description), status >= 500 || status === 429);
}

/**
 * Send a request to the authorization server: a form, or for a document.
 * @param {string} issuer
 * @param {string} url
 * @param {Record<string, string>} [form]
 * @returns {Promise<{ok: boolean, status: number, body: any}>}
 */
async function ask(issuer, url, form) {
  /** @type {RequestInit} */
  const init = form ? { method: 'POST', body: new URLSearchParams(form), keepalive: true } : {};
  const timed = { signal: AbortSignal.timeout(ANSWER_SECONDS * 1000), headers: { Accept: 'application/json' } };
  try {
    const response = await fetch(url, { ...init, ...timed, credentials: 'omit', redirect: 'error', cache: 'no-store' });
    return { ok: response.ok, status: response.status, body: parsed(await response.text()) };
  } catch {
    throw new SignInError(`${hostOf(issuer)} does not answer, or does not allow this page (${globalThis.location?.origin}) to call it.`, true);
  }
}

/**
 * @param {string} host
 * @param {unknown} error
 * @param {unknown} why
 */
function refusal(host, error, why) {
  return error === 'access_denied' && !why ? `${host} has refused the sign-in.` : `${host} has refused: ${short(why || error || 'without a reason').replace(/\.$/, '')}.`;
}

/** @param {Offer} offer */
function isOpenId({ scopes }) {
  return scopes.includes('openid');
}

/** @param {unknown} text of another program */
function short(text) {
  return cut(harmless(text), LONGEST_REASON);
}

function randomText() {
  return base64url(crypto.getRandomValues(new Uint8Array(32)));
}

/** @param {Uint8Array} bytes */
function base64url(bytes) {
  return btoa(String.fromCharCode(...bytes)).replaceAll('+', '-').replaceAll('/', '_').replaceAll('=', '');
}
