// A model as a list of steps in running order, and how it runs. A step has a short name, axis letters, a
// name for readers and a kind; the short names of a block stand for tensors of the same block.

import { gelu, joinHeads, layerNorm, linear, scores, softmax, splitHeads, sum, causal as mask, weightedSum } from "./kinds.js";
import { tensor } from "./kernels.js";

// Attention from a tensor (n, e) to itself, or to another one (j, e); `before` begins each name.
function attention({ before = "", layer = "attn", from = "norm1", to = from, causal = false }) {
  const own = (name) => before + name, keys = to === from ? "n e" : "j e";
  return [
    [own("q_all"), "n e", "queries of all heads", linear(from, `${layer}.q_proj`)],
    [own("k_all"), keys, "keys of all heads", linear(to, `${layer}.k_proj`)],
    [own("v_all"), keys, "values of all heads", linear(to, `${layer}.v_proj`)],
    [own("q"), "h i d", "queries by head", splitHeads(own("q_all"))],
    [own("k"), "h j d", "keys by head", splitHeads(own("k_all"))],
    [own("v"), "h j d", "values by head", splitHeads(own("v_all"))],
    [own("scores"), "h i j", "scores", scores(own("q"), own("k"))],
    ...(causal ? [["masked", "h i j", "scores after the mask", mask("scores")]] : []),
    [own("weights"), "h i j", "attention weights", softmax(causal ? "masked" : own("scores"))],
    [own("weighted_sum"), "h i d", "weighted sum", weightedSum(own("weights"), own("v"))],
    [own("joined"), "n e", "heads joined", joinHeads(own("weighted_sum"))],
    [own("attention_output"), "n e", "attention output", linear(own("joined"), `${layer}.out_proj`)],
  ].map(([name, letters, words, kind]) => [name, letters, before ? `cross-attention: ${words}` : words, kind]);
}

// A pre-norm block; with the name of a context (j, e) it is a decoder block.
function block({ causal = false, context = null }) {
  const [middle, last] = context ? ["cross_residual", 3] : ["residual1", 2];
  const cross = context ? [
    ["cross_norm", "n e", "LayerNorm 2", layerNorm("residual1", "norm2")],
    ...attention({ before: "cross_", layer: "cross_attn", from: "cross_norm", to: context }),
    ["cross_residual", "n e", "residual sum 2",
      sum("residual1", "cross_attention_output", "what came in plus the output of the cross-attention")],
  ] : [];
  return [
    ["norm1", "n e", "LayerNorm 1", layerNorm("x", "norm1")],
    ...attention({ causal }),
    ["residual1", "n e", "residual sum 1", sum("x", "attention_output", "what came in plus the attention output")],
    ...cross,
    ["norm2", "n e", `LayerNorm ${last}`, layerNorm(middle, `norm${last}`)],
    ["hidden", "n m", "feed-forward, inner", linear("norm2", "mlp.fc1")],
    ["activated", "n m", "after GELU", gelu("hidden")],
    ["mlp_output", "n e", "feed-forward output", linear("activated", "mlp.fc2")],
    ["residual2", "n e", `residual sum ${last}`, sum(middle, "mlp_output", "what came in plus the feed-forward's output")],
  ];
}

// The blocks of an encoder or a decoder, as parts for `stepsOf`.
export function blocks(layers, { stack = "encoder", title = "Block", before = "", ...options } = {}) {
  return Array.from({ length: layers }, (_, layer) =>
    [`${title} ${layer}`, `${before}${layer}.`, `${stack}.layers.${layer}.`, block(options)]);
}

// parts [title, before, parameters, steps] -> all steps in running order: "scores" of a part whose names
// begin with "0." is "0.scores", and the names of its parameters begin with `parameters`. What comes into
// a part, `x`, is the last tensor of the part before it.
export function stepsOf(parts) {
  let x = null;
  return parts.flatMap(([title, before, parameters, steps]) => {
    const made = steps.map(([short, letters, words, kind]) =>
      ({ name: before + short, short, letters, words, title, before, parameters, x, ...kind }));
    x = made.at(-1).name;
    return made;
  });
}

// Run a model.
//   parameters: {name: tensor}, as `readTensors` returns them
//   inputs: {name: value}, what the first steps read
//   bug: one of bugs.js, or null; its functions replace those of the steps that they name
//   changes: {step: {index: number}}, written into a step's tensor before the next step reads it; an
//     index is "head row column", so that it stays in its place while a text grows
//   seed: of the random numbers, which only dropout needs
//   until: the last step that is needed
//   prepare: null, or a function of each step and the tensors of its part, called before it
// Returns {step: tensor}, with the inputs.
export function run(steps, parameters, inputs, { bug = null, changes = {}, seed = 1, until = null, prepare = null } = {}) {
  const found = { ...inputs };
  let title = null, t = null;
  for (const step of steps) {
    if (step.title !== title) { // a part begins
      title = step.title;
      t = Object.assign(Object.create(found), { x: found[step.x] });
    }
    prepare?.(step, t);
    const w = (name) => parameters[step.parameters + name];
    const compute = bug?.steps[step.short] ?? step.compute;
    t[step.short] = found[step.name] = changed(compute(t, w, step, seed), changes[step.name]);
    if (step.name === until) break;
  }
  return found;
}

function changed(x, changes) {
  if (!changes) return x;
  const result = tensor(x.shape, x.data.slice());
  for (const [index, value] of Object.entries(changes)) {
    const place = placeAt(x, ...index.split(" ").map(Number));
    if (place !== null) result.data[place] = value;
  }
  return result;
}

// Rows and columns of a tensor's picture: a vector is one row, heads are next to each other.
export function layout(x) {
  const [columns, rows, heads] = [...x.shape].reverse();
  return { heads: heads ?? 1, rows: rows ?? 1, columns };
}

// Where a number is in the picture: place 0 is the first number in memory.
export function placeOf(x, place) {
  const { rows, columns } = layout(x), inside = place % (rows * columns);
  return { head: Math.floor(place / (rows * columns)), row: Math.floor(inside / columns), column: inside % columns };
}

// The place in memory of a number of the picture, null where the tensor is smaller.
export function placeAt(x, head, row, column) {
  const { heads, rows, columns } = layout(x);
  return head < heads && row < rows && column < columns ? (head * rows + row) * columns + column : null;
}

// Where the number at a place comes from: as `from` of its kind, with whole names, "0.scores" for the
// tensor of a block and "encoder.layers.0.norm1.weight" for a parameter. It is what a correct model
// computes: with a bug, the step may hold another number.
//   found: what `run` returned
export function operands(step, at, found, parameters) {
  const whole = (name) => {
    if (name === "x") return step.x;
    return [step.before + name, name].find((one) => one in found) ?? step.parameters + name;
  };
  const t = new Proxy({}, { get: (_, name) => found[whole(name)] });
  const made = step.from(at, t, (name) => parameters[step.parameters + name]);
  return { ...made, cells: made.cells.map(([name, places]) => [whole(name), places]) };
}
