// The Vision Transformer of chapter 07, step by step: one picture in, every tensor of the ledger out.

import {
  add, attentionScores, concatenate, gelu, joinHeads, layerNorm, linear, patchify, rows, softmax,
  splitHeads, tensor, weightedSum,
} from "./kernels.js";

export const SIZES = { patch: 2, heads: 4, layers: 2, classes: 10 };

// Every step: name, axis letters, chapter, and how it is computed from earlier steps `t` and
// parameters `w`. In a block, names are those of the block, and t.x is what comes in.
const EMBEDDING = [
  ["image", "H W", "00", (t) => t.image],
  ["patches", "n p", "01", (t) => patchify(t.image, SIZES.patch)],
  ["projected", "n e", "01", (t, w) => linear(t.patches, w("embedding.proj.weight"), w("embedding.proj.bias"))],
  ["with_class_token", "n e", "01", (t, w) => concatenate([flat(w("embedding.class_token")), t.projected])],
  ["tokens", "n e", "01", (t, w) => add(t.with_class_token, flat(w("embedding.positions")))],
];
const BLOCK = [
  ["norm1", "n e", "06", (t, w) => layerNorm(t.x, w("norm1.weight"), w("norm1.bias"))],
  ["q_all", "n e", "02", (t, w) => linear(t.norm1, w("attn.q_proj.weight"), w("attn.q_proj.bias"))],
  ["k_all", "n e", "02", (t, w) => linear(t.norm1, w("attn.k_proj.weight"), w("attn.k_proj.bias"))],
  ["v_all", "n e", "02", (t, w) => linear(t.norm1, w("attn.v_proj.weight"), w("attn.v_proj.bias"))],
  ["q", "h i d", "02", (t) => splitHeads(t.q_all, SIZES.heads)],
  ["k", "h j d", "02", (t) => splitHeads(t.k_all, SIZES.heads)],
  ["v", "h j d", "02", (t) => splitHeads(t.v_all, SIZES.heads)],
  ["scores", "h i j", "03", (t) => attentionScores(t.q, t.k)],
  ["weights", "h i j", "03", (t) => softmax(t.scores)],
  ["weighted_sum", "h i d", "03", (t) => weightedSum(t.weights, t.v)],
  ["joined", "n e", "04", (t) => joinHeads(t.weighted_sum)],
  ["attention_output", "n e", "04", (t, w) => linear(t.joined, w("attn.out_proj.weight"), w("attn.out_proj.bias"))],
  ["residual1", "n e", "06", (t) => add(t.x, t.attention_output)],
  ["norm2", "n e", "06", (t, w) => layerNorm(t.residual1, w("norm2.weight"), w("norm2.bias"))],
  ["hidden", "n m", "06", (t, w) => linear(t.norm2, w("mlp.fc1.weight"), w("mlp.fc1.bias"))],
  ["activated", "n m", "06", (t) => gelu(t.hidden)],
  ["mlp_output", "n e", "06", (t, w) => linear(t.activated, w("mlp.fc2.weight"), w("mlp.fc2.bias"))],
  ["residual2", "n e", "06", (t) => add(t.residual1, t.mlp_output)],
];
const END = [
  ["norm", "n e", "07", (t, w) => layerNorm(t.x, w("encoder.norm.weight"), w("encoder.norm.bias"))],
  ["class_token", "b e", "07", (t) => rows(t.norm, 0, 1)],
  ["logits", "b k", "07", (t, w) => linear(t.class_token, w("head.weight"), w("head.bias"))],
  ["probabilities", "b k", "07", (t) => softmax(t.logits)],
];

const flat = (x) => tensor(x.shape.slice(1), x.data); // without the batch axis of size 1

// All steps in running order, with the names that `run` gives them: "scores" of block 0 is "0.scores".
export const STEPS = [
  ...EMBEDDING.map((step) => asStep(step)),
  ...Array.from({ length: SIZES.layers }, (_, layer) => BLOCK.map((step) => asStep(step, layer))).flat(),
  ...END.map((step) => asStep(step)),
];

function asStep([name, letters, chapter, compute], layer = null) {
  return { name: layer === null ? name : `${layer}.${name}`, short: name, layer, letters, chapter, compute };
}

// Run the model.
//   parameters: {name: tensor}, as `readTensors` returns them
//   image (8, 8), from 0 to 1
//   bug: one of bugs.js, or null; its functions replace those of the steps that they name
//   changes: {step: {index: number}}, written into a step's tensor before the next step reads it
//   seed: of the random numbers, which only dropout needs
//   until: the last step that is needed
//   classOnly: only the logits are needed: in the last block, leave out all queries but that of the class token
// Returns {step: tensor}.
export function run(parameters, image, { bug = null, changes = {}, seed = 1, until = "probabilities", classOnly = false } = {}) {
  const found = {}, last = SIZES.layers - 1;
  if (bug?.mixes || Object.keys(changes).some((name) => name.startsWith(`${last}.`))) classOnly = false;
  let t = { image }, layer = null, x = null;
  for (const step of STEPS) {
    if (step.layer !== layer) { // a block begins, or the end
      layer = step.layer;
      t = { image, x };
    }
    if (classOnly && step.name === `${last}.q`) { // keys and values of all tokens are there
      for (const name of ["x", "norm1", "q_all"]) t[name] = rows(t[name], 0, 1);
    }
    const prefix = layer === null ? "" : `encoder.layers.${layer}.`;
    const w = (name) => parameters[prefix + name];
    const compute = bug?.steps[step.short] ?? step.compute;
    let result = compute(t, w, step, seed);
    if (changes[step.name]) {
      result = tensor(result.shape, result.data.slice());
      for (const [at, value] of Object.entries(changes[step.name])) result.data[at] = value;
    }
    t[step.short] = found[step.name] = result;
    if (step.short === "tokens" || step.short === "residual2") x = result;
    if (step.name === until) break;
  }
  return found;
}

export function predicted(found) {
  const { data } = found.logits;
  return data.indexOf(Math.max(...data));
}

// Test digit number `at` of the bytes of all, 64 for each with ink from 0 to 16, as the model reads it.
export function testDigit(images, at) {
  const side = 8, pixels = images.subarray(at * side * side, (at + 1) * side * side);
  return tensor([side, side], Float64Array.from(pixels, (ink) => ink / 16));
}
