// For the tests: run the models that read text, and read dates, outside of a browser. Standard input
// and output are JSON; tests/browser/try_live_text.py says what is in them.

import { readFileSync } from "node:fs";
import { STEPS, decode, encode, translate } from "./date_translator.js";
import { iso, readDate, sourceIds, writeDate } from "./dates.js";
import { lastRow } from "./kernels.js";
import { STEPS as WORD_STEPS, nextProbabilities, run, trueProbabilities } from "./language_model.js";
import { readTensors } from "./safetensors.js";

const given = JSON.parse(readFileSync(0, "utf-8"));
const date = readTensors(readFileSync(given.date)), sentence = readTensors(readFileSync(given.sentence));
const base64 = (x) => Buffer.from(Float32Array.from(x.data).buffer).toString("base64");
const tensors = (steps, found) => Object.fromEntries(steps.map(({ name }) => [name, base64(found[name])]));

const dates = given.dates.map(({ day, language, form, target }) => {
  const table = given.forms[language], text = writeDate(day, table, form);
  const { ids } = sourceIds(text, language, given.symbols, 40);
  const encoded = encode(date, ids);
  return {
    text, ids, read: iso(readDate(text, table).day),
    tensors: tensors(STEPS, decode(date, target, encoded)),
    found: given.widths.map((width) => translate(date, encoded, width)),
  };
});
const prompts = given.prompts.map((ids) => {
  const found = run(sentence, ids);
  return {
    tensors: tensors(WORD_STEPS, found),
    chosen: given.choices.map((choice) => nextProbabilities(lastRow(found.logits), choice)),
    truth: trueProbabilities(given.grammar, ids),
  };
});
const read = given.texts.map(([text, language]) => {
  const { day, note, problem } = readDate(text, given.forms[language]);
  return problem ?? `${iso(day)} ${note}`.trim();
});
console.log(JSON.stringify({ dates, prompts, read }));
