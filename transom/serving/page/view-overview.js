/** The model from the input to the output, with the place in view; beside each block, what the model would say after it. */

import { ask } from "explore/api";
import { button, h, view } from "explore/dom";
import { number, short, shown } from "explore/format";
import { t } from "explore/messages";
import { currentPlace, layerLabel, listPlaces } from "explore/places";
import { hasLens, outputPosition } from "explore/session";
import { ofFirst } from "explore/whose";

/** Return what the model would say after each stream, by its name; empty where the model has no answer to read. */
async function readings(state) {
  const { body, pass } = state.loaded;
  if (!hasLens(pass)) return new Map();
  // A model without a logit lens says so in the place of its output.
  const lens = await ask("lens", { ...body, position: outputPosition(state) }).catch(() => ({ streams: [] }));
  return new Map(lens.streams.map((stream) => [stream.name, stream.top[0]]));
}

function reading(state, top) {
  if (!top) return null;
  const symbol = state.vocabulary?.[top.symbol] ?? String(top.symbol);
  return h(
    "span",
    { class: "says", title: t("overview.says", { symbol: shown(symbol), p: number(top.p) }) },
    h("span", { class: "token", text: short(shown(symbol), 12) }),
    h("span", { class: "meter", style: { "--part": top.p } }),
  );
}

function item(store, here, place, text, attributes = {}) {
  const options = { class: `place ${place.kind}`, "aria-current": here.id === place.id ? "location" : null, ...attributes };
  return button(text, `place-${place.id}`, () => goTo(store, place.id), { ...options, data: { place: place.id } });
}

/** Bring a place into view. */
export function goTo(store, id) {
  store.set({ place: id });
  const stage = document.getElementById("stage");
  if (stage.getBoundingClientRect().top < 0) stage.scrollIntoView({ block: "start" });
}

/** Scroll a row of places that is wider than its room to the place in view. */
function follow(root) {
  const current = root.querySelector("[aria-current]");
  if (current && root.scrollWidth > root.clientWidth)
    root.scrollLeft += current.getBoundingClientRect().left - root.getBoundingClientRect().left - root.clientWidth / 3;
}

function blocks(store, state, here, places, said) {
  const byBlock = new Map();
  for (const place of places.filter((each) => each.block !== undefined && each.block !== null)) {
    byBlock.set(place.block, [...(byBlock.get(place.block) ?? []), place]);
  }
  return [...byBlock].map(([block, inside]) =>
    h(
      "li",
      { class: "block" },
      h("div", { class: "block-head" }, h("span", { text: t("overview.block", { n: block }) }), reading(state, said.get(inside[0].prefix))),
      h(
        "div",
        { class: "parts" },
        inside.map((place) => item(store, here, place, t(`overview.${place.part ?? place.kind}`))),
      ),
    ),
  );
}

export function mountOverview(root, store) {
  let followed = null; // the place that was brought into view
  view(
    root,
    store,
    (s) => [s.loaded, s.place, s.position, s.vocabulary, s.language],
    async (state) => {
      if (!state.loaded) return [];
      const { pass } = state.loaded;
      const said = await readings(state);
      const here = currentPlace(state);
      const places = listPlaces(pass);
      const stacks = Object.keys(pass.tokens);
      const columns = stacks.map((stack) => {
        const own = places.filter((each) => each.stack === stack && each.kind !== "output");
        const embedding = own.filter((each) => each.kind === "embedding");
        return h(
          "ol",
          { class: "stack", "aria-label": t(`overview.${stack}`) },
          stacks.length > 1 && h("li", { class: "stack-name", text: t(`overview.${stack}`) }),
          embedding.map((place) =>
            h(
              "li",
              { class: "block single" },
              h("div", { class: "parts" }, item(store, here, place, t("overview.embedding"))),
              reading(state, stack === pass.outputs.stack && said.get("embedding")),
            ),
          ),
          blocks(store, state, here, own, said),
          own
            .filter((each) => ["layer", "attention"].includes(each.kind) && (each.block ?? null) === null)
            .map((place) => {
              const text = place.part ? t(`overview.${place.part}`) : layerLabel(pass, place);
              return h("li", { class: "block" }, item(store, here, place, text));
            }),
        );
      });
      const output = places.find((each) => each.kind === "output");
      if (here.id !== followed) requestAnimationFrame(() => follow(root));
      followed = here.id;
      return [
        pass.layers.length > 0 && item(store, here, { id: "heads", kind: "heads" }, t("overview.heads")),
        said.size > 0 && state.show === "diff" && h("p", { class: "soft says-whose" }, ofFirst(state), t("overview.says_whose")),
        ...columns,
        h(
          "ol",
          { class: "stack" },
          h("li", { class: "block" }, h("div", { class: "parts" }, item(store, here, output, t("overview.output")))),
        ),
      ];
    },
  );
}
