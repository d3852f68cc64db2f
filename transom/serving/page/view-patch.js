/** Patch from a second text or picture: which vector, from which of its tokens, and into the place of which token here. */

import { ask, isSaved } from "explore/api";
import { button, debounce, h, replace } from "explore/dom";
import { shown } from "explore/format";
import { t } from "explore/messages";
import { chosenToken, modelOf, outputPosition } from "explore/session";
import { sendFile } from "explore/view-input";

const MOST_CHIPS = 120; // of more tokens a list is easier

/** The residual streams that a patch can replace: the embedding and the stream after each block. */
function residuals(pass) {
  return pass.quantities.filter((each) => /(^|\.)(resid|resid_post)$/.test(each.address) && each.cost === "exists");
}

/** Let a person choose one of some tokens. */
function chooser(key, tokens, chosen, pick) {
  if (tokens.length > MOST_CHIPS) {
    const options = tokens.map(({ position, text }) =>
      h("option", { value: String(position), text: `${position} ${shown(text)}`, selected: position === chosen }),
    );
    const attributes = { data: { focus: key, choice: key }, "aria-label": t(`changes.${key}`) };
    const select = h("select", { ...attributes, on: { change: () => pick(Number(select.value)) } }, options);
    return select;
  }
  const chips = tokens.map(({ position, text, special }) =>
    button("", `${key}-${position}`, () => pick(position), {
      class: special ? "choice special" : "choice",
      "aria-pressed": String(position === chosen),
      data: { choice: key, position },
    }),
  );
  chips.forEach((chip, i) =>
    chip.append(h("span", { class: "chip-text", text: shown(tokens[i].text) }), h("span", { class: "chip-id", text: tokens[i].position })),
  );
  return h("div", { class: "chips small", role: "group", "aria-label": t(`changes.${key}`) }, chips);
}

/** The field for a second text. */
function textField(use) {
  const field = h("input", { type: "text", id: "patch-text", data: { focus: "patch-text" }, spellcheck: "false", autocomplete: "off" });
  field.addEventListener(
    "input",
    debounce(() => use(field.value), 300),
  );
  return h("div", { class: "field" }, h("label", { for: "patch-text", text: t("changes.patch_text") }), field);
}

/** The choice of a second picture or sound: a file, or an example of the run. */
function fileField(store, state, use, fail) {
  const model = modelOf(state);
  const field = h("input", {
    type: "file",
    id: "patch-file",
    class: "unseen",
    accept: model.input === "image" ? "image/*" : "audio/wav,.wav",
    data: { focus: "patch-file" },
    on: { change: () => field.files[0] && sendFile(field.files[0]).then(use, fail) },
  });
  const examples = model.samples
    .filter((each) => each.thumbnail)
    .map((each, i) => {
      const made = button("", `patch-sample-${i}`, () => use(each.input.file), { class: "sample", "aria-label": each.label, data: { patchSample: i } });
      made.append(h("img", { src: each.thumbnail, alt: "", class: "thumbnail" }), h("span", { text: each.label }));
      return made;
    });
  return h(
    "div",
    { class: "field" },
    h("div", { class: "drop" }, h("label", { for: "patch-file", text: t(`changes.patch_${model.input}`) }), field),
    examples.length > 0 && h("div", { class: "samples" }, examples),
  );
}

/** Return the form; null for a model without such streams, and in a saved file. */
export function patchForm(store, state) {
  const { pass } = state.loaded;
  const streams = residuals(pass);
  if (isSaved || !streams.length) return null;
  const usual = streams.find((each) => each.stack === pass.outputs.stack && each.address.endsWith("resid_post")) ?? streams[0];
  const choice = { stream: usual, text: "", other: null, to: null, from: null };
  const here = h("div", { class: "field" });
  const there = h("div", { class: "field" });
  const problem = h("p", { class: "error", role: "alert", hidden: true });
  const apply = h("button", { type: "submit", text: t("changes.patch_apply"), disabled: true, data: { action: "patch", focus: "patch-apply" } });
  const stackOf = () => choice.stream.stack;
  const own = () => pass.tokens[stackOf()] ?? [];
  const others = () => choice.other?.tokens[stackOf()] ?? [];
  const to = () => choice.to ?? (stackOf() === pass.outputs.stack && pass.outputs.per_token ? outputPosition(state) : chosenToken(state, stackOf()));
  const from = () => Math.min(choice.from ?? to(), others().length - 1);
  const draw = () => {
    const pick = (name) => (position) => {
      choice[name] = position;
      draw();
    };
    replace(here, h("span", { class: "soft", text: t("changes.patch_to") }), chooser("patch_to", own(), to(), pick("to")));
    replace(
      there,
      others().length > 0 && h("span", { class: "soft", text: t("changes.patch_from") }),
      choice.other?.image && h("img", { src: choice.other.image, alt: t("changes.patch_picture"), class: "patch-second" }),
      others().length > 0 && chooser("patch_from", others(), from(), pick("from")),
    );
    apply.disabled = others().length === 0;
  };
  const fail = (error) => {
    problem.hidden = !error;
    problem.textContent = error?.message ?? "";
  };
  const use = async (text) => {
    choice.text = text;
    choice.from = null;
    choice.other = null;
    fail(null);
    if (text.trim()) {
      const input = state.input.file ? { file: text } : { text };
      try {
        const answer = await ask("tokens", { model: state.loaded.body.model, input });
        if (choice.text === text) choice.other = answer;
      } catch (error) {
        if (choice.text === text) fail(error);
        if (!error.isAnswer) console.error(error);
      }
    }
    draw();
  };
  const where = h(
    "select",
    { id: "patch-name", data: { focus: "patch-name" } },
    streams.map((each) => h("option", { value: each.address, text: each.address, selected: each === usual })),
  );
  where.addEventListener("change", () => {
    Object.assign(choice, { stream: streams.find((each) => each.address === where.value), to: null, from: null });
    draw();
  });
  const submit = (event) => {
    event.preventDefault();
    if (!others().length) return;
    const edit = { kind: "patch", name: choice.stream.address, positions: [to()], text: choice.text };
    if (from() !== to()) edit.from_positions = [from()];
    store.set((s) => ({ edits: [...s.edits, edit] }));
  };
  draw();
  return h(
    "details",
    { class: "patch", data: { focus: "patch" } },
    h("summary", { text: t(`changes.patch_title_${modelOf(state).input}`) }),
    h("p", { class: "soft", text: t("changes.patch_help") }),
    h(
      "form",
      { class: "patch-form", on: { submit } },
      state.input.file ? fileField(store, state, use, fail) : textField(use),
      problem,
      h("div", { class: "field" }, h("label", { for: "patch-name", text: t("changes.patch_name") }), where),
      there,
      here,
      apply,
    ),
  );
}
