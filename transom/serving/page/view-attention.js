/** The map of the chosen head with its tokens; every cell opens its hand calculation. */

import { scaleOf } from "explore/colors";
import { button, h, view, widthOf } from "explore/dom";
import { shown, short } from "explore/format";
import { cellSize, heatmap, legend } from "explore/heatmap";
import { t } from "explore/messages";
import { currentPlace } from "explore/places";
import { chosenToken, headIsOff, tensor } from "explore/session";
import { isLong, layerName } from "explore/view-heads";
import { longMap } from "explore/view-long-map";
import { chooseToken } from "explore/view-tokens";
import { ofDifference, ofFirst } from "explore/whose";

const LABELS = 104; // pixels for the names of rows
const LEAST_WIDTH = 220;
const MOST_CELL = 40;
const [TWO_COLUMNS, GAP, MAP_PART] = [1380, 28, 1.25 / 2.25]; // as in stage.css

/** Return the selected cell of a map whose fixed axes are `index`: [row, column], or null. */
export function selectedCell(state, name, index, rowAxis, columnAxis) {
  const { cell } = state;
  if (cell?.name !== name || Object.entries(index).some(([axis, at]) => cell.index[axis] !== at)) return null;
  return [rowAxis ? cell.index[rowAxis] : 0, cell.index[columnAxis]];
}

async function shortMap(store, state, layer, head, width) {
  const { pass } = state.loaded;
  const name = `${layer.address}.weights`;
  const {
    shape: [rows, columns],
    values,
  } = await tensor(state, name, { n_heads: head });
  const queries = pass.tokens[layer.queries].map((token) => shown(token.text));
  const keys = pass.tokens[layer.keys].map((token) => shown(token.text));
  const scale = scaleOf(values, state.show !== "diff");
  const map = heatmap({
    address: name,
    index: { n_heads: head },
    rows,
    columns,
    values,
    scale,
    cell: cellSize(columns, Math.max(LEAST_WIDTH, width - LABELS), MOST_CELL),
    label: t("map.label", { layer: layerName(pass, layer), n: head }),
    focus: "map",
    rowLabels: rows === queries.length ? queries.map((text) => short(text, 14)) : null,
    columnLabels: columns === keys.length ? keys.map((text) => short(text, 14)) : null,
    marked: chosenToken(state, layer.queries),
    selected: selectedCell(state, name, { n_heads: head }, "query", "key"),
    describe: (row, column) => t("map.cell", { query: queries[row], key: keys[column] }),
    pick: (query, key) => store.set({ cell: { name, index: { n_heads: head, query, key } } }),
    onRow: (row) => chooseToken(store, layer.queries, row),
  });
  return [map, legend(scale, t("heatmap.legend"))];
}

export function mountAttention(root, store) {
  view(
    root,
    store,
    (s) => [s.loaded, s.place, s.head, s.tokens, s.cell, s.language],
    async (state) => {
      if (!state.loaded) return [];
      const place = currentPlace(state);
      if (place.kind !== "attention") return [];
      const { layer } = place;
      const head = Math.min(state.head, layer.n_heads - 1);
      const width = widthOf(root.parentElement);
      const half = window.innerWidth > TWO_COLUMNS ? (width - GAP) * MAP_PART : width;
      const step = (by) => store.set({ head: (head + by + layer.n_heads) % layer.n_heads });
      const [map, ends] = isLong(layer)
        ? [await longMap(store, state, layer, head, half), null]
        : await shortMap(store, state, layer, head, half);
      return [
        h(
          "div",
          { class: "map-head" },
          h("h3", { text: t("map.title", { n: head }) }),
          isLong(layer) ? ofFirst(state) : ofDifference(state),
          button("‹", "head-before", () => step(-1), { class: "round", "aria-label": t("map.before") }),
          button("›", "head-after", () => step(1), { class: "round", "aria-label": t("map.after") }),
          headIsOff(state.loaded.body.edits, layer, head) && h("span", { class: "off-note", text: t("heads.is_off") }),
          h("span", { class: "grow" }),
          ends,
        ),
        h("p", { class: "soft map-help", text: t(isLong(layer) ? "map.long_help" : "map.help") }),
        map,
      ];
    },
  );
}
