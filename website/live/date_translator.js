// The translator of chapter 11: a date as people write it in, the ISO date out, one character at a time.

import { causalMask, linear, rows, tensor } from "./kernels.js";
import { block, countOf, embed, norm, part } from "./transformer.js";

const HEADS = 4, BEGIN = 1, END = 2;

// source ids [j] -> memory (j, e)
export function encode(parameters, source) {
  const w = part(parameters, "source_embedding.");
  let x = embed(source, w, Math.sqrt(w("tokens.weight").shape[1]));
  for (let layer = 0; layer < countOf(parameters, "encoder.layers."); layer++) {
    x = block(x, parameters, `encoder.layers.${layer}.`, HEADS);
  }
  return norm(x, part(parameters, "encoder.norm."));
}

// target ids [i], memory (j, e) -> logits (i, v), and cross-attention weights (h, i, j) of each block
export function decode(parameters, target, memory) {
  const w = part(parameters, "target_embedding."), mask = causalMask(target.length), recorded = [];
  let x = embed(target, w, Math.sqrt(w("tokens.weight").shape[1]));
  for (let layer = 0; layer < countOf(parameters, "decoder.layers."); layer++) {
    x = block(x, parameters, `decoder.layers.${layer}.`, HEADS, { mask, context: memory, recorded });
  }
  x = norm(x, part(parameters, "decoder.norm."));
  return { logits: linear(x, parameters["head.weight"], parameters["head.bias"]), weights: recorded };
}

// logits (v) -> log-probabilities
export function logSoftmax(logits) {
  const highest = Math.max(...logits), sum = logits.reduce((all, value) => all + Math.exp(value - highest), 0);
  return Array.from(logits, (value) => value - highest - Math.log(sum));
}

const last = (logits) => {
  const [i] = logits.shape;
  return Array.from(rows(logits, i - 1, i).data);
};

// Beam search as in utils.generation, without a length penalty; width 1 is greedy decoding.
// Returns at most `width` pairs {ids, score}, best first.
export function beamSearch(nextScores, width, maxLength) {
  let beams = [{ ids: [BEGIN], score: 0 }], ended = [];
  for (let length = 1; length <= maxLength && beams.length; length++) {
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

// source ids -> translations, best first, each with the cross-attention of its characters
export function translate(parameters, source, width, maxLength = 20) {
  const memory = encode(parameters, source);
  const next = (ids) => logSoftmax(last(decode(parameters, ids, memory).logits));
  return beamSearch(next, width, maxLength).map((found) =>
    ({ ...found, weights: decode(parameters, found.ids, memory).weights.map((one) => withoutLast(one)) }));
}

// The row of a query is for the character after it, so the last token has none.
function withoutLast(weights) {
  const [h, i, j] = weights.shape, kept = tensor([h, i - 1, j]);
  for (let head = 0; head < h; head++) {
    kept.data.set(weights.data.subarray(head * i * j, (head * i + i - 1) * j), head * (i - 1) * j);
  }
  return kept;
}
