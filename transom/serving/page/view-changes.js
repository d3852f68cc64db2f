/** The edits in force, and patches from a second text. */

import { button, h, view } from "explore/dom";
import { short, shown } from "explore/format";
import { t } from "explore/messages";
import { isHeadOff, modelOf } from "explore/session";
import { layerName } from "explore/view-heads";
import { patchForm } from "explore/view-patch";

/** Say in words what an edit changes. */
function describe(state, edit) {
  const { pass } = state.loaded;
  if (isHeadOff(edit)) {
    const layer = pass.layers.find((each) => each.stack === edit.stack && each.part === edit.part && each.block === edit.blocks[0]);
    return t("changes.heads", { layer: layer ? layerName(pass, layer) : "", heads: edit.heads.join(", ") });
  }
  if (edit.kind === "patch") {
    const stack = pass.quantities.find((each) => each.address === edit.name)?.stack;
    const [position] = edit.positions ?? [];
    const from = edit.from_positions?.[0] ?? position;
    const token = shown(pass.tokens[stack]?.[position]?.text ?? "");
    const values = { name: edit.name, position, token, from, text: short(edit.text, 40) };
    return t(`changes.patch_from_${modelOf(state).input}`, values);
  }
  return JSON.stringify(edit);
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
      const items = state.edits.map((edit, i) =>
        h(
          "li",
          {},
          h("span", { text: describe(state, edit) }),
          button("×", `edit-${i}`, () => store.set((s) => ({ edits: s.edits.filter((_, at) => at !== i) })), {
            class: "round",
            "aria-label": t("changes.remove", { edit: describe(state, edit) }),
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
