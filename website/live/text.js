// The sections "Translate a date" and "Continue a sentence": the models of chapters 11 and 12.

import * as dateTranslator from "./date_translator.js";
import { iso, readDate, sourceIds, writeDate } from "./dates.js";
import { color, get, inkOn, make, onceAFrame } from "./dom.js";
import { lastRow } from "./kernels.js";
import { HEADS } from "./kinds.js";
import * as languageModel from "./language_model.js";
import { nextProbabilities, trueProbabilities } from "./language_model.js";
import { keepChoice, startTensors } from "./tensors.js";

const BEGIN = 1, END = 2, SPECIAL = 4; // ids; the words follow the special ones
const FIRST_DAY = [1998, 1, 2], EPOCH = Date.UTC(1950, 0, 1), DAYS = 36525; // the days of chapter 11
const SHOWN = 0.001; // smaller probabilities are one row together

export function startText(data) {
  startDates(data);
  startWords(data);
}

const textOf = (field) => field.value.normalize("NFKC").trim();
const percent = (value) => value && value < 0.001 ? "< 0.1 %" : `${(100 * value).toFixed(1)} %`;

// The tensors of a model in a box that the reader opens. Returns its state, and a function that shows it.
function startBox(model, prefix, parameters, step, refresh) {
  const [box] = get(`${prefix}box`);
  const state = {
    steps: model.STEPS, prefix, original: parameters, parameters, bug: null, hidden: false,
    changes: {}, history: [], step, at: 0, found: null, correct: null,
  };
  const draw = startTensors(state, refresh);
  box.addEventListener("toggle", refresh);
  return [state, (found, correct) => {
    keepChoice(state, found);
    state.correct = correct;
    if (box.open) draw();
  }];
}

// A sentence for the reader who closed the box.
const changedWords = ({ history }) => history.length ? " You changed numbers of this model." : "";

// ---- a date

function startDates({ date: parameters, dates: { source, target, forms } }) {
  const [field, problem, said, map, examples, table] =
    get("date", "date-problem", "date-said", "date-weights", "date-examples", "date-found");
  const [language, part, result, box, beamWidth, anotherDay, title] =
    get("language", "part", "date-result", "translator-box", "beam-width", "another-day", "date-shape");
  const longest = parameters["source_embedding.positions"].shape.at(-2);
  const state = { day: FIRST_DAY, asked: [], found: {}, way: "greedy", rank: 0 };
  const refresh = onceAFrame(update);
  const [model, show] = startBox(dateTranslator, "translator-", parameters, "decoder.0.cross_weights", refresh);
  const spell = (ids) => ids.filter((id) => id >= SPECIAL).map((id) => target[id]).join("");

  for (const [id, { name }] of Object.entries(forms)) language.append(new Option(name, id));
  language.addEventListener("change", () => { // 2/1/98 is a date of both English and Spanish
    offer();
    if (readDate(textOf(field), forms[language.value]).day) refresh();
    else type(writeDate(state.day, forms[language.value], "long"));
  });
  field.addEventListener("input", refresh);
  beamWidth.addEventListener("change", refresh);
  part.addEventListener("change", () => drawMap());
  anotherDay.addEventListener("click", () => {
    const day = new Date(EPOCH + Math.floor(Math.random() * DAYS) * 86400000);
    type(writeDate([day.getUTCFullYear(), day.getUTCMonth() + 1, day.getUTCDate()], forms[language.value], "long"));
  });

  function offer() { // the day in the forms of the language
    const ways = forms[language.value], texts = Object.keys(ways.forms).map((form) => writeDate(state.day, ways, form));
    examples.replaceChildren();
    for (const text of new Set(texts)) {
      const button = make(examples, "button", { type: "button", lang: language.value }, text);
      button.addEventListener("click", () => type(text));
    }
  }
  function type(text) {
    field.value = text;
    refresh();
  }

  function update() {
    const text = textOf(field), width = Number(beamWidth.value);
    const asked = [text, language.value, width, model.changes, model.parameters];
    if (asked.every((part, at) => part === state.asked[at])) return show(model.found, model.correct); // a number was chosen
    state.asked = [];
    const { ids, problem: wrong } = sourceIds(text, language.value, source, longest);
    problem.textContent = wrong ?? "";
    field.setAttribute("aria-invalid", Boolean(wrong));
    result.hidden = box.hidden = Boolean(wrong);
    if (wrong) {
      said.textContent = "";
      return;
    }
    state.characters = ids.map((id) => source[id]);
    const options = { changes: model.changes }, encoded = dateTranslator.encode(model.parameters, ids, options);
    const [greedy, beam] = [1, width].map((width) => dateTranslator.translate(model.parameters, encoded, width, options));
    Object.assign(state, { asked, ids, encoded, found: { greedy, beam } });
    if (!state.found[state.way][state.rank]) Object.assign(state, { way: "greedy", rank: 0 });
    const { day, note, problem: none } = readDate(text, forms[language.value]);
    const answer = spell(greedy[0].ids);
    if (day && !note && iso(day) !== iso(state.day)) {
      state.day = day;
      offer();
    }
    said.textContent = `The answer is ${answer || "empty"}. ` + (none ? `No answer is correct. ${none}`
      : `${answer === iso(day) ? "Correct." : `Correct is ${iso(day)}.`} ${note}`);
    said.textContent += changedWords(model);
    drawAnswers();
    drawMap();
  }

  function drawAnswers() {
    table.replaceChildren();
    for (const [way, answers] of Object.entries(state.found)) {
      answers.forEach(({ ids, score }, rank) => {
        const row = make(table, "tr"), chosen = state.way === way && state.rank === rank;
        make(row, "th", { scope: "row" }, way === "greedy" ? "greedy" : `beam ${rank + 1}`);
        const button = make(make(row, "td"), "button", { type: "button", "aria-pressed": chosen });
        button.textContent = spell(ids) || "empty";
        make(row, "td", {}, score.toFixed(2));
        make(row, "td", {}, percent(Math.exp(score)));
        button.addEventListener("click", () => {
          Object.assign(state, { way, rank });
          for (const other of table.querySelectorAll("button")) other.setAttribute("aria-pressed", other === button);
          drawMap();
        });
      });
    }
  }

  function drawMap() { // one column for each character of the answer, one row for each of the source
    const { ids } = state.found[state.way][state.rank], read = ids.slice(0, -1);
    const found = dateTranslator.decode(model.parameters, read, state.encoded, { changes: model.changes });
    show(found, dateTranslator.decode(parameters, read, dateTranslator.encode(parameters, state.ids)));
    const { data, shape: [h, i, j] } = found["decoder.0.cross_weights"];
    const heads = part.value === "mean" ? Array.from({ length: h }, (_, one) => one) : [Number(part.value)];
    const weight = (row, column) =>
      heads.reduce((sum, one) => sum + data[(one * i + row) * j + column], 0) / heads.length;
    title.textContent = `Cross-attention weights (b=1, h=${h}, i=${i}, j=${j})`;
    map.replaceChildren();
    const top = make(make(map, "thead"), "tr"), body = make(map, "tbody");
    make(top, "th", { scope: "col" }, "source ↓ answer →");
    for (const id of ids.slice(1)) make(top, "th", { scope: "col" }, id === END ? "end" : target[id]);
    state.characters.forEach((character, column) => {
      const row = make(body, "tr");
      make(row, "th", { scope: "row", lang: language.value }, character === " " ? "space" : character);
      for (let at = 0; at < i; at++) {
        const value = weight(at, column), rgb = color(value, 0, 1);
        const style = `background: rgb(${rgb}); color: ${inkOn(rgb)}`;
        make(row, "td", { style }, value < 0.005 ? "" : Math.round(100 * value));
      }
    });
  }
  part.append(new Option("mean of the heads", "mean"));
  for (let head = 0; head < HEADS; head++) part.append(new Option(`head ${head}`, head));
  offer();
  type(writeDate(state.day, forms[language.value], "long"));
}

// ---- a sentence

function startWords({ sentence: parameters, grammar }) {
  const { words } = grammar, longest = parameters["embedding.positions"].shape.at(-2);
  const [field, problem, said, table, list] =
    get("prompt", "words-problem", "words-said", "next-words", "generated");
  const [temperature, topK, topP, result, box, lastWord, noWords, button] =
    get("temperature", "top-k", "top-p", "words-result", "gpt-box", "last-word", "no-words", "generate");
  const sliders = { temperature, topK, topP };
  const refresh = onceAFrame(update);
  const [model, show] = startBox(languageModel, "gpt-", parameters, "0.weights", refresh);
  const run = (ids) => languageModel.run(model.parameters, ids, { changes: model.changes });
  let ids = [BEGIN];
  sliders.topK.max = sliders.topK.value = words.length;

  function settings() {
    const [temperature, topK, topP] = Object.values(sliders).map((slider) => Number(slider.value));
    return { temperature, topK, topP };
  }
  const typed = () => textOf(field).toLowerCase().split(/[\s.]+/).filter(Boolean);
  const write = (list) => {
    field.value = list.join(" ");
    refresh();
  };
  field.addEventListener("input", refresh);
  for (const slider of Object.values(sliders)) slider.addEventListener("input", refresh);
  lastWord.addEventListener("click", () => write(typed().slice(0, -1)));
  noWords.addEventListener("click", () => write([]));
  button.addEventListener("click", () => {
    const whole = generate(), rest = whole.filter((id) => id >= SPECIAL);
    const at = grammar.ids.findIndex((sentence) => whole.every((id, place) => sentence[place] === id));
    const ended = whole.at(-1) === END && at !== -1;
    const item = document.createElement("li");
    item.textContent = `${rest.map((id) => words[id]).join(" ")} · ` + (ended
      ? `one sentence in ${Math.round(1 / grammar.probabilities[at]).toLocaleString("en")} of the language`
      : "not a sentence of the language");
    list.prepend(item);
    while (list.children.length > 8) list.lastChild.remove();
  });

  function generate() {
    const made = [...ids];
    while (made.length < longest && made.at(-1) !== END) {
      const chances = nextProbabilities(lastRow(run(made).logits), settings());
      let left = Math.random(), id = -1;
      while (left >= 0 && id < chances.length - 1) left -= chances[++id];
      made.push(id);
    }
    return made;
  }

  function problemOf(list, found) {
    const known = words.slice(SPECIAL), unknown = found.indexOf(-1);
    if (unknown !== -1) return `Every word must be one of the ${known.length} that the model knows, got `
      + `“${list[unknown]}”. Type some of: ${known.join(", ")}.`;
    if (found.length < longest) return "";
    return `A prompt must have at most ${longest - 1} words, got ${found.length}. Remove some.`;
  }

  function update() {
    const list = typed(), found = list.map((word) => words.indexOf(word, SPECIAL)), wrong = problemOf(list, found);
    problem.textContent = wrong;
    field.setAttribute("aria-invalid", Boolean(wrong));
    result.hidden = box.hidden = button.disabled = Boolean(wrong);
    sliders.temperature.nextElementSibling.textContent = settings().temperature.toFixed(1);
    sliders.topK.nextElementSibling.textContent = settings().topK === words.length ? "all" : settings().topK;
    sliders.topP.nextElementSibling.textContent = settings().topP === 1 ? "all" : settings().topP.toFixed(2);
    if (wrong) {
      said.textContent = "";
      return;
    }
    ids = [BEGIN, ...found];
    const ran = run(ids), logits = lastRow(ran.logits), truth = trueProbabilities(grammar, ids);
    show(ran, languageModel.run(parameters, ids));
    const columns = [nextProbabilities(logits), nextProbabilities(logits, settings()), truth];
    const known = truth.some(Boolean), shown = words.map((_, id) => id)
      .filter((id) => columns.some((column) => column[id] >= SHOWN))
      .sort((a, b) => columns[0][b] - columns[0][a]), best = shown[0];
    said.textContent = `After “${list.join(" ") || "the begin token"}”, the most likely token is `
      + `“${nameOf(best)}” with ${percent(columns[0][best])}`
      + (known ? `; its true probability is ${percent(truth[best])}.`
        : ". No sentence of the language begins like this, so there are no true probabilities.") + changedWords(model);
    const focused = table.contains(document.activeElement); // on a word that is replaced
    table.replaceChildren();
    for (const id of shown) addRow(id, columns.map((column) => column[id]), known);
    const rest = columns.map((column) => Math.max(0, 1 - shown.reduce((sum, id) => sum + column[id], 0)));
    addRow(null, rest, known);
    if (focused) (table.querySelector("button") ?? field).focus();
  }
  const nameOf = (id) => id === END ? "end of the sentence" : words[id];

  function addRow(id, values, known) {
    const row = make(table, "tr"), name = make(row, "th", { scope: "row" });
    if (id >= SPECIAL) {
      const button = make(name, "button", { type: "button" }, words[id]);
      button.addEventListener("click", () => write([...typed(), words[id]]));
    } else name.textContent = id === null ? "all others" : nameOf(id);
    values.forEach((value, column) => {
      if (column === 2 && !known) make(row, "td", {}, "none");
      else make(row, "td", { class: "probability", style: `--fraction: ${value}` }, percent(value));
    });
  }
  write(["the"]);
}
