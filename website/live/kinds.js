// The kinds of steps that a model is made of. Each takes the names of its inputs and gives two functions
// of the tensors `t` and the parameters `w`:
//   compute(t, w): the tensor of the step
//   from(at, t, w): where one number of it comes from, {cells: [[name, places]], words, value}: cells of
//     earlier tensors and of parameters, the arithmetic in one line, and its result
// Numbers of a tensor are named by their places in memory: place 0 is the first.

import * as kernels from "./kernels.js";

export const HEADS = 4; // of every model here

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

export const linear = (input, layer, hasBias = true) => ({
  compute: (t, w) => kernels.linear(t[input], w(`${layer}.weight`), hasBias ? w(`${layer}.bias`) : null),
  from(at, t, w) {
    const weight = w(`${layer}.weight`), bias = hasBias ? w(`${layer}.bias`).data : null;
    const [m, e] = weight.shape, i = Math.floor(at / m), j = at % m;
    const token = span(e, (k) => i * e + k), row = span(e, (k) => j * e + k);
    const left = pick(t[input], token), right = pick(weight, row);
    return {
      cells: [[input, token], [`${layer}.weight`, row], ...(bias ? [[`${layer}.bias`, [j]]] : [])],
      words: `row ${i} times row ${j} of the weight${bias ? ", plus the bias" : ""}: ${products(left, right)}`
        + (bias ? ` + ${term(bias[j])}` : ""),
      value: dot(left, right) + (bias ? bias[j] : 0),
    };
  },
});

export const layerNorm = (input, layer) => ({
  compute: (t, w) => kernels.layerNorm(t[input], w(`${layer}.weight`), w(`${layer}.bias`)),
  from(at, t, w) {
    const e = t[input].shape[1], i = Math.floor(at / e), k = at % e;
    const token = span(e, (place) => i * e + place), values = pick(t[input], token);
    const mean = values.reduce((sum, value) => sum + value, 0) / e;
    const deviation = Math.sqrt(values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / e + 1e-5);
    const weight = w(`${layer}.weight`).data[k], bias = w(`${layer}.bias`).data[k];
    return {
      cells: [[input, token], [`${layer}.weight`, [k]], [`${layer}.bias`, [k]]],
      words: `token ${i} has mean ${number(mean)} and standard deviation ${number(deviation)}: `
        + `(${number(values[k])} − ${term(mean)}) / ${number(deviation)} × ${term(weight)} + ${term(bias)}`,
      value: (values[k] - mean) / deviation * weight + bias,
    };
  },
});

export const sum = (left, right, words) => ({
  compute: (t) => kernels.add(t[left], t[right]),
  from(at, t) {
    const [a, b] = [t[left].data[at], t[right].data[at]];
    return { cells: [[left, [at]], [right, [at]]], words: `${words}: ${number(a)} + ${term(b)}`, value: a + b };
  },
});

// Numbers of an input in another place: `place` is the place in the input of a place in the result.
const moved = (input, compute, place, words) => ({
  compute: (t) => compute(t[input]),
  from(at, t) {
    const from = place(at, t[input]), value = t[input].data[from];
    return { cells: [[input, [from]]], words: `${words}, not changed: ${number(value)}`, value };
  },
});

export const splitHeads = (input) => moved(input, (x) => kernels.splitHeads(x, HEADS), (at, x) => {
  const [n, e] = x.shape, d = e / HEADS;
  const head = Math.floor(at / (n * d)), i = Math.floor(at / d) % n;
  return i * e + head * d + at % d;
}, "a head is a slice of the columns");

export const joinHeads = (input) => moved(input, kernels.joinHeads, (at, x) => {
  const [h, n, d] = x.shape, i = Math.floor(at / (h * d)), head = Math.floor(at / d) % h;
  return (head * n + i) * d + at % d;
}, "the heads side by side");

export const patchify = (input, p) => moved(input, (x) => kernels.patchify(x, p), (at, image) => {
  const across = image.shape[1] / p, patch = Math.floor(at / (p * p)), inside = at % (p * p);
  const row = Math.floor(patch / across) * p + Math.floor(inside / p), column = patch % across * p + inside % p;
  return row * image.shape[1] + column;
}, "a pixel of the image");

export const firstRow = (input) => moved(input, (x) => kernels.rows(x, 0, 1), (at) => at, "token 0");

export const softmax = (input) => ({
  compute: (t) => kernels.softmax(t[input]),
  from(at, t) {
    const x = t[input], length = x.shape.at(-1), start = Math.floor(at / length) * length;
    const row = span(length, (k) => start + k), values = pick(x, row), highest = Math.max(...values);
    const total = values.reduce((all, value) => all + Math.exp(value - highest), 0);
    return {
      cells: [[input, row]],
      words: `softmax of the row, after its largest number ${number(highest)} is subtracted: `
        + `exp(${number(x.data[at] - highest)}) / ${number(total)}`,
      value: Math.exp(x.data[at] - highest) / total,
    };
  },
});

export const scores = (queries, keys) => ({
  compute: (t) => kernels.attentionScores(t[queries], t[keys]),
  from(at, t) {
    const [, n, d] = t[queries].shape, m = t[keys].shape[1];
    const head = Math.floor(at / (n * m)), i = Math.floor(at / m) % n, j = at % m;
    const query = span(d, (a) => (head * n + i) * d + a), key = span(d, (a) => (head * m + j) * d + a);
    const left = pick(t[queries], query), right = pick(t[keys], key);
    return {
      cells: [[queries, query], [keys, key]],
      words: `head ${head}: query ${i} times key ${j}, divided by √${d}: (${products(left, right)}) / ${number(Math.sqrt(d))}`,
      value: dot(left, right) / Math.sqrt(d),
    };
  },
});

export const causal = (input) => ({
  compute: (t) => kernels.masked(t[input], kernels.causalMask(t[input].shape[1])),
  from(at, t) {
    const [, i, j] = t[input].shape, row = Math.floor(at / j) % i, value = t[input].data[at];
    if (at % j <= row) return { cells: [[input, [at]]], words: `query ${row} may attend, not changed: ${number(value)}`, value };
    return { cells: [[input, [at]]], words: `key ${at % j} comes after query ${row}, so the mask removes it`, value: -Infinity };
  },
});

export const weightedSum = (weights, values) => ({
  compute: (t) => kernels.weightedSum(t[weights], t[values]),
  from(at, t) {
    const [, n, m] = t[weights].shape, d = t[values].shape[2];
    const head = Math.floor(at / (n * d)), i = Math.floor(at / d) % n, a = at % d;
    const row = span(m, (j) => (head * n + i) * m + j), column = span(m, (j) => (head * m + j) * d + a);
    const left = pick(t[weights], row), right = pick(t[values], column);
    return {
      cells: [[weights, row], [values, column]],
      words: `head ${head}: the weights of query ${i} times number ${a} of every value: ${products(left, right)}`,
      value: dot(left, right),
    };
  },
});

export const gelu = (input) => ({
  compute: (t) => kernels.gelu(t[input]),
  from(at, t) {
    const value = t[input].data[at];
    return {
      cells: [[input, [at]]], words: `GELU(${number(value)})`,
      value: kernels.gelu(kernels.tensor([1], [value])).data[0],
    };
  },
});

export const image = {
  compute: (t) => t.image,
  from: () => ({ cells: [], words: "a pixel, from 0 (no ink) to 1: draw to change it" }),
};

const flat = (x) => kernels.tensor(x.shape.slice(-2), x.data); // without the batch axis of size 1

export const withClassToken = (input, token) => ({
  compute: (t, w) => kernels.concatenate([flat(w(token)), t[input]]),
  from(at, t, w) {
    const e = t[input].shape[1], row = Math.floor(at / e);
    const [name, place] = row ? [input, at - e] : [token, at], value = (row ? t[name] : w(name)).data[place];
    const words = row ? `patch ${row - 1} is token ${row}` : "the class token comes first";
    return { cells: [[name, [place]]], words: `${words}, not changed: ${number(value)}`, value };
  },
});

// The matrix of positions may have more rows than there are tokens.
export const withPositions = (input, positions) => ({
  compute: (t, w) => kernels.add(t[input], kernels.rows(flat(w(positions)), 0, t[input].shape[0])),
  from(at, t, w) {
    const [a, b] = [t[input].data[at], w(positions).data[at]];
    return {
      cells: [[input, [at]], [positions, [at]]],
      words: `the token plus its position: ${number(a)} + ${term(b)}`,
      value: a + b,
    };
  },
});

// Rows of an embedding matrix; scaled by the square root of e as in the original Transformer, or not.
export const embedding = (ids, matrix, scaled) => ({
  compute(t, w) {
    const x = kernels.lookUp(t[ids], w(matrix)), factor = scaled ? Math.sqrt(x.shape[1]) : 1;
    return kernels.tensor(x.shape, x.data.map((value) => value * factor));
  },
  from(at, t, w) {
    const e = w(matrix).shape[1], id = t[ids][Math.floor(at / e)], place = id * e + at % e;
    const value = w(matrix).data[place];
    return {
      cells: [[matrix, [place]]],
      words: `row ${id} of the matrix${scaled ? `, times √${e}: ${number(value)} × ${number(Math.sqrt(e))}` : `: ${number(value)}`}`,
      value: scaled ? value * Math.sqrt(e) : value,
    };
  },
});
