/** The steps of the guided tour inside attention: queries and keys, positions, scores, weights and heads. */

import { ask } from "explore/api";
import { count, number, shown } from "explore/format";
import { listPlaces } from "explore/places";
import { chosenToken, modelOf, tensor } from "explore/session";
import { fixedIndex } from "explore/view-vectors";

export const layerOf = (pass) => pass.layers.find((each) => each.part === "attn") ?? pass.layers[0];
const maskedLayer = (pass) => pass.layers.find((each) => each.part === "attn" && each.stack === "decoder") ?? layerOf(pass);
const crossLayer = (pass) => pass.layers.find((each) => each.part === "cross");
/** Tell whether a model has attention in heads; that of a recurrent decoder has one map and no switch. */
export const isTransformer = (pass) => pass.layers.some((each) => each.switchable !== false);
export const has = (pass, address) => pass.quantities.some((each) => each.address === address);

/** Read a quantity for the head and token in view of a place. */
export async function read(state, place, address) {
  const quantity = state.loaded.pass.quantities.find((each) => each.address === address);
  return tensor(state, address, fixedIndex(state, place, quantity));
}

export const attentionPlace = (pass, layer) => listPlaces(pass).find((each) => each.id === layer.address);
const largest = (values) => values.reduce((best, value, i) => (value > values[best] ? i : best), 0);

export function tokenIn(state, stack) {
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
    when: (pass) => isTransformer(pass) && pass.whole !== false && has(pass, `${choose(pass).address}.${quantity}`),
    go: (pass) => ({ place: choose(pass).address, head: 0, details: Boolean(options.details) }),
    target: (pass) => `[data-quantity="${choose(pass).address}.${quantity}"]`,
    values: async (state) => tell(await inLayer(state, choose(state.loaded.pass)), state, choose(state.loaded.pass)),
  };
}

const hasBias = ({ position, softcap }) => ["alibi", "relative"].includes(position) && !softcap;

/** The first pair of numbers that rotary positions turn, before and after, of the query in view. */
const rotaryStep = {
  ...attentionStep(
    "rotary",
    "q",
    async ({ get, values }, state, layer) => {
      const normed = has(state.loaded.pass, `${layer.address}.q_norm.out`);
      const [before, after] = await Promise.all([normed ? "q_norm.out" : "q_proj", "q"].map(get));
      const other = modelOf(state).rotary_dim / 2; // its partner is half of the rotated numbers further on
      const pair = (x) => `(${number(x[0])}, ${number(x[other])})`;
      return { ...values, other: other + 1, before: pair(before), after: pair(after) };
    },
    { details: true },
  ),
  message: (pass, { i }) => (i === 0 ? "rotary_start" : "rotary"),
};

/** What positions add to the score of the strongest key other than the query's own. */
const biasStep = attentionStep(
  "bias",
  "scores",
  async ({ get, weights, values }, state, layer) => {
    const { queries, keys } = layer;
    const others = weights.map((weight, key) => (queries === keys && key === values.i ? -1 : weight));
    const key = largest(others);
    const [products, scores, q] = await Promise.all(["dot_products", "scores", "q"].map(get));
    const scaled = products[key] / Math.sqrt(q.length);
    const bias = scores[key] - scaled;
    return {
      ...values,
      key: shown(state.loaded.pass.tokens[keys][key]?.text ?? String(key)),
      scaled: number(scaled),
      bias: bias < 0 ? `(${number(bias)})` : number(bias),
      score: number(scores[key]),
    };
  },
  { details: true },
);

/** Return the layer and head in which the chosen word of the translation gives most weight to one word of the source. */
async function clearestCross(state) {
  const { pass } = state.loaded;
  let best = { weight: -1 };
  for (const layer of pass.layers.filter((each) => each.part === "cross")) {
    const query = chosenToken(state, layer.queries);
    const { values, shape } = await tensor(state, `${layer.address}.weights`);
    for (let head = 0; head < shape[0]; head += 1) {
      const start = (head * shape[1] + query) * shape[2];
      values.subarray(start, start + shape[2]).forEach((weight, key) => {
        if (weight > best.weight && !pass.tokens[layer.keys][key]?.special) best = { weight, layer, head, key, query };
      });
    }
  }
  return best;
}

/** The head of cross-attention that is clearest for the chosen word of the translation, which it follows. */
export const crossStep = {
  id: "cross",
  follows: true,
  when: (pass) => pass.whole !== false && pass.layers.some((each) => each.part === "cross"),
  go: async (pass, state) => {
    const { layer, head } = await clearestCross(state);
    return { place: layer.address, head, details: false };
  },
  target: () => "#row",
  values: async (state) => {
    const { body, pass } = state.loaded;
    const { layer, head, key, query, weight } = await clearestCross(state);
    const logits = await ask("logits", { ...body, position: query });
    return {
      ...tokenIn(state, layer.queries),
      n: count(pass.layers.filter((each) => each.part === "cross").reduce((sum, each) => sum + each.n_heads, 0)),
      head,
      block: layer.block,
      symbol: shown(state.vocabulary?.[largest(logits.values)] ?? ""),
      key: shown(pass.tokens[layer.keys][key].text),
      weight: number(weight),
    };
  },
  message: (pass) => (isTransformer(pass) ? "cross" : "cross_one"),
};

export const ATTENTION_STEPS = [
  attentionStep("qkv", "q", async ({ get, values }) => {
    const [q, k, v] = await Promise.all(["q", "k", "v"].map(get));
    return { ...values, n: q.length, q: number(q[0]), k: number(k[0]), v: number(v[0]) };
  }),
  { ...rotaryStep, when: (pass, model) => model.rotary_dim > 0 && rotaryStep.when(pass) },
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
      const [products, q] = await Promise.all(["dot_products", "q"].map(get));
      const root = Math.sqrt(q.length);
      return { ...values, d: q.length, root: number(root), product: number(products[key]), score: number(products[key] / root) };
    },
    { details: true },
  ),
  {
    ...biasStep,
    when: (pass, model) => hasBias(model) && biasStep.when(pass),
    message: (pass, values, model) => `bias_${model.position}`,
  },
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
    message: (pass, { hidden }) => {
      if (maskedLayer(pass).stack !== "decoder") return "no_mask";
      return hidden > 0 ? "mask" : "mask_last";
    },
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
    when: (pass) => isTransformer(pass) && layerOf(pass).n_heads > 1 && pass.whole !== false,
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
];
