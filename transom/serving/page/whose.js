/** Labels that say whose numbers these are while two models are compared: of both, A minus B, or of the first alone. */

import { h } from "explore/dom";
import { t } from "explore/messages";

/** Label numbers that are differences; null where one model is in view. */
export function ofDifference(state) {
  if (state.show !== "diff") return null;
  const [a, b] = state.models.models;
  return h("span", { class: "whose both", title: `${a.name} − ${b.name}`, text: "A − B" });
}

/** Label what is of the first model alone; null where one model is in view. */
export function ofFirst(state) {
  if (state.show !== "diff") return null;
  return h("span", { class: "whose", title: state.models.models[0].name, text: t("answer.model_a") });
}
