// Parts of the two models that read text: a block of an encoder or a decoder, without the tensors that
// the digits' page shows.

import {
  add, attentionScores, gelu, joinHeads, layerNorm, linear, lookUp, masked, softmax, splitHeads, tensor,
  weightedSum,
} from "./kernels.js";

// Parameters whose names begin with a prefix, by the rest of their names.
export const part = (parameters, prefix) => (name) => parameters[prefix + name];

// x (i, e), context (j, e), mask (i, j) or null -> output (i, e) and weights (h, i, j)
export function attention(x, context, w, heads, mask = null) {
  const project = (from, name) => splitHeads(linear(from, w(`${name}.weight`), w(`${name}.bias`)), heads);
  const scores = attentionScores(project(x, "q_proj"), project(context, "k_proj"));
  const weights = softmax(mask ? masked(scores, mask) : scores);
  const joined = joinHeads(weightedSum(weights, project(context, "v_proj")));
  return { output: linear(joined, w("out_proj.weight"), w("out_proj.bias")), weights };
}

export function feedForward(x, w) {
  return linear(gelu(linear(x, w("fc1.weight"), w("fc1.bias"))), w("fc2.weight"), w("fc2.bias"));
}

export const norm = (x, w) => layerNorm(x, w("weight"), w("bias"));

// x (i, e) -> (i, e), pre-norm. With a context (j, e) it is a decoder block: cross-attention comes
// between the two; its weights (h, i, j) are appended to `recorded`.
export function block(x, parameters, prefix, heads, { mask = null, context = null, recorded = [] } = {}) {
  const of = (name) => part(parameters, `${prefix}${name}.`);
  const normed = norm(x, of("norm1"));
  x = add(x, attention(normed, normed, of("attn"), heads, mask).output);
  if (context) {
    const { output, weights } = attention(norm(x, of("norm2")), context, of("cross_attn"), heads);
    recorded.push(weights);
    x = add(x, output);
  }
  return add(x, feedForward(norm(x, of(context ? "norm3" : "norm2")), of("mlp")));
}

// ids [n] -> (n, e): vectors of the tokens times a factor, plus their positions
export function embed(ids, w, factor = 1) {
  const tokens = lookUp(ids, w("tokens.weight")), positions = w("positions").data;
  return tensor(tokens.shape, tokens.data.map((value, at) => value * factor + positions[at]));
}

// How many blocks there are whose parameters' names begin with a prefix and a number.
export function countOf(parameters, prefix) {
  let count = 0;
  while (Object.keys(parameters).some((name) => name.startsWith(`${prefix}${count}.`))) count++;
  return count;
}
