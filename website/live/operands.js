// Where a number comes from: for one cell of a step, the cells of earlier tensors that make it, the
// arithmetic in one line, and its result. Cells are places in memory: place 0 is the first number.

import { gelu, tensor } from "./kernels.js";
import { SIZES } from "./vision_transformer.js";

export const number = (value) =>
  Number.isFinite(value) ? String(Math.round(value * 1000) / 1000).replace("-", "−") : String(value).replace("-", "−");
const span = (length, place) => Array.from({ length }, (_, k) => place(k));
const pick = (x, places) => places.map((place) => x.data[place]);
const dot = (left, right) => left.reduce((sum, value, k) => sum + value * right[k], 0);
// a number after an operator: a negative one in parentheses
const term = (value) => value < 0 ? `(${number(value)})` : number(value);

// the first products of a long sum
function products(left, right) {
  const shown = left.slice(0, 3).map((value, k) => `${term(value)} × ${term(right[k])}`).join(" + ");
  return left.length > 3 ? `${shown} + … (${left.length} products)` : shown;
}

const linear = (input, layer) => (at, { read, parameter }) => {
  const weight = parameter(`${layer}.weight`), bias = parameter(`${layer}.bias`);
  const [m, e] = weight.shape, i = Math.floor(at / m), j = at % m;
  const token = span(e, (k) => i * e + k), row = span(e, (k) => j * e + k);
  const left = pick(read(input), token), right = pick(weight, row);
  return {
    cells: [[input, token], [`${layer}.weight`, row], [`${layer}.bias`, [j]]],
    words: `row ${i} times row ${j} of the weight, plus the bias: ${products(left, right)} + ${term(bias.data[j])}`,
    value: dot(left, right) + bias.data[j],
  };
};

const layerNorm = (input, layer) => (at, { read, parameter }) => {
  const e = read(input).shape[1], i = Math.floor(at / e), k = at % e;
  const token = span(e, (place) => i * e + place), values = pick(read(input), token);
  const mean = values.reduce((sum, value) => sum + value, 0) / e;
  const deviation = Math.sqrt(values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / e + 1e-5);
  const weight = parameter(`${layer}.weight`).data[k], bias = parameter(`${layer}.bias`).data[k];
  return {
    cells: [[input, token], [`${layer}.weight`, [k]], [`${layer}.bias`, [k]]],
    words: `token ${i} has mean ${number(mean)} and standard deviation ${number(deviation)}: `
      + `(${number(values[k])} − ${term(mean)}) / ${number(deviation)} × ${term(weight)} + ${term(bias)}`,
    value: (values[k] - mean) / deviation * weight + bias,
  };
};

const sum = (left, right, words) => (at, { read }) => {
  const [a, b] = [read(left).data[at], read(right).data[at]];
  return { cells: [[left, [at]], [right, [at]]], words: `${words}: ${number(a)} + ${term(b)}`, value: a + b };
};

const moved = (input, place, words) => (at, { read }) => {
  const from = place(at, read(input)), value = read(input).data[from];
  return { cells: [[input, [from]]], words: `${words}, not changed: ${number(value)}`, value };
};

const softmax = (input) => (at, { read }) => {
  const x = read(input), length = x.shape.at(-1), start = Math.floor(at / length) * length;
  const row = span(length, (k) => start + k), values = pick(x, row), highest = Math.max(...values);
  const total = values.reduce((all, value) => all + Math.exp(value - highest), 0);
  return {
    cells: [[input, row]],
    words: `softmax of the row, after its largest number ${number(highest)} is subtracted: `
      + `exp(${number(x.data[at] - highest)}) / ${number(total)}`,
    value: Math.exp(x.data[at] - highest) / total,
  };
};

function split(at, x) { // place in (n, e) of a place in (h, n, d)
  const [n, e] = x.shape, d = e / SIZES.heads;
  const head = Math.floor(at / (n * d)), i = Math.floor(at / d) % n;
  return i * e + head * d + at % d;
}

function join(at, x) { // place in (h, n, d) of a place in (n, e)
  const [h, n, d] = x.shape, i = Math.floor(at / (h * d)), head = Math.floor(at / d) % h;
  return (head * n + i) * d + at % d;
}

function scores(at, { read }) {
  const q = read("q"), k = read("k"), [, n, d] = q.shape;
  const head = Math.floor(at / (n * n)), i = Math.floor(at / n) % n, j = at % n;
  const query = span(d, (a) => (head * n + i) * d + a), key = span(d, (a) => (head * n + j) * d + a);
  const left = pick(q, query), right = pick(k, key);
  return {
    cells: [["q", query], ["k", key]],
    words: `head ${head}: query ${i} times key ${j}, divided by √${d}: (${products(left, right)}) / ${number(Math.sqrt(d))}`,
    value: dot(left, right) / Math.sqrt(d),
  };
}

function weightedSum(at, { read }) {
  const weights = read("weights"), v = read("v"), [, n, d] = v.shape;
  const head = Math.floor(at / (n * d)), i = Math.floor(at / d) % n, a = at % d;
  const row = span(n, (j) => (head * n + i) * n + j), column = span(n, (j) => (head * n + j) * d + a);
  const left = pick(weights, row), right = pick(v, column);
  return {
    cells: [["weights", row], ["v", column]],
    words: `head ${head}: the weights of query ${i} times number ${a} of every value: ${products(left, right)}`,
    value: dot(left, right),
  };
}

// Where the cell of a patch is in the image of 8 x 8.
function pixel(at, image) {
  const p = SIZES.patch, across = image.shape[1] / p, patch = Math.floor(at / (p * p)), inside = at % (p * p);
  const row = Math.floor(patch / across) * p + Math.floor(inside / p), column = patch % across * p + inside % p;
  return row * image.shape[1] + column;
}

function withClassToken(at, { read, parameter }) {
  const e = read("projected").shape[1];
  const [name, place] = at < e ? ["embedding.class_token", at] : ["projected", at - e];
  const value = (at < e ? parameter(name) : read(name)).data[place];
  const words = at < e ? "the class token comes first" : `patch ${Math.floor(at / e) - 1} is token ${Math.floor(at / e)}`;
  return { cells: [[name, [place]]], words: `${words}, not changed: ${number(value)}`, value };
}

function withPositions(at, { read, parameter }) {
  const [a, b] = [read("with_class_token").data[at], parameter("embedding.positions").data[at]];
  return {
    cells: [["with_class_token", [at]], ["embedding.positions", [at]]],
    words: `the token plus its position: ${number(a)} + ${term(b)}`,
    value: a + b,
  };
}

function activation(at, { read }) {
  const value = read("hidden").data[at];
  return { cells: [["hidden", [at]]], words: `GELU(${number(value)})`, value: gelu(tensor([1], [value])).data[0] };
}

const OPERANDS = {
  image: () => ({ cells: [], words: "a pixel, from 0 (no ink) to 1: draw to change it" }),
  patches: moved("image", pixel, "a pixel of the image"),
  projected: linear("patches", "embedding.proj"),
  with_class_token: withClassToken,
  tokens: withPositions,
  norm1: layerNorm("x", "norm1"),
  q_all: linear("norm1", "attn.q_proj"),
  k_all: linear("norm1", "attn.k_proj"),
  v_all: linear("norm1", "attn.v_proj"),
  q: moved("q_all", split, "a head is a slice of the columns"),
  k: moved("k_all", split, "a head is a slice of the columns"),
  v: moved("v_all", split, "a head is a slice of the columns"),
  scores,
  weights: softmax("scores"),
  weighted_sum: weightedSum,
  joined: moved("weighted_sum", join, "the heads side by side"),
  attention_output: linear("joined", "attn.out_proj"),
  residual1: sum("x", "attention_output", "what came in plus the attention output"),
  norm2: layerNorm("residual1", "norm2"),
  hidden: linear("norm2", "mlp.fc1"),
  activated: activation,
  mlp_output: linear("activated", "mlp.fc2"),
  residual2: sum("residual1", "mlp_output", "what came in plus the feed-forward's output"),
  norm: layerNorm("x", "encoder.norm"),
  class_token: moved("norm", (at) => at, "token 0"),
  logits: linear("class_token", "head"),
  probabilities: softmax("logits"),
};

// Return {cells: [[name, places]], words, value} for one cell of a step of a correct model: with a bug,
// the step may hold another number. Names are whole: "0.scores" for the tensor of a block,
// "encoder.layers.0.norm1.weight" for a parameter.
//   step: of STEPS; found: what `run` returned
export function operands(step, at, found, parameters) {
  const layer = step.layer;
  const whole = (name) => {
    if (name === "x" && layer === null) return `${SIZES.layers - 1}.residual2`;
    if (name === "x") return layer ? `${layer - 1}.residual2` : "tokens";
    const own = layer === null ? name : `${layer}.${name}`;
    if (own in found) return own;
    return layer === null ? name : `encoder.layers.${layer}.${name}`;
  };
  const made = OPERANDS[step.short](at, {
    read: (name) => found[whole(name)],
    parameter: (name) => parameters[whole(name)],
  });
  return { ...made, cells: made.cells.map(([name, places]) => [whole(name), places]) };
}
