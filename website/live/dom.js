// Elements, colours and pictures of tensors.

import { layout, placeOf } from "./steps.js";

// The elements with some ids.
export const get = (...ids) => ids.map((id) => document.getElementById(id));

export function make(parent, tag, attributes = {}, text = "") {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.textContent = text;
  return parent.appendChild(node);
}

// Return a function that calls `update`, at most once for each picture of the screen.
export function onceAFrame(update) {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      update();
    });
  };
}

// Nine steps of viridis and of cividis, as in `utils.draw`: from low to high they only get lighter. The
// second is for signed numbers: blue is negative, grey 0, yellow positive.
const levels = (text) => text.split(" ").map((hex) => [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16)));
const HEAT = levels("440154 472d7b 3b528b 2c728e 21918c 28ae80 5ec962 addc30 fde725");
const SIGNED = levels("00224e 1d3a6e 414d6b 5f616e 7d7c78 9b9476 bcad6c ddc95c fee838");
const OUTLINE = [["#000", 4], ["#e69f00", 2]]; // colours and widths: in grey, too, one of both stands out
export const MARGIN = 4; // that an outline needs

// value from low to high -> [red, green, blue]; what is no finite number is light grey
export function color(value, low, high) {
  if (!Number.isFinite(value)) return [217, 217, 217];
  const steps = low < 0 ? SIGNED : HEAT, at = Math.max(0, Math.min((value - low) / (high - low) * 8, 7.999));
  const i = Math.floor(at);
  return steps[i].map((from, channel) => Math.round(from + (steps[i + 1][channel] - from) * (at - i)));
}

// Black or white, whichever is easier to read on a colour: at least 4.5 to 1.
export function inkOn(rgb) {
  const [red, green, blue] = rgb.map((level) => {
    const part = level / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000" : "#fff";
}

// The scale of a tensor: from 0 if no number is negative, else with 0 in the middle.
function scale(x) {
  let most = 0, negative = false;
  for (const value of x.data) {
    if (Number.isFinite(value)) most = Math.max(most, Math.abs(value));
    negative ||= value < 0;
  }
  return [negative ? -most || -1 : 0, most || 1];
}

// Draw a tensor, one pixel for each number; of three axes, all matrices side by side or only one head.
export function drawTensor(canvas, x, head = null) {
  const { heads, rows, columns } = layout(x), [low, high] = scale(x);
  const shown = head === null ? Array.from({ length: heads }, (_, one) => one) : [head];
  const gap = 1, width = shown.length * (columns + gap) - gap;
  canvas.width = width;
  canvas.height = rows;
  const picture = new ImageData(width, rows);
  shown.forEach((one, place) => {
    for (let at = 0; at < rows * columns; at++) {
      const pixel = Math.floor(at / columns) * width + place * (columns + gap) + at % columns;
      picture.data.set([...color(x.data[one * rows * columns + at], low, high), 255], pixel * 4);
    }
  });
  canvas.getContext("2d").putImageData(picture, 0, 0);
}

// Draw one matrix of a tensor in cells of `size` points, large ones with their numbers.
//   rows, columns: first and last + 1 of those that are shown; all if left out
//   lit: places of the numbers that are outlined, a rectangle; the others fade
export function drawCells(canvas, x, { head = 0, size, rows = null, columns = null, lit = [] }) {
  const all = layout(x), [low, high] = scale(x), ratio = Math.min(devicePixelRatio, 2);
  const [top, bottom] = rows ?? [0, all.rows], [left, right] = columns ?? [0, all.columns];
  const bright = new Set(lit), margin = lit.length ? MARGIN : 0;
  const wide = (right - left) * size + 2 * margin, tall = (bottom - top) * size + 2 * margin;
  canvas.width = wide * ratio;
  canvas.height = tall * ratio;
  canvas.style.width = `${wide}px`;
  canvas.style.aspectRatio = `${wide} / ${tall}`;
  const pixels = canvas.getContext("2d");
  pixels.scale(ratio, ratio);
  pixels.translate(margin, margin);
  pixels.font = `${size < 36 ? 10 : 12}px system-ui, sans-serif`;
  pixels.textAlign = "center";
  pixels.textBaseline = "middle";
  for (let row = top; row < bottom; row++) {
    for (let column = left; column < right; column++) {
      const place = (head * all.rows + row) * all.columns + column, value = x.data[place];
      const ground = color(value, low, high), x0 = (column - left) * size, y0 = (row - top) * size;
      pixels.globalAlpha = !lit.length || bright.has(place) ? 1 : 0.4;
      pixels.fillStyle = `rgb(${ground})`;
      pixels.fillRect(x0, y0, size, size);
      if (size < 30) continue;
      pixels.fillStyle = 0.299 * ground[0] + 0.587 * ground[1] + 0.114 * ground[2] > 125 ? "#000" : "#fff";
      pixels.fillText(short(value), x0 + size / 2, y0 + size / 2);
    }
  }
  if (!lit.length) return;
  const first = placeOf(x, lit[0]), last = placeOf(x, lit.at(-1));
  pixels.globalAlpha = 1;
  drawOutline(pixels, (first.column - left) * size, (first.row - top) * size,
    (last.column - first.column + 1) * size, (last.row - first.row + 1) * size);
}

// Draw a line around a rectangle, not over it.
export function drawOutline(pixels, left, top, width, height) {
  for (const [ink, line] of OUTLINE) {
    pixels.strokeStyle = ink;
    pixels.lineWidth = line;
    pixels.strokeRect(left - line / 2, top - line / 2, width + line, height + line);
  }
}

// a number in at most five characters
function short(value) {
  if (!Number.isFinite(value)) return value < 0 ? "−∞" : "?";
  const size = Math.abs(value), text = size < 9.995 ? value.toFixed(2) : size < 99.95 ? value.toFixed(1) : value.toFixed(0);
  return text.length > 5 ? value.toExponential(0).replace("+", "") : text.replace("-", "−");
}

// A shape in words, as `describe` of utils.shapes writes it: (b=1, h=4, i=17, d=16).
export function shapeWords(letters, shape) {
  const names = letters.split(" "), all = names[0] === "b" ? shape : [1, ...shape];
  const axes = names[0] === "b" ? names : ["b", ...names];
  return `(${axes.map((name, at) => `${name}=${all[at]}`).join(", ")})`;
}

// A number that somebody typed, or a sentence that says what is wrong with it.
export function typedNumber(text) {
  const typed = text.trim(), value = Number(typed.replace("−", "-").replace(",", "."));
  if (!typed || Number.isNaN(value)) {
    return { problem: `The value must be a number, got ${typed ? `"${typed}"` : "nothing"}. Type for example 0.5.` };
  }
  if (Math.abs(value) > 1e6) {
    return { problem: `The value must be between -1 million and 1 million, got ${typed}. Type a smaller one.` };
  }
  return { value };
}
