/** Keys of the page. They do nothing while a person types, and can be switched off. */

import { currentPlace, listPlaces } from "explore/places";
import { toggleHead } from "explore/session";
import { goTo } from "explore/view-overview";
import { openHelp } from "explore/view-help";

function step(store, by) {
  const state = store.get();
  const places = listPlaces(state.loaded.pass);
  const at = places.findIndex((each) => each.id === currentPlace(state).id);
  const next = places[Math.max(0, Math.min(places.length - 1, at + by))];
  goTo(store, next.id);
}

function head(store, by) {
  const state = store.get();
  const { layer } = currentPlace(state);
  if (layer) store.set({ head: (state.head + by + layer.n_heads) % layer.n_heads });
}

function flip(store) {
  const state = store.get();
  const { layer } = currentPlace(state);
  if (layer && layer.switchable !== false) store.set({ edits: toggleHead(state.edits, layer, Math.min(state.head, layer.n_heads - 1)) });
}

const ACTIONS = {
  "[": (store) => step(store, -1),
  "]": (store) => step(store, 1),
  "{": (store) => head(store, -1),
  "}": (store) => head(store, 1),
  e: flip,
  b: (store) => store.set({ edits: [] }),
  o: (store) => goTo(store, "output"),
  a: (store) => goTo(store, "heads"),
};

export function mountKeys(store) {
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    const state = store.get();
    if (event.key === "Escape") {
      if (state.tour !== null) store.set({ tour: null });
      else if (state.cell) store.set({ cell: null });
      return;
    }
    if (!state.shortcuts || event.target.closest("input:not([type=range]):not([type=checkbox]), textarea, select, dialog")) return;
    if (event.key === "?") openHelp();
    else if (event.key === "t") store.set({ tour: state.tour === null ? 0 : null });
    else if (event.key === "/") document.querySelector("#text, #file")?.focus();
    else if (event.key in ACTIONS && state.loaded) ACTIONS[event.key](store);
    else return;
    event.preventDefault();
  });
}
