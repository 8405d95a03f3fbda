// The entry of the live page: unpack what the page carries, start its parts.

import { startDigits } from "./digits.js";
import { bytesOf, readTensors } from "./safetensors.js";
import { startText } from "./text.js";

const data = JSON.parse(document.querySelector("#live-data").textContent);
startDigits({
  ...data,
  parameters: readTensors(bytesOf(data.digits)),
  images: bytesOf(data.images),
});
startText({ ...data, date: readTensors(bytesOf(data.date)), sentence: readTensors(bytesOf(data.sentence)) });
document.documentElement.dataset.ready = "true";
