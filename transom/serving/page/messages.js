/** The words of the page: one table per language, with keys such as "heads.title" and placeholders such as {n}. */

import { fetchMessages } from "explore/api";
import { h } from "explore/dom";

const ENGLISH = "en"; // its table names all languages that there are

let table = {};
let current = ENGLISH;

/** Return the names of the languages that have a table, by their tags. */
export const languages = () => table.languages;

/**
 * Load the table of a language; what t() returns afterwards is in that language.
 * @param {string|null} wanted tag of the language; null for the first of the browser's languages that has a table
 * @returns {Promise<string>} the tag of the language in use
 */
export async function useLanguage(wanted) {
  const english = await fetchMessages(ENGLISH);
  const tags = [wanted, ...navigator.languages].filter(Boolean).flatMap((tag) => [tag, tag.split("-")[0]]);
  current = tags.find((tag) => tag in english.languages) ?? ENGLISH;
  table = current === ENGLISH ? english : await fetchMessages(current);
  document.documentElement.lang = current;
  document.title = t("title");
  return current;
}

/** Return a template; where it depends on the number n, that of its plural category. */
function lookup(key, values) {
  const found = key.split(".").reduce((at, part) => at?.[part], table);
  if (typeof found === "string") return found;
  if (typeof found?.other === "string") return found[new Intl.PluralRules(current).select(Number(values.n))] ?? found.other;
  throw new Error(`no message ${key} in ${current}`);
}

/** Return a message with its placeholders filled. */
export function t(key, values = {}) {
  return lookup(key, values).replace(/\{(\w+)\}/g, (whole, name) => (name in values ? String(values[name]) : whole));
}

/** Return what a quantity is, "f(X W): hidden units": the words in the language of the page, the formula as it is. */
export function describeQuantity({ formula }) {
  const [, symbols, words] = /^(.*: )?(.*)$/.exec(formula);
  const key = words
    .toLowerCase()
    .replace(/[^a-z0-9]+/g, "-")
    .replace(/^-|-$/g, "");
  return (symbols ?? "") + (table.quantities[key] ?? words);
}

/** Return a message as nodes: numbers in the type of numbers, values given as nodes as they are. */
export function rich(key, values = {}) {
  return lookup(key, values)
    .split(/(\{\w+\})/)
    .filter(Boolean)
    .map((part) => {
      const name = /^\{(\w+)\}$/.exec(part)?.[1];
      if (!name || !(name in values)) return document.createTextNode(part);
      const value = values[name];
      return value instanceof Node ? value : h("span", { class: "number", text: String(value) });
    });
}

/** Fill every element of a document that carries data-message with its text, and data-label with its label. */
export function fillMessages(root) {
  for (const each of root.querySelectorAll("[data-message]")) each.textContent = t(each.dataset.message);
  for (const each of root.querySelectorAll("[data-label]")) each.setAttribute("aria-label", t(each.dataset.label));
}
