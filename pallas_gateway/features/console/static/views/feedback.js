/** What the reader thinks of an answer: good or bad, and a note. */

import { html, useEffect, useId, useRef, useSignal } from '../html.js';
import { harmless } from '../text.js';

const LONGEST_NOTE = 4000;
const THUMB = 'M1 7h3v8H1zM5 14.2V7.3L8.3 1c1 0 1.8.8 1.6 1.8L9.3 6h4c1.1 0 1.9 1 1.6 2l-1.4 5.3c-.2.7-.8 1.2-1.6 1.2H6.6z';

/**
 * @typedef {import('../conversations.js').Feedback} Feedback
 * @typedef {import('../conversations.js').Given} Given
 * @typedef {(feedback: Given | null) => Promise<void>} Rate stores what is thought, or that nothing is
 */

/** @param {{turn: import('../conversations.js').Turn, onRate: Rate}} props */
export function FeedbackRow({ turn, onRate }) {
  const given = useSignal(turn.feedback);
  const writing = useSignal(false);
  const busy = useSignal(false);
  const problem = useSignal('');
  useEffect(() => {
    given.value = turn.feedback;
  }, [turn.feedback]);
  const rate = async (/** @type {Given | null} */ next) => {
    if (busy.value) return false;
    [busy.value, problem.value] = [true, ''];
    try {
      await onRate(next);
      given.value = turn.feedback;
    } catch (error) {
      problem.value = `The rating cannot be stored: ${/** @type {Error} */ (error).message}`;
    }
    busy.value = false;
    return problem.value === '';
  };
  const choose = (/** @type {Feedback['rating']} */ rating) => {
    const { rating: before, note = '', forOwner } = given.value ?? {};
    if (before === rating) writing.value = false;
    return rate(before === rating ? null : { rating, note, forOwner });
  };
  const save = async (/** @type {string} */ note, /** @type {boolean} */ forOwner) => {
    if (given.value && (await rate({ rating: given.value.rating, note, forOwner }))) writing.value = false;
  };
  const thumb = (/** @type {Feedback['rating']} */ rating, /** @type {string} */ label) => html`
    <button type="button" class=${`quiet small thumb ${rating}`} aria-label=${label} title=${label} aria-pressed=${given.value?.rating === rating ? 'true' : 'false'} onClick=${() => choose(rating)}>
      <svg viewBox="0 0 16 16" aria-hidden="true"><path d=${THUMB} /></svg>
    </button>
  `;
  const { note = '' } = given.value ?? {};
  return html`
    ${thumb('good', 'Good answer')}${thumb('bad', 'Bad answer')}
    ${given.value && !writing.value && html`<button type="button" class="quiet small" onClick=${() => (writing.value = true)}>${note ? 'Change the note' : 'Add a note'}</button>`}
    ${problem.value && html`<p class="notice error" role="alert">${harmless(problem.value)}</p>`}
    ${given.value && !writing.value && note && html`<p class="note">${harmless(note)}${given.value.forOwner && html` <span class="hint">The owner of the agent may read this.</span>`}</p>`}
    ${given.value && writing.value && html`<${NoteForm} given=${given.value} isShareable=${turn.number !== undefined} onSave=${save} onClose=${() => (writing.value = false)} />`}
  `;
}

/** @param {{given: Feedback, isShareable: boolean, onSave: (note: string, forOwner: boolean) => void, onClose: () => void}} props `isShareable`: the gateway keeps it */
function NoteForm({ given: { note, forOwner = false }, isShareable, onSave, onClose }) {
  const isShared = useSignal(forOwner);
  const id = useId();
  const box = useRef(/** @type {HTMLTextAreaElement | null} */ (null));
  useEffect(() => box.current?.focus(), []);
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    onSave((box.current?.value ?? '').trim(), isShared.value);
  };
  return html`
    <form class="note-form" onSubmit=${submit} onKeyDown=${(/** @type {KeyboardEvent} */ event) => event.key === 'Escape' && onClose()}>
      <label for=${id}>Note</label>
      <textarea id=${id} ref=${box} rows="3" maxlength=${LONGEST_NOTE} defaultValue=${note}></textarea>
      ${isShareable && html`<label class="check"><input type="checkbox" checked=${isShared.value} onChange=${(/** @type {any} */ event) => (isShared.value = event.target.checked)} />The owner of the agent may read this note, your message and the answer</label>`}
      <div class="actions"><button type="submit" class="small">Save the note</button><button type="button" class="quiet small" onClick=${onClose}>Cancel</button></div>
    </form>
  `;
}
