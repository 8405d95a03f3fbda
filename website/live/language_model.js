// The GPT of chapter 12 on its small language, and how a next word is chosen.

import { embedding, layerNorm, linear, withPositions } from "./kinds.js";
import { blocks, run as runSteps, stepsOf } from "./steps.js";

export const STEPS = stepsOf([
  ["Embedding", "", "embedding.", [
    ["vectors", "n e", "token vectors", embedding("ids", "tokens.weight", false)],
    ["tokens", "n e", "positions added", withPositions("vectors", "positions")],
  ]],
  ...blocks(2, { causal: true }),
  ["After the last block", "", "", [
    ["norm", "n e", "last LayerNorm", layerNorm("x", "encoder.norm")],
    ["logits", "n v", "logits", linear("norm", "embedding.tokens", false)], // the embedding matrix again
  ]],
]);

// ids [n] -> {step: tensor}; `options` as in steps.js
export const run = (parameters, ids, options) => runSteps(STEPS, parameters, { ids }, options);

// The probabilities that a word is sampled with, as `next_probabilities` of utils.generation:
// temperature first, then top-k, then top-p. Temperature 0 keeps only the best.
export function nextProbabilities(logits, { temperature = 1, topK = null, topP = null } = {}) {
  const order = logits.map((_, id) => id).sort((a, b) => logits[b] - logits[a] || a - b);
  const result = logits.map(() => 0);
  if (temperature === 0) {
    result[order[0]] = 1;
    return result;
  }
  const kept = order.slice(0, topK ?? order.length), highest = logits[order[0]];
  const raw = kept.map((id) => Math.exp((logits[id] - highest) / temperature));
  const total = raw.reduce((sum, value) => sum + value, 0);
  let before = 0, left = 0;
  kept.forEach((id, rank) => { // as many as reach p together, the most probable first
    const value = raw[rank] / total;
    if (topP === null || topP >= 1 || before < topP) {
      result[id] = value;
      left += value;
    }
    before += value;
  });
  return result.map((value) => value / left);
}

// P(next word | the words so far) of the language itself: sentences [s][n] that begin like this, with
// their probabilities; all 0 if there are none.
export function trueProbabilities({ words, ids: sentences, probabilities }, ids) {
  const result = words.map(() => 0);
  let total = 0;
  sentences.forEach((sentence, at) => {
    if (!ids.every((id, place) => sentence[place] === id)) return;
    const next = sentence[ids.length] ?? 0; // after the end comes padding
    result[next] += probabilities[at];
    total += probabilities[at];
  });
  return total ? result.map((value) => value / total) : result;
}
