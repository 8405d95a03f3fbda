// The section "Break it": a bug, what must hold, the count over all test digits, and a quiz.

import { BUGS } from "./bugs.js";
import { get, make } from "./dom.js";
import { PROPERTIES, properties } from "./properties.js";
import { STEPS, predicted, run, testDigit } from "./vision_transformer.js";

const SLICE = 24; // digits that are counted before the page may do something else
const propertyOf = (bug) => PROPERTIES.find(({ id }) => id === bug.property);

export function startBreaking(state, refresh) {
  const views = [startSwitches, startProperties, startCount, startQuiz].map((start) => start(state, refresh));
  return () => views.forEach((view) => view());
}

function chapterLink(parent, state, chapter) {
  return make(parent, "a", { href: state.data.chapters[chapter] }, `chapter ${chapter}`);
}

function startSwitches(state, refresh) {
  const { catalogue } = state.data, [list, fix] = get("bugs", "fix");
  const inputs = [null, ...BUGS].map((bug) => {
    const label = make(list, "label"), input = make(label, "input", { type: "radio", name: "bug", value: bug?.id ?? "" });
    make(label, "span", {}, bug ? catalogue[bug.id].words : "is correct: the one of chapter 07");
    input.addEventListener("change", () => {
      state.bug = bug;
      refresh();
    });
    return { bug, input };
  });
  return () => {
    list.disabled = state.hidden;
    for (const { bug, input } of inputs) input.checked = !state.hidden && bug === state.bug;
    fix.replaceChildren();
    if (!state.bug || state.hidden) return;
    fix.append(`The fix: ${catalogue[state.bug.id].fix} It is in `);
    chapterLink(fix, state, catalogue[state.bug.id].chapter);
    fix.append(".");
  };
}

function startProperties(state) {
  const [table] = get("properties");
  const rows = PROPERTIES.map(({ id, words, chapter }) => {
    const row = make(table, "tr"), mark = make(row, "td"), cell = make(row, "td", {}, `${words} (`);
    chapterLink(cell, state, chapter);
    cell.append(")");
    return { id, row, mark };
  });
  return () => {
    const { bug, changes, parameters, image, hidden, found } = state;
    const held = properties(parameters, image, { bug, changes }, found);
    for (const { id, row, mark } of rows) {
      row.className = hidden ? "" : held[id] ? "holds" : "broken";
      mark.textContent = hidden ? "? hidden" : held[id] ? "✓ holds" : "✗ broken";
    }
  };
}

// The test digits that a model predicts correctly, counted in slices so that the page stays
// responsive; null if `current` says that the model is not wanted any more.
async function count(data, parameters, options, current) {
  let correct = 0;
  for (let at = 0; at < data.labels.length; at++) {
    if (at % SLICE === 0) await new Promise((resume) => setTimeout(resume));
    if (!current()) return null;
    const found = run(parameters, testDigit(data.images, at), { ...options, until: "logits", classOnly: true });
    correct += predicted(found) === data.labels[at];
  }
  return correct;
}

function startCount(state) {
  const [said, picture] = get("count", "picture");
  const { data, original } = state, all = data.labels.length;
  const before = count(data, original, {}, () => true);
  let counted = {};

  async function countAll() {
    const { bug, changes, parameters } = state;
    if (counted.bug === bug && counted.changes === changes && counted.parameters === parameters) return;
    const mine = counted = { bug, changes, parameters };
    said.textContent = "Counting…";
    const first = await before;
    const untouched = !bug && parameters === original && !Object.keys(changes).length;
    const now = untouched ? first : await count(data, parameters, { bug, changes }, () => mine === counted);
    if (mine !== counted) return;
    const percent = (correct) => `${correct} of ${all} (${(100 * correct / all).toFixed(1)} %)`;
    said.textContent = `Test digits predicted correctly: ${percent(first)} by the correct model`
      + (untouched ? "." : `, ${percent(now)} by this one.`);
  }
  return () => {
    const shapes = STEPS.filter(({ name }) => String(state.found[name].shape) === String(state.correct[name].shape)).length;
    const [was, is] = [predicted(state.correct), predicted(state.found)];
    picture.textContent = `Shapes that stay the same: ${shapes} of ${STEPS.length}. This picture: `
      + (was === is ? `still ${is}.` : `${was} by the correct model, ${is} by this one.`);
    countAll();
  };
}

function startQuiz(state, refresh) {
  const { catalogue } = state.data;
  const [start, answer, say, show, verdict] = get("quiz", "answer", "say", "show", "verdict");
  answer.append(new Option("choose an answer", ""));
  for (const { id } of BUGS) answer.append(new Option(catalogue[id].words, id));

  start.addEventListener("click", () => {
    const others = BUGS.filter((bug) => bug !== state.bug);
    Object.assign(state, { bug: others[Math.floor(Math.random() * others.length)], hidden: true });
    answer.value = "";
    verdict.textContent = "A bug is in the model. Look at the tensors, at the arithmetic under a number, and at the count.";
    refresh();
  });
  say.addEventListener("click", () => {
    const guess = BUGS.find(({ id }) => id === answer.value);
    if (!guess) verdict.textContent = "The answer must be one of the list, got none. Choose one.";
    else if (guess === state.bug) reveal("Correct");
    else if (guess.property === state.bug.property) verdict.textContent = "Close: that bug breaks the same property. Choose again.";
    else verdict.textContent = "No: that bug breaks a different property. Choose again.";
  });
  show.addEventListener("click", () => reveal("The answer"));

  function reveal(beginning) {
    const { words, chapter } = propertyOf(state.bug);
    verdict.textContent = `${beginning}: the model ${catalogue[state.bug.id].words}. The test that finds it: ${words} (`;
    chapterLink(verdict, state, chapter);
    verdict.append(").");
    state.hidden = false;
    refresh();
  }
  return () => {
    for (const node of [answer, say, show]) node.disabled = !state.hidden;
  };
}
