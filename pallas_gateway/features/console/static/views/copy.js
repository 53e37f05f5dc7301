/** A button that copies a text, and shows that it did. */

import { html, useEffect, useSignal } from '../html.js';

const SHOWN_MS = 2000;
const REFUSED = 'The browser does not allow copying. Select the text, and copy it with the keyboard.';

/**
 * @param {{text: string | (() => string), what: string, label?: string, small?: boolean}} props `text`: or a function that returns it when it is copied;
 *   `what`: ends the accessible name, such as “the answer”
 */
export function Copy({ text, what, small = true, label = 'Copy' }) {
  const outcome = useSignal('');
  useEffect(() => {
    if (outcome.value !== 'Copied') return undefined;
    const timer = setTimeout(() => (outcome.value = ''), SHOWN_MS);
    return () => clearTimeout(timer);
  }, [outcome.value]);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(typeof text === 'function' ? text() : text);
      outcome.value = 'Copied';
    } catch {
      outcome.value = REFUSED; // also without HTTPS, where a page has no clipboard
    }
  };
  const isDone = outcome.value === 'Copied';
  return html`
    <button type="button" class=${`quiet copy ${small ? 'small' : ''}`} onClick=${copy} aria-label=${`${isDone ? 'Copied' : 'Copy'} ${what}`}>${isDone ? 'Copied' : label}</button>
    <span class=${outcome.value === REFUSED ? 'hint' : 'unseen'} role="status">${outcome.value}</span>
  `;
}
