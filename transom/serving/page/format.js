/** How numbers are written: one function for all. */

const strip = (digits) => (digits.includes(".") ? digits.replace(/\.?0+$/, "") : digits);

/** Write a number with significant digits, as Python's format(value, ".4g") does: 0.1234, 1.235e-05. */
export function number(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  if (Number.isNaN(value)) return "nan";
  if (!Number.isFinite(value)) return value > 0 ? "inf" : "-inf";
  if (value === 0) return "0";
  const [mantissa, power] = value.toExponential(digits - 1).split("e");
  const exponent = Number(power);
  if (exponent >= -4 && exponent < digits) return strip(value.toFixed(digits - 1 - exponent));
  return `${strip(mantissa)}e${exponent < 0 ? "-" : "+"}${String(Math.abs(exponent)).padStart(2, "0")}`;
}

/** Write a float32 with the fewest digits that give it back. */
export function full(value) {
  if (!Number.isFinite(value)) return number(value);
  for (let digits = 1; digits <= 9; digits += 1) {
    const text = value.toPrecision(digits);
    if (Math.fround(Number(text)) === Math.fround(value)) return number(value, digits);
  }
  return String(value);
}

/** Write a number with its sign. */
export function signed(value, digits = 4) {
  return value > 0 ? `+${number(value, digits)}` : number(value, digits);
}

/** Write a count with separators between thousands. */
export function count(value) {
  return String(value).replace(/\B(?=(\d{3})+$)/g, ",");
}

/** Write a token so that white space can be seen. Marks of tokenizers for a word's beginning are left out. */
export function shown(text) {
  const word = text.replace(/^[▁Ġ]/u, "").replace(/\n/g, "⏎").replace(/\t/g, "⇥");
  return word.trim() === "" ? (text === "" ? "∅" : "␣") : word;
}

/** Shorten a text to a number of characters. */
export function short(text, most) {
  const characters = [...text];
  return characters.length <= most ? text : `${characters.slice(0, most - 1).join("")}…`;
}

/** Write a cell's address with its indices: encoder.blocks.0.attn.weights[n_heads=2, query=5, key=3]. */
export function cellName(address, index) {
  const axes = Object.entries(index ?? {});
  return axes.length ? `${address}[${axes.map(([axis, at]) => `${axis}=${at}`).join(", ")}]` : address;
}
