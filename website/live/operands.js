// Where a number comes from: for one cell of a step, the cells of earlier tensors that made it, and
// the arithmetic in one line. Cells are places in memory: place 0 is the first number.

import { SIZES } from "./vision_transformer.js";

export const number = (value) => Number.isFinite(value) ? String(Math.round(value * 1000) / 1000) : String(value);
const span = (length, place) => Array.from({ length }, (_, k) => place(k));

// the first products of a long sum
function products(left, right) {
  const shown = left.slice(0, 3).map((value, k) => `${number(value)} × ${number(right[k])}`).join(" + ");
  return left.length > 3 ? `${shown} + … (${left.length} products)` : shown;
}

const linear = (input, layer) => (at, { tensor, parameter, result }) => {
  const weight = parameter(`${layer}.weight`), bias = parameter(`${layer}.bias`);
  const [m, e] = weight.shape, i = Math.floor(at / m), j = at % m;
  const token = span(e, (k) => i * e + k), row = span(e, (k) => j * e + k);
  const values = (x, places) => places.map((place) => x.data[place]);
  return {
    cells: [[input, token], [`${layer}.weight`, row], [`${layer}.bias`, [j]]],
    words: `token ${i} times row ${j} of the weight, plus the bias: `
      + `${products(values(tensor(input), token), values(weight, row))} + ${number(bias.data[j])} = ${number(result)}`,
  };
};

const layerNorm = (input, layer) => (at, { tensor, parameter, result }) => {
  const e = tensor(input).shape[1], i = Math.floor(at / e), k = at % e;
  const token = span(e, (place) => i * e + place), values = token.map((place) => tensor(input).data[place]);
  const mean = values.reduce((sum, value) => sum + value, 0) / e;
  const deviation = Math.sqrt(values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / e);
  const weight = parameter(`${layer}.weight`).data[k], bias = parameter(`${layer}.bias`).data[k];
  return {
    cells: [[input, token], [`${layer}.weight`, [k]], [`${layer}.bias`, [k]]],
    words: `token ${i} has mean ${number(mean)} and standard deviation ${number(deviation)}: `
      + `(${number(values[k])} − ${number(mean)}) / ${number(deviation)} × ${number(weight)} + ${number(bias)} = ${number(result)}`,
  };
};

const sum = (left, right) => (at, { tensor, result }) => ({
  cells: [[left, [at]], [right, [at]]],
  words: `${number(tensor(left).data[at])} + ${number(tensor(right).data[at])} = ${number(result)}`,
});

const moved = (input, place, words) => (at, { tensor, result }) => {
  const from = place(at, tensor(input));
  return { cells: [[input, [from]]], words: `${words}: the same number, ${number(result)}` };
};

const softmax = (input) => (at, { tensor, result }) => {
  const x = tensor(input), length = x.shape.at(-1), start = Math.floor(at / length) * length;
  const row = span(length, (k) => start + k), highest = Math.max(...row.map((place) => x.data[place]));
  const total = row.reduce((all, place) => all + Math.exp(x.data[place] - highest), 0);
  return {
    cells: [[input, row]],
    words: `softmax of the row, after its largest number ${number(highest)} is subtracted: `
      + `exp(${number(x.data[at] - highest)}) / ${number(total)} = ${number(result)}`,
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

function scores(at, { tensor, result }) {
  const q = tensor("q"), k = tensor("k"), [, n, d] = q.shape;
  const head = Math.floor(at / (n * n)), i = Math.floor(at / n) % n, j = at % n;
  const query = span(d, (a) => (head * n + i) * d + a), key = span(d, (a) => (head * n + j) * d + a);
  const left = query.map((place) => q.data[place]), right = key.map((place) => k.data[place]);
  return {
    cells: [["q", query], ["k", key]],
    words: `head ${head}: query ${i} times key ${j}, divided by √${d}: `
      + `(${products(left, right)}) / ${number(Math.sqrt(d))} = ${number(result)}`,
  };
}

function weightedSum(at, { tensor, result }) {
  const weights = tensor("weights"), v = tensor("v"), [, n, d] = v.shape;
  const head = Math.floor(at / (n * d)), i = Math.floor(at / d) % n, a = at % d;
  const row = span(n, (j) => (head * n + i) * n + j), column = span(n, (j) => (head * n + j) * d + a);
  const left = row.map((place) => weights.data[place]), right = column.map((place) => v.data[place]);
  return {
    cells: [["weights", row], ["v", column]],
    words: `head ${head}: the weights of query ${i} times number ${a} of every value: `
      + `${products(left, right)} = ${number(result)}`,
  };
}

// Where the cell of a patch is in the image of 8 x 8.
function pixel(at, image) {
  const p = SIZES.patch, across = image.shape[1] / p, patch = Math.floor(at / (p * p)), inside = at % (p * p);
  const row = Math.floor(patch / across) * p + Math.floor(inside / p), column = patch % across * p + inside % p;
  return row * image.shape[1] + column;
}

function withClassToken(at, { tensor, result }) {
  const e = tensor("projected").shape[1];
  const words = `the same number, ${number(result)}`;
  return at < e ? { cells: [["embedding.class_token", [at]]], words: `the class token comes first: ${words}` }
    : { cells: [["projected", [at - e]]], words: `patch ${Math.floor(at / e) - 1} is token ${Math.floor(at / e)}: ${words}` };
}

function withPositions(at, { tensor, parameter, result }) {
  return {
    cells: [["with_class_token", [at]], ["embedding.positions", [at]]],
    words: `token plus its position: ${number(tensor("with_class_token").data[at])} + `
      + `${number(parameter("embedding.positions").data[at])} = ${number(result)}`,
  };
}

const gelu = (at, { tensor, result }) => ({
  cells: [["hidden", [at]]],
  words: `GELU of ${number(tensor("hidden").data[at])} = ${number(result)}`,
});

const OPERANDS = {
  image: () => ({ cells: [], words: "a pixel: draw to change it" }),
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
  residual1: sum("x", "attention_output"),
  norm2: layerNorm("residual1", "norm2"),
  hidden: linear("norm2", "mlp.fc1"),
  activated: gelu,
  mlp_output: linear("activated", "mlp.fc2"),
  residual2: sum("residual1", "mlp_output"),
  norm: layerNorm("x", "encoder.norm"),
  class_token: moved("norm", (at) => at, "token 0"),
  logits: linear("class_token", "head"),
  probabilities: softmax("logits"),
};

// Return {cells: [[name, places]], words} for one cell of a step. Names are whole: "0.scores" for the
// tensor of a block, "encoder.layers.0.norm1.weight" for a parameter.
//   step: of STEPS; found: what `run` returned; broken: whether a bug replaces this step
export function operands(step, at, found, parameters, broken = false) {
  if (broken) return { cells: [], words: "A bug is in this step: compare it with the same step of the correct model." };
  const layer = step.layer, before = layer ? `${layer - 1}.residual2` : "tokens";
  const whole = (name) => {
    if (name === "x") return layer === null ? `${SIZES.layers - 1}.residual2` : before;
    const own = layer === null ? name : `${layer}.${name}`;
    if (own in found) return own;
    return layer === null ? name : `encoder.layers.${layer}.${name}`;
  };
  const result = OPERANDS[step.short](at, {
    tensor: (name) => found[whole(name)],
    parameter: (name) => parameters[whole(name)],
    result: found[step.name].data[at],
  });
  return { ...result, cells: result.cells.map(([name, places]) => [whole(name), places]) };
}
