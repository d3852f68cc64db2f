/** Small helpers to make and replace elements. Text only ever becomes text nodes. */

/**
 * Make an element.
 * @param {string} tag name of the element
 * @param {object} attributes `class`, `text`, `data` and `style` (objects), `on` (handlers by event); others are set as they are
 * @param {...(Node|string|null|Array)} children
 */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") element.className = value;
    else if (name === "text") element.textContent = value;
    else if (name === "data") for (const [key, item] of Object.entries(value)) element.dataset[key] = item;
    else if (name === "style") for (const [key, item] of Object.entries(value)) element.style.setProperty(key, item);
    else if (name === "on") for (const [event, handler] of Object.entries(value)) element.addEventListener(event, handler);
    else if (name in element && typeof value !== "string") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Make a button. `key` names it, so that the focus comes back to it when its view is drawn again. */
export function button(text, key, onClick, attributes = {}) {
  const { data, on, ...rest } = attributes;
  return h("button", { type: "button", text, data: { focus: key, ...data }, on: { click: onClick, ...on }, ...rest });
}

/** Replace the content of an element, and give the focus back to the element of the same `data-focus`. */
export function replace(root, ...nodes) {
  const focused = root.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
  const opened = new Map([...root.querySelectorAll("details[data-focus]")].map((each) => [each.dataset.focus, each.open]));
  root.replaceChildren(...nodes.flat(Infinity).filter(Boolean));
  for (const each of root.querySelectorAll("details[data-focus]")) each.open = opened.get(each.dataset.focus) ?? each.open;
  if (focused) root.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}

/**
 * Draw an element anew whenever what it depends on changes. Drawings may wait for answers; only the latest is shown.
 * @param {Element} root where to draw
 * @param {object} store the store
 * @param {function(object): Array} select what the drawing depends on
 * @param {function(object): (Promise<Array>|Array)} draw returns nodes
 */
export function view(root, store, select, draw) {
  let drawn = null;
  let ticket = 0;
  const update = async () => {
    const state = store.get();
    const inputs = select(state);
    if (drawn && drawn.every((each, i) => Object.is(each, inputs[i]))) return;
    drawn = inputs;
    const mine = (ticket += 1);
    root.setAttribute("aria-busy", "true");
    try {
      const nodes = await draw(state);
      if (mine === ticket) replace(root, nodes ?? []);
    } catch (error) {
      if (mine === ticket) replace(root, errorLine(error));
      if (!error.isAnswer) console.error(error);
    } finally {
      if (mine === ticket) root.removeAttribute("aria-busy");
    }
  };
  store.subscribe(update);
  return update();
}

const widths = new WeakMap();
const watch = new ResizeObserver((entries) => entries.forEach(({ target }) => widths.set(target, target.clientWidth)));

/** Return the width of an element in pixels; it is measured when it changes, and not at each drawing, which would lay out the page first. */
export function widthOf(element) {
  if (!widths.has(element)) {
    widths.set(element, element.clientWidth);
    watch.observe(element);
  }
  return widths.get(element);
}

/** Return the line that tells of an error where its answer was expected. */
export function errorLine(error) {
  return h("p", { class: "error", role: "alert", text: error.message });
}

/** Say something to readers who cannot see the page. */
export function announce(text) {
  document.getElementById("announcement").textContent = text;
}

/** Call a function once calls have paused. */
export function debounce(call, milliseconds) {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => call(...given), milliseconds);
  };
}
