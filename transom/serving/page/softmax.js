/** Probabilities from stored logits in float64: temperature, then top-k, then top-p, as transom samples. */

/** Return indices from the largest number to the smallest; equal numbers in the order of their indices. */
export function descending(values) {
  return Uint32Array.from(values.keys()).sort((a, b) => values[b] - values[a] || a - b);
}

/** Return softmax(logits / temperature) as float64; at temperature 0 the largest has probability 1. */
export function softmax(logits, temperature = 1) {
  let top = -Infinity;
  for (const logit of logits) if (logit > top) top = logit;
  const result = new Float64Array(logits.length);
  let sum = 0;
  for (let i = 0; i < logits.length; i += 1) {
    result[i] = temperature > 0 ? Math.exp((logits[i] - top) / temperature) : Number(logits[i] === top);
    sum += result[i];
  }
  for (let i = 0; i < result.length; i += 1) result[i] /= sum;
  return result;
}

/** Return 1 / (1 + e^-x) of each number, for models whose labels are independent. */
export function sigmoid(logits) {
  return Float64Array.from(logits, (x) => (x >= 0 ? 1 / (1 + Math.exp(-x)) : Math.exp(x) / (1 + Math.exp(x))));
}

/**
 * Cut a distribution off by top-k and top-p, ties included.
 * @param {Float64Array} p probabilities at the temperature
 * @param {Uint32Array} order indices, best first
 * @param {number} topK 0 for all
 * @param {number} topP 1 for all
 * @returns {{kept: Uint8Array, q: Float64Array, n: number}} what is kept, its renormalized probabilities, and how many
 */
export function truncate(p, order, topK, topP) {
  let last = order.length;
  const withTies = (n) => {
    while (n < last && p[order[n]] === p[order[n - 1]]) n += 1;
    return n;
  };
  const sum = (n) => order.subarray(0, n).reduce((total, i) => total + p[i], 0);
  if (topK > 0 && topK < last) last = withTies(topK);
  if (topP < 1) {
    const whole = sum(last);
    let mass = 0;
    let n = 0;
    while (n < last && mass < topP * whole) mass += p[order[n++]];
    last = withTies(Math.max(1, n));
  }
  const kept = new Uint8Array(p.length);
  const q = new Float64Array(p.length);
  const whole = sum(last);
  for (const i of order.subarray(0, last)) {
    kept[i] = 1;
    q[i] = p[i] / whole;
  }
  return { kept, q, n: last };
}
