// For the tests: run the page's model outside of a browser. Standard input is JSON: weights (the
// path of a safetensors file), images (lists of 64 numbers) and bugs (ids; "" is none). For each bug
// and image it writes all tensors in running order to standard output, as 64-bit numbers.

import { readFileSync, writeSync } from "node:fs";
import { BUGS } from "./bugs.js";
import { tensor } from "./kernels.js";
import { readTensors } from "./safetensors.js";
import { STEPS, run } from "./vision_transformer.js";

const { weights, images, bugs } = JSON.parse(readFileSync(0, "utf-8"));
const parameters = readTensors(readFileSync(weights));
for (const id of bugs) {
  for (const image of images) {
    const bug = BUGS.find((one) => one.id === id) ?? null;
    const found = run(parameters, tensor([8, 8], Float64Array.from(image)), { bug });
    for (const { name } of STEPS) {
      const { buffer, byteOffset, byteLength } = found[name].data;
      let bytes = new Uint8Array(buffer, byteOffset, byteLength);
      while (bytes.length) bytes = bytes.subarray(writeSync(1, bytes));
    }
  }
}
