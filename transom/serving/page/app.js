/** Start the page: read the state from the address, load models and words, mount the views, and keep the pass up to date. */

import { ask, isSaved, onMissing, savedState } from "explore/api";
import { debounce } from "explore/dom";
import { mountKeys } from "explore/keys";
import { fillMessages, t, useLanguage } from "explore/messages";
import { loadPass } from "explore/session";
import { createStore, fromFragment, INITIAL, toFragment, TRANSIENT } from "explore/state";
import { mountAnswer } from "explore/view-answer";
import { mountCalculation } from "explore/view-calculation";
import { mountChanges } from "explore/view-changes";
import { mountGlance } from "explore/view-glance";
import { mountHeader } from "explore/view-header";
import { mountHelp } from "explore/view-help";
import { mountInput } from "explore/view-input";
import { mountOverview } from "explore/view-overview";
import { mountStage } from "explore/view-stage";
import { mountTokens } from "explore/view-tokens";
import { mountTour } from "explore/view-tour";

const byId = (id) => document.getElementById(id);
const store = createStore({ ...INITIAL, ...TRANSIENT, ...savedState, ...fromFragment(location.hash) });

async function setLanguage(code) {
  const language = await useLanguage(code);
  fillMessages(document);
  onMissing(t("saved.missing", { command: "transom explore RUN" }));
  store.set({ language });
}

function applyTheme({ theme }) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

/** Show an error; numbers of another input than the one that was refused are dimmed. */
function showProblem({ error, loaded, input }) {
  document.body.classList.toggle("stale", Boolean(error) && loaded?.body.input !== input);
  byId("problem").hidden = !error;
  byId("problem").textContent = error ?? "";
}

/** Tell whether a pass has a cell: of long texts, whose quantities are not known, it may. */
function hasCell(pass, { name, index }) {
  const found = pass.quantities.find((each) => each.address === name);
  if (!found) return pass.whole === false;
  return found.axes.every((axis, i) => index[axis] < (found.shape[i] ?? Infinity));
}

/** Compute the pass again when the model, the input, the edits or the language change; what is on the page stays until the new one is there. */
function keepPass() {
  let asked = null;
  let ticket = 0;
  let refused = null; // why the server refused the edits that were taken back; shown until the next change
  const update = async (state) => {
    if (!state.input || !state.models) return;
    const key = [state.show, state.input, state.edits, state.language];
    if (asked && asked.every((each, i) => Object.is(each, key[i]))) return;
    asked = key;
    const mine = (ticket += 1);
    document.body.classList.add("busy");
    try {
      const loaded = await loadPass(state);
      if (mine !== ticket) return;
      const { cell } = store.get();
      store.set({ loaded, error: refused, cell: cell && hasCell(loaded.pass, cell) ? cell : null });
      refused = null;
    } catch (error) {
      if (mine === ticket && error.isAnswer && state.edits.length && !isSaved) {
        const { loaded } = state;
        const usual = loaded?.body.input === state.input && loaded.body.edits !== state.edits ? loaded.body.edits : [];
        refused = error.message;
        store.set({ edits: usual });
      } else if (mine === ticket) store.set({ error: error.message });
      if (!error.isAnswer) console.error(error);
    } finally {
      if (mine === ticket) document.body.classList.remove("busy");
    }
  };
  store.subscribe(update);
  update(store.get());
}

/** Tell whether two models give their tensors the same shapes, so that a difference can be drawn. */
function haveSameShapes([first, second]) {
  const shapes = (model) => JSON.stringify([model.kind, model.d_model, model.d_ff, model.n_heads, model.vocab_size, model.stacks]);
  return Boolean(second) && shapes(first) === shapes(second);
}

async function start() {
  applyTheme(store.get());
  await setLanguage(store.get().language);
  mountHeader(byId("header"), store, { setLanguage });
  mountInput(byId("input"), store);
  mountTokens(byId("tokens"), store);
  mountOverview(byId("overview"), store);
  mountStage(byId("stage"), store);
  mountCalculation(byId("calculation"), store);
  mountAnswer(byId("answer"), store);
  mountChanges(byId("changes"), store);
  mountGlance(byId("glance"), store);
  mountTour(byId("tour"), store);
  mountHelp(byId("help"), store);
  mountKeys(store);
  byId("skip").addEventListener("click", (event) => {
    // the address keeps the state, so the link may not change it
    event.preventDefault();
    byId("stage").focus();
  });
  const remember = debounce((state) => {
    if (!isSaved) history.replaceState(null, "", `#${toFragment(state)}`);
  }, 200);
  store.subscribe((state) => {
    applyTheme(state);
    showProblem(state);
    remember(state);
  });
  window.addEventListener("hashchange", () => store.set({ ...INITIAL, language: store.get().language, ...fromFragment(location.hash) }));
  let named = null;
  const nameSymbols = async (state) => {
    const model = state.show === "B" ? 1 : 0;
    if (named === model || !state.models) return;
    named = model;
    store.set({ vocabulary: (await ask("vocabulary", { model })).symbols });
  };
  store.subscribe(nameSymbols);
  keepPass();
  const answer = await ask("models", {});
  const models = { ...answer, comparable: answer.comparable ?? haveSameShapes(answer.models) };
  const { show, input } = store.get();
  const possible = models.models.length > 1 && (show !== "diff" || models.comparable) ? show : "A";
  store.set({ models, show: possible, input: input ?? models.models[0].samples[0]?.input ?? null });
  byId("stage").dataset.ready = "true";
}

start().catch((error) => {
  store.set({ error: error.message });
  showProblem(store.get());
  if (!error.isAnswer) throw error;
});
