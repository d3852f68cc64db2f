/** The answer at a glance, at the lower edge of a narrow screen, where the panel of the answer is far below. */

import { ask } from "explore/api";
import { h, view } from "explore/dom";
import { number, short, shown } from "explore/format";
import { t } from "explore/messages";
import { logitsBodies } from "explore/session";
import { distribution } from "explore/view-answer";

export function mountGlance(root, store) {
  view(
    root,
    store,
    (s) => [s.loaded, s.position, s.vocabulary, s.temperature, s.topK, s.topP, s.language],
    async (state) => {
      root.hidden = !state.loaded?.pass.outputs.positions.length;
      if (root.hidden) return [];
      const bodies = logitsBodies(state);
      const [now, before] = await Promise.all([ask("logits", bodies.now), bodies.before && ask("logits", bodies.before)]);
      const current = distribution(now, state);
      const best = current.order[0];
      const p = (found) => number((found.q ?? found.p)[best]);
      const go = () => document.getElementById("answer").scrollIntoView({ block: "start" });
      return [
        h(
          "button",
          { type: "button", data: { focus: "glance" }, on: { click: go } },
          h("span", { class: "unseen", text: t("answer.glance") }),
          h("span", { class: "token", text: short(shown(state.vocabulary?.[best] ?? String(best)), 20) }),
          h("span", { class: "number", text: before ? `${p(distribution(before, state))} → ${p(current)}` : p(current) }),
        ),
      ];
    },
  );
}
