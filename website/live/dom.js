// Elements, colours and pictures of tensors.

export function make(parent, tag, attributes = {}, text = "") {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.textContent = text;
  return parent.appendChild(node);
}

// Nine steps of viridis and of cividis, as in `utils.draw`: from low to high they only get lighter. The
// second is for signed numbers: blue is negative, grey 0, yellow positive.
const levels = (text) => text.split(" ").map((hex) => [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16)));
const HEAT = levels("440154 472d7b 3b528b 2c728e 21918c 28ae80 5ec962 addc30 fde725");
const SIGNED = levels("00224e 1d3a6e 414d6b 5f616e 7d7c78 9b9476 bcad6c ddc95c fee838");

// value from low to high -> [red, green, blue]; what is no finite number is light grey
export function color(value, low, high) {
  if (!Number.isFinite(value)) return [217, 217, 217];
  const steps = low < 0 ? SIGNED : HEAT, at = Math.max(0, Math.min((value - low) / (high - low) * 8, 7.999));
  const i = Math.floor(at);
  return steps[i].map((from, channel) => from + (steps[i + 1][channel] - from) * (at - i));
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

// Rows and columns of a tensor's picture: a vector is one row, heads are next to each other.
export function layout(x) {
  const [columns, rows, heads] = [...x.shape].reverse();
  return { heads: heads ?? 1, rows: rows ?? 1, columns };
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

// A shape in words, as `describe` of utils.shapes writes it: (b=1, h=4, i=17, d=16).
export function shapeWords(letters, shape) {
  const names = letters.split(" "), all = names[0] === "b" ? shape : [1, ...shape];
  const axes = names[0] === "b" ? names : ["b", ...names];
  return `(${axes.map((name, at) => `${name}=${all[at]}`).join(", ")})`;
}

// A number that somebody typed, or a sentence that says what is wrong with it.
export function typedNumber(text) {
  const value = Number(text.trim().replace("−", "-").replace(",", "."));
  if (!text.trim() || Number.isNaN(value)) return { problem: `The value must be a number, got "${text}". Type for example 0.5.` };
  if (Math.abs(value) > 1e6) return { problem: `The value must be between -1,000,000 and 1,000,000, got ${text.trim()}. Type a smaller one.` };
  return { value };
}
