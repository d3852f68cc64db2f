/** The map of a head over a long text: drawn from tiles, with pan and zoom by mouse, touch and keyboard. */

import { ask } from "explore/api";
import { packed, scaleOf } from "explore/colors";
import { announce, h } from "explore/dom";
import { count, number, shown } from "explore/format";
import { paint } from "explore/heatmap";
import { t } from "explore/messages";

const SIDE = 512; // pixels of the viewport
const MOST_ZOOM = 32; // pixels of a cell of the map itself

const windows = new Map(); // what part of a map was in view, by map

/** Where a viewport looks: `unit` map cells per pixel, from `top` and `left` in map cells. */
function fit(view, [nQueries, nKeys], side) {
  const most = Math.max(nQueries, nKeys) / side;
  const unit = Math.min(Math.max(view.unit, 1 / MOST_ZOOM), Math.max(most, 1 / MOST_ZOOM));
  const within = (at, n) => Math.max(0, Math.min(at, n - side * unit));
  return { unit, top: within(view.top, nQueries), left: within(view.left, nKeys) };
}

/** Make the viewport of a long map. */
export async function longMap(store, state, layer, head, width) {
  const side = Math.min(SIDE, Math.max(256, Math.floor(width)));
  const key = `${layer.address} ${head} ${JSON.stringify(state.loaded.body.input)}`;
  const whole = { unit: Infinity, top: 0, left: 0 };
  let at = fit(windows.get(key) ?? whole, layer.shape, side);
  const canvas = h("canvas", {
    role: "img",
    tabIndex: 0,
    "aria-label": t("map.long_label", { n: head }),
    data: { focus: "map", address: `${layer.address}.weights`, index: JSON.stringify({ n_heads: head }) },
  });
  canvas.width = side;
  canvas.height = side;
  const mini = h("canvas", { class: "minimap", role: "img", "aria-label": t("map.minimap") });
  const readout = h("output", { class: "readout", text: "\u00a0" });
  const problem = h("p", { class: "error", role: "alert", hidden: true });
  const level = () => Math.max(0, Math.ceil(Math.log2(at.unit)));
  const tileAt = (wanted, row, column) =>
    ask("tile", { ...state.loaded.body, attention: layer.address, head, level: wanted, row, column });
  const [high, wide] = (await tileAt(0, 0, 0)).shape; // of a whole tile, since the map is larger
  let tiles = new Map();
  let ticket = 0;

  const cellOf = (x, y) => [Math.floor(at.top + y * at.unit), Math.floor(at.left + x * at.unit)];
  const valueAt = (query, keyAt) => {
    const stride = 2 ** level();
    const [row, column] = [Math.floor(query / stride), Math.floor(keyAt / stride)];
    const tile = tiles.get(`${Math.floor(row / high)} ${Math.floor(column / wide)}`);
    return tile?.values[(row % high) * tile.shape[1] + (column % wide)];
  };

  async function draw() {
    const mine = (ticket += 1);
    const wanted = level();
    const stride = 2 ** wanted;
    const last = (start, n, size) => Math.floor(Math.min(start + side * at.unit, n) / stride / size - 1e-9);
    const first = (start, size) => Math.floor(start / stride / size);
    const asked = [];
    for (let row = first(at.top, high); row <= last(at.top, layer.shape[0], high); row += 1) {
      for (let column = first(at.left, wide); column <= last(at.left, layer.shape[1], wide); column += 1) asked.push([row, column]);
    }
    canvas.setAttribute("aria-busy", "true");
    try {
      const found = await Promise.all(asked.map(([row, column]) => tileAt(wanted, row, column)));
      if (mine !== ticket) return;
      tiles = new Map(asked.map(([row, column], i) => [`${row} ${column}`, found[i]]));
      problem.hidden = true;
      put();
    } catch (error) {
      problem.textContent = error.message;
      problem.hidden = false;
    }
    canvas.removeAttribute("aria-busy");
  }

  function put() {
    const scale = [...tiles.values()].map((tile) => scaleOf(tile.values, true)).reduce((a, b) => (a.hi > b.hi ? a : b));
    const pixels = new ImageData(side, side);
    const out = new Uint32Array(pixels.data.buffer);
    for (let y = 0; y < side; y += 1) {
      for (let x = 0; x < side; x += 1) {
        const [query, keyAt] = cellOf(x, y);
        const value = query < layer.shape[0] && keyAt < layer.shape[1] ? valueAt(query, keyAt) : undefined;
        if (value !== undefined) out[y * side + x] = packed(value, scale);
      }
    }
    canvas.getContext("2d").putImageData(pixels, 0, 0);
    Object.assign(canvas.dataset, { level: level(), top: at.top, left: at.left, unit: at.unit, lo: scale.lo, hi: scale.hi });
    windows.set(key, at);
    const part = {
      left: at.left / layer.shape[1],
      top: at.top / layer.shape[0],
      width: (side * at.unit) / layer.shape[1],
      height: (side * at.unit) / layer.shape[0],
    };
    for (const [name, value] of Object.entries(part)) frame.style.setProperty(name, `${100 * Math.min(1, value)}%`);
    tell(side / 2, side / 2, false);
  }

  const tell = (x, y, speak) => {
    const [query, keyAt] = cellOf(x, y);
    const value = valueAt(query, keyAt);
    if (value === undefined) return;
    const { tokens } = state.loaded.pass;
    const name = (stack, position) => shown(tokens[stack]?.[position]?.text ?? "");
    const text = t(level() ? "map.long_sum" : "map.long_cell", {
      query: name(layer.queries, query),
      i: count(query),
      key: name(layer.keys, keyAt),
      j: count(keyAt),
      n: 2 ** level(),
      value: number(value),
    });
    readout.textContent = text;
    if (speak) announce(text);
  };
  const move = (changes) => {
    at = fit({ ...at, ...changes }, layer.shape, side);
    return draw();
  };
  const zoom = (factor, x = side / 2, y = side / 2) => {
    const unit = fit({ ...at, unit: at.unit * factor }, layer.shape, side).unit;
    return move({ unit, top: at.top + y * (at.unit - unit), left: at.left + x * (at.unit - unit) });
  };
  const open = (x, y) => {
    const [query, keyAt] = cellOf(x, y);
    if (query >= layer.shape[0] || keyAt >= layer.shape[1]) return;
    if (level() || at.unit > 0.25) zoom(level() ? 0.25 : 0.25 / at.unit, x, y);
    else store.set({ cell: { name: `${layer.address}.weights`, index: { n_heads: head, query, key: keyAt } } });
  };
  listen({ canvas, get: () => at, move, zoom, open, tell, side });

  const frame = h("div", { class: "mini-frame" });
  await draw();
  const small = await tileAt(Math.ceil(Math.log2(Math.max(...layer.shape) / 96)), 0, 0);
  paint(mini, {
    address: `${layer.address}.weights`,
    index: { n_heads: head },
    rows: small.shape[0],
    columns: small.shape[1],
    values: small.values,
    scale: scaleOf(small.values, true),
    cell: 1,
  });
  const buttons = [
    ["+", 0.5, "map.closer"],
    ["−", 2, "map.farther"],
  ].map(([text, factor, label]) =>
    h("button", { type: "button", class: "round", text, "aria-label": t(label), on: { click: () => zoom(factor) } }),
  );
  return h(
    "div",
    { class: "long-map" },
    h("div", { class: "long-main", role: "application", "aria-label": t("map.long_label", { n: head }) }, canvas),
    readout,
    problem,
    h("div", { class: "long-side" }, h("div", { class: "mini" }, mini, frame), h("div", { class: "zoom" }, buttons)),
  );
}

/** Pan by dragging or arrows, zoom by wheel, two fingers, + and -; a click zooms in, or opens the cell. */
function listen({ canvas, get, move, zoom, open, tell, side }) {
  const fingers = new Map();
  let dragged = 0;
  const point = (event) => {
    const box = canvas.getBoundingClientRect();
    return [((event.clientX - box.left) / box.width) * side, ((event.clientY - box.top) / box.height) * side];
  };
  const spread = () => {
    const [a, b] = [...fingers.values()];
    return Math.hypot(a[0] - b[0], a[1] - b[1]);
  };
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    fingers.set(event.pointerId, point(event));
    dragged = 0;
  });
  canvas.addEventListener("pointermove", (event) => {
    const before = fingers.get(event.pointerId);
    const now = point(event);
    if (!before) {
      tell(...now, false);
      return;
    }
    if (fingers.size === 2) {
      const wide = spread();
      fingers.set(event.pointerId, now);
      dragged += 9;
      zoom(wide / Math.max(spread(), 1), ...now);
      return;
    }
    fingers.set(event.pointerId, now);
    const [x, y] = [now[0] - before[0], now[1] - before[1]];
    dragged += Math.abs(x) + Math.abs(y);
    if (dragged > 4) move({ left: get().left - x * get().unit, top: get().top - y * get().unit });
  });
  canvas.addEventListener("pointerup", (event) => {
    fingers.delete(event.pointerId);
    if (dragged <= 4) open(...point(event));
  });
  canvas.addEventListener("pointercancel", (event) => fingers.delete(event.pointerId));
  canvas.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      zoom(event.deltaY > 0 ? 1.25 : 0.8, ...point(event));
    },
    { passive: false },
  );
  canvas.addEventListener("keydown", (event) => {
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const { unit, top, left } = get();
    const done = () => tell(side / 2, side / 2, true);
    const by = (event.shiftKey ? side / 2 : side / 16) * unit;
    if (event.key in steps) move({ top: top + steps[event.key][0] * by, left: left + steps[event.key][1] * by }).then(done);
    else if (event.key === "+" || event.key === "=") zoom(0.5).then(done);
    else if (event.key === "-") zoom(2).then(done);
    else if (event.key === "Enter") open(side / 2, side / 2);
    else return;
    event.preventDefault();
  });
}
