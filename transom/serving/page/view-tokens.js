/** The tokens of the input as chips, with their ids. The chosen one is the query of every picture. */

import { button, h, view } from "explore/dom";
import { shown } from "explore/format";
import { t } from "explore/messages";
import { currentPlace, listPlaces } from "explore/places";
import { chosenToken } from "explore/session";

const MOST = 400; // chips; of longer texts, those around the chosen token

/** Choose a token of a stack; if the page shows the other stack, it moves to the same block of this one. */
export function chooseToken(store, stack, position) {
  const state = store.get();
  const { outputs } = state.loaded.pass;
  const here = currentPlace(state);
  const elsewhere = here.stack && here.stack !== stack;
  const there = elsewhere && listPlaces(state.loaded.pass).find((place) => place.stack === stack && place.block === here.block);
  const follows = stack === outputs.stack && outputs.per_token && outputs.positions.includes(position);
  store.set({ tokens: { ...state.tokens, [stack]: position }, ...(there ? { place: there.id } : {}), ...(follows ? { position, symbol: null } : {}) });
}

function chip(store, stack, token, chosen) {
  const attributes = {
    class: token.special ? "chip special" : "chip",
    "aria-pressed": String(chosen),
    tabIndex: chosen ? 0 : -1,
    title: t("tokens.title", { text: token.text, position: token.position, id: token.id ?? "–" }),
    data: { stack, position: token.position },
  };
  const made = button("", `token-${stack}-${token.position}`, () => chooseToken(store, stack, token.position), attributes);
  made.append(
    h("span", { class: "chip-text", text: shown(token.text) }),
    h("span", { class: "chip-id", text: token.id ?? token.position }),
  );
  return made;
}

/** Move between chips with the arrow keys, as in a toolbar. */
function onKey(store, stack, n) {
  return (event) => {
    const steps = { ArrowLeft: -1, ArrowRight: 1, Home: -n, End: n };
    if (!(event.key in steps) || event.altKey || event.metaKey) return;
    event.preventDefault();
    const position = Math.max(0, Math.min(n - 1, chosenToken(store.get(), stack) + steps[event.key]));
    chooseToken(store, stack, position);
    requestAnimationFrame(() => document.querySelector(`.chip[data-stack="${stack}"][data-position="${position}"]`)?.focus());
  };
}

function row(store, state, stack, tokens, several) {
  const chosen = chosenToken(state, stack);
  const from = Math.max(0, Math.min(chosen - MOST / 2, tokens.length - MOST));
  const part = tokens.slice(from, from + MOST);
  const heading = t(several ? `tokens.${stack}` : "tokens.label");
  return h(
    "div",
    { class: "token-row" },
    h("span", { class: "soft token-heading", text: heading }),
    h(
      "div",
      { class: "chips", role: "toolbar", "aria-label": heading, data: { stack }, on: { keydown: onKey(store, stack, tokens.length) } },
      from > 0 && h("span", { class: "soft", text: t("tokens.before", { n: from }) }),
      part.map((token) => chip(store, stack, token, token.position === chosen)),
      from + part.length < tokens.length &&
        h("span", { class: "soft", text: t("tokens.after", { n: tokens.length - from - part.length }) }),
    ),
  );
}

/** The picture with the chosen patch framed; a click chooses another. */
function imageRow(store, state, pass) {
  const [stack, tokens] = Object.entries(pass.tokens)[0];
  const chosen = chosenToken(state, stack);
  const lead = pass.n_class_tokens ?? 0;
  const side = pass.grid;
  const turn = (row) => (pass.flipped ? side - 1 - row : row);
  const frame = h("div", { class: "frame", hidden: chosen < lead || !side });
  const at = chosen - lead;
  const box = { left: at % side, top: turn(Math.floor(at / side)), width: 1, height: 1 };
  for (const [name, value] of Object.entries(box)) frame.style.setProperty(name, `${(100 * value) / side}%`);
  const choose = (event) => {
    const area = event.currentTarget.getBoundingClientRect();
    const [x, y] = [(event.clientX - area.left) / area.width, (event.clientY - area.top) / area.height].map((part) =>
      Math.min(side - 1, Math.floor(part * side)),
    );
    chooseToken(store, stack, lead + turn(y) * side + x);
  };
  // The patches below can be chosen by keyboard.
  const seen = h(
    "div",
    { class: "patch-choice", title: t("tokens.choose_patch"), on: { click: choose } },
    h("img", { src: pass.image, alt: t("tokens.picture") }),
    frame,
  );
  return [seen, h("p", { class: "soft", text: t("tokens.chosen_patch", { text: shown(tokens[chosen]?.text ?? "") }) })];
}

export function mountTokens(root, store) {
  view(
    root,
    store,
    ({ loaded, tokens, language }) => [loaded?.pass.tokens, loaded?.pass.image, loaded?.pass.notes, loaded?.pass.outputs, tokens, language],
    (state) => {
      if (!state.loaded) return [];
      const { pass } = state.loaded;
      const rows = Object.entries(pass.tokens);
      const chips = rows.map(([stack, tokens]) => row(store, state, stack, tokens, rows.length > 1));
      const notes = (pass.notes ?? []).map((text) => h("p", { class: "soft note", text }));
      return pass.image
        ? [
            h(
              "div",
              { class: "picture-row" },
              h("div", { class: "picture-side" }, imageRow(store, state, pass)),
              h(
                "details",
                { class: "patches", data: { focus: "patches" } },
                h("summary", { text: t("tokens.patches", { n: rows[0][1].length }) }),
                chips,
              ),
            ),
            notes,
          ]
        : [chips, notes];
    },
  );
}
