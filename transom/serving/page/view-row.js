/** Where the chosen token looks: its row of weights over the words, or over the patches of the picture. */

import { cssColor, scaleOf } from "explore/colors";
import { h, view } from "explore/dom";
import { number, shown } from "explore/format";
import { heatmap } from "explore/heatmap";
import { rich, t } from "explore/messages";
import { currentPlace } from "explore/places";
import { chosenToken, tensor } from "explore/session";
import { ofDifference } from "explore/whose";

const DENSE = 16; // with more words than this, they stand close together
const MOST = 64; // words of a long text: those with the most weight

/** A token as it stands in a sentence. */
export const word = (token) => h("span", { class: "token", text: token ? shown(token.text) : "?" });

function bars(store, values, keys, pick) {
  const top = Math.max(...values.map((value) => Math.abs(value)), 1e-12);
  let kept = keys.map((_, i) => i);
  if (keys.length > MOST)
    kept = kept
      .sort((a, b) => Math.abs(values[b]) - Math.abs(values[a]))
      .slice(0, MOST)
      .sort((a, b) => a - b);
  return h(
    "ol",
    { class: keys.length > DENSE ? "words dense" : "words", data: { row: "words" } },
    kept.map((i) => {
      const value = values[i];
      const made = h(
        "button",
        {
          type: "button",
          class: value < 0 ? "word minus" : "word",
          data: { focus: `word-${i}`, key: i, value: number(value) },
          title: `${shown(keys[i].text)} ${number(value)}`,
          style: { "--part": Math.abs(value) / top },
          on: { click: () => pick(i) },
        },
        h("span", { class: "word-bar" }),
        h("span", { class: "word-text", text: shown(keys[i].text) }),
        h("span", { class: "number word-weight", text: number(value, 2) }),
      );
      return h("li", {}, made);
    }),
  );
}

/** The picture, and above it one square per patch in the color of its weight. */
function patches(pass, address, index, values, scale, pick) {
  const [rows, columns] = Array.isArray(pass.grid) ? pass.grid : [pass.grid, pass.grid];
  const lead = values.length - rows * columns; // a class token before the patches
  const cell = Math.max(4, Math.floor(176 / Math.max(rows, columns)));
  const grid = heatmap({
    address,
    index,
    rows,
    columns,
    values: values.subarray(lead),
    scale,
    cell,
    label: t("row.patches"),
    focus: "patches",
    flipped: pass.flipped,
    marked: null,
    selected: null,
    rowLabels: null,
    columnLabels: null,
    describe: (row, column) => `${row},${column}`,
    pick: (row, column) => pick(lead + row * columns + column),
  });
  grid.querySelector("canvas").dataset.offset = lead;
  const seen = h(
    "div",
    { class: "patch-picture", style: { width: `${cell * columns}px`, height: `${cell * rows}px` } },
    h("img", { src: pass.image, alt: t("tokens.picture") }),
    h(
      "div",
      { class: pass.flipped ? "patch-shade flipped" : "patch-shade", style: { "grid-template-columns": `repeat(${columns}, 1fr)` } },
      Array.from(values.subarray(lead), (value) =>
        h("span", { style: { background: cssColor(value, scale), opacity: 0.15 + 0.7 * Math.min(1, Math.abs(value) / scale.hi) } }),
      ),
    ),
  );
  return h("div", { class: "patch-pair" }, seen, grid);
}

export function mountRow(root, store) {
  view(
    root,
    store,
    (s) => [s.loaded, s.place, s.head, s.tokens, s.language],
    async (state) => {
      if (!state.loaded) return [];
      const place = currentPlace(state);
      const { pass } = state.loaded;
      if (place.kind !== "attention" || pass.whole === false) return [];
      const { layer } = place;
      const head = Math.min(state.head, layer.n_heads - 1);
      const query = chosenToken(state, layer.queries);
      const index = { n_heads: head, query };
      const name = `${layer.address}.weights`;
      const { values } = await tensor(state, name, index);
      const keys = pass.tokens[layer.keys];
      const pick = (key) => store.set({ cell: { name, index: { ...index, key } } });
      const isDifference = state.show === "diff";
      const title = rich(isDifference ? "row.title_difference" : "row.title", { query: word(pass.tokens[layer.queries][query]) });
      const heading = h("h3", { class: "map-head" }, h("span", {}, title), ofDifference(state));
      const scale = scaleOf(values, !isDifference);
      return [heading, pass.grid && pass.image ? patches(pass, name, index, values, scale, pick) : bars(store, values, keys, pick)];
    },
  );
}
