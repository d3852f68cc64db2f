/** Heat maps: a canvas of exact colors, a cursor for mouse and keyboard, and the exact number of the cell under it. */

import { gradient, packed } from "explore/colors";
import { announce, h } from "explore/dom";
import { number } from "explore/format";

/** Draw numbers on a canvas, one pixel each, which is shown `cell` pixels wide; numbers that are not finite stay blank. */
export function paint(canvas, { address, index = {}, rows, columns, values, scale, cell }) {
  canvas.width = columns;
  canvas.height = rows;
  canvas.style.setProperty("width", `${columns * cell}px`);
  canvas.style.setProperty("height", `${rows * cell}px`);
  const pixels = new ImageData(columns, rows);
  const out = new Uint32Array(pixels.data.buffer);
  for (let i = 0; i < Math.min(values.length, out.length); i += 1) out[i] = packed(values[i], scale);
  canvas.getContext("2d", { willReadFrequently: true }).putImageData(pixels, 0, 0);
  Object.assign(canvas.dataset, { address, index: JSON.stringify(index), lo: scale.lo, hi: scale.hi, rows, columns });
  return canvas;
}

/** Make a canvas that shows numbers and takes no input. */
export function picture(options) {
  return paint(h("canvas", { role: "img", "aria-label": options.label }), options);
}

/**
 * Make a heat map that can be pointed at.
 * @param {object} options those of paint, and
 *   label: what is shown; focus: key for the focus; describe(row, column): name of a cell;
 *   pick(row, column): open the cell's calculation; selected: [row, column] or null; marked: row to frame or null;
 *   flipped: whether row 0 is the lowest; rowLabels, columnLabels: texts or null; onRow(row): choose a row by its label
 */
export function heatmap(options) {
  const { rows, columns, cell, values, describe, pick, flipped } = options;
  const canvas = picture(options);
  canvas.tabIndex = 0;
  canvas.dataset.focus = options.focus;
  const cursor = h("div", { class: "cursor", hidden: true });
  const readout = h("output", { class: "readout", "aria-hidden": "true", text: "\u00a0" });
  let at = options.selected ?? [options.marked ?? 0, 0];

  const move = (row, column, speak) => {
    at = [Math.max(0, Math.min(rows - 1, row)), Math.max(0, Math.min(columns - 1, column))];
    const offset = at[0] * columns + at[1];
    if (offset >= values.length) return;
    placeBox(cursor, at[0], at[1], 1, 1, cell);
    cursor.hidden = false;
    const value = number(values[offset]);
    Object.assign(readout.dataset, { row: at[0], column: at[1], value });
    readout.replaceChildren(`${describe(...at)} `, h("strong", { class: "number", text: value }));
    if (speak) announce(`${describe(...at)} ${value}`);
  };
  const cellAt = (event) => {
    const box = canvas.getBoundingClientRect();
    const row = Math.floor(((event.clientY - box.top) / box.height) * rows);
    return [flipped ? rows - 1 - row : row, Math.floor(((event.clientX - box.left) / box.width) * columns)];
  };
  const open = () => at[0] * columns + at[1] < values.length && pick?.(...at);
  canvas.addEventListener("pointermove", (event) => move(...cellAt(event), false));
  canvas.addEventListener("pointerleave", () => {
    if (document.activeElement !== canvas) cursor.hidden = true;
  });
  canvas.addEventListener("click", (event) => {
    move(...cellAt(event), false);
    open();
  });
  canvas.addEventListener("focus", () => move(...at, true));
  canvas.addEventListener("blur", () => {
    cursor.hidden = true;
  });
  canvas.addEventListener("keydown", (event) => {
    const steps = {
      ArrowUp: [-1, 0],
      ArrowDown: [1, 0],
      ArrowLeft: [0, -1],
      ArrowRight: [0, 1],
      PageUp: [-10, 0],
      PageDown: [10, 0],
      Home: [0, -columns],
      End: [0, columns],
    };
    if (event.key in steps && !event.altKey && !event.metaKey)
      move(at[0] + (flipped ? -1 : 1) * steps[event.key][0], at[1] + steps[event.key][1], true);
    else if (event.key === "Enter" || event.key === " ") open();
    else return;
    event.preventDefault();
  });

  const stack = h("div", { class: flipped ? "heat-stack flipped" : "heat-stack" }, canvas, cursor);
  if (options.marked !== null && options.marked !== undefined)
    stack.append(placeBox(h("div", { class: "row-mark" }), options.marked, 0, 1, columns, cell));
  if (options.selected) stack.append(placeBox(h("div", { class: "selected" }), ...options.selected, 1, 1, cell));
  const body = [stack];
  if (options.columnLabels) body.unshift(columnLabels(options));
  if (options.rowLabels) body.push(rowLabels(options));
  const frame = h("div", { class: options.rowLabels ? "heat labeled" : "heat", role: "application", "aria-label": options.label }, body);
  return h("div", { class: "heat-figure" }, h("div", { class: "heat-scroll" }, frame), readout);
}

function placeBox(box, row, column, nRows, nColumns, cell) {
  const edges = { left: column * cell, top: row * cell, width: nColumns * cell, height: nRows * cell };
  for (const [name, value] of Object.entries(edges)) box.style.setProperty(name, `${value}px`);
  return box;
}

const LINE = 15; // pixels that a label needs

function rowLabels({ rowLabels: texts, cell, marked, onRow, focus }) {
  const step = Math.max(1, Math.ceil(LINE / cell));
  const labels = texts.map((text, row) => {
    if (row % step && row !== marked) return null;
    const style = { top: `${(row + 0.5) * cell}px` };
    const hidden = marked !== null && row !== marked && Math.abs(row - marked) * cell < LINE;
    if (hidden) return null;
    const options = {
      class: row === marked ? "row-label chosen" : "row-label",
      style,
      tabIndex: -1,
      title: text,
      on: { click: () => onRow?.(row) },
    };
    return h("button", { type: "button", text, data: { focus: `${focus}-row-${row}` }, ...options });
  });
  return h("div", { class: "row-labels", "aria-hidden": "true" }, labels);
}

function columnLabels({ columnLabels: texts, cell, columns }) {
  const step = Math.max(1, Math.ceil(LINE / cell));
  const labels = texts.map((text, column) =>
    column % step ? null : h("span", { text, title: text, style: { left: `${(column + 0.5) * cell}px` } }),
  );
  const longest = Math.max(0, ...texts.map((text) => [...text].length));
  return h(
    "div",
    {
      class: "column-labels",
      "aria-hidden": "true",
      style: { width: `${columns * cell}px`, height: `${Math.min(96, 14 + longest * 8.2)}px` },
    },
    labels,
  );
}

/** Make the legend of a color scale: its two ends and, for numbers with a sign, zero. */
export function legend(scale, label) {
  const bar = h("span", {
    role: "img",
    "aria-label": label,
    class: "legend-bar",
    style: { background: gradient(scale) },
  });
  return h(
    "span",
    { class: "legend" },
    h("span", { class: "number", text: number(scale.lo) }),
    bar,
    h("span", { class: "number", text: number(scale.hi) }),
  );
}

/** Return the pixels of a cell so that a map fits a width. */
export function cellSize(columns, width, most = 26) {
  return Math.max(1, Math.min(most, Math.floor(width / columns)));
}
