// Shows the page in the language of the browser, and offers all of its languages. Elements hold English text and what it is made of.
(() => {
  const { names, label, tables } = JSON.parse(document.querySelector("script.messages").textContent);
  const decode = (text) => JSON.parse(text.replace(/["']/g, (quote) => (quote === '"' ? "'" : '"')));
  const places = []; // of each text: its code, its English words, and a function that writes it
  for (const e of document.querySelectorAll("[data-message], [data-message-attributes]")) {
    if (e.dataset.message) places.push([decode(e.dataset.message), e.textContent, (text) => (e.textContent = text)]);
    for (const [name, code] of Object.entries(decode(e.dataset.messageAttributes || "{}")))
      places.push([code, e.getAttribute(name), (text) => e.setAttribute(name, text)]);
  }
  const render = (code, table, plural) => {
    if (typeof code === "number") return code.toLocaleString("en-US");
    if (typeof code === "string") return code;
    if (!Array.isArray(code)) return code.join.map((part) => render(part, table, plural)).join("");
    const [key, values] = code;
    const entry = table[key];
    const template = typeof entry === "string" ? entry : entry[plural.select(values.n)] || entry.other;
    return template.replace(/\{(\w+)\}/g, (_, name) => render(values[name], table, plural));
  };
  const show = (language) => {
    const plural = new Intl.PluralRules(language);
    for (const [code, english, write] of places) write(language === "en" ? english : render(code, tables[language], plural));
    document.documentElement.lang = language;
  };
  const select = document.createElement("select");
  select.className = "language";
  select.setAttribute("aria-label", label);
  select.append(...Object.entries(names).map(([tag, name]) => Object.assign(new Option(name, tag), { lang: tag })));
  document.querySelector("header").prepend(select);
  const preferred = navigator.languages.map((tag) => tag.toLowerCase().split("-")[0]).find((tag) => tag in names) || "en";
  select.value = preferred;
  select.addEventListener("change", () => show(select.value));
  if (preferred !== "en") show(preferred);
})();
