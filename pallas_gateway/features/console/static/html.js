/**
 * Preact with htm and signals, as the views import them. Text in a template is always text: nothing here parses HTML.
 */

import htm from './vendor/htm.js';
import { h } from './vendor/preact.js';

export { Component, Fragment, createRef, h, render } from './vendor/preact.js';
export { useCallback, useEffect, useId, useLayoutEffect, useMemo, useRef, useState } from './vendor/preact-hooks.js';
export { batch, computed, effect, signal, untracked, useComputed, useSignal, useSignalEffect } from './vendor/preact-signals.js';

export const html = htm.bind(h);
