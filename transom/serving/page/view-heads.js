/** All heads of a layer, or of all layers, as small maps of their weights, each with its switch. */

import { ask } from "explore/api";
import { scaleOf } from "explore/colors";
import { button, errorLine, h, view } from "explore/dom";
import { number, shown, signed } from "explore/format";
import { legend, picture } from "explore/heatmap";
import { rich, t } from "explore/messages";
import { currentPlace } from "explore/places";
import { chosenToken, headIsOff, outputPosition, spoken, tensor, toggleHead } from "explore/session";
import { word } from "explore/view-row";
import { ofDifference, ofFirst } from "explore/whose";

/** More queries or keys than this, and a map is drawn from tiles. */
export const LONG = 256;
const SMALL = 88; // pixels of a small map

/** Name a layer: "decoder, block 0, cross-attention". */
export function layerName(pass, layer) {
  const part = t(`overview.${layer.part}`);
  if (layer.block === null || layer.block === undefined) return part;
  const where = t("overview.block", { n: layer.block });
  return Object.keys(pass.tokens).length > 1 ? `${t(`overview.${layer.stack}`)}, ${where}, ${part}` : `${where}, ${part}`;
}

export const isLong = (layer) => Math.max(...layer.shape) > LONG;

/** Return each head's map: {rows, columns, values} and one scale for the layer. */
async function maps(state, layer) {
  if (isLong(layer)) {
    const level = Math.ceil(Math.log2(Math.max(...layer.shape) / 128));
    const body = { ...state.loaded.body, attention: layer.address, level, row: 0, column: 0 };
    const tiles = await Promise.all(Array.from({ length: layer.n_heads }, (_, head) => ask("tile", { ...body, head })));
    const scale = tiles.map((tile) => scaleOf(tile.values, true)).reduce((a, b) => (a.hi > b.hi ? a : b));
    return { scale, heads: tiles.map((tile) => ({ rows: tile.shape[0], columns: tile.shape[1], values: tile.values })) };
  }
  const weights = await tensor(state, `${layer.address}.weights`);
  const [n, rows, columns] = weights.shape;
  const cut = (head) => weights.values.subarray(head * rows * columns, (head + 1) * rows * columns);
  const heads = Array.from({ length: n }, (_, head) => ({ rows, columns, values: cut(head) }));
  return { scale: scaleOf(weights.values, state.show !== "diff"), heads };
}

function badge(difference, largest) {
  if (difference === undefined) return null;
  return h(
    "span",
    {
      class: difference < 0 ? "badge helps" : "badge hurts",
      title: t("sweep.badge", { difference: signed(difference) }),
      style: { "--part": Math.abs(difference) / largest },
    },
    h("span", { class: "number", text: signed(difference) }),
  );
}

/** Return the key at which a row of weights, or of differences of weights, is largest, and its value. */
function strongest({ columns, values }, query) {
  const row = values.subarray(query * columns, (query + 1) * columns);
  const key = row.reduce((best, value, i) => (Math.abs(value) > Math.abs(row[best]) ? i : best), 0);
  return { key, value: row[key] };
}

/** One line on the chosen token: what it looks at most in a head; of a long text, whose map holds sums, none. */
function looks(state, layer, head, map) {
  if (isLong(layer)) return null;
  const { tokens } = state.loaded.pass;
  const query = chosenToken(state, layer.queries);
  const { key, value } = strongest(map, query);
  const isDifference = state.show === "diff";
  const text = shown(tokens[layer.keys][key]?.text ?? String(key));
  const sentence = t(isDifference ? "heads.differs" : "heads.looks", {
    query: shown(tokens[layer.queries][query]?.text ?? ""),
    key: text,
    weight: isDifference ? signed(value) : number(value),
  });
  const line = h(
    "span",
    {
      class: "looks",
      title: sentence,
      data: { looks: layer.address, head, key, value: number(value) },
      style: { "--part": Math.min(1, Math.abs(value)) },
    },
    h("span", { class: "token", text }),
    h("span", { class: "number", text: isDifference ? signed(value, 2) : number(value, 2) }),
  );
  const mark = h("span", { class: "row-mark", style: { top: `${(100 * query) / map.rows}%`, height: `${100 / map.rows}%` } });
  return { line, mark, sentence };
}

function tile(store, state, layer, head, map, scale, swept) {
  const off = headIsOff(state.loaded.body.edits, layer, head);
  const current = currentPlace(state).layer?.address === layer.address && state.head === head;
  const name = t("heads.head", { n: head });
  const cell = Math.max(1, Math.floor(SMALL / Math.max(map.rows, map.columns)));
  const canvas = picture({
    ...map,
    address: `${layer.address}.weights`,
    index: { n_heads: head },
    scale,
    cell,
    label: t("heads.map", { n: head }),
  });
  const told = looks(state, layer, head, map);
  const choose = button("", `head-${layer.address}-${head}`, () => store.set({ place: layer.address, head }), {
    class: "tile-map",
    "aria-pressed": String(current),
    "aria-label": `${layerName(state.loaded.pass, layer)}, ${name}${told ? `: ${told.sentence}` : ""}`,
    data: { attention: layer.address, head },
  });
  choose.append(h("span", { class: "tile-picture" }, canvas, told?.mark));
  const flip = button(
    name,
    `switch-${layer.address}-${head}`,
    (event) => {
      event.currentTarget.setAttribute("aria-checked", String(off)); // at once; the maps follow
      store.set({ edits: toggleHead(store.get().edits, layer, head) });
    },
    {
      class: "switch",
      role: "switch",
      "aria-checked": String(!off),
      "aria-label": t("heads.switch", { n: head }),
      title: t(off ? "heads.is_off" : "heads.is_on"),
      data: { switch: layer.address, head },
    },
  );
  if (layer.switchable === false) return h("li", { class: "tile" }, choose, told?.line, h("span", { class: "soft", text: name }));
  const changed = badge(swept?.values.get(`${layer.address} ${head}`), swept?.largest);
  return h("li", { class: off ? "tile off" : "tile" }, choose, told?.line, flip, changed);
}

/** Ask what each head contributes to the answer: differences by "address head". */
async function sweep(state) {
  if (!state.sweep) return null;
  const { body, pass } = state.loaded;
  const answer = await ask("sweep", { ...body, position: outputPosition(state) });
  const values = new Map();
  for (const each of answer.heads) {
    const layer = pass.layers.find((one) => one.stack === each.stack && one.block === each.block && one.part === each.part);
    if (layer) values.set(`${layer.address} ${each.head}`, each.difference);
  }
  return { values, largest: Math.max(...[...values.values()].map(Math.abs), 1e-12) };
}

/** What vouches for the maps of a layer; its certificate comes after the maps. */
function certificate(state, layer) {
  if (!layer.exact) return h("span", { class: "soft", text: t("heads.implied") });
  if (state.loaded.pass.whole === false) return null;
  const place = h("span", { "aria-busy": "true" });
  const fill = ({ [layer.address]: found }) => {
    if (!found) return;
    place.className = "certified";
    place.title = t("heads.certificate", { ratio: number(found.ratio, 2) });
    place.textContent = t("heads.certified");
  };
  ask("certificates", spoken(state, state.loaded.body))
    .then(fill, (error) => place.replaceChildren(errorLine(error)))
    .finally(() => place.removeAttribute("aria-busy"));
  return place;
}

/** What the lines below the heads of a layer are about: the chosen token. */
function caption(state, layer) {
  if (isLong(layer)) return null;
  const query = word(state.loaded.pass.tokens[layer.queries][chosenToken(state, layer.queries)]);
  return h("p", { class: "soft looks-help" }, rich(state.show === "diff" ? "heads.caption_difference" : "heads.caption", { query }));
}

export function mountHeads(root, store) {
  view(
    root,
    store,
    (s) => [s.loaded, s.error, s.place, s.head, s.tokens, s.sweep, s.sweep ? s.position : null, s.language],
    async (state) => {
      if (!state.loaded) return [];
      const place = currentPlace(state);
      const { pass } = state.loaded;
      if (place.kind !== "heads" && place.kind !== "attention") return [];
      const layers = place.kind === "heads" ? pass.layers : [place.layer];
      const swept = await sweep(state);
      const drawn = await Promise.all(layers.map((layer) => maps(state, layer)));
      const groups = layers.map((layer, i) =>
        h(
          "div",
          { class: "layer" },
          h(
            "h3",
            { class: "layer-name" },
            place.kind === "heads" ? layerName(pass, layer) : t("heads.title", { n: layer.n_heads }),
            " ",
            ofDifference(state),
            certificate(state, layer),
            h("span", { class: "grow" }),
            legend(drawn[i].scale, t("heatmap.legend")),
          ),
          caption(state, layer),
          h(
            "ul",
            { class: "tiles" },
            drawn[i].heads.map((map, head) => tile(store, state, layer, head, map, drawn[i].scale, swept)),
          ),
        ),
      );
      const canSweep = pass.outputs.positions.length > 0 && layers.some((layer) => layer.switchable !== false);
      const toggle =
        canSweep &&
        button(t(state.sweep ? "sweep.hide" : "sweep.show"), "sweep", () => store.set({ sweep: !state.sweep }), {
          "aria-pressed": String(state.sweep),
          data: { action: "sweep" },
        });
      const help = h("div", { class: "under" }, toggle, swept && h("p", { class: "soft" }, ofFirst(state), t("sweep.help")));
      return place.kind === "heads" ? [help, groups] : [groups, help];
    },
  );
}
