/**
 * Answers of the server, or of the file in which a view was saved. Answers are kept, since the same question has the same answer.
 * Tensors arrive as base64 of float32 numbers, and leave as {values: Float32Array, ...}.
 */

const embedded = (id) => {
  const element = document.getElementById(id);
  return element ? JSON.parse(element.textContent) : null;
};

const answers = embedded("answers");
const tables = embedded("messages");

/** State that a saved file opens with; null at a server. */
export const savedState = embedded("state");

/** Language of the answers in a saved file; null at a server, which answers in every language. */
export const savedLanguage = embedded("language");

/** Whether this page is a saved file, without a server. */
export const isSaved = answers !== null;

const MAX_KEPT = 600;
const kept = new Map();
let missingMessage = "";
export const onMissing = (message) => {
  missingMessage = message;
};

/** Write JSON with sorted keys and without spaces, so that equal requests have equal texts. */
export function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value) ?? "null";
  const fields = Object.keys(value)
    .filter((key) => value[key] !== undefined)
    .sort();
  return `{${fields.map((key) => `${JSON.stringify(key)}:${canonical(value[key])}`).join(",")}}`;
}

function decode(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i += 1) bytes[i] = text.charCodeAt(i);
  const view = new DataView(bytes.buffer);
  return Float32Array.from({ length: bytes.length / 4 }, (_, i) => view.getFloat32(4 * i, true));
}

class AnswerError extends Error {
  isAnswer = true; // the server's own line, which is shown where the answer was expected
}

/** Ask an array of questions; return the array of answers, each of which may be {error}. */
async function post(name, text) {
  const headers = { "Content-Type": "application/json", "Accept-Language": document.documentElement.lang };
  const reply = await fetch(`api/${name}`, { method: "POST", headers, body: text });
  const answer = await reply.json().catch(() => ({ error: `${reply.status} ${reply.statusText}` }));
  if (!Array.isArray(answer)) throw new AnswerError(answer.error ?? `${reply.status} ${reply.statusText}`);
  return answer;
}

function fetchAnswer(name, body) {
  const text = canonical(body);
  if (!isSaved) return inTurn(name, text);
  const found = answers[`${name} ${text}`];
  return found ? Promise.resolve(found) : Promise.reject(new AnswerError(missingMessage));
}

/** The server answers one question at a time, so what a person waits for goes first. */
const ORDER = ["pass", "logits", "tile", "calculation", "tensor", "head", "lens", "certificates", "sweep"];
const AT_ONCE = ["pass", "logits"];
const TOGETHER = ["logits", "tensor"]; // questions that wait together are asked together
const AFTER = ["head", "lens", "certificates", "sweep"]; // asked once nothing else is open: the pictures come before them
const MOST_OPEN = 3;
const MOST_AFTER = 2; // the third is for the next pass
const waiting = [];
const open = []; // kinds of the messages that are not answered

function inTurn(name, text) {
  return new Promise((resolve, reject) => {
    waiting.push({ name, text, resolve, reject });
    if (AT_ONCE.includes(name)) start();
    else queueMicrotask(start);
  });
}

function start() {
  while (waiting.length) {
    const { name } = waiting.reduce((best, each) => (ORDER.indexOf(each.name) < ORDER.indexOf(best.name) ? each : best));
    const isAfter = AFTER.includes(name);
    if (open.length >= (isAfter ? MOST_AFTER : MOST_OPEN) || (isAfter && !open.every((each) => AFTER.includes(each)))) return;
    const asked = TOGETHER.includes(name) ? waiting.filter((each) => each.name === name) : [waiting.find((each) => each.name === name)];
    waiting.splice(0, Infinity, ...waiting.filter((each) => !asked.includes(each)));
    open.push(name);
    send(name, asked).finally(() => {
      open.splice(open.indexOf(name), 1);
      start();
    });
  }
}

async function send(name, asked) {
  try {
    for (const [i, answer] of (await post(name, `[${asked.map((each) => each.text).join(",")}]`)).entries()) {
      if (answer.error) asked[i].reject(new AnswerError(answer.error));
      else asked[i].resolve(answer);
    }
  } catch (error) {
    for (const each of asked) each.reject(error);
  }
}

/** Ask the server: one promise per request, kept until many others came. */
export function ask(name, body) {
  const key = name + canonical(body);
  let promise = kept.get(key);
  kept.delete(key);
  if (!promise) {
    promise = fetchAnswer(name, body).then((answer) =>
      typeof answer.data === "string" ? { ...answer, data: undefined, values: decode(answer.data) } : answer,
    );
    promise.catch(() => kept.delete(key));
  }
  kept.set(key, promise);
  if (kept.size > MAX_KEPT) kept.delete(kept.keys().next().value);
  return promise;
}

/** Return the message table of a language. */
export async function fetchMessages(language) {
  if (tables) return tables[language] ?? tables.en;
  return (await fetch(`messages/${language}.json`)).json();
}
