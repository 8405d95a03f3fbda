// What must hold in a correct model, whatever its weights: each check reads the tensors of a run.

import { linear, splitHeads } from "./kernels.js";
import { HEADS } from "./kinds.js";
import { LAYERS, run } from "./vision_transformer.js";

const TOLERANCE = 1e-6;
const close = (a, b) => Math.abs(a - b) <= TOLERANCE * (1 + Math.abs(a));
const same = (x, y) => x.data.every((value, at) => close(value, y.data[at]));
const differ = (x, y) => !same(x, y);
const times = (length, check) => Array.from({ length }, (_, at) => check(at)).every(Boolean);

// Whether rows of (n, e) have mean 0 and variance 1 before weight and bias.
function normed(x, weight, bias) {
  const [n, e] = x.shape;
  return times(n, (i) => {
    const row = Array.from({ length: e }, (_, k) => (x.data[i * e + k] - bias.data[k]) / weight.data[k]);
    const mean = row.reduce((sum, value) => sum + value, 0) / e;
    const variance = row.reduce((sum, value) => sum + (value - mean) ** 2, 0) / e;
    return Math.abs(mean) < 1e-3 && Math.abs(variance - 1) < 1e-2; // eps makes it a little smaller
  });
}

// Whether layers x -> y are what a weight and a bias make of x.
const projected = (x, y, w, name) => same(y, linear(x, w(`${name}.weight`), w(`${name}.bias`)));

// The checks of a block: t has its tensors by their short names, w its parameters.
const OF_BLOCK = {
  norm: (t, w) => normed(t.norm1, w("norm1.weight"), w("norm1.bias"))
    && normed(t.norm2, w("norm2.weight"), w("norm2.bias")),
  projections: (t) => differ(t.q_all, t.k_all) && differ(t.k_all, t.v_all) && differ(t.q_all, t.v_all),
  split: (t) => ["q", "k", "v"].every((name) => same(t[name], splitHeads(t[`${name}_all`], HEADS))),
  scores: (t) => {
    const [h, n, d] = t.q.shape;
    return times(h * n * n, (at) => {
      const query = Math.floor(at / n) * d, key = (Math.floor(at / n / n) * n + at % n) * d;
      let sum = 0;
      for (let k = 0; k < d; k++) sum += t.q.data[query + k] * t.k.data[key + k];
      return close(sum / Math.sqrt(d), t.scores.data[at]);
    });
  },
  rows: (t) => {
    const n = t.weights.shape[2];
    return times(t.weights.data.length / n, (row) => {
      const weights = t.weights.data.subarray(row * n, (row + 1) * n);
      return weights.every((weight) => weight >= 0) && close(1, weights.reduce((a, b) => a + b, 0));
    });
  },
  sums: (t) => { // of the first number of each head, by hand
    const [h, n, d] = t.v.shape;
    return times(h * n, (row) => {
      let sum = 0;
      for (let j = 0; j < n; j++) sum += t.weights.data[row * n + j] * t.v.data[(Math.floor(row / n) * n + j) * d];
      return close(sum, t.weighted_sum.data[row * d]);
    });
  },
  join: (t) => same(splitHeads(t.joined, HEADS), t.weighted_sum),
  output: (t, w) => projected(t.joined, t.attention_output, w, "attn.out_proj")
    && projected(t.activated, t.mlp_output, w, "mlp.fc2"),
  residual: (t) => t.residual1.data.every((value, at) => close(value - t.attention_output.data[at], t.x.data[at]))
    && t.residual2.data.every((value, at) => close(value - t.mlp_output.data[at], t.residual1.data[at])),
  activation: (t) => differ(t.activated, t.hidden) && t.activated.data.every((value) => value > -0.18),
};

const OF_MODEL = {
  patches: (found) => { // number 1 of patch 0 is the pixel to the right, number 2 the one below
    const { image, patches } = found, at = [0, 1, 8, 9];
    return times(16, (patch) => at.every((pixel, k) =>
      patches.data[patch * 4 + k] === image.data[Math.floor(patch / 4) * 16 + patch % 4 * 2 + pixel]));
  },
  positions: (found, parameters) => {
    const table = parameters["embedding.positions"];
    return found.tokens.data.every((value, at) => close(value - found.with_class_token.data[at], table.data[at]));
  },
};

// In running order: name, what must hold, and the chapter that teaches it.
export const PROPERTIES = [
  ["patches", "a patch is a square of 2 x 2 pixels", "01"],
  ["positions", "each token gets the position of its own place", "01"],
  ["norm", "LayerNorm: before weight and bias each token has mean 0 and variance 1", "06"],
  ["projections", "queries, keys and values are three different projections", "02"],
  ["split", "head number a is columns a d to (a + 1) d of the projection", "02"],
  ["scores", "a score is the dot product of a query and a key, divided by the square root of d", "03"],
  ["rows", "the weights of a query are not negative and sum to 1", "03"],
  ["sums", "an output is the sum of the values, each times its weight", "03"],
  ["join", "splitting the joined heads gives the heads again", "04"],
  ["output", "each half of a block ends with its own Linear", "04"],
  ["residual", "a block adds to what came in: output - part = input", "06"],
  ["activation", "the feed-forward is not linear: GELU is never below -0.17", "06"],
  ["repeat", "two runs on the same picture give the same numbers", "06"],
].map(([id, words, chapter]) => ({ id, words, chapter }));

// Which properties hold for a picture: {id: true or false}.
//   found: what a run with these options returned
export function properties(parameters, image, options, found) {
  const results = Object.fromEntries(Object.entries(OF_MODEL).map(([id, check]) => [id, check(found, parameters)]));
  for (const [id, check] of Object.entries(OF_BLOCK)) {
    results[id] = times(LAYERS, (layer) => {
      const start = `${layer}.`, mine = Object.keys(found).filter((name) => name.startsWith(start));
      const t = Object.fromEntries(mine.map((name) => [name.slice(start.length), found[name]]));
      t.x = layer ? found[`${layer - 1}.residual2`] : found.tokens;
      return check(t, (name) => parameters[`encoder.layers.${layer}.${name}`]);
    });
  }
  const again = run(parameters, image, { ...options, seed: 2 });
  results.repeat = same(found.logits, again.logits);
  return results;
}
