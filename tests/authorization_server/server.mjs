// An OpenID provider (oidc-provider) with one public client, on any port of the loopback interface. Prints its issuer.
// `POST /behaviour` replaces its behaviour, a JSON object; see `DEFAULTS`. It ends with its standard input.
import { createServer } from "node:http";
import { SignJWT, decodeJwt, exportJWK, generateKeyPair } from "jose";
import Provider from "oidc-provider";

const CLIENT_ID = "pallas-console";
const DEFAULTS = {
  access_token_seconds: 3600,
  account: "alice",
  scopes: ["run:agents", "view:agents", "view:gateway", "view:calls"], // what accounts may have at resources
  default_resource: null, // the audience where the client sends no `resource`
  refuse_resource: false, // `invalid_target` for every `resource`
  refuse_refresh: false, // `invalid_grant` for refresh tokens
  rfc8414: false, // serve the metadata at the path of RFC 8414, too
  device: true, // false: no device authorization endpoint
  device_interval: 1, // seconds between two requests of a device
  token: {}, // replaces members of answers of the token endpoint; null removes one
  access_token_claims: {}, // replace claims: `{aud: ..}` for a wrong audience, `{exp: 1}` for an expired token
  id_token_claims: {}, // likewise: `{nonce: "wrong"}`; null removes a claim
  foreign_signature: false, // ID tokens are signed with a key that is not published
  iss: null, // `iss` of authorization responses (RFC 9207); "" removes it
  metadata: {}, // replaces members of the metadata; null removes one
};
let behaviour = DEFAULTS;

const { privateKey } = await generateKeyPair("RS256", { extractable: true });
const { privateKey: foreignKey } = await generateKeyPair("RS256");
const jwk = { ...(await exportJWK(privateKey)), kid: "provider", alg: "RS256", use: "sig" };

const server = createServer();
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
const issuer = `http://127.0.0.1:${server.address().port}`;
const isLoopback = (origin) => /^http:\/\/(127\.0\.0\.1|localhost|\[::1\]):\d+$/.test(origin);

async function newGrant(clientId, resources) {
  const grant = new provider.Grant({ clientId, accountId: behaviour.account });
  grant.addOIDCScope("openid offline_access profile");
  for (const resource of resources) grant.addResourceScope(resource, behaviour.scopes.join(" "));
  await grant.save();
  return grant;
}

const provider = new Provider(issuer, {
  clients: [
    {
      client_id: CLIENT_ID,
      client_name: "Pallas Gateway",
      application_type: "native", // any port of loopback addresses (RFC 8252, section 7.3)
      token_endpoint_auth_method: "none",
      grant_types: ["authorization_code", "refresh_token", "urn:ietf:params:oauth:grant-type:device_code"],
      redirect_uris: ["http://127.0.0.1/", "http://127.0.0.1/callback", "http://127.0.0.1/console/signed-in", "http://127.0.0.1/pallas/console/signed-in"],
      post_logout_redirect_uris: process.argv.slice(2),
    },
  ],
  jwks: { keys: [jwk] },
  cookies: { keys: ["a secret of the tests"] },
  scopes: ["openid", "offline_access", "profile"],
  pkce: { required: () => true, methods: ["S256"] },
  rotateRefreshToken: true,
  clientBasedCORS: (ctx, origin) => isLoopback(origin),
  findAccount: (ctx, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
  // Everything is consented to.
  loadExistingGrant: async (ctx) => {
    const known = ctx.oidc.result?.consent?.grantId;
    if (known) return provider.Grant.find(known);
    return newGrant(ctx.oidc.client.clientId, Object.keys(ctx.oidc.resourceServers ?? {}));
  },
  interactions: { url: (ctx, interaction) => `/interaction/${interaction.uid}` },
  ttl: { AccessToken: () => behaviour.access_token_seconds, DeviceCode: 600, Session: 86400, Grant: 86400, Interaction: 600 },
  features: {
    devInteractions: { enabled: false },
    revocation: { enabled: true },
    deviceFlow: { enabled: true, userCodeInputSource: page, userCodeConfirmSource: page, successSource: page },
    rpInitiatedLogout: { enabled: true, logoutSource: page, postLogoutSuccessSource: page },
    resourceIndicators: {
      enabled: true,
      defaultResource: (ctx, client, oneOf) => oneOf?.[0] ?? behaviour.default_resource ?? undefined,
      useGrantedResource: () => true,
      getResourceServerInfo: (ctx, resource) => ({
        scope: behaviour.scopes.join(" "),
        audience: resource,
        accessTokenFormat: "jwt",
        accessTokenTTL: behaviour.access_token_seconds,
        jwt: { sign: { alg: "RS256" } },
      }),
    },
  },
});

// Pages of the provider: its own forms, and buttons for them.
function page(ctx, form) {
  const ids = { "op.deviceInputForm": "", "op.deviceConfirmForm": "", "op.logoutForm": ' name="logout" value="yes"' };
  const id = Object.keys(ids).find((one) => typeof form === "string" && form.includes(one));
  const buttons = id ? `<button type="submit" form="${id}"${ids[id]}>Continue</button>` : "<p>Done</p>";
  const refuse = id === "op.deviceConfirmForm" ? `<button type="submit" form="${id}" name="abort" value="yes">Refuse</button>` : "";
  ctx.type = "html";
  ctx.body = `<!doctype html><title>Authorization server</title>${id ? form : ""}${buttons}${refuse}`;
}

async function changed(token, claims, isForeign) {
  const now = Object.entries({ ...decodeJwt(token), ...claims }).filter(([, value]) => value !== null);
  const header = JSON.parse(Buffer.from(token.split(".")[0], "base64url"));
  return new SignJWT(Object.fromEntries(now)).setProtectedHeader(header).sign(isForeign ? foreignKey : privateKey);
}

// The page on which a person signs in, and consents to everything.
async function respondToInteraction(ctx) {
  const { prompt, params } = await provider.interactionDetails(ctx.req, ctx.res);
  if (ctx.method !== "POST") {
    ctx.type = "html";
    ctx.body = `<!doctype html><title>Authorization server</title><form method="post">
<button name="answer" value="yes">Sign in</button><button name="answer" value="no">Refuse</button></form>`;
    return;
  }
  const body = await bodyOf(ctx.req);
  if (new URLSearchParams(body).get("answer") === "no") {
    const refused = { error: "access_denied", error_description: "The person refused." };
    await provider.interactionFinished(ctx.req, ctx.res, refused, { mergeWithLastSubmission: false });
  } else {
    const grant = await newGrant(params.client_id, [params.resource ?? behaviour.default_resource ?? []].flat());
    const result = { login: { accountId: behaviour.account }, consent: { grantId: grant.jti } };
    await provider.interactionFinished(ctx.req, ctx.res, result, { mergeWithLastSubmission: prompt.name !== "login" });
  }
  ctx.respond = false;
}

async function bodyOf(request) {
  const parts = [];
  for await (const part of request) parts.push(part);
  return Buffer.concat(parts).toString();
}

const refuse = (ctx, error) => {
  ctx.status = 400;
  ctx.body = { error, error_description: "The test wants it so." };
};

provider.use(async (ctx, next) => {
  if (ctx.path === "/behaviour") {
    behaviour = { ...DEFAULTS, ...JSON.parse(await bodyOf(ctx.req)) };
    ctx.status = 204;
    return;
  }
  if (ctx.path.startsWith("/interaction/")) return respondToInteraction(ctx);
  if (ctx.path === "/auth" && behaviour.refuse_resource && ctx.query.resource) return refuse(ctx, "invalid_target");
  if (ctx.path === "/.well-known/oauth-authorization-server" && behaviour.rfc8414) {
    ctx.path = "/.well-known/openid-configuration";
  }
  await next();
  if (ctx.path.startsWith("/.well-known/") && ctx.body?.issuer) {
    const device = behaviour.device ? {} : { device_authorization_endpoint: null };
    const members = Object.entries({ ...ctx.body, ...device, ...behaviour.metadata });
    ctx.body = Object.fromEntries(members.filter(([, value]) => value !== null));
  }
  if (ctx.path === "/token" && ctx.oidc?.params?.grant_type === "refresh_token" && behaviour.refuse_refresh) {
    return refuse(ctx, "invalid_grant");
  }
  if (ctx.path === "/device/auth" && ctx.body?.device_code) ctx.body.interval = behaviour.device_interval;
  if (ctx.path === "/token" && ctx.body?.access_token) {
    if (ctx.body.access_token.includes(".")) {
      ctx.body.access_token = await changed(ctx.body.access_token, behaviour.access_token_claims, false);
    }
    if (ctx.body.id_token) {
      ctx.body.id_token = await changed(ctx.body.id_token, behaviour.id_token_claims, behaviour.foreign_signature);
    }
    const answer = Object.entries({ ...ctx.body, ...behaviour.token });
    ctx.body = Object.fromEntries(answer.filter(([, value]) => value !== null));
  }
  const location = ctx.response.get("Location");
  if (behaviour.iss !== null && location.includes("iss=")) {
    const url = new URL(location);
    if (behaviour.iss) url.searchParams.set("iss", behaviour.iss);
    else url.searchParams.delete("iss");
    ctx.set("Location", url.href);
  }
});

server.on("request", provider.callback());
console.log(issuer);
process.stdin.on("end", () => process.exit(0)).resume();
