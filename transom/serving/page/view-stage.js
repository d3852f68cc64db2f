/** The stage: what there is to see at the place in view, in the order of the data. */

import { h, view } from "explore/dom";
import { t } from "explore/messages";
import { currentPlace, layerLabel, listPlaces } from "explore/places";
import { mountAttention } from "explore/view-attention";
import { mountHeads } from "explore/view-heads";
import { mountLens } from "explore/view-lens";
import { goTo } from "explore/view-overview";
import { mountRow } from "explore/view-row";
import { mountStory } from "explore/view-story";
import { mountVectors } from "explore/view-vectors";

/** Name a place: "Decoder, block 0: cross-attention". */
export function placeName(pass, place) {
  const stack = place.stack && Object.keys(pass.tokens).length > 1 && place.kind !== "output" ? t(`overview.${place.stack}`) : null;
  const block = place.block === null || place.block === undefined ? null : t("overview.block", { n: place.block });
  const where = [stack, block].filter(Boolean).join(", ");
  const what =
    place.kind === "layer" && !block ? layerLabel(pass, place) : t(`overview.${place.part ?? place.kind}`);
  return where ? `${where}: ${what}` : what;
}

function leadOf(pass, place) {
  if (place.kind === "output" && !pass.outputs.positions.length) return "output_vector";
  return place.part === "cross" ? "cross" : place.kind;
}

function title(store, state) {
  const { pass } = state.loaded;
  const place = currentPlace(state);
  const places = listPlaces(pass);
  const at = places.findIndex((each) => each.id === place.id);
  const step = (by, key) => {
    const next = places[at + by];
    if (at < 0 || !next) return h("span");
    return h("button", {
      type: "button",
      class: "quiet",
      data: { focus: key },
      text: by < 0 ? `← ${placeName(pass, next)}` : `${placeName(pass, next)} →`,
      on: { click: () => goTo(store, next.id) },
    });
  };
  return [
    h("div", { class: "steps" }, step(-1, "place-before"), step(1, "place-after")),
    h("h2", { text: placeName(pass, place) }),
    h("p", { class: "lead", text: t(`place.${leadOf(pass, place)}`) }),
  ];
}

export function mountStage(root, store) {
  const part = (id, ...classes) => h("div", { id, class: ["part", ...classes].join(" ") });
  const [head, heads, map, row, story, lens, vectors] = ["place-title", "heads", "map", "row", "story", "lens", "vectors"].map((id) =>
    part(id),
  );
  root.append(head, heads, h("div", { class: "head-pair" }, map, h("div", { class: "head-words" }, row, story)), lens, vectors);
  view(
    head,
    store,
    (s) => [s.loaded && listPlaces(s.loaded.pass), s.place, s.language],
    (state) => (state.loaded ? title(store, state) : []),
  );
  mountHeads(heads, store);
  mountAttention(map, store);
  mountRow(row, store);
  mountStory(story, store);
  mountLens(lens, store);
  mountVectors(vectors, store);
}
