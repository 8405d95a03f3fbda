// Read the format in which the weights ship: a header of 8 bytes and JSON, then the numbers.

import { tensor } from "./kernels.js";

export function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
}

// bytes of a safetensors file of float32 tensors -> {name: tensor}
export function readTensors(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const length = Number(view.getBigUint64(0, true)), found = {};
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + length)));
  for (const [name, { shape, dtype, data_offsets: [first, last] }] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    if (dtype !== "F32") throw new Error(`${name} must hold float32, got ${dtype}`);
    const numbers = Float64Array.from({ length: (last - first) / 4 }, (_, at) =>
      view.getFloat32(8 + length + first + 4 * at, true));
    found[name] = tensor(shape, numbers);
  }
  return found;
}
