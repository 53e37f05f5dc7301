/**
 * Texts by which other programs connect to an agent: `clients.json`, filled in. The same as in `pallas-gateway connect`
 * (`client/programs.py`).
 */

/**
 * @typedef {object} Target
 * @property {string} name
 * @property {string} url
 * @property {string} base
 * @property {string} tool
 * @property {boolean} needsToken
 */

/**
 * @typedef {object} Client
 * @property {string} id
 * @property {string} title
 * @property {string} how
 * @property {string} language
 * @property {string[]} text
 * @property {string[]} with_token
 * @property {{title: string, url: string, config: string}} [link]
 * @property {boolean} [agents_only]
 * @property {boolean} [signs_in] it signs people in by itself, given the URL alone
 */

/**
 * @param {Client} client
 * @param {Target} target
 */
export function textFor(client, target) {
  return filled((target.needsToken ? client.with_token : client.text).join('\n'), target);
}

/**
 * The link that opens the program with the server; null if it has none, or the server needs a token.
 * @param {Client} client
 * @param {Target} target
 */
export function linkFor({ link }, target) {
  if (!link || target.needsToken) return null;
  const config = filled(link.config, target);
  return filled(
    link.url.replace('<BASE64>', encodeURIComponent(btoa(config))).replace('<ENCODED>', encodeURIComponent(config)),
    target,
  );
}

/**
 * @param {string} text
 * @param {Target} target
 */
function filled(text, target) {
  /** @type {Record<string, string>} */
  const values = {
    '<NAME>': word(target.name),
    '<TOOL>': word(target.tool),
    '<URL>': quoted(target.url),
    '<BASE>': quoted(target.base),
  };
  return text.replace(/<(?:NAME|TOOL|URL|BASE)>/g, (key) => values[key]);
}

/**
 * A name as one word of a command, which is no option.
 * @param {string} name
 */
function word(name) {
  return name.replace(/[^A-Za-z0-9_.-]/g, '-').replace(/^-+/, '') || 'agent';
}

/**
 * A URL without quotes and backslashes: the texts are commands and programs.
 * @param {string} url
 */
function quoted(url) {
  return url.replace(/[^A-Za-z0-9%/:?#[\]@!$&()*+,;=~._-]/gu, (one) => (one === "'" ? '%27' : encodeURIComponent(one)));
}
