// The Vision Transformer of chapter 07, step by step: one picture in, every tensor of the ledger out.

import { rows, tensor } from "./kernels.js";
import { firstRow, image, layerNorm, linear, patchify, softmax, withClassToken, withPositions } from "./kinds.js";
import { blocks, run as runSteps, stepsOf } from "./steps.js";

export const LAYERS = 2;

export const STEPS = stepsOf([
  ["Embedding", "", "embedding.", [
    ["image", "H W", "image", image],
    ["patches", "n p", "patches", patchify("image", 2)],
    ["projected", "n e", "projected patches", linear("patches", "proj")],
    ["with_class_token", "n e", "class token first", withClassToken("projected", "class_token")],
    ["tokens", "n e", "positions added", withPositions("with_class_token", "positions")],
  ]],
  ...blocks(LAYERS),
  ["After the last block", "", "", [
    ["norm", "n e", "last LayerNorm", layerNorm("x", "encoder.norm")],
    ["class_token", "b e", "class token", firstRow("norm")],
    ["logits", "b k", "logits", linear("class_token", "head")],
    ["probabilities", "b k", "probabilities", softmax("logits")],
  ]],
]);

// Run the model on an image (8, 8), from 0 to 1.
//   classOnly: only the logits are needed: in the last block, leave out all queries but that of the class token
export function run(parameters, image, { classOnly = false, ...options } = {}) {
  const { bug, changes = {} } = options, last = `${LAYERS - 1}.`;
  const whole = !classOnly || bug?.mixes || Object.keys(changes).some((name) => name.startsWith(last));
  const prepare = whole ? null : (step, t) => {
    if (step.name !== `${last}q`) return; // keys and values of all tokens are there
    for (const name of ["x", "norm1", "q_all"]) t[name] = rows(t[name], 0, 1);
  };
  return runSteps(STEPS, parameters, { image }, { ...options, prepare });
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
