// For the tests: run the models that read text, and read dates, outside of a browser. Standard input
// and output are JSON; tests/browser/try_live_text.py says what is in them.

import { readFileSync } from "node:fs";
import { decode, encode, translate } from "./date_translator.js";
import { iso, readDate, sourceIds, writeDate } from "./dates.js";
import { logitsOf, nextLogits, nextProbabilities, trueProbabilities } from "./language_model.js";
import { readTensors } from "./safetensors.js";

const given = JSON.parse(readFileSync(0, "utf-8"));
const date = readTensors(readFileSync(given.date)), sentence = readTensors(readFileSync(given.sentence));
const flat = (x) => Array.from(x.data);

const dates = given.dates.map(({ day, language, form, target }) => {
  const table = given.forms[language], text = writeDate(day, table, form);
  const { ids } = sourceIds(text, language, given.symbols, 40);
  const memory = encode(date, ids), { logits, weights } = decode(date, target, memory);
  return {
    text, ids, read: iso(readDate(text, table).day),
    memory: flat(memory), logits: flat(logits), weights: weights.map(flat),
    found: given.widths.map((width) =>
      translate(date, ids, width).map(({ ids, score, weights: [w] }) => ({ ids, score, w: flat(w) }))),
  };
});
const prompts = given.prompts.map((ids) => ({
  logits: flat(logitsOf(sentence, ids)),
  chosen: given.choices.map((choice) => nextProbabilities(nextLogits(sentence, ids), choice)),
  truth: trueProbabilities(given.grammar, ids),
}));
const read = given.texts.map(([text, language]) => {
  const { day, note, problem } = readDate(text, given.forms[language]);
  return problem ?? `${iso(day)} ${note}`.trim();
});
console.log(JSON.stringify({ dates, prompts, read }));
