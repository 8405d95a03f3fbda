// The sections "Draw a digit" and "Break it": one model, one picture, and what the reader changes.

import { BUGS } from "./bugs.js";
import { drawTensor, layout, make, shapeWords, typedNumber } from "./dom.js";
import { tensor } from "./kernels.js";
import { number, operands } from "./operands.js";
import { PROPERTIES, properties } from "./properties.js";
import { STEPS, predicted, run } from "./vision_transformer.js";

const SIDE = 8, LEVELS = 16; // pixels of a digit's side, and levels of ink
const TITLES = { "": "Embedding", 0: "Block 0", 1: "Block 1", end: "Class" };
const SLICE = 24; // digits that are counted before the page may do something else

export function startDigits(data) {
  const state = {
    original: data.parameters, parameters: data.parameters, data,
    image: tensor([SIDE, SIDE]), bug: null, changes: {}, history: [],
    step: "0.weights", head: 0, at: 0, quiz: null,
  };
  const views = [paper, predictions, pipeline, detail, breaking].map((view) => view(state, refresh));
  let waiting = false;

  function refresh() { // at most once for each picture of the screen
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      const { bug, changes } = state;
      state.found = run(state.parameters, state.image, { bug, changes });
      for (const view of views) view();
    });
  }
  pick(state, 0);
  refresh();
}

function pick(state, at) {
  const pixels = state.data.images.subarray(at * SIDE * SIDE, (at + 1) * SIDE * SIDE);
  state.image = tensor([SIDE, SIDE], Float64Array.from(pixels, (ink) => ink / LEVELS));
  state.label = state.data.labels[at];
}

// ---- the picture

function paper(state, refresh) {
  const canvas = document.querySelector("#paper"), said = document.querySelector("#paper-said");
  const chosen = document.querySelector("#test-digit"), pen = { row: 3, column: 3 };

  function ink(row, column, amount) {
    if (row < 0 || column < 0 || row >= SIDE || column >= SIDE) return;
    const at = row * SIDE + column, pixels = state.image.data.slice();
    pixels[at] = Math.max(0, Math.min(1, pixels[at] + amount));
    state.image = tensor([SIDE, SIDE], pixels);
    state.label = null;
  }
  function stroke(event) { // a pen that is a little wider than a pixel, as in the real digits
    const box = canvas.getBoundingClientRect();
    const row = (event.clientY - box.top) / box.height * SIDE, column = (event.clientX - box.left) / box.width * SIDE;
    for (let r = Math.floor(row) - 1; r <= row + 1; r++) {
      for (let c = Math.floor(column) - 1; c <= column + 1; c++) {
        const distance = Math.hypot(r + 0.5 - row, c + 0.5 - column);
        if (distance < 1.1) ink(r, c, (event.buttons === 2 || event.shiftKey ? -1 : 1) * Math.min(0.6, 1.1 - distance));
      }
    }
    refresh();
  }
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    stroke(event);
  });
  canvas.addEventListener("pointermove", (event) => event.buttons && stroke(event));
  canvas.addEventListener("contextmenu", (event) => event.preventDefault());
  canvas.addEventListener("keydown", (event) => {
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    const amount = { " ": 0.5, Enter: 0.5, Backspace: -0.5, Delete: -0.5 }[event.key];
    if (!move && !amount) return;
    event.preventDefault();
    if (move) {
      pen.row = Math.max(0, Math.min(SIDE - 1, pen.row + move[0]));
      pen.column = Math.max(0, Math.min(SIDE - 1, pen.column + move[1]));
    } else ink(pen.row, pen.column, amount);
    const level = Math.round(state.image.data[pen.row * SIDE + pen.column] * LEVELS);
    said.textContent = `row ${pen.row}, column ${pen.column}: ink ${level} of ${LEVELS}`;
    refresh();
  });
  document.querySelector("#clear").addEventListener("click", () => {
    state.image = tensor([SIDE, SIDE]);
    state.label = null;
    refresh();
  });
  chosen.max = state.data.labels.length - 1;
  chosen.addEventListener("input", () => {
    const at = Math.round(Number(chosen.value));
    if (!(at >= 0 && at < state.data.labels.length)) return;
    pick(state, at);
    refresh();
  });
  return () => {
    const pixels = canvas.getContext("2d"), size = canvas.width / SIDE;
    state.image.data.forEach((value, at) => {
      const grey = Math.round(255 * value);
      pixels.fillStyle = `rgb(${grey}, ${grey}, ${grey})`;
      pixels.fillRect(at % SIDE * size, Math.floor(at / SIDE) * size, size, size);
    });
    pixels.strokeStyle = "#e69f00";
    pixels.lineWidth = 2;
    if (document.activeElement === canvas) pixels.strokeRect(pen.column * size + 1, pen.row * size + 1, size - 2, size - 2);
  };
}

function predictions(state) {
  const list = document.querySelector("#predictions"), said = document.querySelector("#predicted");
  const bars = Array.from({ length: 10 }, (_, digit) => {
    const row = make(list, "li");
    make(row, "span", { class: "digit" }, digit);
    const bar = make(row, "span", { class: "bar", "aria-hidden": "true" });
    return { bar, percent: make(row, "span", { class: "percent" }) };
  });
  return () => {
    const { data } = state.found.probabilities, best = predicted(state.found);
    bars.forEach(({ bar, percent }, digit) => {
      bar.style.setProperty("--share", data[digit]);
      percent.textContent = `${Math.round(100 * data[digit])} %`;
    });
    const truth = state.label === null ? "" : `; somebody wrote a ${state.label}`;
    said.textContent = `The model reads ${best}${truth}.`;
  };
}

// ---- every tensor

function pipeline(state, refresh) {
  const root = document.querySelector("#steps"), shown = [];
  let title = null, list = null;
  for (const step of STEPS) {
    const part = step.layer ?? (step.name === "norm" || title === "end" ? "end" : "");
    if (part !== title) {
      title = part;
      make(root, "h3", {}, TITLES[part]);
      list = make(root, "ol");
    }
    const button = make(make(list, "li"), "button", { type: "button", class: "step" });
    make(button, "span", { class: "name" }, step.short.replaceAll("_", " "));
    const shape = make(button, "span", { class: "shape" });
    const canvas = make(button, "canvas", { "aria-hidden": "true" });
    button.addEventListener("click", () => {
      Object.assign(state, { step: step.name, head: 0, at: 0 });
      refresh();
    });
    shown.push({ step, button, shape, canvas });
  }
  return () => {
    for (const { step, button, shape, canvas } of shown) {
      shape.textContent = shapeWords(step.letters, state.found[step.name].shape);
      drawTensor(canvas, state.found[step.name]);
      button.setAttribute("aria-pressed", step.name === state.step);
      button.classList.toggle("changed", step.name in state.changes);
    }
  };
}

// ---- one tensor, one number

function detail(state, refresh) {
  const [canvas, said, arithmetic, from, problem] = ["#tensor", "#cell", "#arithmetic", "#operands", "#problem"]
    .map((id) => document.querySelector(id));
  const title = document.querySelector("#tensor-title"), heads = document.querySelector("#heads");
  const form = document.querySelector("#change"), field = document.querySelector("#value");
  const shownTensor = () => state.found[state.step] ?? state.parameters[state.step];

  function choose(row, column) {
    const { rows, columns } = layout(shownTensor());
    const at = Math.max(0, Math.min(rows - 1, row)) * columns + Math.max(0, Math.min(columns - 1, column));
    state.at = state.head * rows * columns + at;
    refresh();
  }
  canvas.addEventListener("pointerdown", (event) => {
    const box = canvas.getBoundingClientRect(), { rows, columns } = layout(shownTensor());
    choose(Math.floor((event.clientY - box.top) / box.height * rows), Math.floor((event.clientX - box.left) / box.width * columns));
  });
  canvas.addEventListener("keydown", (event) => {
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!move) return;
    event.preventDefault();
    const { rows, columns } = layout(shownTensor()), place = state.at % (rows * columns);
    choose(Math.floor(place / columns) + move[0], place % columns + move[1]);
  });
  heads.addEventListener("change", () => {
    const { rows, columns } = layout(shownTensor());
    state.at = Number(heads.value) * rows * columns + state.at % (rows * columns);
    state.head = Number(heads.value);
    refresh();
  });

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const { value, problem: wrong } = typedNumber(field.value);
    problem.textContent = wrong ?? "";
    field.setAttribute("aria-invalid", Boolean(wrong));
    if (wrong) return;
    state.history.push({ changes: structuredClone(state.changes), parameters: state.parameters });
    if (state.step in state.found) (state.changes[state.step] ??= {})[state.at] = value;
    else {
      const changed = tensor(shownTensor().shape, shownTensor().data.slice());
      changed.data[state.at] = value;
      state.parameters = { ...state.parameters, [state.step]: changed };
    }
    refresh();
  });
  document.querySelector("#undo").addEventListener("click", () => {
    Object.assign(state, state.history.pop() ?? {});
    refresh();
  });
  document.querySelector("#reset").addEventListener("click", () => {
    Object.assign(state, { changes: {}, parameters: state.original, history: [] });
    refresh();
  });

  function outline(canvas, x, places) { // the cells of an operand, and where they are
    drawTensor(canvas, x);
    const { rows, columns } = layout(x), pixels = canvas.getContext("2d");
    const zoom = Math.max(1, Math.floor(160 / canvas.width));
    const copy = document.createElement("canvas");
    copy.width = canvas.width;
    copy.height = canvas.height;
    copy.getContext("2d").drawImage(canvas, 0, 0);
    canvas.width *= zoom;
    canvas.height *= zoom;
    pixels.imageSmoothingEnabled = false;
    pixels.drawImage(copy, 0, 0, canvas.width, canvas.height);
    pixels.fillStyle = "#e69f00";
    for (const place of places) {
      const head = Math.floor(place / (rows * columns)), inside = place % (rows * columns);
      const left = head * (columns + 1) + inside % columns, top = Math.floor(inside / columns);
      pixels.globalAlpha = 0.75;
      pixels.fillRect(left * zoom, top * zoom, zoom, zoom);
    }
  }
  return () => {
    const step = STEPS.find(({ name }) => name === state.step), x = shownTensor();
    const { heads: count, rows, columns } = layout(x);
    title.textContent = step ? `${state.step.replaceAll("_", " ").replace(".", ", ").replace(/^(\d)/, "block $1")} `
      + shapeWords(step.letters, x.shape) : `${state.step} (${x.shape.join(", ")})`;
    heads.parentElement.hidden = count === 1;
    if (heads.options.length !== count) {
      heads.replaceChildren(...Array.from({ length: count }, (_, head) => new Option(head, head)));
    }
    heads.value = state.head;
    drawTensor(canvas, x, count > 1 ? state.head : null);
    canvas.style.setProperty("--ratio", columns / rows);
    canvas.style.setProperty("--columns", columns);
    const place = state.at % (rows * columns), row = Math.floor(place / columns), column = place % columns;
    const mark = document.querySelector("#mark");
    for (const [name, value] of Object.entries({ left: column / columns, top: row / rows, width: 1 / columns, height: 1 / rows })) {
      mark.style[name] = `${100 * value}%`;
    }
    said.textContent = `${count > 1 ? `head ${state.head}, ` : ""}row ${row}, column ${column}: ${number(x.data[state.at])}`;
    if (document.activeElement !== field) field.value = number(x.data[state.at]);
    from.replaceChildren();
    if (!step) {
      arithmetic.textContent = "A parameter: training chose it. Type another number, and everything after it follows.";
      return;
    }
    const changed = state.changes[state.step]?.[state.at] !== undefined;
    const broken = Boolean(state.bug?.steps[step.short]);
    const { cells, words } = operands(step, state.at, state.found, state.parameters, broken && !state.quiz);
    arithmetic.textContent = changed ? "You typed this number." : words;
    for (const [name, places] of changed ? [] : cells) {
      const button = make(make(from, "li"), "button", { type: "button", class: "step" });
      make(button, "span", { class: "name" }, name.replace("encoder.layers.", "block ").replaceAll("_", " "));
      outline(make(button, "canvas", { "aria-hidden": "true" }), state.found[name] ?? state.parameters[name], places);
      button.addEventListener("click", () => {
        const { rows: r, columns: c } = layout(state.found[name] ?? state.parameters[name]);
        Object.assign(state, { step: name, at: places[0], head: Math.floor(places[0] / (r * c)) });
        refresh();
      });
    }
    const typed = Object.values(state.changes).flatMap(Object.keys).length
      + Object.keys(state.parameters).filter((name) => state.parameters[name] !== state.original[name]).length;
    document.querySelector("#changes").textContent = typed ? `${state.history.length} changes` : "nothing is changed";
    document.querySelector("#undo").disabled = !state.history.length;
    document.querySelector("#reset").disabled = !typed;
  };
}

// ---- break it

function breaking(state, refresh) {
  const { catalogue, chapters } = state.data, list = document.querySelector("#bugs");
  const [table, count, fix, answer, verdict] = ["#properties", "#count", "#fix", "#answer", "#verdict"]
    .map((id) => document.querySelector(id));
  const link = (parent, chapter) => make(parent, "a", { href: chapters[chapter] }, `chapter ${chapter}`);
  const radio = (id, words) => {
    const label = make(list, "label"), input = make(label, "input", { type: "radio", name: "bug", value: id });
    label.append(` ${words}`);
    input.checked = !id;
    input.addEventListener("change", () => {
      state.bug = BUGS.find((bug) => bug.id === id) ?? null;
      refresh();
    });
  };
  radio("", "nothing: the model of chapter 07");
  for (const { id } of BUGS) {
    radio(id, `${catalogue[id].words} (${catalogue[id].chapter})`);
    answer.append(new Option(catalogue[id].words, id));
  }
  const rows = PROPERTIES.map(({ id, words, chapter }) => {
    const row = make(table, "tr"), mark = make(row, "td"), cell = make(row, "td", {}, `${words} · `);
    link(cell, chapter);
    return { id, row, mark };
  });
  document.querySelector("#quiz").addEventListener("click", () => {
    state.quiz = BUGS[Math.floor(Math.random() * BUGS.length)];
    state.bug = state.quiz;
    for (const input of list.querySelectorAll("input")) input.checked = false;
    verdict.textContent = "";
    refresh();
  });
  document.querySelector("#say").addEventListener("click", () => {
    if (!state.quiz) {
      verdict.textContent = "Nothing is hidden yet. Press “What is broken?” first.";
      return;
    }
    const { id, property } = state.quiz, correct = answer.value === id;
    const { words, chapter } = PROPERTIES.find((one) => one.id === property);
    verdict.textContent = correct ? "Correct. " : `It was another one: the model ${catalogue[id].words}. `;
    verdict.append(`The test that finds it: ${words}. `);
    link(verdict, chapter);
    list.querySelector(`[value="${id}"]`).checked = true;
    state.quiz = null;
    refresh();
  });
  let before = null, counted = null;

  async function countAll() { // in slices: the page stays responsive
    const { bug, changes, parameters, data } = state, key = [bug, JSON.stringify(changes), parameters];
    if (counted && key.every((part, at) => part === counted[at])) return;
    counted = key;
    let correct = 0;
    for (let at = 0; at < data.labels.length; at++) {
      const image = tensor([SIDE, SIDE], Float64Array.from(data.images.subarray(at * 64, at * 64 + 64), (ink) => ink / LEVELS));
      correct += predicted(run(parameters, image, { bug, changes, until: "logits" })) === data.labels[at];
      if (at % SLICE === 0) await new Promise((resume) => setTimeout(resume));
      if (counted !== key) return; // the model has changed meanwhile
    }
    before ??= correct; // the first count is that of the correct model
    count.textContent = `${before} of ${data.labels.length} unseen digits are read correctly before, ${correct} now.`;
  }
  return () => {
    const { bug, changes, parameters, image } = state, held = properties(parameters, image, { bug, changes });
    for (const { id, row, mark } of rows) {
      mark.textContent = held[id] ? "✓ holds" : "✗ broken";
      row.className = held[id] ? "holds" : "broken";
    }
    list.disabled = Boolean(state.quiz);
    fix.textContent = bug && !state.quiz ? `The fix: ${catalogue[bug.id].fix}` : "";
    countAll();
  };
}
