/** A conversation with one agent. */

import { html } from '../html.js';
import { Badge } from './badge.js';

/** @param {{agent: import('../state.js').Agent}} props */
export function Chat({ agent }) {
  return html`<h1>${agent.title} <${Badge} id=${agent.id} /></h1>`;
}
