/** Formulas as they are printed: Greek letters, roots, subscripts and superscripts. */

import { h } from "explore/dom";

const LETTERS = {
  mu: "μ",
  sigma: "σ",
  gamma: "γ",
  beta: "β",
  tau: "τ",
  eps: "ε",
  alpha: "α",
  theta: "θ",
  lambda: "λ",
  sqrt: "√",
  sum: "∑",
};
const WORD = /\b(mu|sigma|gamma|beta|tau|eps|alpha|theta|lambda|sqrt(?=\()|sum(?=_))(?![a-z])/g;
const RAISED = /([_^])([A-Za-z0-9]+(?:_[A-Za-z0-9]+)*|\([^()]*\))/;

/** Return a formula as nodes. */
export function math(text) {
  const written = text
    .replace(/\bx_hat\b/g, "x̂")
    .replace(/-infinity\b/g, "−∞")
    .replace(/ \* /g, " · ")
    .replace(WORD, (name) => LETTERS[name]);
  const nodes = [];
  let rest = written;
  for (let found = RAISED.exec(rest); found; found = RAISED.exec(rest)) {
    nodes.push(document.createTextNode(rest.slice(0, found.index)));
    nodes.push(h(found[1] === "_" ? "sub" : "sup", { text: found[2].replaceAll("_", ",") }));
    rest = rest.slice(found.index + found[0].length);
  }
  return [...nodes, document.createTextNode(rest)];
}
