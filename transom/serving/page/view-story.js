/** What a head does to a word, in plain words with its numbers. */

import { ask } from "explore/api";
import { button, h, view } from "explore/dom";
import { number, shown, signed } from "explore/format";
import { rich, t } from "explore/messages";
import { currentPlace } from "explore/places";
import { headBody, headIsOff, outputPosition, toggleHead } from "explore/session";
import { word } from "explore/view-row";
import { ofFirst } from "explore/whose";

const SMALL = 0.001; // changes of probabilities below it are not told one by one
const CLEAR = 0.5; // a head that puts more than half of its weight on one place has a role there

function list(nodes) {
  return nodes.flatMap((node, i) => (i ? [", ", node] : [node]));
}

const joined = (nodes) => h("span", {}, list(nodes));

function looks(pass, layer, query, told) {
  const at = (key) =>
    h("span", {}, word(pass.tokens[layer.keys][key.position]), " ", h("span", { class: "number", text: number(key.weight) }));
  const best = told.keys.slice(0, 3);
  const spread = Math.exp(told.entropy);
  const sentences = [
    h(
      "p",
      {},
      rich("story.looks", { query: word(pass.tokens[layer.queries][query]), keys: joined(best.map(at)), spread: spread.toFixed(1) }),
    ),
  ];
  if (layer.queries !== layer.keys) return sentences;
  const places = { previous: query - 1, self: query, first: 0 };
  const weight = (role) => told.keys.find((key) => key.position === places[role])?.weight ?? 0;
  const role = Object.keys(places).find((each) => weight(each) > CLEAR);
  if (role) sentences.push(h("p", {}, rich(`story.${role}`, { weight: number(weight(role)) })));
  return sentences;
}

/** Say that a decoder looks from a word in order to say the next one. */
function saysNext(state, layer, body, told) {
  const { models } = state.models;
  const writes = layer.queries === "decoder" && body.position === body.query && models[body.model].kind !== "encoder";
  if (!writes || told.symbol === null) return null;
  const answer = h("span", { class: "token", text: shown(state.vocabulary?.[told.symbol] ?? String(told.symbol)) });
  return h("p", {}, rich("story.next", { query: word(state.loaded.pass.tokens[layer.queries][body.query]), answer }));
}

function promotes(state, told) {
  const name = (each) =>
    h(
      "span",
      {},
      h("span", { class: "token", text: shown(state.vocabulary?.[each.symbol] ?? String(each.symbol)) }),
      " ",
      h("span", { class: "number", text: signed(each.p - each.p_without) }),
    );
  const changes = [...told.promoted, ...told.suppressed].map((each) => Math.abs(each.p - each.p_without));
  if (Math.max(0, ...changes) < SMALL) return [h("p", {}, rich("story.hardly", { most: number(SMALL) }))];
  const sentence = (key, symbols) => symbols.length > 0 && h("p", {}, rich(key, { symbols: joined(symbols.slice(0, 3).map(name)) }));
  return [sentence("story.raises", told.promoted), sentence("story.lowers", told.suppressed)];
}

function effect(state, told) {
  const symbol = told.symbol ?? state.symbol;
  const answer = h("span", {
    class: "token",
    text:
      symbol === null || symbol === undefined ? shown(state.loaded.pass.answer ?? "") : shown(state.vocabulary?.[symbol] ?? String(symbol)),
  });
  const nodes = [];
  if (told.contribution !== null && told.contribution !== undefined) {
    const key = Math.abs(told.contribution) < 0.05 ? "story.neutral" : told.contribution > 0 ? "story.supports" : "story.opposes";
    nodes.push(h("p", {}, rich(key, { symbol: answer.cloneNode(true), contribution: signed(told.contribution) })));
  }
  if (told.p !== null && told.p !== undefined) {
    nodes.push(h("p", {}, rich("story.without", { symbol: answer, p: number(told.p), without: number(told.p_without) })));
  }
  return nodes;
}

export function mountStory(root, store) {
  view(
    root,
    store,
    (s) => [s.loaded, s.place, s.head, s.tokens, s.position, s.symbol, s.vocabulary, s.language],
    async (state) => {
      if (!state.loaded) return [];
      const place = currentPlace(state);
      const { pass } = state.loaded;
      if (place.kind !== "attention") return [];
      if (pass.whole === false) return [h("p", { class: "soft", text: t("map.maps_only") })];
      const { layer } = place;
      const body = headBody(state, layer);
      const told = await ask("head", body);
      const off = headIsOff(state.loaded.body.edits, layer, body.head);
      const flip = button(
        t(off ? "heads.turn_on" : "heads.turn_off", { n: body.head }),
        "story-switch",
        () => store.set({ edits: toggleHead(store.get().edits, layer, body.head) }),
        { data: { action: "toggle-head" } },
      );
      const where =
        outputPosition(state) === body.query ? null : h("p", { class: "soft", text: t("story.position", { n: body.position }) });
      return [
        h("h3", { class: "map-head" }, h("span", { text: t("story.title", { n: body.head }) }), ofFirst(state)),
        state.show === "diff" && h("p", { class: "soft", text: t("story.of_model", { name: state.models.models[0].name }) }),
        saysNext(state, layer, body, told),
        looks(pass, layer, body.query, told),
        layer.switchable === false && h("p", { class: "soft", text: told.note }),
        off
          ? h("p", { text: t("story.off") })
          : layer.switchable !== false &&
            pass.outputs.positions.length > 0 && [
              pass.outputs.per_token && h("h4", {}, rich("story.whole", { token: word(pass.tokens[pass.outputs.stack][body.position]) })),
              promotes(state, told),
              effect(state, told),
              told.note && h("p", { class: "soft", text: told.note }),
            ],
        pass.outputs.positions.length > 1 && where,
        layer.switchable !== false && flip,
      ];
    },
  );
}
