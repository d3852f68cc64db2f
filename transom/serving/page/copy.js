/** The view as Python lines and as a command line. */

import { currentPlace } from "explore/places";
import { chosenToken } from "explore/session";

/** Copy a text; where a browser allows no clipboard, through a selected field. */
export async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const field = document.createElement("textarea");
  field.value = text;
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  if (!done) throw new Error(text);
  return undefined;
}

const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

/** Write a value as a Python literal. */
export function python(value) {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object")
    return `{${Object.entries(value)
      .map(([key, item]) => `${python(key)}: ${python(item)}`)
      .join(", ")}}`;
  return JSON.stringify(value);
}

const ALL_HEADS = "*.weights"; // of every layer, cross-attention too

/** The quantity in view, with its head and token. */
function inView(state) {
  const place = currentPlace(state);
  if (place.layer) return { name: `${place.layer.address}.weights`, head: state.head, query: chosenToken(state, place.layer.queries) };
  if (place.kind === "output" || place.kind === "heads") return { name: place.kind === "output" ? "probs" : ALL_HEADS };
  return {
    name: place.kind === "embedding" ? `${place.prefix}.resid` : `${place.prefix}.resid_post`,
    query: chosenToken(state, place.stack),
  };
}

const folder = (state) => {
  const model = state.models.models[state.show === "B" ? 1 : 0];
  return model.folder ?? model.name;
};

const readSample = (state, sample) => `load_sample(${python(folder(state))}, ${python(sample)}).to(run.model.device)`;

/** Return Python lines that read what is in view. */
export function viewAsPython(state) {
  const { copied } = state.loaded.pass;
  const { name, head, query } = inView(state);
  const { file, target } = state.input;
  const given = file || target ? "batch" : python(state.input.text);
  const lines = ["import transom", "", `run = transom.load(${python(folder(state))}, "fp32")`];
  if (target)
    lines.push(
      "from transom.inspection.example_batch import build_example_batch",
      `batch = build_example_batch(run, ${python(state.input.text)}, None, target=${python(target)}).batch`,
    );
  if (copied.sample || copied.samples.length) lines.push("from transom.tasks.run_data import load_sample");
  if (copied.sample) lines.push(`batch = ${readSample(state, copied.sample)}`);
  else if (file)
    lines.push(
      "from pathlib import Path",
      "from transom.inspection.example_batch import build_example_batch",
      `batch = build_example_batch(run, None, Path(${python(copied.file)})).batch`,
    );
  const read = [
    `logits, trace = transom.trace(run, ${given}, [${python(name)}])`,
    ...(name === ALL_HEADS
      ? ["print({address: x.shape for address, x in trace.items()})"]
      : [`print(trace[${python(name)}][${[0, head, query].filter((each) => each !== undefined).join(", ")}])`]),
  ];
  if (!state.edits.length) return [...lines, ...read].join("\n");
  const inputs = copied.samples.map((sample) => `${python(sample)}: ${readSample(state, sample)}`);
  const scope = inputs.length ? `run, edits, inputs={${inputs.join(", ")}}` : "run, edits";
  return [...lines, `edits = ${python(copied.edits)}`, `with transom.edits(${scope}):`, ...read.map((line) => `    ${line}`)].join("\n");
}

/** Return a command line that prints what is in view. */
export function viewAsCommand(state) {
  const { copied } = state.loaded.pass;
  const { name, head, query } = inView(state);
  const words = [
    "transom",
    "trace",
    quoted(folder(state)),
    ...(copied.sample
      ? ["--sample", quoted(copied.sample)]
      : state.input.file
        ? ["--input", quoted(copied.file)]
        : [quoted(state.input.text)]),
    ...(state.input.target ? ["--target", quoted(state.input.target)] : []),
    "--names",
    name === ALL_HEADS ? quoted(name) : name,
  ];
  if (head !== undefined) words.push("--heads", head);
  if (query !== undefined) words.push("--positions", query);
  if (!state.edits.length) return words.join(" ");
  const before = [];
  const edits = copied.edits.map(({ text, ...edit }, i) => {
    if (!copied.samples.includes(text)) return text === undefined ? edit : { ...edit, text };
    const trace = ["transom", "trace", quoted(folder(state)), "--sample", quoted(text), "--names", edit.name];
    before.push(`${trace.join(" ")} --out patch-${i}.safetensors`);
    return { ...edit, file: `patch-${i}.safetensors` };
  });
  const file = JSON.stringify({ version: 1, edits });
  return [...before, `printf '%s' ${quoted(file)} > edits.json`, `${words.join(" ")} --edit edits.json`].join("\n");
}
