// The sections "Draw a digit" and "Break it": one model, one picture, and what the reader changes.

import { startBreaking } from "./breaking.js";
import { MARGIN, drawOutline, get, make, onceAFrame } from "./dom.js";
import { tensor } from "./kernels.js";
import { startTensors } from "./tensors.js";
import { STEPS, predicted, run, testDigit } from "./vision_transformer.js";

const SIDE = 8, LEVELS = 16; // pixels of a digit's side, and levels of ink that are read out
const PEN = 1.3; // reach of the pen from its centre, in pixels, as wide as the strokes of the test digits

export function startDigits(data) {
  const refresh = onceAFrame(() => {
    const { bug, changes } = state;
    state.found = run(state.parameters, state.image, { bug, changes });
    state.correct = run(state.original, state.image);
    for (const view of views) view();
  });
  const state = {
    data, steps: STEPS, prefix: "",
    original: data.parameters, parameters: data.parameters, // the second ones with the reader's changes
    image: testDigit(data.images, 0), label: data.labels[0], // no label where the reader drew
    bug: null, hidden: false, // whether the reader is to find the bug
    changes: {}, history: [],
    step: "0.weights", at: 0, // what is shown in large
    found: null, correct: null, // tensors of this model, and of the correct one
  };
  const views = [startPaper, startPredictions, startTensors, startBreaking].map((start) => start(state, refresh));
  refresh();
}

function startPaper(state, refresh) {
  const [canvas, said, chosen, next, clear] = get("paper", "paper-said", "test-digit", "next-digit", "clear");
  const cursor = { row: 3, column: 3 }, last = state.data.labels.length - 1;
  let from = null; // the point where the pen was

  function draw(change) { // change: (ink, row, column) -> ink
    const pixels = state.image.data.map((ink, at) => change(ink, Math.floor(at / SIDE), at % SIDE));
    state.image = tensor([SIDE, SIDE], pixels);
    state.label = null;
    refresh();
  }
  function dot(row, column, erases) { // going over a line twice does not make it darker
    draw((ink, r, c) => {
      const reach = Math.max(0, Math.min(1, PEN - Math.hypot(r + 0.5 - row, c + 0.5 - column)));
      return erases ? Math.min(ink, 1 - reach) : Math.max(ink, reach);
    });
  }
  function stroke(event) {
    const box = canvas.getBoundingClientRect(), erases = event.buttons === 2 || event.shiftKey;
    const to = [(event.clientY - box.top) / box.height * SIDE, (event.clientX - box.left) / box.width * SIDE];
    const start = from ?? to, steps = Math.ceil(Math.hypot(to[0] - start[0], to[1] - start[1]) * 3) || 1;
    for (let k = 1; k <= steps; k++) dot(...start.map((a, axis) => a + (to[axis] - a) * k / steps), erases);
    from = to;
  }
  function show(at) {
    Object.assign(state, { image: testDigit(state.data.images, at), label: state.data.labels[at] });
    said.textContent = "";
    refresh();
  }
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    from = null;
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
      cursor.row = Math.max(0, Math.min(SIDE - 1, cursor.row + move[0]));
      cursor.column = Math.max(0, Math.min(SIDE - 1, cursor.column + move[1]));
      refresh();
    } else {
      draw((ink, r, c) => r === cursor.row && c === cursor.column ? Math.max(0, Math.min(1, ink + amount)) : ink);
    }
    const level = Math.round(state.image.data[cursor.row * SIDE + cursor.column] * LEVELS);
    said.textContent = `Row ${cursor.row}, column ${cursor.column}: ink ${level} of ${LEVELS}.`;
  });
  for (const event of ["focus", "blur"]) canvas.addEventListener(event, refresh); // the cursor comes and goes
  clear.addEventListener("click", () => {
    draw(() => 0);
    said.textContent = "The paper is empty.";
  });
  chosen.max = last;
  chosen.addEventListener("input", () => {
    const at = Number(chosen.value), known = chosen.value !== "" && Number.isInteger(at) && at >= 0 && at <= last;
    chosen.setAttribute("aria-invalid", !known);
    if (known) show(at);
    else said.textContent = `The test digit must be a number from 0 to ${last}, got ${chosen.value || "nothing"}.`;
  });
  next.addEventListener("click", () => {
    chosen.value = (Math.floor(Number(chosen.value)) + 1) % (last + 1) || 0;
    chosen.setAttribute("aria-invalid", false);
    show(Number(chosen.value));
  });
  return () => {
    const pixels = canvas.getContext("2d"), size = canvas.width / SIDE;
    state.image.data.forEach((value, at) => {
      const grey = Math.round(255 * value);
      pixels.fillStyle = `rgb(${grey}, ${grey}, ${grey})`;
      pixels.fillRect(at % SIDE * size, Math.floor(at / SIDE) * size, size, size);
    });
    if (document.activeElement !== canvas) return;
    const inside = size - 2 * MARGIN;
    drawOutline(pixels, cursor.column * size + MARGIN, cursor.row * size + MARGIN, inside, inside);
  };
}

function startPredictions(state) {
  const [list, said] = get("predictions", "predicted");
  const bars = Array.from({ length: 10 }, (_, digit) => {
    const row = make(list, "li");
    make(row, "span", {}, digit);
    const bar = make(row, "span", { class: "bar", "aria-hidden": "true" });
    return { row, bar, percent: make(row, "span", { class: "percent" }) };
  });
  return () => {
    const { data } = state.found.probabilities, best = predicted(state.found);
    bars.forEach(({ row, bar, percent }, digit) => {
      row.classList.toggle("best", digit === best);
      bar.style.setProperty("--fraction", data[digit]);
      percent.textContent = `${Math.round(100 * data[digit])} %`;
    });
    const label = state.label === null ? "" : ` The label is ${state.label}.`, right = predicted(state.correct);
    const other = right === best ? "" : ` The correct model predicts ${right}.`;
    said.textContent = state.image.data.every((ink) => ink === 0)
      ? `No ink yet. The model must choose a digit all the same: ${best}.` : `The model predicts ${best}.${other}${label}`;
  };
}
