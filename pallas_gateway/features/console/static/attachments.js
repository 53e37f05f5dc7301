/**
 * Files that go along with a message. Images and PDFs are sent as such; a text file is part of the message, as a code block below
 * a line with its name, from which it is read again to be shown as a file.
 */

const LEAD = 'Attached file: ';
const HEAD = /Attached file: (\S[^\n]{0,199})\n(`{3,})[\w+#-]{0,12}\n/y;
const MOST_TRIES = 100; // a message may hold many lines that begin as a file does
const LONGEST_NAME = 200;
const LARGEST_IMAGE = 20_000_000;
const LARGEST_TEXT = 1_000_000;
const MARGIN_BYTES = 16_384; // of a request, for what is not the message

/** @type {Record<string, RegExp>} the first bytes of images by their type */
const BEGINNINGS = { 'image/png': /^\x89PNG\r\n/, 'image/jpeg': /^\xff\xd8\xff/, 'image/gif': /^GIF8[79]a/, 'image/webp': /^RIFF[^]{4}WEBP/ };
export const IMAGE_TYPES = Object.keys(BEGINNINGS);
export const PDF = 'application/pdf';

/**
 * @typedef {{name: string, text: string}} TextFile
 * @typedef {import('./conversations.js').Image} Image
 * @typedef {{images: boolean, documents: boolean}} Takes
 */

/**
 * Return a message with its text files.
 * @param {string} message
 * @param {TextFile[]} files
 */
export function withFiles(message, files) {
  if (files.length === 0) return message;
  return [message.trimEnd(), ...files.map(({ name, text }) => `${LEAD}${name}\n${fenced(name, text)}`)].filter(Boolean).join('\n\n');
}

/**
 * Return the text of a message and its text files.
 * @param {string} whole
 * @returns {{message: string, files: TextFile[]}}
 */
export function apart(whole) {
  let at = whole.startsWith(LEAD) ? 0 : after(whole, 0);
  for (let tries = 0; at >= 0 && tries < MOST_TRIES; tries += 1) {
    const files = filesFrom(whole, at);
    if (files) return { message: whole.slice(0, at).trimEnd(), files };
    at = after(whole, at);
  }
  return { message: whole, files: [] };
}

/**
 * Return a message as Markdown in which text files are folded.
 * @param {string} whole
 */
export function folded(whole) {
  const { message, files } = apart(whole);
  const escaped = (/** @type {string} */ name) => name.replaceAll('&', '&amp;').replaceAll('<', '&lt;');
  return [message, ...files.map(({ name, text }) => `<details><summary>${escaped(name)}</summary>\n\n${fenced(name, text)}\n\n</details>`)].filter(Boolean).join('\n\n');
}

/**
 * @param {string} whole
 * @param {number} from
 * @returns {number} where the next line begins that may be a file's; -1 for none
 */
function after(whole, from) {
  const found = whole.indexOf(`\n\n${LEAD}`, from);
  return found < 0 ? found : found + 2;
}

/**
 * Return the files of which the rest of a message consists; null if it holds anything else.
 * @param {string} whole
 * @param {number} from
 */
function filesFrom(whole, from) {
  const files = [];
  for (let at = from; ; ) {
    HEAD.lastIndex = at;
    const head = HEAD.exec(whole);
    if (!head) return null;
    const begin = at + head[0].length;
    const end = whole.indexOf(`\n${head[2]}`, begin - 1);
    if (end < 0) return null;
    files.push({ name: head[1], text: whole.slice(begin, end) });
    at = end + 1 + head[2].length;
    if (whole.slice(at).trim() === '') return files;
    if (!whole.startsWith('\n\n', at)) return null;
    at += 2;
  }
}

/**
 * @param {string} name
 * @param {string} text
 */
function fenced(name, text) {
  let fence = '```';
  for (const [run] of text.matchAll(/`{3,}/g)) if (run.length >= fence.length) fence = `${run}\``;
  return `${fence}${/\.([\w+#-]{1,12})$/.exec(name)?.[1] ?? ''}\n${text}\n${fence}`;
}

/**
 * Return how many bytes a value has in the body of a request.
 * @param {unknown} value
 */
export function bytesOf(value) {
  return new Blob([JSON.stringify(value)]).size;
}

/**
 * Return what the model of an agent takes, as far as the registry says so: else the gateway refuses what it does not take.
 * @param {import('./state.js').Agent['capabilities']} capabilities
 * @returns {Takes}
 */
export function takenBy({ vision, documents }) {
  return { images: vision !== false, documents: documents === true || vision === undefined };
}

/**
 * Return what a file is sent as, or the reason why it is not sent.
 * @param {File} file
 * @param {{takes: Takes, room: number, most: number}} limits `room`: the bytes that the request has left, of `most`
 * @returns {Promise<{image?: Image, text?: TextFile, problem?: string}>}
 */
export async function attached(file, { takes, room, most }) {
  const name = file.name.slice(0, LONGEST_NAME).replace(/[\p{C}\p{Zl}\p{Zp}]/gu, ' ').trim() || 'file';
  const of = (/** @type {string} */ problem) => ({ problem: `“${name}” ${problem}` });
  try {
    const found = await contentOf(file, name, takes);
    if (typeof found === 'string') return of(found);
    if (bytesOf(found) + MARGIN_BYTES <= room) return found;
    return of(`does not fit: a request may have ${megabytes(most)} with its files and what goes along of the conversation (gateway.max_body_bytes).`);
  } catch {
    return of('cannot be read.');
  }
}

/**
 * @param {File} file
 * @param {string} name
 * @param {Takes} takes
 * @returns {Promise<{image: Image} | {text: TextFile} | string>} a text: the problem
 */
async function contentOf(file, name, takes) {
  const begin = String.fromCharCode(...new Uint8Array(await file.slice(0, 12).arrayBuffer()));
  const type = IMAGE_TYPES.find((one) => BEGINNINGS[one].test(begin));
  if (type || IMAGE_TYPES.includes(file.type)) return imageOf(file, type, takes);
  if (begin.startsWith('%PDF-')) return documentOf(file, name, takes);
  if (file.size === 0) return 'is empty.';
  if (file.size > LARGEST_TEXT) return `is larger than ${megabytes(LARGEST_TEXT)}, the most for files other than images and PDFs.`;
  const text = textIn(await file.arrayBuffer());
  if (text !== null) return { text: { name, text } };
  const others = [takes.images && 'images (PNG, JPEG, GIF, WebP)', takes.documents && 'PDFs'].filter(Boolean);
  return `cannot be sent: it is binary. The agent takes text in UTF-8${others.map((one) => `, and ${one}`).join('')}.`;
}

/**
 * @param {File} file
 * @param {string | undefined} type of its content
 * @param {Takes} takes
 */
async function imageOf(file, type, takes) {
  if (!takes.images) return 'is an image. The model of this agent accepts no images.';
  if (file.size > LARGEST_IMAGE) return `is larger than ${megabytes(LARGEST_IMAGE)}.`;
  if (!type || !(await isShown(file))) return 'is no PNG, JPEG, GIF or WebP image.';
  return { image: { data: await base64Of(file), mime_type: type } };
}

/**
 * @param {File} file
 * @param {string} name
 * @param {Takes} takes
 */
async function documentOf(file, name, takes) {
  if (!takes.documents) return 'is a PDF. The model of this agent accepts no documents.';
  if (file.size > LARGEST_IMAGE) return `is larger than ${megabytes(LARGEST_IMAGE)}.`;
  return { image: { data: await base64Of(file), mime_type: PDF, name } };
}

/**
 * True if a browser can show an image: its beginning may be an image's, and the rest not.
 * @param {File} file
 */
async function isShown(file) {
  try {
    (await createImageBitmap(file)).close();
    return true;
  } catch {
    return false;
  }
}

/**
 * Return the text in a file without its last line end; null if it is binary.
 * @param {ArrayBuffer} content
 */
function textIn(content) {
  try {
    const text = new TextDecoder('utf-8', { fatal: true }).decode(content);
    return text.includes('\0') ? null : text.replace(/\r?\n$/, '');
  } catch {
    return null;
  }
}

/** @param {number} bytes */
function megabytes(bytes) {
  return `${Math.floor(bytes / 100_000) / 10} MB`;
}

/**
 * @param {File} file
 * @returns {Promise<string>}
 */
function base64Of(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(String(reader.result).replace(/^[^,]*,/, ''));
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}
