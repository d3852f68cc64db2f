/** The state of the page: one immutable object in a store, kept in the URL's fragment. */

export const INITIAL = Object.freeze({
  show: "A", // which model: "A", "B" or "diff", A - B
  input: null, // {text, target} or {file}
  edits: [], // as transom.edits takes them
  place: null, // address of the part of the model in view: "decoder.blocks.0.attn", "source_embedding", "heads", "output"
  head: 0,
  tokens: {}, // position of the chosen token per stack
  position: null, // output position whose probabilities are shown
  symbol: null, // index of the symbol in question; null for the most probable one
  cell: null, // {name, index} of the cell whose calculation is open
  temperature: 1,
  topK: 0,
  topP: 1,
  sweep: false, // whether the grids show what each head contributes to the answer
  tour: null, // number of the step of the guided tour
  language: null,
  details: false, // whether the steps between are shown too
  theme: "auto",
  shortcuts: true,
});

/** Fields that live for one session and are not in the URL. */
export const TRANSIENT = Object.freeze({ models: null, vocabulary: null, loaded: null, error: null, busy: false });

/** Make a store: get the state, set some fields, hear of changes. */
export function createStore(initial) {
  let state = Object.freeze({ ...initial });
  const listeners = new Set();
  return {
    get: () => state,
    set(changes) {
      const next = typeof changes === "function" ? changes(state) : changes;
      if (Object.entries(next).every(([key, value]) => Object.is(state[key], value))) return;
      state = Object.freeze({ ...state, ...next });
      for (const each of [...listeners]) each(state);
    },
    subscribe(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
  };
}

/** Return the part of a state that a link or a saved file keeps. */
export function lasting(state) {
  return Object.fromEntries(
    Object.keys(INITIAL)
      .filter((key) => JSON.stringify(state[key]) !== JSON.stringify(INITIAL[key]))
      .map((key) => [key, state[key]]),
  );
}

/** Write a state as a URL fragment. */
export function toFragment(state) {
  const fields = Object.entries(lasting(state)).map(([key, value]) => [key, JSON.stringify(value)]);
  return new URLSearchParams(fields).toString();
}

const TYPES = { input: "object", place: "string", position: "number", symbol: "number", cell: "object", tour: "number", language: "string" };
const CHOICES = { show: ["A", "B", "diff"], theme: ["auto", "light", "dark"] };

/** Tell whether a value can be that of a field. */
function isValid(key, value) {
  if (value === null) return INITIAL[key] === null;
  if (CHOICES[key]) return CHOICES[key].includes(value);
  return typeof value === (TYPES[key] ?? typeof INITIAL[key]) && Array.isArray(value) === Array.isArray(INITIAL[key]) && !(value < 0);
}

/** Read a state from a URL fragment; fields that are unknown or broken are left out. */
export function fromFragment(fragment) {
  const found = {};
  for (const [key, text] of new URLSearchParams(fragment.replace(/^#/, ""))) {
    if (!(key in INITIAL)) continue;
    try {
      const value = JSON.parse(text);
      if (isValid(key, value)) found[key] = value;
    } catch {
      console.warn(`ignored ${key} of the address`);
    }
  }
  return found;
}
