/** The input: a text, a sentence pair, or a picture or sound; samples of the run as suggestions. */

import { ask, isSaved } from "explore/api";
import { button, debounce, h, view } from "explore/dom";
import { short } from "explore/format";
import { t } from "explore/messages";

const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

function samples(store, state, model) {
  if (!model.samples.length || isSaved) return null;
  const choose = (sample) => () => store.set({ input: sample.input, symbol: null });
  return h(
    "div",
    { class: "samples", role: "group", "aria-label": t("input.samples") },
    h("span", { class: "soft", text: t("input.samples") }),
    model.samples.map((sample, i) => {
      const pressed = String(same(sample.input, state.input));
      const text = short(sample.label || sample.input.text || String(i), 40);
      const attributes = { class: "sample", "aria-pressed": pressed, data: { sample: i } };
      if (!sample.thumbnail) return button(text, `sample-${i}`, choose(sample), attributes);
      const made = button("", `sample-${i}`, choose(sample), { ...attributes, "aria-label": text });
      made.append(h("img", { src: sample.thumbnail, alt: "", class: "thumbnail" }), h("span", { text }));
      return made;
    }),
  );
}

/** Send a file to the server, and return its identifier. */
export async function sendFile(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  let text = "";
  for (let i = 0; i < bytes.length; i += 8192) text += String.fromCharCode(...bytes.subarray(i, i + 8192));
  return (await ask("upload", { name: file.name, data: btoa(text) })).file;
}

async function upload(store, file, problem) {
  try {
    store.set({ input: { file: await sendFile(file) }, symbol: null, tokens: {} });
  } catch (error) {
    problem.textContent = error.message;
    problem.hidden = false;
  }
}

function fileInput(store, model) {
  const problem = h("p", { class: "error", role: "alert", hidden: true });
  const accept = model.input === "image" ? "image/*" : "audio/wav,.wav";
  const field = h("input", {
    type: "file",
    accept,
    id: "file",
    class: "unseen",
    data: { focus: "file" },
    on: { change: () => field.files[0] && upload(store, field.files[0], problem) },
  });
  const drop = h(
    "div",
    {
      class: "drop",
      on: {
        dragover: (event) => event.preventDefault(),
        drop: (event) => {
          event.preventDefault();
          if (event.dataTransfer.files[0]) upload(store, event.dataTransfer.files[0], problem);
        },
      },
    },
    h("label", { for: "file", text: t(`input.${model.input}`) }),
    field,
  );
  return [drop, problem];
}

function textInput(store, state, model) {
  const run = () => {
    const value = text.value;
    if (!value.trim()) return;
    const wanted = target && target.value.trim() ? target.value : null;
    const input = target ? { text: value, target: wanted } : { text: value };
    if (!same(input, store.get().input)) store.set({ input, symbol: null });
  };
  const later = debounce(run, 350);
  const onKey = (event) => {
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      run();
    }
  };
  const field = (id, value, placeholder) =>
    h(
      "textarea",
      { id, rows: 1, spellcheck: "false", placeholder, data: { focus: id }, disabled: isSaved, on: { input: later, keydown: onKey } },
      value ?? "",
    );
  const text = field("text", state.input?.text, "");
  const target = model.input === "pair" ? field("target", state.input?.target, t("input.own_translation")) : null;
  return h(
    "form",
    {
      class: target ? "texts pair" : "texts",
      on: {
        submit: (event) => {
          event.preventDefault();
          run();
        },
      },
    },
    h("div", {}, h("label", { for: "text", text: t(target ? "input.source" : "input.text") }), text),
    target && h("div", {}, h("label", { for: "target", text: t("input.target") }), target),
  );
}

export function mountInput(root, store) {
  view(
    root,
    store,
    (s) => [s.models, s.language, s.show === "B", s.input],
    (state) => {
      if (!state.models) return [];
      const model = state.models.models[state.show === "B" ? 1 : 0];
      document.body.classList.toggle("reads-files", model.input === "image" || model.input === "sound");
      const isFile = model.input === "image" || model.input === "sound";
      const focused = root.contains(document.activeElement) && document.activeElement.tagName === "TEXTAREA";
      if (focused) {
        // the person types: only the suggestions change
        root.querySelector(".samples")?.replaceWith(samples(store, state, model) ?? "");
        return [...root.childNodes];
      }
      return [isFile ? (isSaved ? null : fileInput(store, model)) : textInput(store, state, model), samples(store, state, model)];
    },
  );
}
