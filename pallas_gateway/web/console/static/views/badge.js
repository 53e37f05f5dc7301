/** An agent's state as text. */

import { html } from '../html.js';
import { statusOf } from '../state.js';

/** @param {{id: string}} props */
export function Badge({ id }) {
  const status = statusOf(id);
  return html`<span class=${`badge ${status}`}>${status}</span>`;
}
