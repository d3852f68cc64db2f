/** The vectors of the chosen token in the order of the computation, as strips; matrices as maps. Every cell can be opened. */

import { scaleOf } from "explore/colors";
import { button, errorLine, h, view, widthOf } from "explore/dom";
import { count, number, shown } from "explore/format";
import { cellSize, heatmap, legend } from "explore/heatmap";
import { describeQuantity, rich, t } from "explore/messages";
import { math } from "explore/notation";
import { currentPlace, isDetail, kvHead, quantitiesOf } from "explore/places";
import { chosenToken, tensor } from "explore/session";
import { word } from "explore/view-row";
import { ofDifference } from "explore/whose";

const WRAP = 64; // cells in a line of a strip
const MOST_CELLS = 40000; // of larger quantities, the shape is shown
const MOST_CELL = 14;
const MOST_WIDTH = 768;

/** Return the index that fixes the axes of a quantity to the head and token in view. */
export function fixedIndex(state, place, quantity) {
  const { pass } = state.loaded;
  const stack = place.layer?.queries ?? place.stack ?? quantity.stack;
  const token = chosenToken(state, stack);
  const index = {};
  for (const axis of quantity.axes) {
    if (axis === "n_heads" && place.layer) index[axis] = Math.min(state.head, place.layer.n_heads - 1);
    if (axis === "kv_heads" && place.layer) index[axis] = kvHead(quantity, Math.min(state.head, place.layer.n_heads - 1), place.layer.n_heads);
    if (axis === "query") index[axis] = token;
    if (axis === "patches") index[axis] = Math.max(0, token - (pass.n_class_tokens ?? 0));
  }
  return index;
}

/** Return the index of an element of what the fixed axes leave, from its offset. */
function unravel(axes, shape, offset) {
  const index = {};
  let rest = offset;
  for (let i = axes.length - 1; i >= 0; i -= 1) {
    index[axes[i]] = rest % shape[i];
    rest = Math.floor(rest / shape[i]);
  }
  return index;
}

const isSame = (a, b) => Object.keys(a).length === Object.keys(b).length && Object.entries(a).every(([key, value]) => b[key] === value);

function drawn(store, state, place, quantity, found, index, width) {
  const { axes, shape, values } = found;
  if (axes.length === 0) return h("p", { class: "scalar" }, scalar(store, quantity, index, values[0]));
  const isStrip = axes.length === 1;
  const columns = isStrip ? Math.min(WRAP, shape[0]) : shape[shape.length - 1];
  const rows = Math.ceil(values.length / columns);
  const isWeights = /(^|\.)(weights|probs|router_probs|gates)$/.test(quantity.address) && state.show !== "diff";
  const scale = scaleOf(values, isWeights);
  const keys = state.loaded.pass.tokens[place.layer?.keys] ?? [];
  const nameOf = (axis, i) => {
    const text = axis === "key" ? keys[i]?.text : axis === "vocab" ? state.vocabulary?.[i] : undefined;
    return text === undefined ? `[${i}]` : `${shown(text)} [${i}]`;
  };
  const cellIndex = (row, column) => ({ ...index, ...unravel(axes, shape, row * columns + column) });
  const describe = (row, column) => {
    const at = unravel(axes, shape, row * columns + column);
    return Object.entries(at)
      .map(([axis, i]) => nameOf(axis, i))
      .join(" ");
  };
  const offset = state.cell?.name === quantity.address ? findOffset(state.cell.index, index, axes, shape) : null;
  return heatmap({
    address: quantity.address,
    index,
    rows,
    columns,
    values,
    scale,
    cell: cellSize(columns, width, MOST_CELL),
    label: `${quantity.symbol || quantity.name}: ${describeQuantity(quantity)}`,
    focus: `vector-${quantity.address}`,
    marked: null,
    selected: offset === null ? null : [Math.floor(offset / columns), offset % columns],
    describe,
    pick: (row, column) => store.set({ cell: { name: quantity.address, index: cellIndex(row, column) } }),
    rowLabels: null,
    columnLabels: null,
  });
}

function findOffset(cell, index, axes, shape) {
  const fixed = Object.fromEntries(Object.entries(cell).filter(([axis]) => !axes.includes(axis)));
  if (!isSame(fixed, index)) return null;
  return axes.reduce((offset, axis, i) => offset * shape[i] + cell[axis], 0);
}

function scalar(store, quantity, index, value) {
  return button(number(value), `scalar-${quantity.address}`, () => store.set({ cell: { name: quantity.address, index } }), {
    class: "number scalar-value",
    data: { address: quantity.address, index: JSON.stringify(index) },
  });
}

async function row(store, state, place, quantity, width) {
  const index = fixedIndex(state, place, quantity);
  const left = quantity.shape.filter((_, i) => !(quantity.axes[i] in index));
  const size = left.reduce((product, n) => product * (n ?? 1), 1);
  const text = h(
    "div",
    { class: "quantity-name" },
    h("span", { class: "symbol" }, quantity.symbol ? math(quantity.symbol) : quantity.name),
    h("code", { text: quantity.address.split(".").slice(-2).join(".") }),
    h("span", { class: "soft formula" }, math(describeQuantity(quantity))),
  );
  let content;
  let ends = null;
  if (size > MOST_CELLS) content = h("p", { class: "soft", text: t("vectors.large", { shape: left.map(count).join(" × ") }) });
  else {
    try {
      const found = await tensor(state, quantity.address, index);
      content = drawn(store, state, place, quantity, found, index, width);
      if (found.axes.length)
        ends = legend(
          scaleOf(found.values, /(^|\.)(weights|probs|router_probs|gates)$/.test(quantity.address) && state.show !== "diff"),
          t("heatmap.legend"),
        );
    } catch (error) {
      content = errorLine(error); // the other quantities can still be seen
    }
  }
  text.append(h("span", { class: "soft shape", text: left.map((n) => count(n ?? 0)).join(" × ") }), ends ?? "");
  return h("li", { class: "quantity", data: { quantity: quantity.address } }, text, h("div", { class: "quantity-picture" }, content));
}

export function mountVectors(root, store) {
  view(
    root,
    store,
    (s) => [s.loaded, s.place, s.head, s.tokens, s.cell, s.details, s.vocabulary, s.language],
    async (state) => {
      if (!state.loaded) return [];
      const place = currentPlace(state);
      if (place.kind === "heads") return [];
      const all = quantitiesOf(state.loaded.pass, place);
      const quantities = state.details ? all : all.filter((each) => !isDetail(each.address));
      const width = Math.max(200, Math.min(MOST_WIDTH, widthOf(root.parentElement) - (window.innerWidth > 620 ? 234 : 8)));
      const rows = await Promise.all(quantities.map((quantity) => row(store, state, place, quantity, width)));
      if (!rows.length) return [];
      const token =
        state.loaded.pass.tokens[place.layer?.queries ?? place.stack]?.[chosenToken(state, place.layer?.queries ?? place.stack)];
      return [
        h(
          "h3",
          { class: "map-head" },
          h("span", {}, rich(place.layer ? "vectors.title_head" : "vectors.title", { token: word(token), n: state.head })),
          ofDifference(state),
        ),
        h("p", { class: "soft", text: t("vectors.help") }),
        h("ol", { class: "quantities" }, rows),
        all.length > quantities.length || state.details
          ? button(
              t(state.details ? "vectors.fewer" : "vectors.more", { n: all.length - quantities.length }),
              "details",
              () => store.set({ details: !state.details }),
              { data: { action: "details" } },
            )
          : null,
      ];
    },
  );
}
