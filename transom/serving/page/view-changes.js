/** The edits in force, and patches from a second text. */

import { isSaved } from "explore/api";
import { button, h, view } from "explore/dom";
import { short, shown } from "explore/format";
import { t } from "explore/messages";
import { isHeadOff, outputPosition } from "explore/session";
import { layerName } from "explore/view-heads";

/** Say in words what an edit changes. */
function describe(pass, edit) {
  if (isHeadOff(edit)) {
    const layer = pass.layers.find((each) => each.stack === edit.stack && each.part === edit.part && each.block === edit.blocks[0]);
    return t("changes.heads", { layer: layer ? layerName(pass, layer) : "", heads: edit.heads.join(", ") });
  }
  if (edit.kind === "patch")
    return t("changes.patch", { name: edit.name, position: (edit.positions ?? []).join(", "), text: short(edit.text, 40) });
  return JSON.stringify(edit);
}

/** The residual streams that a patch can replace, those after a block first. */
function residuals(pass) {
  const found = pass.quantities.filter((each) => /(^|\.)resid(_\w+)?$/.test(each.address) && each.cost === "exists");
  return found.filter((each) => /\.(resid|resid_post)$/.test(each.address));
}

function patchForm(store, state) {
  const { pass } = state.loaded;
  const streams = residuals(pass);
  if (isSaved || !streams.length || state.input?.file) return null;
  const text = h("input", { type: "text", id: "patch-text", data: { focus: "patch-text" }, spellcheck: "false", autocomplete: "off" });
  const where = h(
    "select",
    { id: "patch-name", data: { focus: "patch-name" } },
    streams.map((each) => h("option", { value: each.address, text: each.address })),
  );
  const stackOf = () => streams.find((each) => each.address === where.value).stack;
  const position = h("select", { id: "patch-position", data: { focus: "patch-position" } });
  const fill = () => {
    const tokens = pass.tokens[stackOf()] ?? [];
    const usual = stackOf() === pass.outputs.stack ? outputPosition(state) : 0;
    position.replaceChildren(
      ...tokens.map((token) =>
        h("option", { value: String(token.position), text: `${token.position} ${shown(token.text)}`, selected: token.position === usual }),
      ),
    );
  };
  where.value = (
    streams.filter((each) => each.stack === pass.outputs.stack && each.address.endsWith("resid_post"))[0] ?? streams[0]
  ).address;
  where.addEventListener("change", fill);
  fill();
  const apply = (event) => {
    event.preventDefault();
    if (!text.value.trim()) {
      text.focus();
      return;
    }
    const edit = { kind: "patch", name: where.value, positions: [Number(position.value)], text: text.value };
    store.set((s) => ({ edits: [...s.edits, edit] }));
  };
  const field = (key, control) => h("div", { class: "field" }, h("label", { for: control.id, text: t(`changes.${key}`) }), control);
  return h(
    "details",
    { class: "patch", data: { focus: "patch" } },
    h("summary", { text: t("changes.patch_title") }),
    h("p", { class: "soft", text: t("changes.patch_help") }),
    h(
      "form",
      { class: "patch-form", on: { submit: apply } },
      field("patch_text", text),
      field("patch_name", where),
      field("patch_position", position),
      h("button", { type: "submit", text: t("changes.patch_apply"), data: { action: "patch", focus: "patch-apply" } }),
    ),
  );
}

export function mountChanges(root, store) {
  const list = h("div", {});
  const patch = h("div", {});
  root.append(list, patch);
  view(
    list,
    store,
    (s) => [s.loaded, s.edits, s.language],
    (state) => {
      if (!state.loaded) return [];
      const { pass } = state.loaded;
      const items = state.edits.map((edit, i) =>
        h(
          "li",
          {},
          h("span", { text: describe(pass, edit) }),
          button("×", `edit-${i}`, () => store.set((s) => ({ edits: s.edits.filter((_, at) => at !== i) })), {
            class: "round",
            "aria-label": t("changes.remove", { edit: describe(pass, edit) }),
          }),
        ),
      );
      return [
        h("h2", { text: t("changes.title") }),
        items.length ? h("ul", { class: "edits" }, items) : h("p", { class: "soft", text: t("changes.none") }),
        items.length > 0 && button(t("changes.all_back"), "all-back", () => store.set({ edits: [] }), { data: { action: "all-back" } }),
      ];
    },
  );
  // What a person has typed stays while edits come and go.
  view(
    patch,
    store,
    (s) => [s.loaded?.body.input, s.loaded?.body.model, s.language],
    (state) => (state.loaded ? [patchForm(store, state)] : []),
  );
}
