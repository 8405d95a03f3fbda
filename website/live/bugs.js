// Bugs that pass every shape check, by their names in the catalogue of the clinic, which has their
// words and fixes. Each replaces the functions of some steps by their incorrect forms; `property` names
// the check of properties.js that finds it. `mixes`: what a query gets depends on the other queries.

import {
  add, attentionScores, concatenate, gelu, layerNorm, linear, masked, softmax, tensor, weightedSum,
} from "./kernels.js";
import { HEADS } from "./kinds.js";

// the numbers of x in another shape, in the order in which they lie in memory
const viewed = (x, ...shape) => tensor(shape, x.data);

function transposed(x) { // (h, i, j) -> (h, j, i)
  const [h, i, j] = x.shape, result = tensor([h, j, i]);
  for (let at = 0; at < x.data.length; at++) {
    const head = Math.floor(at / (i * j)), row = Math.floor(at / j) % i;
    result.data[(head * j + at % j) * i + row] = x.data[at];
  }
  return result;
}

// LayerNorm without weight and bias over each column of (n, e), then weight and bias
function normOverTokens(x, weight, bias) {
  const [n, e] = x.shape, every = (value) => tensor([n], new Float64Array(n).fill(value));
  const columns = viewed(transposed(viewed(x, 1, n, e)), e, n);
  const normed = transposed(viewed(layerNorm(columns, every(1), every(0)), 1, e, n));
  return tensor([n, e], normed.data.map((value, at) => value * weight.data[at % e] + bias.data[at % e]));
}

// One number in ten becomes 0, the others grow. The random numbers are a sequence that `seed` starts.
function dropout(x, seed) {
  let state = seed;
  return tensor(x.shape, x.data.map((value) => {
    state = (state * 16807) % 2147483647;
    return state < 214748364 ? 0 : value / 0.9;
  }));
}

const byView = (name) => (t) => {
  const [n, e] = t[`${name}_all`].shape;
  return viewed(t[`${name}_all`], HEADS, n, e / HEADS);
};

export const BUGS = [
  { id: "patch-view", property: "patches", steps: { patches: (t) => viewed(t.image, 16, 4) } },
  {
    id: "pos-before-cls", property: "positions",
    steps: {
      tokens: (t, w) => {
        const e = t.projected.shape[1], table = w("positions").data.slice(0, t.projected.data.length);
        const patches = add(t.projected, tensor(t.projected.shape, table));
        return concatenate([tensor([1, e], w("class_token").data), patches]);
      },
    },
  },
  {
    id: "pos-batch-axis", property: "positions", // the only picture of its batch has number 0
    steps: {
      tokens: (t, w) => {
        const table = w("positions").data, [n, e] = t.with_class_token.shape;
        return tensor([n, e], t.with_class_token.data.map((value, at) => value + table[at % e]));
      },
    },
  },
  { id: "norm-missing", property: "norm", steps: { norm2: (t) => t.residual1 } },
  {
    id: "norm-axis", property: "norm",
    steps: { norm1: (t, w) => normOverTokens(t.x, w("norm1.weight"), w("norm1.bias")) },
  },
  {
    id: "norm-shared", property: "norm",
    steps: { norm2: (t, w) => layerNorm(t.residual1, w("norm1.weight"), w("norm1.bias")) },
  },
  {
    id: "projection-shared", property: "projections",
    steps: { q_all: (t, w) => linear(t.norm1, w("attn.k_proj.weight"), w("attn.k_proj.bias")) },
  },
  {
    id: "value-from-key", property: "projections",
    steps: { v_all: (t, w) => linear(t.norm1, w("attn.k_proj.weight"), w("attn.k_proj.bias")) },
  },
  {
    id: "split-no-transpose", property: "split", mixes: true,
    steps: { q: byView("q"), k: byView("k"), v: byView("v") },
  },
  { id: "scale-missing", property: "scores", steps: { scores: (t) => attentionScores(t.q, t.k, 1) } },
  {
    id: "scale-embed", property: "scores",
    steps: { scores: (t) => attentionScores(t.q, t.k, Math.sqrt(t.q_all.shape[1])) },
  },
  {
    id: "softmax-query", property: "rows", mixes: true,
    steps: { weights: (t) => softmax(t.scores, 1) },
  },
  { id: "softmax-heads", property: "rows", steps: { weights: (t) => softmax(t.scores, 0) } },
  { id: "softmax-missing", property: "rows", steps: { weights: (t) => t.scores } },
  {
    id: "mask-inverted", property: "rows", // every token may be attended to; inverted, none may
    steps: { weights: (t) => softmax(masked(t.scores, tensor(t.scores.shape.slice(1)))) },
  },
  {
    id: "mix-transposed", property: "sums", mixes: true,
    steps: { weighted_sum: (t) => weightedSum(transposed(t.weights), t.v) },
  },
  {
    id: "merge-no-transpose", property: "join", mixes: true,
    steps: { joined: (t) => viewed(t.weighted_sum, ...t.norm1.shape) },
  },
  { id: "out-missing", property: "output", steps: { attention_output: (t) => t.joined } },
  { id: "residual-from-norm", property: "residual", steps: { residual1: (t) => add(t.norm1, t.attention_output) } },
  { id: "residual-missing", property: "residual", steps: { residual2: (t) => t.mlp_output } },
  { id: "residual-from-input", property: "residual", steps: { residual2: (t) => add(t.x, t.mlp_output) } },
  { id: "activation-missing", property: "activation", steps: { activated: (t) => t.hidden } },
  {
    id: "activation-last", property: "output",
    steps: { mlp_output: (t, w) => gelu(linear(t.activated, w("mlp.fc2.weight"), w("mlp.fc2.bias"))) },
  },
  {
    id: "dropout-eval", property: "repeat", mixes: true, // as the random numbers are one sequence
    steps: { weights: (t, w, step, seed) => dropout(softmax(t.scores), seed + parseInt(step.name)) },
  },
];
