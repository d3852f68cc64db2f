/** The guided tour: a card that brings the page to each place, marks it, and explains it with the person's own numbers. */

import { button, h, view } from "explore/dom";
import { rich, t } from "explore/messages";
import { modelOf } from "explore/session";
import { stepsOf } from "explore/tour-steps";

/** Keep the class "toured" on the element that a step is about, also when its view is drawn again. */
function mark(selector) {
  const target = selector && document.querySelector(selector);
  for (const each of document.querySelectorAll(".toured")) if (each !== target) each.classList.remove("toured");
  target?.classList.add("toured");
  return target;
}

const TOKENS = ["token", "key", "key2", "symbol", "second", "answer"];

/** Show those values that are tokens as tokens. */
function withTokens(values) {
  return Object.fromEntries(
    Object.entries(values).map(([name, value]) => [name, TOKENS.includes(name) ? h("span", { class: "token", text: value }) : value]),
  );
}

export function mountTour(root, store) {
  let marking = 0;
  let gone = null; // the step to which the page was brought
  const go = (by) => {
    const state = store.get();
    const last = stepsOf(state).length - 1;
    store.set({ tour: Math.max(0, Math.min(last, state.tour + by)) });
  };
  const leave = () => {
    store.set({ tour: null });
    document.querySelector('[data-focus="tour-start"]')?.focus();
  };
  root.addEventListener("keydown", (event) => {
    const actions = { ArrowRight: () => go(1), ArrowLeft: () => go(-1), Escape: leave };
    if (!(event.key in actions)) return;
    event.preventDefault();
    event.stopPropagation();
    actions[event.key]();
  });
  const bring = (step) => {
    clearInterval(marking);
    let tries = 0;
    let scrolled = false;
    marking = setInterval(() => {
      const target = mark(step.target(store.get().loaded.pass));
      tries += 1;
      if (!target || scrolled) return;
      if (document.querySelector("#stage [aria-busy]") && tries < 20) return;
      scrolled = true;
      const box = target.getBoundingClientRect();
      const free = window.innerHeight - root.offsetHeight;
      if (box.top < 60 || box.bottom > free) window.scrollBy({ top: box.top - Math.max(80, (free - box.height) / 2), behavior: "auto" });
    }, 120);
  };
  view(
    root,
    store,
    (s) => [s.loaded, s.show, s.tour, s.language, s.vocabulary, s.tokens],
    async (state) => {
      root.hidden = state.tour === null || !state.loaded;
      document.body.classList.toggle("touring", !root.hidden);
      if (root.hidden) {
        clearInterval(marking);
        mark(null);
        gone = null;
        return [];
      }
      if (state.show === "diff") {
        store.set({ show: "A" }); // its sentences are about one model
        return [];
      }
      const { pass } = state.loaded;
      const steps = stepsOf(state);
      const at = Math.min(state.tour, steps.length - 1);
      const step = steps[at];
      const first = gone === null;
      if (gone !== step || step.follows) {
        const there = await step.go(pass, state);
        if (store.get().tour !== state.tour) return [];
        store.set({ cell: null, ...there });
        if (gone !== step) bring(step);
        gone = step;
      }
      const now = store.get();
      const values = await step.values(now);
      const key = step.message?.(pass, values, modelOf(now)) ?? step.id;
      const back = button(t("tour.back"), "tour-back", () => go(-1), { disabled: at === 0, class: "quiet" });
      const next =
        at + 1 < steps.length
          ? button(t("tour.next"), "tour-next", () => go(1), { class: "primary" })
          : button(t("tour.finish"), "tour-next", leave, { class: "primary" });
      if (first) setTimeout(() => root.focus({ preventScroll: true }), 0);
      return [
        h(
          "div",
          { class: "tour-head" },
          h("p", { class: "soft tour-count", text: t("tour.count", { i: at + 1, n: steps.length }) }),
          button("×", "tour-leave", leave, { class: "round", "aria-label": t("tour.leave") }),
        ),
        h("h2", { text: t(`tour.${key}.title`) }),
        h("p", { class: "tour-text" }, rich(`tour.${key}.text`, withTokens(values))),
        h("progress", { max: steps.length, value: at + 1, "aria-label": t("tour.count", { i: at + 1, n: steps.length }) }),
        h("div", { class: "tour-tools" }, back, next),
      ];
    },
  );
}
