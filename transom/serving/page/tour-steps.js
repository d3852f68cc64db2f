/** The guided tour in the order of the articles: where each step is, and the numbers that it tells. */

import { ask } from "explore/api";
import { count, number, shown } from "explore/format";
import { listPlaces, quantitiesOf } from "explore/places";
import { chosenToken, logitsBodies, modelOf } from "explore/session";
import { descending, sigmoid, softmax } from "explore/softmax";
import { ATTENTION_STEPS, attentionPlace, crossStep, has, isTransformer, layerOf, read, tokenIn } from "explore/tour-attention";

const placeWith = (pass, test) => listPlaces(pass).find((place) => quantitiesOf(pass, place).some((each) => test(each.address)));

const embeddingPlace = (pass) => listPlaces(pass).find((each) => each.kind === "embedding");
const spread = (values) => {
  const mean = values.reduce((sum, x) => sum + x, 0) / values.length;
  return { mean, deviation: Math.sqrt(values.reduce((sum, x) => sum + (x - mean) ** 2, 0) / values.length) };
};

const embeddingStep = (id, name) => ({
  id,
  when: (pass) => Boolean(embeddingPlace(pass)) && has(pass, `${embeddingPlace(pass).prefix}.${name}`),
  go: (pass) => ({ place: embeddingPlace(pass).id }),
  target: (pass) => `[data-quantity="${embeddingPlace(pass).prefix}.${name}"]`,
  values: async (state) => {
    const place = embeddingPlace(state.loaded.pass);
    const { values } = await read(state, place, `${place.prefix}.${name}`);
    return { ...tokenIn(state, place.stack), n: count(values.length), first: number(values[0]), next: number(values[1]) };
  },
});

const normOf = (pass) => (address) =>
  address.startsWith(layerOf(pass)?.stack ?? "") && /blocks\.0\.(attn_residual\.)?norm\.out$/.test(address);

/** The output position of the chosen token, so that vectors and probabilities are of the same word; null for the usual one. */
function answerPosition(pass, state) {
  const { stack, per_token: perToken, positions } = pass.outputs;
  const chosen = chosenToken(state, stack);
  return perToken && positions.includes(chosen) ? chosen : null;
}

const hasAnswer = (pass) => pass.outputs.positions.length > 0;

const answerValues = async (state) => {
  const { values, multi_label: several } = await ask("logits", logitsBodies(state).now);
  const order = descending(values);
  const name = (symbol) => shown(state.vocabulary?.[symbol] ?? String(symbol));
  const p = (temperature) => number((several ? sigmoid(values) : softmax(values, temperature))[order[0]]);
  return {
    n: count(values.length),
    symbol: name(order[0]),
    second: name(order[1] ?? order[0]),
    logit: number(values[order[0]]),
    logit2: number(values[order[1] ?? order[0]]),
    p: p(1),
    cold: p(0.5),
    hot: p(2),
    several,
  };
};

export const STEPS = [
  {
    id: "tokens",
    when: () => true,
    go: () => ({}),
    target: () => "#tokens",
    values: (state) => {
      const { pass } = state.loaded;
      const [stack, row] = Object.entries(pass.tokens)[0];
      return { ...tokenIn(state, stack), n: count(row.length) };
    },
    message: (pass) => (pass.image ? "patches" : "tokens"),
  },
  embeddingStep("embedding", "token"),
  embeddingStep("patch", "patch"),
  {
    ...embeddingStep("position", "position"),
    message: (pass, values, { position }) => (["learned", "sinusoidal-2d"].includes(position) ? `position_${position}` : "position"),
  },
  {
    id: "no_position",
    when: (pass, { position }) => position === "none" && isTransformer(pass),
    go: () => ({}),
    target: () => "#tokens",
    values: () => ({}),
  },
  ...ATTENTION_STEPS,
  {
    id: "residual",
    when: (pass) =>
      isTransformer(pass) &&
      pass.whole !== false &&
      has(pass, `${layerOf(pass).address}.out`) &&
      has(pass, layerOf(pass).address.replace(/attn$/, "resid_pre")),
    go: (pass) => ({ place: layerOf(pass).address, details: false }),
    target: (pass) => `[data-quantity="${layerOf(pass).address.replace(/attn$/, "resid_pre")}"]`,
    values: async (state) => {
      const { pass } = state.loaded;
      const place = attentionPlace(pass, layerOf(pass));
      const [x, y] = await Promise.all([`${place.prefix}.resid_pre`, `${place.layer.address}.out`].map((each) => read(state, place, each)));
      return {
        ...tokenIn(state, place.stack),
        x: number(x.values[0]),
        y: y.values[0] < 0 ? `(${number(y.values[0])})` : number(y.values[0]),
        sum: number(x.values[0] + y.values[0]),
      };
    },
  },
  {
    id: "norm",
    when: (pass) => pass.quantities.some((each) => normOf(pass)(each.address)),
    go: (pass) => ({ place: placeWith(pass, normOf(pass)).id, details: true }),
    target: (pass) => `[data-quantity="${pass.quantities.find((each) => normOf(pass)(each.address)).address}"]`,
    values: async (state) => {
      const { pass } = state.loaded;
      const { address } = pass.quantities.find((each) => normOf(pass)(each.address));
      const place = placeWith(pass, normOf(pass));
      const [x, y] = await Promise.all([address.replace(/out$/, "x"), address].map((each) => read(state, place, each)));
      const [before, after] = [spread(x.values), spread(y.values)];
      return {
        ...tokenIn(state, place.stack),
        mean: number(before.mean),
        deviation: number(before.deviation),
        mean2: number(after.mean),
        deviation2: number(after.deviation),
      };
    },
  },
  {
    id: "feed_forward",
    when: (pass) => listPlaces(pass).some((each) => each.kind === "feed-forward" && has(pass, `${each.id}.hidden`)),
    go: (pass) => ({ place: listPlaces(pass).find((each) => each.kind === "feed-forward").id, details: false }),
    target: (pass) => `[data-quantity="${listPlaces(pass).find((each) => each.kind === "feed-forward").id}.hidden"]`,
    values: async (state) => {
      const place = listPlaces(state.loaded.pass).find((each) => each.kind === "feed-forward");
      const [hidden, out] = await Promise.all(["hidden", "out"].map((name) => read(state, place, `${place.id}.${name}`)));
      return {
        ...tokenIn(state, place.stack),
        n: count(hidden.values.length),
        d: count(out.values.length),
        active: count(hidden.values.filter((each) => each > 0).length),
      };
    },
  },
  {
    id: "blocks",
    when: isTransformer,
    go: (pass) => ({ place: pass.layers.length > 1 ? "heads" : layerOf(pass).address }),
    target: () => "#overview",
    values: (state) => ({
      n: modelOf(state).stacks.map((each) => each.n_blocks).join(" + "),
      heads: state.loaded.pass.layers.reduce((sum, each) => sum + each.n_heads, 0),
    }),
    message: (pass) => (hasAnswer(pass) ? "blocks" : "blocks_vector"),
  },
  crossStep,
  {
    id: "vector",
    when: (pass) => !hasAnswer(pass) && has(pass, "last_hidden"),
    go: () => ({ place: "output" }),
    target: () => '[data-quantity="last_hidden"]',
    values: async (state) => {
      const place = listPlaces(state.loaded.pass).find((each) => each.kind === "output");
      const { values } = await read(state, place, "last_hidden");
      return { n: count(values.length), first: number(values[0]), next: number(values[1]) };
    },
  },
  {
    id: "logits",
    when: hasAnswer,
    go: (pass, state) => ({ place: "output", position: answerPosition(pass, state), temperature: 1, topK: 0, topP: 1 }),
    target: () => "#vectors",
    values: answerValues,
    message: (pass) => (pass.outputs.per_token ? "logits" : "logits_pooled"),
  },
  {
    id: "temperature",
    when: hasAnswer,
    go: (pass, state) => ({ place: "output", position: answerPosition(pass, state) }),
    target: () => "#answer",
    values: answerValues,
    message: (pass, { several }) => (several ? "sigmoid" : "temperature"),
  },
  {
    id: "decoding",
    when: hasAnswer,
    go: () => ({}),
    target: () => "#answer",
    values: answerValues,
    message: (pass, { several }) => (pass.outputs.stack === "decoder" ? "decoding" : several ? "decision_several" : "decision"),
  },
];

/** Return the steps that a pass of the model in view has. */
export const stepsOf = (state) => STEPS.filter((step) => step.when(state.loaded.pass, modelOf(state)));
