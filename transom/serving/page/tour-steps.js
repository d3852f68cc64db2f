/** The guided tour in the order of the articles: where each step is, and the numbers that it tells. */

import { ask } from "explore/api";
import { count, number, shown } from "explore/format";
import { listPlaces, quantitiesOf } from "explore/places";
import { chosenToken, logitsBodies, tensor } from "explore/session";
import { descending, softmax } from "explore/softmax";
import { fixedIndex } from "explore/view-vectors";

const layerOf = (pass) => pass.layers.find((each) => each.part === "attn") ?? pass.layers[0];
const maskedLayer = (pass) => pass.layers.find((each) => each.part === "attn" && each.stack === "decoder") ?? layerOf(pass);
const crossLayer = (pass) => pass.layers.find((each) => each.part === "cross");
const has = (pass, address) => pass.quantities.some((each) => each.address === address);
const placeWith = (pass, test) => listPlaces(pass).find((place) => quantitiesOf(pass, place).some((each) => test(each.address)));

/** Read a quantity for the head and token in view of a place. */
async function read(state, place, address) {
  const quantity = state.loaded.pass.quantities.find((each) => each.address === address);
  return tensor(state, address, fixedIndex(state, place, quantity));
}

const embeddingPlace = (pass) => listPlaces(pass).find((each) => each.kind === "embedding");
const attentionPlace = (pass, layer) => listPlaces(pass).find((each) => each.id === layer.address);
const largest = (values) => values.reduce((best, value, i) => (value > values[best] ? i : best), 0);
const spread = (values) => {
  const mean = values.reduce((sum, x) => sum + x, 0) / values.length;
  return { mean, deviation: Math.sqrt(values.reduce((sum, x) => sum + (x - mean) ** 2, 0) / values.length) };
};

function tokenIn(state, stack) {
  const at = chosenToken(state, stack);
  const token = state.loaded.pass.tokens[stack]?.[at];
  return { token: shown(token?.text ?? ""), id: token?.id ?? at, i: at };
}

/** What the steps inside one attention layer share: words, the strongest key, and a reader of its quantities. */
async function inLayer(state, layer) {
  const { pass } = state.loaded;
  const place = attentionPlace(pass, layer);
  const get = async (name) => (await read(state, place, `${layer.address}.${name}`)).values;
  const weights = await get("weights");
  const key = largest(weights);
  return {
    get,
    weights,
    key,
    values: { ...tokenIn(state, layer.queries), key: shown(pass.tokens[layer.keys][key]?.text ?? String(key)), head: state.head },
  };
}

/** A step inside the first attention layer, which marks one of its quantities. */
function attentionStep(id, quantity, tell, options = {}) {
  const choose = options.layer ?? layerOf;
  return {
    id,
    when: (pass) => pass.layers.length > 0 && pass.whole !== false && has(pass, `${choose(pass).address}.${quantity}`),
    go: (pass) => ({ place: choose(pass).address, head: 0, details: Boolean(options.details) }),
    target: (pass) => `[data-quantity="${choose(pass).address}.${quantity}"]`,
    values: async (state) => tell(await inLayer(state, choose(state.loaded.pass)), state, choose(state.loaded.pass)),
  };
}

const embeddingStep = (id, name) => ({
  id,
  when: (pass) => Boolean(embeddingPlace(pass)) && has(pass, `${embeddingPlace(pass).prefix}.${name}`),
  go: (pass) => ({ place: embeddingPlace(pass).id }),
  target: (pass) => `[data-quantity="${embeddingPlace(pass).prefix}.${name}"]`,
  values: async (state) => {
    const place = embeddingPlace(state.loaded.pass);
    const { values } = await read(state, place, `${place.prefix}.${name}`);
    return { ...tokenIn(state, place.stack), n: count(values.length), first: number(values[0]), second: number(values[1]) };
  },
});

const normOf = (pass) => (address) =>
  address.startsWith(layerOf(pass)?.stack ?? "") && /blocks\.0\.(attn_residual\.)?norm\.out$/.test(address);

const answerValues = async (state) => {
  const { values } = await ask("logits", logitsBodies(state).now);
  const order = descending(values);
  const name = (symbol) => shown(state.vocabulary?.[symbol] ?? String(symbol));
  const p = (temperature) => number(softmax(values, temperature)[order[0]]);
  return {
    n: count(values.length),
    symbol: name(order[0]),
    second: name(order[1] ?? order[0]),
    logit: number(values[order[0]]),
    logit2: number(values[order[1] ?? order[0]]),
    p: p(1),
    cold: p(0.5),
    hot: p(2),
    answer: state.loaded.pass.answer || name(order[0]),
  };
};
const hasAnswer = (pass) => pass.outputs.positions.length > 0;

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
  embeddingStep("position", "position"),
  attentionStep("qkv", "q", async ({ get, values }) => {
    const [q, k, v] = await Promise.all(["q", "k", "v"].map(get));
    return { ...values, n: q.length, q: number(q[0]), k: number(k[0]), v: number(v[0]) };
  }),
  attentionStep(
    "scores",
    "dot_products",
    async ({ get, key, values }) => ({ ...values, product: number((await get("dot_products"))[key]) }),
    { details: true },
  ),
  attentionStep(
    "scaling",
    "scores",
    async ({ get, key, values }) => {
      const [products, scores, q] = await Promise.all(["dot_products", "scores", "q"].map(get));
      return { ...values, d: q.length, root: number(Math.sqrt(q.length)), product: number(products[key]), score: number(scores[key]) };
    },
    { details: true },
  ),
  {
    ...attentionStep(
      "mask",
      "masked_scores",
      async ({ get, values }) => {
        const masked = await get("masked_scores");
        return { ...values, n: masked.length, hidden: masked.filter((each) => each === -Infinity).length };
      },
      { layer: maskedLayer },
    ),
    message: (pass) => (maskedLayer(pass).stack === "decoder" ? "mask" : "no_mask"),
  },
  attentionStep("softmax", "weights", ({ weights, key, values }) => ({ ...values, weight: number(weights[key]), n: weights.length })),
  attentionStep("values", "z", async ({ get, weights, key, values }) => ({
    ...values,
    weight: number(weights[key]),
    z: number((await get("z"))[0]),
    n: weights.length,
  })),
  {
    id: "heads",
    when: (pass) => pass.layers.length > 0 && layerOf(pass).n_heads > 1 && pass.whole !== false,
    go: (pass) => ({ place: layerOf(pass).address, head: 0, details: false }),
    target: () => "#heads",
    values: async (state) => {
      const { pass } = state.loaded;
      const layer = layerOf(pass);
      const tell = async (head) => await inLayer({ ...state, head }, layer);
      const [one, two] = await Promise.all([tell(0), tell(1)]);
      return {
        ...one.values,
        n: layer.n_heads,
        weight: number(one.weights[one.key]),
        key2: two.values.key,
        weight2: number(two.weights[two.key]),
      };
    },
  },
  attentionStep("projection", "out", async ({ get, values }, state, layer) => {
    const [z, out] = await Promise.all(["z", "out"].map(get));
    return { ...values, n: layer.n_heads, width: count(layer.n_heads * z.length), d: count(out.length), out: number(out[0]) };
  }),
  {
    id: "residual",
    when: (pass) =>
      pass.layers.length > 0 &&
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
    when: (pass) => pass.layers.length > 0,
    go: (pass) => ({ place: pass.layers.length > 1 ? "heads" : layerOf(pass).address }),
    target: () => "#overview",
    values: (state) => ({
      n: state.models.models[0].stacks.map((each) => each.n_blocks).join(" + "),
      heads: state.loaded.pass.layers.reduce((sum, each) => sum + each.n_heads, 0),
    }),
  },
  {
    ...attentionStep("cross", "weights", ({ weights, key, values }) => ({ ...values, weight: number(weights[key]) }), {
      layer: crossLayer,
    }),
    when: (pass) => Boolean(crossLayer(pass)) && pass.whole !== false,
  },
  {
    id: "logits",
    when: hasAnswer,
    go: () => ({ place: "output", position: null, temperature: 1, topK: 0, topP: 1 }),
    target: () => "#vectors",
    values: answerValues,
  },
  { id: "temperature", when: hasAnswer, go: () => ({ place: "output", position: null }), target: () => "#answer", values: answerValues },
  {
    id: "decoding",
    when: hasAnswer,
    go: () => ({}),
    target: () => "#answer",
    values: answerValues,
    message: (pass) => (pass.outputs.stack === "decoder" ? "decoding" : "decision"),
  },
];

/** Return the steps that a pass has. */
export const stepsOf = (pass) => STEPS.filter((step) => step.when(pass));
