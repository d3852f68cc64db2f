/** The hand calculation of a cell: its value, the steps that give it, the others folded, and the way back to the picture. */

import { ask } from "explore/api";
import { copyText } from "explore/copy";
import { announce, button, h, view } from "explore/dom";
import { cellName, full, number, signed } from "explore/format";
import { rich, t } from "explore/messages";
import { math } from "explore/notation";
import { placeOf } from "explore/places";
import { calculationBody, spoken } from "explore/session";
import { ofFirst } from "explore/whose";

const MOST_OPEN = 48; // steps around the cell that are unfolded

/** What a quantity is made of: cells of the same index, by the ending of the address. */
const MADE_OF = {
  weights: ["masked_scores", "scores"],
  masked_scores: ["scores"],
  scores: ["dot_products"],
  probs: ["logits"],
  log_probs: ["logits"],
  normalized: ["x"],
  out: ["normalized", "hidden"],
  hidden: ["pre", "gate", "up"],
  resid_mid: ["resid_pre"],
  resid_cross: ["resid_mid"],
  resid_post: ["resid_mid"],
  sum: ["token", "position"],
  resid: ["sum"],
};

function related(pass, { name, index }) {
  const owner = name.includes(".") ? name.slice(0, name.lastIndexOf(".") + 1) : "";
  return (MADE_OF[name.slice(owner.length)] ?? [])
    .map((each) => owner + each)
    .map((address) => pass.quantities.find((quantity) => quantity.address === address))
    .filter((quantity) => quantity && quantity.axes.length === Object.keys(index).length && quantity.axes.every((axis) => axis in index))
    .map((quantity) => ({ name: quantity.address, index }));
}

function step(each, formula) {
  if (each.kind === "calculation") {
    return [
      each.formula && each.formula !== formula && h("p", { class: "formula" }, math(each.formula)),
      h(
        "p",
        { class: each.focus ? "step focus" : "step" },
        h("span", { class: "label", text: each.label }),
        ` = ${each.expression} = `,
        h("strong", { text: each.result }),
      ),
    ];
  }
  if (each.kind === "values")
    return h(
      "p",
      { class: "step given" },
      h("span", { class: "label", text: each.label }),
      each.formula ? `, ${each.formula}: ` : ": ",
      each.text,
    );
  return h("p", { class: each.kind === "check" ? "step check" : "step note", text: each.text });
}

function steps(list) {
  let formula = null;
  return list.map((each) => {
    const nodes = step(each, formula);
    if (each.kind === "calculation") formula = each.formula;
    return nodes;
  });
}

/** Return the index of a cell in the order of the quantity's axes; a saved state has them in alphabetical order. */
function inOrder(pass, { name, index }) {
  const axes = pass.quantities.find((each) => each.address === name)?.axes ?? Object.keys(index);
  return Object.fromEntries(axes.map((axis) => [axis, index[axis]]));
}

/** Show a cell in its picture. */
export function showCell(store, { name, index }) {
  const state = store.get();
  const { pass } = state.loaded;
  const place = placeOf(pass, name);
  const changes = { cell: { name, index } };
  if (place) changes.place = place.id;
  if ("n_heads" in index) changes.head = index.n_heads;
  if ("query" in index && place) changes.tokens = { ...state.tokens, [place.layer?.queries ?? place.stack]: index.query };
  store.set(changes);
  const find = () => document.querySelector("#stage .selected")?.closest(".heat-figure")?.scrollIntoView({ block: "center" });
  setTimeout(find, 150);
}

/** The same cell of the second model and the difference, beside the first, whose calculation is shown. */
async function beside(state, { name, index }) {
  const { body, other } = state.loaded;
  if (!other) return null;
  if (calculationBody(state, name, index).temperature !== undefined) return h("p", { class: "cell-compared" }, ofFirst(state));
  const [a, b] = await Promise.all([body, other].map((each) => ask("tensor", spoken(state, { ...each, name, index }))));
  return h(
    "p",
    { class: "cell-compared" },
    ofFirst(state),
    rich("calculation.compared", { b: number(b.values[0]), difference: signed(Math.fround(a.values[0] - b.values[0])) }),
  );
}

export function mountCalculation(root, store) {
  let back = null; // what a person at the keyboard came from
  let seen = null; // the cell to which they were brought
  const cameFrom = (element) => element.closest("[data-focus]")?.dataset.focus ?? null;
  document.addEventListener(
    "click",
    (event) => {
      if (!root.contains(event.target)) back = event.detail === 0 ? cameFrom(event.target) : null;
    },
    true,
  );
  document.addEventListener(
    "keydown",
    (event) => {
      if (event.key === "Enter" && event.target.tagName === "CANVAS") back = cameFrom(event.target);
    },
    true,
  );
  const close = () => {
    store.set({ cell: null });
    const origin = back && document.querySelector(`[data-focus="${CSS.escape(back)}"]`);
    (origin || document.getElementById("stage")).focus({ preventScroll: !origin });
  };
  const bring = (cell) => {
    if (back && seen !== cell) setTimeout(() => root.focus(), 0);
    seen = cell;
  };
  root.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      event.stopPropagation();
      close();
    }
  });
  view(
    root,
    store,
    (s) => [s.loaded, s.cell, s.language, /probs$/.test(s.cell?.name ?? "") ? s.temperature : null],
    async (state) => {
      root.hidden = !state.cell || !state.loaded;
      if (root.hidden) return [];
      const { cell } = state;
      const name = cellName(cell.name, inOrder(state.loaded.pass, cell));
      bring(cell);
      const head = (value) =>
        h(
          "div",
          { class: "cell-head" },
          h(
            "div",
            {},
            h("h2", { text: t("calculation.title") }),
            h("p", { class: "cell-name" }, h("code", { text: name })),
            value !== undefined && h("p", { class: "cell-value number", text: value }),
            value !== undefined && compared,
          ),
          button("×", "calculation-close", close, { class: "round", "aria-label": t("calculation.close") }),
        );
      const compared = await beside(state, cell);
      let answer;
      try {
        answer = await ask("calculation", calculationBody(state, cell.name, cell.index));
      } catch (error) {
        return [head(), h("p", { class: "error", role: "alert", text: error.message })];
      }
      const value = typeof answer.value === "number" ? full(answer.value) : String(answer.value);
      root.dataset.value = answer.value;
      announce(`${name} = ${value}`);
      const focus = answer.sections
        .map((section) => ({ ...section, steps: section.steps.filter((each) => each.focus) }))
        .filter((section) => section.steps.length);
      const around = answer.sections.filter(
        (section) => section.focus && section.steps.some((each) => each.kind === "calculation" && !each.focus),
      );
      const copy = (key, text) =>
        button(
          t(`share.${key}`),
          `copy-${key}`,
          (event) => {
            const said = (message) => {
              event.target.textContent = message;
              announce(message);
            };
            copyText(text).then(
              () => said(t("share.done")),
              (error) => said(error.message),
            );
          },
          { class: "quiet", data: { copy: key } },
        );
      const parts = related(state.loaded.pass, cell);
      return [
        head(value),
        h(
          "div",
          { class: "cell-tools" },
          button(t("calculation.show"), "calculation-show", () => showCell(store, cell), { class: "quiet" }),
          copy("python", answer.python),
          copy("command", answer.command),
        ),
        parts.length > 0 &&
          h(
            "p",
            { class: "made-of" },
            h("span", { class: "soft", text: t("calculation.made_of") }),
            " ",
            parts.map((part) =>
              button(part.name.split(".").pop(), `part-${part.name}`, () => store.set({ cell: part }), {
                class: "link",
                data: { cell: part.name },
              }),
            ),
          ),
        focus.map((section) => h("div", { class: "section focus" }, h("h3", { text: section.title }), steps(section.steps))),
        around.length > 0 &&
          h(
            "details",
            {
              class: "whole",
              open: around.reduce((sum, section) => sum + section.steps.length, 0) <= MOST_OPEN,
              data: { focus: "around" },
            },
            h("summary", { text: t("calculation.around") }),
            around.map((section) => h("div", { class: "section" }, steps(section.steps))),
          ),
        h("p", { class: "soft", text: answer.summary ?? "" }),
        h(
          "details",
          { class: "whole", data: { focus: "whole" } },
          h("summary", { text: t("calculation.whole") }),
          answer.sections.map((section) => h("div", { class: "section" }, h("h3", { text: section.title }), steps(section.steps))),
        ),
      ];
    },
  );
}
