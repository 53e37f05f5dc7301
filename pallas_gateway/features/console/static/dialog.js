/** A modal dialog: the browser keeps the focus inside, and Escape closes it. */

import { html, useEffect, useId, useRef } from './html.js';

/** @param {{title: string, onClose: () => void, wide?: boolean, children?: any}} props */
export function Dialog({ title, onClose, wide = false, children }) {
  const element = useRef(/** @type {HTMLDialogElement | null} */ (null));
  const heading = useId();
  useEffect(() => {
    const before = /** @type {HTMLElement | null} */ (document.activeElement);
    element.current?.showModal();
    return () => before?.focus();
  }, []);
  return html`
    <dialog ref=${element} class=${wide ? 'wide' : undefined} aria-labelledby=${heading} onClose=${onClose}>
      <h2 id=${heading}>${title}</h2>
      ${children}
    </dialog>
  `;
}
