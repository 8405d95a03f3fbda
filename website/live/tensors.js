// All tensors of a run as small pictures, one of them in large, and one number of it: where it comes
// from, and a field to change it. `state` says what to show: steps, found (the tensors) and correct
// (those of the model as it shipped), parameters, original, changes, history, step, at.

import { drawCells, drawTensor, get, make, shapeWords, typedNumber } from "./dom.js";
import { tensor } from "./kernels.js";
import { number } from "./kinds.js";
import { layout, operands, placeAt, placeOf } from "./steps.js";

const AXES = {
  H: "row of pixels", W: "column of pixels", p: "pixel of the patch", n: "token", e: "embedding dimension",
  h: "head", d: "head dimension", i: "query position", j: "key position", m: "inner dimension", b: "batch",
  k: "class", v: "token of the vocabulary", row: "row", column: "column",
};
const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
const limit = (index, size) => Math.max(0, Math.min(size - 1, index));
const same = (x, y) => x.data.every((value, at) => Object.is(value, y.data[at]));

const capital = (words) => words[0].toUpperCase() + words.slice(1);

const stepOf = (state, name) => state.steps.find((step) => step.name === name);

// The name of a step or a parameter, for readers.
function titleOf(state, name) {
  const step = stepOf(state, name), inBlock = (one) => / \d$/.test(one.title);
  if (step) return inBlock(step) ? `${step.title}, ${step.words}` : capital(step.words);
  const owner = state.steps.find((one) => inBlock(one) && name.startsWith(one.parameters));
  return owner ? `${owner.title}, ${name.slice(owner.parameters.length)}` : name;
}

// Put both parts of the template at the end of a bench.
//   state.prefix: begins the ids of this bench
export function startTensors(state, refresh) {
  const [template, bench] = get("tensors", `${state.prefix}bench`), parts = template.content.cloneNode(true);
  for (const name of ["id", "aria-labelledby", "aria-describedby"]) {
    for (const node of parts.querySelectorAll(`[${name}]`)) {
      node.setAttribute(name, node.getAttribute(name).split(" ").map((id) => state.prefix + id).join(" "));
    }
  }
  bench.append(parts);
  const views = [startPipeline, startDetail].map((start) => start(state, refresh));
  return () => views.forEach((view) => view());
}

// The number that was chosen, as near as possible where a tensor has got smaller.
export function keepChoice(state, found) {
  const x = found[state.step] ?? state.parameters[state.step], { heads, rows, columns } = layout(x);
  const { head, row, column } = placeOf(state.found?.[state.step] ?? x, state.at);
  state.at = placeAt(x, limit(head, heads), limit(row, rows), limit(column, columns));
  state.found = found;
}

const own = (state, ...ids) => get(...ids.map((id) => state.prefix + id));

// ---- small pictures of all steps

function startPipeline(state, refresh) {
  const [root] = own(state, "steps"), shown = [];
  let title = null, list = null;
  for (const step of state.steps) {
    if (step.title !== title) {
      title = step.title;
      make(root, "h3", {}, title);
      list = make(root, "ol");
    }
    const button = make(make(list, "li"), "button", { type: "button", class: "step" });
    make(button, "span", { class: "name" }, capital(step.words));
    const shape = make(button, "span", { class: "shape" }), canvas = make(button, "canvas", { "aria-hidden": "true" });
    const note = make(button, "span", { class: "note" });
    button.addEventListener("click", () => {
      Object.assign(state, { step: step.name, at: 0 });
      refresh();
    });
    shown.push({ step, button, shape, canvas, note });
  }
  let pressed = null;
  return () => {
    const chosen = stepOf(state, state.step), sources = chosen ? operands(chosen, state.at, state.found, state.parameters).cells : [];
    for (const one of shown) {
      const { step, button, shape, canvas, note } = one, x = state.found[step.name];
      if (one.drawn !== x) {
        one.drawn = x;
        shape.textContent = shapeWords(step.letters, x.shape);
        drawTensor(canvas, x);
        const size = Math.min(144 / canvas.width, 36 / canvas.height);
        canvas.style.width = `${canvas.width * size}px`;
        canvas.style.height = canvas.height === 1 ? "12px" : "36px";
      }
      button.setAttribute("aria-pressed", step.name === state.step);
      button.classList.toggle("source", sources.some(([name]) => name === step.name));
      note.textContent = noteOf(state, step);
      if (step === chosen && step !== pressed) showIn(root, button);
    }
    pressed = chosen;
  };
}

// Scroll a box, and not the page, until a part of it is in sight.
function showIn(root, part) {
  const above = part.offsetTop - root.offsetTop;
  root.scrollTop = Math.max(above + part.offsetHeight - root.clientHeight, Math.min(root.scrollTop, above));
}

// What happened to a step, in one word. A hidden bug is the reader's to find.
function noteOf(state, step) {
  if (state.changes[step.name]) return "typed";
  if (state.hidden) return "";
  if (state.bug?.steps[step.short]) return "bug";
  return same(state.found[step.name], state.correct[step.name]) ? "" : "differs";
}

// ---- one tensor in large

function startDetail(state, refresh) {
  const [frame, canvas, mark, title, legend, fields] =
    own(state, "frame", "tensor", "mark", "tensor-title", "legend", "axes");
  const shown = () => state.found[state.step] ?? state.parameters[state.step];
  const views = [startNumber(state, refresh, shown), startChanges(state, refresh, shown)];
  let inputs = [], named = null, sighted = null, size = 1;

  function choose({ head, row, column }) {
    const x = shown(), { heads, rows, columns } = layout(x);
    state.at = placeAt(x, limit(head, heads), limit(row, rows), limit(column, columns));
    refresh();
  }
  canvas.addEventListener("click", (event) => {
    const box = canvas.getBoundingClientRect(), { head } = placeOf(shown(), state.at);
    choose({ head, row: Math.floor((event.clientY - box.top) / size), column: Math.floor((event.clientX - box.left) / size) });
  });
  canvas.addEventListener("keydown", (event) => {
    const move = ARROWS[event.key], { head, row, column } = placeOf(shown(), state.at);
    if (!move) return;
    event.preventDefault();
    choose({ head, row: row + move[0], column: column + move[1] });
  });

  function axes(letters, x) { // a field for the index of every axis
    const { heads, rows, columns } = layout(x), sizes = { head: heads, row: rows, column: columns };
    const names = letters.slice(-3), kinds = ["head", "row", "column"].slice(-names.length);
    fields.replaceChildren();
    inputs = names.map((letter, at) => {
      const kind = kinds[at], label = make(fields, "label", {}, `${letter} `);
      const input = make(label, "input", { type: "number", min: 0, max: sizes[kind] - 1, "aria-label": `${letter}, ${AXES[letter]}` });
      input.addEventListener("input", () => {
        const value = Number(input.value), known = input.value !== "" && Number.isInteger(value) && value >= 0 && value < sizes[kind];
        input.setAttribute("aria-invalid", !known);
        if (known) choose({ ...placeOf(shown(), state.at), [kind]: value });
      });
      return { kind, input };
    });
    const words = names.map((letter) => letter === AXES[letter] ? "" : `${letter} is the ${AXES[letter]}`).filter(Boolean);
    legend.textContent = words.length ? `${words.join(", ")}.` : "A parameter of the model.";
  }
  return () => {
    const step = stepOf(state, state.step), x = shown(), { head, row, column } = placeOf(x, state.at);
    const { rows, columns } = layout(x);
    title.textContent = `${titleOf(state, state.step)} ${step ? shapeWords(step.letters, x.shape) : `(${x.shape.join(", ")})`}`;
    if (named !== `${state.step} ${x.shape}`) {
      named = `${state.step} ${x.shape}`;
      axes(step ? step.letters.split(" ") : ["row", "column"].slice(rows === 1 ? 1 : 0), x);
    }
    for (const { kind, input } of inputs) {
      if (document.activeElement !== input) input.value = { head, row, column }[kind];
    }
    size = Math.max(12, Math.min(44, Math.floor(frame.clientWidth / columns)));
    drawCells(canvas, x, { head, size });
    Object.assign(mark.style, { left: `${column * size}px`, top: `${row * size}px`, width: `${size}px`, height: `${size}px` });
    if (sighted !== `${state.step} ${state.at}`) { // a new number comes into sight
      frame.scrollLeft = Math.max((column + 2) * size - frame.clientWidth, Math.min(frame.scrollLeft, (column - 1) * size));
      frame.scrollTop = Math.max((row + 2) * size - frame.clientHeight, Math.min(frame.scrollTop, (row - 1) * size));
      sighted = `${state.step} ${state.at}`;
    }
    for (const view of views) view(step, x);
  };
}

// A place as the key of a change, see `run` in steps.js.
const indexOf = (x, place) => Object.values(placeOf(x, place)).join(" ");

// The number in words, the arithmetic that makes it, and its operands in their own tensors.
function startNumber(state, refresh, shown) {
  const [said, arithmetic, from, list, canvas] = own(state, "cell", "arithmetic", "from", "operands", "tensor");

  function operand([name, places]) {
    const x = state.found[name] ?? state.parameters[name], { rows, columns } = layout(x);
    const first = placeOf(x, places[0]), last = placeOf(x, places.at(-1));
    // of a large tensor only what is near the operand
    const near = (start, end, size, most) => size <= most ? [0, size] : [Math.max(0, start - 3), Math.min(size, end + 4)];
    const some = { rows: near(first.row, last.row, rows, 20), columns: near(first.column, last.column, columns, 64) };
    const button = make(make(list, "li"), "button", { type: "button", class: "step" });
    make(button, "span", { class: "name" }, titleOf(state, name));
    const cut = Object.entries(some).filter(([axis, [a, b]]) => b - a < { rows, columns }[axis])
      .map(([axis, [a, b]]) => `, ${axis} ${a} to ${b - 1}`).join("");
    const where = layout(x).heads > 1 ? `head ${first.head} of ` : "";
    make(button, "span", { class: "shape" }, `${where}(${x.shape.join(", ")})${cut}`);
    const size = Math.max(3, Math.min(14, Math.floor(230 / (some.columns[1] - some.columns[0]))));
    drawCells(make(button, "canvas", { "aria-hidden": "true" }), x, { ...some, head: first.head, size, lit: places });
    button.addEventListener("click", () => {
      Object.assign(state, { step: name, at: places[0] });
      refresh();
      canvas.focus();
    });
  }
  return (step, x) => {
    const typed = indexOf(x, state.at) in (state.changes[state.step] ?? {}), value = x.data[state.at];
    said.textContent = `This number is ${number(value)}.`;
    const { cells, words, value: expected } = step ? operands(step, state.at, state.found, state.parameters)
      : { cells: [], words: "Training found this parameter. Change it, and everything after it follows." };
    if (typed) arithmetic.textContent = "You typed this number.";
    else arithmetic.textContent = expected === undefined ? words : `${words} = ${number(expected)}`;
    const close = Object.is(expected, value) || Math.abs(expected - value) <= 1e-6 * (1 + Math.abs(value));
    const differs = !typed && expected !== undefined && !close;
    if (differs) arithmetic.textContent += `. But this model has ${number(value)}: the step is computed in a different way.`;
    arithmetic.classList.toggle("bad", differs);
    const signature = JSON.stringify([state.step, state.at, typed]);
    const focused = [...list.querySelectorAll("button")].indexOf(document.activeElement);
    list.replaceChildren();
    from.hidden = typed || !cells.length;
    if (!from.hidden) cells.forEach(operand);
    if (focused >= 0 && list.dataset.shown === signature) list.querySelectorAll("button")[focused]?.focus();
    list.dataset.shown = signature;
  };
}

// The field that changes the number, undo and reset.
function startChanges(state, refresh, shown) {
  const [form, field, problem, said, undo, reset] =
    own(state, "change", "value", "problem", "changes", "undo", "reset");
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const { value, problem: wrong } = typedNumber(field.value);
    problem.textContent = wrong ?? "";
    field.setAttribute("aria-invalid", Boolean(wrong));
    if (wrong) return;
    const { changes, parameters, step, at } = state;
    state.history.push({ changes, parameters });
    if (step in state.found) state.changes = { ...changes, [step]: { ...changes[step], [indexOf(shown(), at)]: value } };
    else {
      const changed = tensor(shown().shape, shown().data.slice());
      changed.data[at] = value;
      state.parameters = { ...parameters, [step]: changed };
    }
    refresh();
  });
  const back = (to) => {
    Object.assign(state, to);
    problem.textContent = "";
    field.removeAttribute("aria-invalid");
    refresh();
  };
  undo.addEventListener("click", () => back(state.history.pop() ?? {}));
  reset.addEventListener("click", () => back({ changes: {}, parameters: state.original, history: [] }));
  let shownPlace = null;
  return (step, x) => {
    const place = `${state.step} ${state.at} ${state.history.length}`;
    if (place !== shownPlace) { // what is being typed stays
      problem.textContent = "";
      field.removeAttribute("aria-invalid");
    }
    if (place !== shownPlace || document.activeElement !== field && !problem.textContent) field.value = number(x.data[state.at]);
    shownPlace = place;
    const many = state.history.length;
    said.textContent = many ? `${many} ${many === 1 ? "change" : "changes"} typed.` : "";
    undo.disabled = reset.disabled = !many;
  };
}
