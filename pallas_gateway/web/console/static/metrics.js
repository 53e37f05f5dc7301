/** The samples of `/metrics`, in Prometheus' text format. */

/** @typedef {{name: string, labels: Record<string, string>, value: number}} Sample */

const SAMPLE = /^([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)/;
const LABEL = /(?<!\w)([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"/g;
/** @type {Record<string, string>} */
const ESCAPES = { n: '\n' };

/**
 * All samples of a text; other lines are left out.
 *
 * @param {string} text
 * @returns {Sample[]}
 */
export function samplesOf(text) {
  return text.split('\n').flatMap((line) => {
    const found = SAMPLE.exec(line);
    if (!found) return [];
    const [, name, labels = '', value] = found;
    const pairs = [...labels.matchAll(LABEL)].map(([, key, quoted]) => [key, unescaped(quoted)]);
    return [{ name, labels: Object.fromEntries(pairs), value: Number(value) }];
  });
}

/**
 * The sum of all samples of a name; null without any.
 *
 * @param {Sample[]} samples
 * @param {string} name
 * @param {Record<string, string>} [labels] that the samples must have
 */
export function sumOf(samples, name, labels = {}) {
  const wanted = Object.entries(labels);
  const found = samples.filter((one) => one.name === name && wanted.every(([key, value]) => one.labels[key] === value));
  return found.length > 0 ? found.reduce((sum, one) => sum + one.value, 0) : null;
}

/** @param {string} quoted */
function unescaped(quoted) {
  return quoted.replace(/\\(.)/g, (_, one) => ESCAPES[one] ?? one);
}
