/** The parts of a model in the order in which data passes through them, and the quantities of each. */

import { t } from "explore/messages";

const BLOCK = /^(.+\.(?:blocks|layers)\.(\d+))\.(.+)$/;

/**
 * List the places of a pass.
 * @returns {Array<{id, kind, stack, block, prefix, layer}>} kind: "embedding", "attention", "feed-forward", "layer" or "output"
 */
export function listPlaces(pass) {
  const known = listed.get(pass.quantities);
  if (known && ["layers", "tokens", "outputs"].every((part) => known.pass[part] === pass[part])) return known.places;
  const places = findPlaces(pass);
  listed.set(pass.quantities, { pass, places });
  return places;
}

const listed = new WeakMap(); // by quantities; passes that differ in their edits share them

function findPlaces(pass) {
  const places = [];
  const byId = new Map();
  const add = (place) => {
    if (byId.has(place.id)) return;
    byId.set(place.id, place);
    places.push(place);
  };
  for (const quantity of pass.quantities) {
    const { address } = quantity;
    const inBlock = BLOCK.exec(address);
    if (inBlock) addBlock(pass, inBlock[1], Number(inBlock[2]), address, add);
    else if (/(^|_)embedding\./.test(address))
      add({ id: address.split(".")[0], kind: "embedding", prefix: address.split(".")[0], stack: stackOfEmbedding(pass, address) });
  }
  for (const layer of pass.layers) {
    // of long texts there are maps only
    const prefix = layer.address.slice(0, -layer.part.length - 1);
    add({ id: layer.address, kind: "attention", part: layer.part, stack: layer.stack, block: layer.block, prefix, layer });
  }
  const order = Object.keys(pass.tokens);
  const at = (place) => order.indexOf(place.stack);
  const output = { id: "output", kind: "output", stack: pass.outputs.stack, prefix: "" };
  for (const place of othersOf(pass, [...places, output])) add(place);
  places.sort((a, b) => at(a) - at(b));
  return [...places, output];
}

/** The places of quantities that no block, embedding or output has: the attention of a recurrent model, the end of an encoder. */
function othersOf(pass, places) {
  const known = new Set(places.flatMap((place) => quantitiesOf(pass, place)));
  const others = new Map();
  for (const quantity of pass.quantities.filter((each) => !known.has(each) && each.stack)) {
    const owner = quantity.address.replace(/(\.norm)?\.\w+$/, "");
    if (!others.has(owner)) others.set(owner, { id: owner, kind: "layer", stack: quantity.stack, prefix: owner, quantities: [] });
    others.get(owner).quantities.push(quantity);
  }
  return others.values();
}

/** Name a layer outside the blocks: the end of a stack, the stages before a Vision Transformer, else by its address. */
export function layerLabel(pass, { id }) {
  if (id in pass.tokens) return t("overview.end");
  return id.endsWith("stem.stages") ? t("overview.stem") : id;
}

function addBlock(pass, prefix, block, address, add) {
  const stack = prefix.split(".")[0];
  for (const part of ["attn", "cross"]) {
    const layer = pass.layers.find((each) => each.address === `${prefix}.${part}`);
    if (layer) add({ id: layer.address, kind: "attention", part, stack, block, prefix, layer });
  }
  if (address.startsWith(`${prefix}.ff.`)) add({ id: `${prefix}.ff`, kind: "feed-forward", stack, block, prefix });
  else if (!pass.layers.some((each) => each.address.startsWith(`${prefix}.`))) add({ id: prefix, kind: "layer", stack, block, prefix });
}

function stackOfEmbedding(pass, address) {
  const stacks = Object.keys(pass.tokens);
  if (address.startsWith("source_")) return "encoder";
  if (address.startsWith("target_")) return "decoder";
  return stacks[0];
}

const NORM = ["x", "mean", "mean_square", "variance", "scale", "normalized", "out"];
const ATTENTION = [
  "q_proj",
  "k_proj",
  "v_proj",
  "q",
  "k",
  "v",
  "dot_products",
  "scores",
  "masked_scores",
  "logsumexp",
  "weights",
  "z",
  "concat",
  "head_out",
  "out",
];
const FEED_FORWARD = ["router", "router_probs", "chosen", "gates", "pre", "gate", "up", "hidden", "out"];
const EMBEDDING = ["patches", "patch", "token", "cls", "position", "sum", "resid"];
const DETAILS = /\.(x|mean|mean_square|variance|scale|normalized|q_proj|k_proj|v_proj|dot_products|logsumexp|concat)$/;

/** Tell whether a quantity is a detail, which is shown on request only. */
export const isDetail = (address) => DETAILS.test(address);

/** Return the quantities of a place in the order of the computation. */
export function quantitiesOf(pass, place) {
  if (!contents.has(place)) contents.set(place, findQuantities(pass, place));
  return contents.get(place);
}

const contents = new WeakMap(); // of each place, once

function findQuantities(pass, place) {
  const all = new Map(pass.quantities.map((each) => [each.address, each]));
  const found = [];
  const take = (address) => {
    const quantity = all.get(address);
    if (quantity && !found.includes(quantity)) found.push(quantity);
  };
  const norm = (path) => NORM.forEach((name) => take(`${path}.${name}`));
  const p = place.prefix;
  if (place.kind === "embedding") EMBEDDING.forEach((name) => take(`${p}.${name}`));
  else if (place.kind === "output") {
    norm(`${place.stack}.norm`);
    [`${place.stack}.out`, "pooled", "last_hidden", "logits", "probs", "log_probs"].forEach(take);
  } else if (place.kind === "attention" && place.part) {
    const residual = `${p}.${place.part}_residual`;
    const isPre = all.has(`${place.stack}.norm.out`) || all.has(`${residual}.norm_out.out`) || !all.has(`${residual}.norm.out`);
    take(place.part === "attn" ? `${p}.resid_pre` : `${p}.resid_mid`);
    take(`${p}.depth.score`);
    if (isPre) norm(all.has(`${residual}.norm.out`) ? `${residual}.norm` : `${p}.norm`);
    ATTENTION.forEach((name) => take(`${place.layer.address}.${name}`));
    pass.quantities.filter((each) => each.address.startsWith(`${place.layer.address}.`)).forEach((each) => take(each.address));
    norm(`${residual}.norm_out`);
    if (!isPre) norm(`${residual}.norm`);
    take(place.part === "attn" ? `${p}.resid_mid` : `${p}.resid_cross`);
  } else if (place.kind === "feed-forward") {
    const residual = `${p}.ff_residual`;
    const isPre = all.has(`${place.stack}.norm.out`) || all.has(`${residual}.norm_out.out`) || !all.has(`${residual}.norm.out`);
    take(["resid_cross", "resid_mid", "resid_pre"].map((name) => `${p}.${name}`).find((each) => all.has(each)));
    if (isPre) norm(all.has(`${residual}.norm.out`) ? `${residual}.norm` : `${p}.norm`);
    FEED_FORWARD.forEach((name) => take(`${p}.ff.${name}`));
    pass.quantities.filter((each) => each.address.startsWith(`${p}.ff.`)).forEach((each) => take(each.address));
    norm(`${residual}.norm_out`);
    if (!isPre) norm(`${residual}.norm`);
    take(`${p}.resid_post`);
  } else if (place.quantities) place.quantities.forEach((each) => take(each.address));
  else pass.quantities.filter((each) => each.address.startsWith(`${p}.`)).forEach((each) => take(each.address));
  return found;
}

/** Return where a person starts: the last attention layer before the output. */
function firstPlace(pass, places) {
  const layers = places.filter((each) => each.kind === "attention");
  return layers.findLast((each) => each.stack === pass.outputs.stack) ?? layers[0] ?? places[0];
}

/** Return the place of the state, or the one where a person starts. */
export function currentPlace(state) {
  const places = listPlaces(state.loaded.pass);
  if (state.place === "heads" && state.loaded.pass.layers.length) return { id: "heads", kind: "heads", stack: null, prefix: "" };
  return places.find((each) => each.id === state.place) ?? firstPlace(state.loaded.pass, places);
}

/** Return the place that shows a quantity. */
export function placeOf(pass, address) {
  return listPlaces(pass).find((place) => quantitiesOf(pass, place).some((each) => each.address === address));
}

/** Return the key-value head that a query head reads. */
export function kvHead(quantity, head, nHeads) {
  const n = quantity.shape[quantity.axes.indexOf("kv_heads")];
  return Math.floor(head / Math.max(1, nHeads / n));
}
