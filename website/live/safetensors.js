// Read the format in which the weights ship: a header of 8 bytes and JSON, then the numbers.

import { tensor } from "./kernels.js";

export function bytesOf(base64) {
  const characters = atob(base64), bytes = new Uint8Array(characters.length);
  for (let at = 0; at < bytes.length; at++) bytes[at] = characters.charCodeAt(at);
  return bytes;
}

// bytes of a safetensors file of float32 tensors -> {name: tensor}
export function readTensors(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const length = Number(view.getBigUint64(0, true)), found = {};
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + length)));
  for (const [name, { shape, dtype, data_offsets: [first, last] }] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    if (dtype !== "F32") throw new Error(`${name} must hold float32, got ${dtype}`);
    const start = bytes.byteOffset + 8 + length; // a copy, since numbers must begin at a multiple of 4
    const numbers = new Float32Array(bytes.buffer.slice(start + first, start + last));
    found[name] = tensor(shape, Float64Array.from(numbers));
  }
  return found;
}
