// Checks predicted shapes in the page: a field above each folded answer, and for the first exercise.
// What was typed is kept in this browser, one entry for each chapter. Nothing is sent anywhere.

"use strict";

{
const PREFIX = "attention-course-";
const KEPT = "What you type is kept in this browser only.";
const NOT_KEPT = "This browser keeps nothing for this page: what you type is gone when you leave it.";

function make(tag, properties, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

// "(6, 37, 768)", "6 37 768", "b=6 n=37 e=768", "(6, 3 * 96)" or "4" as sizes; null for other text.
function read(text) {
  const plain = text.normalize("NFKC").replace("torch.Size", "").replace(/[a-z]\w*\s*=/gi, " ");
  const inside = /^\s*([([]?)(.*?),?\s*([)\]]?)\s*$/.exec(plain.replace(/\s*\*\s*/g, "*"));
  if (!inside || (inside[1] === "") !== (inside[3] === "")) return null;
  const entries = inside[2].trim().split(/\s*[,x×、]\s*|\s+/);
  if (entries.length === 1 && entries[0] === "") return inside[1] ? [] : null;
  if (!entries.every((entry) => /^-?\d+(\*-?\d+)*$/.test(entry))) return null;
  const sizes = entries.map((entry) => product(entry.split("*").map(Number)));
  return sizes.every(Number.isSafeInteger) ? sizes : null;
}

const product = (sizes) => sizes.reduce((all, size) => all * size, 1);
const sorted = (sizes) => [...sizes].sort((a, b) => a - b).join();
const shown = (sizes) => `(${sizes.join(", ")}${sizes.length === 1 ? "," : ""})`;

// The words of check_guess in utils/shapes.py.
function compare(guess, shape) {
  if (String(guess) === String(shape)) return `right: ${shown(guess)}`;
  const wrong = shape.flatMap((size, axis) => (size === guess[axis] ? [] : [axis]));
  const why =
    guess.length !== shape.length ? `${shape.length} axes and not ${guess.length}`
    : sorted(guess) === sorted(shape) ? "the same sizes in a different order"
    : product(guess) === product(shape) ? "as many numbers, laid out differently"
    : `look at axis ${wrong.join(", ")}`;
  return `not ${shown(guess)}: the shape is ${shown(shape)}, ${why}`;
}

// Return what the page says to a text, and whether that is the end of the question.
function judge(place, text) {
  const guess = read(text), { ask, expected, hash } = place.dataset;
  if (ask) { // the answer of an exercise is not in the page, only its hash
    if (guess && sha256(`${ask} ${guess}`) === hash) return ["right", true];
    return [`not yet: expected ${expected}${guess ? "" : `, got ${text.trim() || "nothing"}`}`, false];
  }
  if (!guess) return [`a guess is a tuple of integers such as (2, 3), got ${text.trim() || "nothing"}`, false];
  return [compare(guess, (place.lastChild.textContent.match(/\d+/g) ?? []).map(Number)), true];
}

// SHA-256 (FIPS 180-4) in hexadecimal: crypto.subtle is missing where a page comes from a file.
function sha256(text) {
  const bytes = new TextEncoder().encode(text);
  const padded = new DataView(new ArrayBuffer(((bytes.length + 8 >> 6) + 1) * 64));
  bytes.forEach((byte, place) => padded.setUint8(place, byte));
  padded.setUint8(bytes.length, 0x80);
  padded.setUint32(padded.byteLength - 4, bytes.length * 8);
  const primes = [];
  for (let n = 2; primes.length < 64; n++) if (primes.every((prime) => n % prime)) primes.push(n);
  const fraction = (root) => (root % 1) * 2 ** 32 | 0;
  const constants = primes.map((prime) => fraction(Math.cbrt(prime)));
  const state = primes.slice(0, 8).map((prime) => fraction(Math.sqrt(prime)));
  const turn = (word, ...counts) => counts.reduce((all, n) => all ^ (word >>> n | word << 32 - n), 0);
  for (let block = 0; block < padded.byteLength; block += 64) {
    const words = [];
    let [a, b, c, d, e, f, g, h] = state;
    for (let i = 0; i < 64; i++) {
      const [early, late] = [words[i - 15], words[i - 2]];
      words[i] = i < 16 ? padded.getInt32(block + 4 * i)
        : words[i - 16] + words[i - 7] + (turn(early, 7, 18) ^ early >>> 3) + (turn(late, 17, 19) ^ late >>> 10) | 0;
      const first = h + turn(e, 6, 11, 25) + (e & f ^ ~e & g) + constants[i] + words[i] | 0;
      const second = turn(a, 2, 13, 22) + (a & b ^ a & c ^ b & c) | 0;
      [a, b, c, d, e, f, g, h] = [first + second | 0, a, b, c, d + first | 0, e, f, g];
    }
    [a, b, c, d, e, f, g, h].forEach((word, place) => { state[place] = state[place] + word | 0; });
  }
  return state.map((word) => (word >>> 0).toString(16).padStart(8, "0")).join("");
}

let keeps = true;
try { localStorage.setItem(PREFIX, ""), localStorage.removeItem(PREFIX); } catch { keeps = false; }

// Of one chapter: {predictions: {texts: {place: text}, right, of}, exercise: the same}.
function kept(chapter) {
  try { return Object(JSON.parse(localStorage.getItem(PREFIX + chapter))); } catch { return {}; }
}

function progress({ predictions, exercise }) {
  const parts = [];
  if (predictions) parts.push(`${predictions.right} of ${predictions.of} predictions right`);
  if (exercise) parts.push(`${exercise.right} of ${exercise.of} right in exercise 1`);
  return parts.join(", ");
}

function forget() {
  for (const key of keeps ? Object.keys(localStorage) : []) if (key.startsWith(PREFIX)) localStorage.removeItem(key);
  location.reload();
}
const forgetting = () => make("button", { type: "button", onclick: forget }, "Forget what I typed in all chapters");

const places = [...document.querySelectorAll("[data-guess], [data-ask]")];
if (places.length) {
  const name = ({ dataset }) => dataset.guess ?? dataset.ask; // "03 24ddcfe9" or "03.1 scores_shape"
  const kind = places[0].dataset.guess ? "predictions" : "exercise";
  const chapter = /^\d+/.exec(name(places[0]))[0];
  const mine = { texts: {}, ...kept(chapter)[kind], right: 0, of: places.length };
  const count = make("span"), note = make("p", { className: "sbs-kept" }, count);

  const tell = () => {
    count.textContent = `${progress({ [kind]: mine })}. ${keeps ? KEPT : NOT_KEPT} `;
    if (Object.keys(mine.texts).length && note.childElementCount < 2) note.append(forgetting());
  };
  for (const place of places) {
    const input = make("input", { autocomplete: "off", spellcheck: false, maxLength: 80, size: 18 });
    const button = make("button", {}, "Check"), verdict = make("output");
    const asked = kind === "exercise" ? make("code", {}, name(place).split(" ")[1]) : "Your prediction of the shape";
    const form = make("form", { className: "sbs-predict" }, make("label", {}, asked, " ", input), button, verdict);
    const say = (text) => {
      const [words, ended] = judge(place, text), right = words.startsWith("right");
      verdict.textContent = words;
      verdict.className = right ? "sbs-right" : "sbs-wrong";
      mine.right += right;
      if (ended) [input.readOnly, button.hidden, place.open] = [true, true, true];
      return ended;
    };
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (input.readOnly || !say(input.value)) return;
      input.focus(); // the button is gone
      mine.texts[name(place)] = input.value;
      tell();
      try {
        localStorage.setItem(PREFIX + chapter, JSON.stringify({ ...kept(chapter), [kind]: mine }));
      } catch { /* the page has said that nothing is kept */ }
    });
    place.before(form);
    const before = mine.texts[name(place)];
    if (before) say(input.value = String(before));
  }
  tell();
  document.querySelector(".bd-article h1").after(note);
}

// On the first page: what was done in each chapter. The way back to it may show an older state of it.
addEventListener("pageshow", () => {
  const list = document.querySelector(".sbs-chapters");
  if (!list) return;
  document.querySelectorAll(".sbs-kept").forEach((old) => old.remove());
  for (const link of list.querySelectorAll("a")) {
    const words = progress(kept(/^\d*/.exec(link.getAttribute("href"))[0]));
    if (words) link.after(make("small", { className: "sbs-kept" }, words));
  }
  if (list.querySelector(".sbs-kept")) list.after(make("p", { className: "sbs-kept" }, forgetting()));
});
}
