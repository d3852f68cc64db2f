/** The list of keys and a few words on how to read the page. */

import { button, h } from "explore/dom";
import { t } from "explore/messages";

const KEYS = [
  ["/", "input"],
  ["[ ]", "place"],
  ["{ }", "head"],
  ["← →", "token"],
  ["e", "edit"],
  ["b", "back"],
  ["o", "output"],
  ["a", "heads"],
  ["t", "tour"],
  ["?", "help"],
  ["Esc", "close"],
];

let store = null;

export function mountHelp(root, given) {
  store = given;
  root.addEventListener("close", () => document.querySelector('[data-focus="help"]')?.focus());
  root.addEventListener("click", (event) => {
    if (event.target === root) root.close();
  });
}

export function openHelp() {
  const root = document.getElementById("help");
  const toggle = h("input", {
    type: "checkbox",
    id: "shortcuts",
    checked: store.get().shortcuts,
    on: { change: (event) => store.set({ shortcuts: event.target.checked }) },
  });
  root.setAttribute("aria-label", t("help.title"));
  root.replaceChildren(
    h(
      "div",
      { class: "cell-head" },
      h("h2", { text: t("help.title") }),
      button("×", "help-close", () => root.close(), { class: "round", "aria-label": t("help.close") }),
    ),
    h("p", { text: t("help.read") }),
    h("p", { text: t("help.truth") }),
    h("h3", { text: t("help.keys") }),
    h(
      "dl",
      { class: "keys" },
      KEYS.map(([key, name]) => [
        h(
          "dt",
          {},
          key.split(" ").map((each) => h("kbd", { text: each })),
        ),
        h("dd", { text: t(`keys.${name}`) }),
      ]),
    ),
    h("p", { text: t("help.maps") }),
    h("p", { class: "field-inline" }, toggle, h("label", { for: "shortcuts", text: t("help.shortcuts") })),
  );
  if (!root.open) root.showModal();
}
