/** What the model would say after each block: the logit lens. */

import { ask } from "explore/api";
import { h, view } from "explore/dom";
import { number, shown } from "explore/format";
import { rich, t } from "explore/messages";
import { currentPlace } from "explore/places";
import { hasLens, outputPosition } from "explore/session";
import { ofFirst } from "explore/whose";

const SHOWN = 3;

export function mountLens(root, store) {
  view(
    root,
    store,
    (s) => [s.loaded, s.place, s.position, s.vocabulary, s.language],
    async (state) => {
      if (!state.loaded || currentPlace(state).kind !== "output" || !hasLens(state.loaded.pass)) return [];
      const lens = await ask("lens", { ...state.loaded.body, position: outputPosition(state) });
      const name = (symbol) => shown(state.vocabulary?.[symbol] ?? String(symbol));
      const stream = (each) =>
        each.name === "embedding"
          ? t("overview.embedding")
          : each.name.replace(/^(\w+)\.\w+\.(\d+)$/, (_, stack, block) => `${t(`overview.${stack}`)} ${t("overview.block", { n: block })}`);
      const head = h(
        "tr",
        {},
        ["stream", "says", "p", "rank", "kl"].map((key) => h("th", { scope: "col", text: t(`lens.${key}`) })),
      );
      const rows = lens.streams.map((each) =>
        h(
          "tr",
          {},
          h("th", { scope: "row", text: stream(each) }),
          h(
            "td",
            { class: "says-most" },
            each.top
              .slice(0, SHOWN)
              .map((top) =>
                h(
                  "span",
                  { class: "lens-word" },
                  h("span", { class: "token", text: name(top.symbol) }),
                  h("span", { class: "meter", style: { "--part": top.p } }),
                  h("span", { class: "number soft", text: number(top.p, 2) }),
                ),
              ),
          ),
          h("td", { class: "number", text: number(each.answer_p) }),
          h("td", { class: "number", text: each.answer_rank }),
          h("td", { class: "number", text: number(each.kl) }),
        ),
      );
      return [
        h("h3", { class: "map-head" }, h("span", { text: t("lens.title") }), ofFirst(state)),
        h("p", { class: "soft" }, rich("lens.help", { answer: h("span", { class: "token", text: name(lens.answer) }) })),
        h(
          "div",
          { class: "table-scroll", tabIndex: 0, role: "region", "aria-label": t("lens.title") },
          h("table", {}, h("thead", {}, head), h("tbody", {}, rows)),
        ),
      ];
    },
  );
}
