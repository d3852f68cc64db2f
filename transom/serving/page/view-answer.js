/** The probabilities of the answer, from stored logits: temperature, top-k and top-p; before and after edits; of two models. */

import { ask } from "explore/api";
import { button, h, view } from "explore/dom";
import { count, number, short, shown } from "explore/format";
import { t } from "explore/messages";
import { logitsBodies, outputPosition } from "explore/session";
import { descending, sigmoid, softmax, truncate } from "explore/softmax";
import { ofFirst } from "explore/whose";

const SHOWN = 10;
const MOST_K = 50;
const orders = new WeakMap(); // the order of logits does not depend on the temperature

/** Return the probabilities of some logits under the settings of the state. */
export function distribution(answer, { temperature, topK, topP }) {
  if (!orders.has(answer)) orders.set(answer, descending(answer.values));
  const order = orders.get(answer);
  if (answer.multi_label) return { order, p: sigmoid(answer.values), q: null, kept: null, n: order.length };
  const p = softmax(answer.values, temperature);
  return { order, p, ...truncate(p, order, topK, topP) };
}

function slider(store, state, name, attributes, write) {
  const shownValue = h("output", { class: "number", text: write(state[name]), for: `slider-${name}` });
  const field = h("input", {
    type: "range",
    id: `slider-${name}`,
    value: String(state[name]),
    ...attributes,
    data: { focus: `slider-${name}`, setting: name },
    on: {
      input: () => {
        const value = Number(field.value);
        shownValue.textContent = write(value);
        field.setAttribute("aria-valuetext", write(value));
        store.set({ [name]: value });
      },
    },
  });
  field.value = String(state[name]);
  field.setAttribute("aria-valuetext", write(state[name]));
  return h("div", { class: "slider" }, h("label", { for: `slider-${name}`, text: t(`answer.${name}`) }), field, shownValue);
}

function positions(store, state) {
  const { outputs, tokens } = state.loaded.pass;
  if (outputs.positions.length < 2) return null;
  const here = outputPosition(state);
  const row = tokens[outputs.stack] ?? [];
  const options = outputs.positions.map((at) =>
    h("option", { value: String(at), text: `${at} ${row[at] ? shown(row[at].text) : ""}`, selected: at === here }),
  );
  const select = h(
    "select",
    {
      id: "position",
      data: { focus: "position" },
      on: {
        change: () => {
          const position = Number(select.value);
          store.set({ position, symbol: null, tokens: { ...store.get().tokens, [outputs.stack]: position } });
        },
      },
    },
    options,
  );
  return h("div", { class: "slider" }, h("label", { for: "position", text: t("answer.position") }), select);
}

/** Return the cell of the tensor of probabilities that a bar shows. */
function probabilityCell(state, symbol) {
  const quantity = state.loaded.pass.quantities.find((each) => each.address === "probs");
  if (!quantity) return null;
  return {
    name: "probs",
    index: Object.fromEntries(quantity.axes.map((axis) => [axis, axis === "query" ? outputPosition(state) : symbol])),
  };
}

function meter(part, kind, cut) {
  return h("span", { class: `bar ${kind}${cut ? " cut" : ""}`, style: { "--part": part } });
}

/** One symbol: its bar now and, where there is one, the bar it is compared with. */
function line(store, state, symbol, now, than) {
  const cut = now.kept !== null && !now.kept[symbol];
  const value = now.q ? now.q[symbol] : now.p[symbol];
  const name = state.vocabulary?.[symbol] ?? String(symbol);
  const old = than && (than.q ? than.q[symbol] : than.p[symbol]);
  const change = than ? Math.sign(value - old) : 0;
  const wasCut = Boolean(than?.kept) && !than.kept[symbol];
  const written = (kind, p, isCut) => h("span", { class: isCut ? `${kind} cut-note` : kind, text: isCut ? t("answer.cut") : number(p) });
  const numbers = h(
    "span",
    { class: "number numbers" },
    than && !(cut && wasCut) && written("old", old, wasCut),
    written("new", value, cut),
    than &&
      h("span", {
        class: "change",
        "aria-label": t(change > 0 ? "answer.up" : change < 0 ? "answer.down" : "answer.same"),
        role: "img",
        text: ["▼", "=", "▲"][change + 1],
      }),
  );
  const chosen = state.symbol === symbol;
  const made = h(
    "button",
    {
      type: "button",
      class: "probability",
      "aria-pressed": String(chosen),
      title: t("answer.open", { symbol: name, p: number(now.p[symbol]) }),
      data: { focus: `symbol-${symbol}`, symbol, value: number(value) },
      on: {
        click: () => store.set({ symbol, cell: probabilityCell(store.get(), symbol) }),
      },
    },
    h("span", { class: "token", text: short(shown(name), 18) }),
    h("span", { class: "bars" }, than && meter(old, "before", false), meter(cut ? now.p[symbol] : value, "now", cut)),
    numbers,
  );
  return h("li", {}, made);
}

async function bars(store, state) {
  const bodies = logitsBodies(state);
  const [own, before, other] = await Promise.all(["now", "before", "other"].map((key) => bodies[key] && ask("logits", bodies[key])));
  const now = other ?? own; // of two models, the second beside the first
  const compared = other ? own : before;
  const current = distribution(now, state);
  const than = compared && compared.values.length === now.values.length ? distribution(compared, state) : null;
  const best = [...current.order.subarray(0, SHOWN)];
  if (than) for (const symbol of than.order.subarray(0, 3)) if (!best.includes(symbol)) best.push(symbol);
  if (state.symbol !== null && state.symbol < now.values.length && !best.includes(state.symbol)) best.push(state.symbol);
  const rest = now.values.length - best.length;
  const inBest = best.reduce((sum, symbol) => sum + (current.q ?? current.p)[symbol], 0);
  const kept =
    current.kept && current.n < now.values.length
      ? h("p", { class: "soft", text: t("answer.kept", { n: count(current.n), all: count(now.values.length) }) })
      : null;
  return [
    than &&
      h(
        "p",
        { class: "soft key" },
        h("span", { class: "swatch before" }),
        t(before ? "answer.before" : "answer.model_a"),
        " ",
        h("span", { class: "swatch now" }),
        t(before ? "answer.after" : "answer.model_b"),
      ),
    h(
      "ol",
      { class: than ? "probabilities compared" : "probabilities" },
      best.map((symbol) => line(store, state, symbol, current, than)),
    ),
    rest > 0 &&
      !now.multi_label &&
      h("p", { class: "soft rest", text: t("answer.rest", { n: count(rest), p: number(Math.max(0, 1 - inBest)) }) }),
    kept,
    now.multi_label && h("p", { class: "soft", text: t("answer.multi_label") }),
  ];
}

/** Tell whether the probabilities are those of a translation that the edited model did not write. */
const isForced = ({ models }, { edits, model }) => edits.length > 0 && models[model].input === "pair";

export function mountAnswer(root, store) {
  const controls = h("div", {});
  const list = h("div", { class: "bars-list" });
  root.append(controls, list);
  view(
    controls,
    store,
    ({ loaded, models, position, language }) => [
      ...[loaded?.pass.tokens, loaded?.pass.outputs, loaded?.pass.answer, loaded?.body.input, loaded && isForced(models, loaded.body)],
      ...[loaded?.body.model, loaded?.other?.model, position, language],
    ],
    (state) => {
      if (!state.loaded) return [];
      const { pass } = state.loaded;
      const has = pass.outputs.positions.length > 0;
      const isMulti = state.models.models[0].multi_label;
      const sliders = [
        slider(store, state, "temperature", { min: "0", max: "3", step: "0.05" }, (value) => number(value)),
        slider(store, state, "topK", { min: "0", max: String(MOST_K), step: "1" }, (value) =>
          value > 0 ? String(value) : t("answer.all"),
        ),
        slider(store, state, "topP", { min: "0.05", max: "1", step: "0.01" }, (value) => number(value)),
      ];
      const reset = button(
        t("answer.reset"),
        "answer-reset",
        () => {
          const usual = { temperature: 1, topK: 0, topP: 1 };
          store.set(usual);
          for (const [name, value] of Object.entries(usual)) {
            const field = document.getElementById(`slider-${name}`);
            field.value = String(value);
            field.dispatchEvent(new Event("input"));
          }
        },
        { class: "quiet" },
      );
      return [
        h("h2", { text: t(state.loaded.body.input.target ? "answer.given" : "answer.title") }),
        pass.answer && h("p", { class: "answer-text" }, h("span", { class: "token", text: shown(pass.answer) }), ofFirst(state)),
        isForced(state.models, state.loaded.body) &&
          h("p", { class: "soft", text: t("answer.forced") }),
        has && positions(store, state),
        has && !isMulti && h("div", { class: "sliders" }, sliders, reset),
      ];
    },
  );
  view(
    list,
    store,
    (s) => [s.loaded, s.position, s.symbol, s.vocabulary, s.temperature, s.topK, s.topP, s.language],
    (state) => {
      if (!state.loaded) return [];
      return state.loaded.pass.outputs.positions.length ? bars(store, state) : [h("p", { class: "soft", text: t("answer.none") })];
    },
  );
}
