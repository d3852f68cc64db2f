/** Questions about the pass in view: its tensors, logits and what its heads do. With two models in view, the difference. */

import { ask, canonical, savedLanguage } from "explore/api";
import { t } from "explore/messages";

/** Return the description of the model in view; of a difference, the first. */
export const modelOf = (state) => state.models.models[state.show === "B" ? 1 : 0];

/** Return the fields that identify a pass: of the model in view, or of a given one. */
export function passBody(state, model = state.show === "B" ? 1 : 0) {
  return { model, input: state.input, edits: state.edits };
}

/** Return a request with the language of the page, in which the server answers; a saved file has its answers in one language only. */
export function spoken(state, body) {
  return { ...body, language: savedLanguage ?? state.language };
}

const EMBEDDER = "text-embedder"; // gives vectors; its logits are similarities of a batch

/** Return an object with the equal parts of an older one, so that what depends on them is not drawn again. */
function sharing(found, older) {
  const isSame = (key) => older && JSON.stringify(older[key]) === JSON.stringify(found[key]);
  return Object.fromEntries(Object.keys(found).map((key) => [key, isSame(key) ? older[key] : found[key]]));
}

/** Return what the pass computes: all quantities of the input but those that the pass lacks. */
async function fetchQuantities(state, body, { idle }) {
  const { quantities } = await ask("quantities", quantitiesBody(state, body));
  return idle.length ? quantities.filter((each) => !idle.includes(each.address)) : quantities;
}

/** Return the request for the quantities of an input, which all its passes have. */
export function quantitiesBody(state, { model, input }) {
  return spoken(state, { model, input });
}

const drawn = new WeakMap(); // by body of a pass: the tensors that its views asked for, each with the choices that were in force

const choices = (state) => [state.place, state.head, state.tokens];

function remember(state, question) {
  const { body } = state.loaded;
  if (!drawn.has(body)) drawn.set(body, new Map());
  drawn.get(body).set(canonical(question), { question, chosen: choices(state) });
}

/** Ask for what the page shows of the last pass, of the next one: the views will, but only once they know that pass. */
function askAhead(state, body) {
  const { body: last, pass } = state.loaded;
  if (pass.outputs.positions.length) ask("logits", { ...body, position: outputPosition(state) }).catch(() => {}); // as the views, which show errors
  const now = choices(state);
  for (const { question, chosen } of drawn.get(last)?.values() ?? [])
    if (chosen.every((each, i) => Object.is(each, now[i]))) ask("tensor", spoken(state, { ...body, ...question })).catch(() => {});
}

function withoutAnswer(pass) {
  const quantities = pass.quantities.filter((each) => !["logits", "probs", "log_probs"].includes(each.address));
  return { ...pass, quantities, outputs: { ...pass.outputs, positions: [] } };
}

/** Ask for the pass of the state: {body, other, pass}; `other` is the second pass of a difference. */
export async function loadPass(state) {
  const body = passBody(state);
  const other = state.show === "diff" ? passBody(state, 1) : null;
  const last = state.loaded?.body;
  const asked = [body, other].map((each) => each && ask("pass", spoken(state, each)));
  if (last && !other && last.input === body.input && last.model === body.model) askAhead(state, body);
  const [found] = await Promise.all(asked);
  const quantities = await fetchQuantities(state, body, found);
  const whole = { ...sharing(found, state.loaded?.pass), quantities };
  const pass = state.models.models[body.model].kind === EMBEDDER ? withoutAnswer(whole) : whole;
  const loaded = { body, other, pass };
  if (pass.outputs.positions.length) {
    // asked first, so that the probabilities move first
    for (const each of Object.values(logitsBodies({ ...state, loaded }))) {
      if (each) ask("logits", each).catch(() => {}); // the panel of the answer asks again, and shows the error
    }
  }
  return loaded;
}

/** Return a tensor of the pass in view: {address, axes, shape, values, ...}; of two passes, the first minus the second. */
export async function tensor(state, name, index = undefined) {
  const { body, other } = state.loaded;
  remember(state, { name, index });
  const question = (which) => ask("tensor", spoken(state, { ...which, name, index }));
  if (!other) return question(body);
  const [a, b] = await Promise.all([question(body), question(other)]);
  if (a.values.length !== b.values.length) throw Object.assign(new Error(t("compare.shapes")), { isAnswer: true });
  return { ...a, values: a.values.map((value, i) => value - b.values[i]) };
}

/** Return the request for a cell's hand calculation. */
export function calculationBody(state, name, index) {
  const body = spoken(state, { ...state.loaded.body, name, index });
  return state.temperature !== 1 && /(^|\.)(log_)?probs$/.test(name) ? { ...body, temperature: state.temperature } : body;
}

/** Tell whether the residual stream after each block leads to an answer, so that it can be read there. */
export function hasLens({ whole, outputs, quantities }) {
  return whole !== false && outputs.positions.length > 0 && quantities.some((each) => each.address.endsWith(".resid_post"));
}

/** Return the output position in view. */
export function outputPosition(state) {
  const { positions, default: usual } = state.loaded.pass.outputs;
  return positions.includes(state.position) ? state.position : usual;
}

/** Return the request for what the head in view does to the word in view. */
export function headBody(state, layer) {
  return spoken(state, {
    ...state.loaded.body,
    attention: layer.address,
    head: Math.min(state.head, layer.n_heads - 1),
    query: chosenToken(state, layer.queries),
    position: outputPosition(state),
    symbol: state.symbol,
  });
}

/** Return the requests for a position's logits: with the edits in force, without them, and of the second model. */
export function logitsBodies(state) {
  const position = outputPosition(state);
  const { body, other } = state.loaded;
  return {
    now: { ...body, position },
    before: body.edits.length && !other ? { ...body, edits: [], position } : null,
    other: other && { ...other, position },
  };
}

/** Return the position of the chosen token of a stack: the person's choice, or the one that answers, or the first word. */
export function chosenToken(state, stack) {
  const { tokens, outputs } = state.loaded.pass;
  const row = tokens[stack] ?? [];
  const chosen = state.tokens[stack];
  if (chosen !== undefined && chosen < row.length) return chosen;
  if (stack === outputs.stack && outputs.per_token && outputs.default < row.length) return outputs.default;
  return Math.max(
    0,
    row.findIndex((each) => !each.special),
  );
}

/** Merge heads that are off into edits, one per layer. */
export function toggleHead(edits, layer, head) {
  const same = (edit) => isHeadOff(edit) && edit.stack === layer.stack && edit.part === layer.part && edit.blocks[0] === layer.block;
  const found = edits.find(same);
  const heads = new Set(found?.heads ?? []);
  if (!heads.delete(head)) heads.add(head);
  const others = edits.filter((edit) => edit !== found);
  if (!heads.size) return others;
  const edit = {
    kind: "ablate-heads",
    stack: layer.stack,
    part: layer.part,
    blocks: [layer.block],
    heads: [...heads].sort((a, b) => a - b),
  };
  return [...others, edit];
}

/** Tell whether an edit switches heads off as this page does. */
export function isHeadOff(edit) {
  return (
    edit.kind === "ablate-heads" && (edit.value ?? "zero") === "zero" && !edit.positions && edit.blocks?.length === 1 && Boolean(edit.heads)
  );
}

/** Tell whether a head is switched off. */
export function headIsOff(edits, layer, head) {
  return edits.some(
    (edit) =>
      isHeadOff(edit) &&
      edit.stack === layer.stack &&
      edit.part === layer.part &&
      edit.blocks[0] === layer.block &&
      edit.heads.includes(head),
  );
}
