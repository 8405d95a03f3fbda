// The translator of chapter 11: a date as people write it in, the ISO date out, one character at a time.

import { lastRow } from "./kernels.js";
import { embedding, layerNorm, linear, withPositions } from "./kinds.js";
import { blocks, run, stepsOf } from "./steps.js";

const BEGIN = 1, END = 2, LONGEST = 20; // ids, and the length of an answer

const embedded = (title, name) => [title, `${name}_`, `${name}_embedding.`, [
  ["vectors", "n e", `${name} vectors`, embedding(name, "tokens.weight", true)],
  ["tokens", "n e", `${name} positions added`, withPositions("vectors", "positions")],
]];
const ENCODER = stepsOf([
  embedded("Source", "source"),
  ...blocks(2, { title: "Encoder block" }),
  ["After the encoder", "", "", [["memory", "j e", "memory: last LayerNorm", layerNorm("x", "encoder.norm")]]],
]);
const DECODER = stepsOf([
  embedded("Target", "target"),
  ...blocks(1, { title: "Decoder block", stack: "decoder", before: "decoder.", causal: true, context: "memory" }),
  ["After the decoder", "", "", [
    ["norm", "n e", "last LayerNorm", layerNorm("x", "decoder.norm")],
    ["logits", "n v", "logits", linear("norm", "head")],
  ]],
]);
export const STEPS = [...ENCODER, ...DECODER];

// source ids -> {step: tensor} of the encoder; `options` as in steps.js
export const encode = (parameters, source, options) => run(ENCODER, parameters, { source }, options);

// target ids and what `encode` returned -> {step: tensor} of the whole model
export const decode = (parameters, target, encoded, options) => run(DECODER, parameters, { ...encoded, target }, options);

// what `encode` returned -> answers, best first: at most `width` pairs {ids, score}; width 1 is greedy
export function translate(parameters, encoded, width, options) {
  return beamSearch((ids) => logSoftmax(lastRow(decode(parameters, ids, encoded, options).logits)), width);
}

// logits (v) -> log-probabilities
function logSoftmax(logits) {
  const highest = Math.max(...logits), sum = logits.reduce((all, value) => all + Math.exp(value - highest), 0);
  return Array.from(logits, (value) => value - highest - Math.log(sum));
}

// Beam search as in utils.generation, without a length penalty; width 1 is greedy decoding.
// Returns at most `width` pairs {ids, score}, best first.
function beamSearch(nextScores, width) {
  let beams = [{ ids: [BEGIN], score: 0 }], ended = [];
  for (let length = 1; length <= LONGEST && beams.length; length++) {
    const longer = beams.flatMap(({ ids, score }) =>
      nextScores(ids).map((step, token) => ({ ids: [...ids, token], score: score + step })));
    longer.sort((a, b) => b.score - a.score);
    const best = longer.slice(0, width).filter(({ score }) => score > -Infinity);
    ended.push(...best.filter(({ ids }) => ids.at(-1) === END));
    ended = ended.sort((a, b) => b.score - a.score).slice(0, width);
    beams = best.filter(({ ids }) => ids.at(-1) !== END);
    if (ended.length === width && beams.every(({ score }) => score <= ended.at(-1).score)) break;
  }
  return ended.length ? ended : beams;
}
