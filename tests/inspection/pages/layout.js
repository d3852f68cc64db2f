// What is wrong with the layout of the page, as a list of sentences: read by test_report_pages.py.
(() => {
  const MAX_WORD = 24; // a longer word may be broken on a phone
  const WIDTH = document.documentElement.clientWidth;
  const found = new Set();
  const name = (e) => e.tagName.toLowerCase() + (e.getAttribute("class") ? "." + e.getAttribute("class") : "") + ` ${(e.textContent || "").trim().slice(0, 40)}`;
  const scrolls = (e) => ["auto", "scroll"].includes(getComputedStyle(e).overflowX);
  const inside = (e) => { for (let p = e.parentElement; p; p = p.parentElement) if (scrolls(p)) return true; return false; };
  const hidden = (e) => { const s = getComputedStyle(e); return s.visibility !== "visible" || s.display === "none"; };

  if (document.documentElement.scrollWidth > WIDTH) found.add(`the page is ${document.documentElement.scrollWidth} px wide`);
  for (const details of document.querySelectorAll("details")) details.open = true;

  for (const e of document.body.querySelectorAll("*")) {
    const box = e.getBoundingClientRect();
    if (!hidden(e) && box.width && !inside(e) && (box.right > WIDTH + 0.5 || box.left < -0.5)) found.add(`sticks out: ${name(e)}`);
    if (!(e instanceof SVGElement) && !scrolls(e) && e.clientWidth && e.scrollWidth > e.clientWidth + 1) found.add(`content wider than its box: ${name(e)}`);
    if (scrolls(e) && e.scrollWidth > e.clientWidth + 1 && e.tabIndex < 0) found.add(`scrolls for a pointer only: ${name(e)}`);
  }

  const numbers = (text) => text.match(/[\d.]+/g).map(Number);
  const over = ([r, g, b, a = 1], below) => below.map((v, i) => a * [r, g, b][i] + (1 - a) * v);
  const ground = (e) => {
    const layers = [];
    for (let p = e; p; p = p.parentElement) layers.unshift(numbers(getComputedStyle(p).backgroundColor));
    return layers.reduce((below, layer) => over(layer, below), [255, 255, 255]);
  };
  const shapes = (svg, x, y, e) => [...svg.querySelectorAll("rect, polygon")].filter((shape) => {
    const box = shape.getBoundingClientRect();
    const above = e.compareDocumentPosition(shape) & Node.DOCUMENT_POSITION_FOLLOWING;
    return !above && !hidden(shape) && box.left <= x && x <= box.right && box.top <= y && y <= box.bottom;
  });
  const painted = (e, below) => { // what lies below a label: the shapes of its picture at the label's middle
    const box = e.getBoundingClientRect();
    const [x, y] = [(box.left + box.right) / 2, (box.top + box.bottom) / 2];
    return shapes(e.ownerSVGElement, x, y, e).reduce((under, shape) => {
      const style = getComputedStyle(shape), color = style.fill === "none" ? [0, 0, 0, 0] : numbers(style.fill);
      return over([...color.slice(0, 3), (color[3] ?? 1) * style.fillOpacity * style.opacity], under);
    }, below);
  };
  const luminance = (color) => {
    const [r, g, b] = color.map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (a, b) => { const [x, y] = [luminance(a), luminance(b)].sort(); return (y + 0.05) / (x + 0.05); };

  const words = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text = words.nextNode(); text; text = words.nextNode()) {
    const e = text.parentElement;
    if (!text.data.trim() || ["TITLE", "DESC", "STYLE"].includes(e.tagName.toUpperCase()) || hidden(e)) continue;
    const below = e instanceof SVGElement ? painted(e, ground(e.ownerSVGElement)) : ground(e);
    const ink = over(numbers(getComputedStyle(e)[e instanceof SVGElement ? "fill" : "color"]), below);
    if (contrast(ink, below) < 4.5) found.add(`contrast ${contrast(ink, below).toFixed(2)}: ${name(e)}`);
    const size = parseFloat(getComputedStyle(e).fontSize) * (e instanceof SVGElement ? Math.hypot(e.getScreenCTM().a, e.getScreenCTM().b) : 1);
    if (size < 10) found.add(`text of ${size.toFixed(1)} px: ${name(e)}`);
    for (const word of text.data.matchAll(/[^\s\-–]+/g)) {
      const range = document.createRange();
      range.setStart(text, word.index);
      range.setEnd(text, word.index + word[0].length);
      const boxes = [...range.getClientRects()];
      const lines = new Set(boxes.map((box) => Math.round(box.top)));
      if (lines.size > 1 && word[0].length <= MAX_WORD) found.add(`broken word ${word[0]}: ${name(e)}`);
      if (boxes.some((box) => box.right > WIDTH + 0.5) && !inside(e)) found.add(`cut word ${word[0]}: ${name(e)}`);
    }
  }
  for (const picture of document.querySelectorAll("svg")) {
    const texts = [...picture.querySelectorAll("text")].filter((e) => !hidden(e) && !e.getAttribute("transform"));
    const frame = picture.getBoundingClientRect();
    for (const [i, e] of texts.entries()) {
      const a = e.getBoundingClientRect();
      if (a.right > frame.right + 1 || a.left < frame.left - 1) found.add(`label outside its picture: ${name(e)}`);
      for (const other of texts.slice(i + 1)) {
        const b = other.getBoundingClientRect();
        const across = Math.min(a.right, b.right) - Math.max(a.left, b.left), down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (across > 1 && down > 2) found.add(`labels overlap: ${e.textContent} and ${other.textContent}`);
      }
    }
  }
  return [...found];
})();
