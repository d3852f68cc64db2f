/** The header: the model in view, the tour, copying and saving, language, theme and help. */

import { isSaved } from "explore/api";
import { copyText, viewAsCommand, viewAsPython } from "explore/copy";
import { announce, button, h, view } from "explore/dom";
import { saveView } from "explore/export";
import { count } from "explore/format";
import { languages, t } from "explore/messages";
import { modelOf } from "explore/session";
import { openHelp } from "explore/view-help";

const THEMES = ["auto", "light", "dark"];

function facts(model) {
  const parts = [
    t("header.parameters", { n: count(model.n_parameters) }),
    ...model.stacks.map((stack) => t(`header.${stack.name}`, { n: stack.n_blocks })),
    model.n_heads ? t("header.heads", { n: model.n_heads }) : null,
    model.d_model ? t("header.width", { n: model.d_model }) : null,
  ];
  return parts.filter(Boolean).join(" · ");
}

/** The switch between two models and their difference. */
function modelSwitch(store, state) {
  const { models, comparable } = state.models;
  if (models.length < 2) return null;
  const choice = (show, text, title) =>
    button(text, `show-${show}`, () => store.set({ show }), { "aria-pressed": String(state.show === show), title, data: { show } });
  return h(
    "div",
    { class: "segments", role: "group", "aria-label": t("compare.label") },
    choice("A", "A", models[0].name),
    choice("B", "B", models[1].name),
    comparable && choice("diff", "A − B", t("compare.difference")),
  );
}

function shareMenu(store) {
  const done = (what) => (event) => {
    const said = (text) => {
      event.target.textContent = text;
      announce(text);
    };
    event.target.textContent = t("share.busy");
    what().then(
      () => said(t("share.done")),
      (error) => said(error.message),
    );
  };
  const item = (key, what) => button(t(`share.${key}`), `share-${key}`, done(what), { data: { share: key } });
  return h(
    "details",
    { class: "menu", data: { focus: "share" } },
    h("summary", { text: t("share.title"), data: { focus: "share-summary" } }),
    h(
      "div",
      { class: "menu-items" },
      item("python", () => copyText(viewAsPython(store.get()))),
      item("command", () => copyText(viewAsCommand(store.get()))),
      item("link", () => copyText(location.href)),
      !isSaved && item("save", () => saveView(store.get())),
    ),
  );
}

/** Close an open menu when a person presses Escape, or points or moves the focus elsewhere. */
function closeMenus(event) {
  for (const menu of document.querySelectorAll("details.menu[open]")) {
    if (event.key === "Escape" || (event.type !== "keydown" && !menu.contains(event.target))) menu.open = false;
  }
}

export function mountHeader(root, store, app) {
  for (const type of ["pointerdown", "focusin", "keydown"]) document.addEventListener(type, closeMenus);
  view(
    root,
    store,
    (s) => [s.models, s.show, s.language, s.theme, Boolean(s.loaded)],
    (state) => {
      if (!state.models) return [];
      const model = modelOf(state);
      const language = h(
        "select",
        { "aria-label": t("header.language"), data: { focus: "language" }, on: { change: (event) => app.setLanguage(event.target.value) } },
        Object.entries(languages()).map(([code, name]) =>
          h("option", { value: code, text: name, lang: code, selected: code === state.language }),
        ),
      );
      const next = THEMES[(THEMES.indexOf(state.theme) + 1) % THEMES.length];
      return [
        h(
          "div",
          { class: "brand" },
          h(
            "h1",
            {},
            h("span", { class: "wordmark", text: "transom" }),
            ` ${state.show === "diff" ? state.models.models.map((each) => each.name).join(" − ") : model.name}`,
          ),
          h("p", { class: "soft", text: facts(model) }),
        ),
        modelSwitch(store, state),
        h(
          "div",
          { class: "tools" },
          button(t("tour.start"), "tour-start", () => store.set({ tour: 0 }), { class: "primary", data: { action: "tour" } }),
          shareMenu(store),
          language,
          button(t(`theme.${state.theme}`), "theme", () => store.set({ theme: next }), {
            title: t("theme.title"),
            data: { theme: state.theme },
          }),
          button("?", "help", openHelp, { "aria-label": t("help.title"), class: "round" }),
        ),
      ];
    },
  );
}
