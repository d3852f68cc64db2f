/** Save the view as one HTML file: the answers to the questions that the page would ask about this pass. */

import { ask } from "explore/api";
import { t } from "explore/messages";
import { listPlaces, quantitiesOf } from "explore/places";
import { calculationBody, chosenToken, hasLens, headBody, outputPosition, quantitiesBody, spoken } from "explore/session";
import { lasting } from "explore/state";
import { isLong } from "explore/view-heads";
import { fixedIndex } from "explore/view-vectors";

const MOST_CALCULATIONS = 64; // cells of the chosen row

/** List the requests whose answers the file needs: [name, body] each, none twice. */
export function requestsOf(state) {
  const { body, other, pass } = state.loaded;
  const bodies = [body, other].filter(Boolean);
  const found = [["models", {}], ...bodies.map((each) => ["vocabulary", { model: each.model }]), ...bodies.map((each) => ["pass", spoken(state, each)])];
  found.push(["quantities", quantitiesBody(state, body)]);
  if (pass.whole !== false) found.push(["certificates", spoken(state, body)]);
  if (body.edits.length) found.push(["pass", spoken(state, { ...body, edits: [] })]);
  const ask = (name, fields) => bodies.forEach((each) => found.push([name, name === "tensor" ? spoken(state, { ...each, ...fields }) : { ...each, ...fields }]));
  for (const layer of pass.layers.filter((each) => !isLong(each))) {
    ask("tensor", { name: `${layer.address}.weights` });
    for (let head = 0; head < layer.n_heads; head += 1) {
      ask("tensor", { name: `${layer.address}.weights`, index: { n_heads: head } });
      found.push(["head", headBody({ ...state, head }, layer)]);
    }
  }
  const seen = { ...state, loaded: state.loaded };
  for (const place of listPlaces(pass)) {
    for (const head of place.block === 0 ? [state.head, 0] : [state.head]) {
      // the tour is about head 0 of the first layers
      const one = { ...seen, head };
      for (const quantity of quantitiesOf(pass, place)) ask("tensor", { name: quantity.address, index: fixedIndex(one, place, quantity) });
    }
    if (place.layer && !isLong(place.layer)) found.push(...ofRow(seen, place.layer));
  }
  const position = outputPosition(state);
  if (pass.outputs.positions.length) {
    for (const at of pass.outputs.positions.slice(0, MOST_CALCULATIONS)) {
      ask("logits", { position: at });
      if (body.edits.length) found.push(["logits", { ...body, edits: [], position: at }]);
    }
    if (hasLens(pass)) ask("lens", { position });
    if (pass.layers.length && pass.whole !== false) found.push(["sweep", { ...body, position }]);
  }
  if (state.cell) found.push(["calculation", calculationBody(state, state.cell.name, state.cell.index)]);
  return [...new Map(found.map((each) => [JSON.stringify(each), each])).values()];
}

/** The row of weights of the chosen token, and the calculations of its cells for the head in view. */
function ofRow(state, layer) {
  const head = Math.min(state.head, layer.n_heads - 1);
  const query = chosenToken(state, layer.queries);
  const name = `${layer.address}.weights`;
  const rows = Array.from({ length: layer.n_heads }, (_, each) => [
    "tensor",
    spoken(state, { ...state.loaded.body, name, index: { n_heads: each, query } }),
  ]);
  const isShown = state.place === layer.address || state.place === null;
  const n = isShown ? Math.min(layer.shape[1], MOST_CALCULATIONS) : 0;
  const cells = Array.from({ length: n }, (_, key) => ["calculation", calculationBody(state, name, { n_heads: head, query, key })]);
  return [...rows, ...cells];
}

/** Ask for the file and hand it to the browser as a download. */
export async function saveView(state) {
  const { html } = await ask("export", { requests: requestsOf(state), state: lasting(state), language: state.language });
  const url = URL.createObjectURL(new Blob([html], { type: "text/html" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = `${t("share.file")}.html`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}
