// Wakes the explorers of a page, and lets the keyboard reach what is wider than the window.

"use strict";

for (const { id } of document.querySelectorAll(".sbs-explorer")) attentionCourse.start(id);

// From a file, a browser refuses to open the pages found for their first words.
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;

function reachable() {
  const boxes = ".sbs-wide, .sbs-explorer, p:has(> img), .sbs-panels, .sbs-model, .sbs-neurons, .bd-article pre, .math, .MathJax, .pst-scrollable-table-container, .table-wrapper";
  for (const box of document.querySelectorAll(boxes)) {
    const moves = /auto|scroll/.test(getComputedStyle(box).overflowX);
    const wider = moves && (box.scrollWidth > box.clientWidth + 1 || box.hasAttribute("data-whole"));
    box.toggleAttribute("data-wider", wider);
    if (wider) box.setAttribute("tabindex", "0");
    else if (box.getAttribute("tabindex") === "0") box.removeAttribute("tabindex");
    seen(box);
  }
}

function seen(box) { // whether there is more at the right
  const rest = box.scrollWidth - box.clientWidth - box.scrollLeft;
  box.toggleAttribute("data-more", box.hasAttribute("data-wider") && rest > 2);
}

// A picture that goes on at the right, its legend mostly: a tap or Enter shows it whole, and small.
function whole({ target, type, key }) {
  const box = target.closest("[data-wider]:has(> img)");
  if (!box || (type === "keydown" && key !== "Enter")) return;
  box.toggleAttribute("data-whole");
  seen(box);
}
addEventListener("click", whole);
addEventListener("keydown", whole);

// Each line of code and output in an element of its own: in a narrow window it goes on below,
// further in. A table of several lines stays as it is and moves.
function lines(pre) {
  if (pre.querySelector(":scope > * > *")) return;
  const rows = [[]];
  for (const node of [...pre.childNodes]) {
    node.textContent.split("\n").forEach((text, place) => {
      if (place) rows.push([]);
      if (!text) return;
      const piece = node.cloneNode(false);
      piece.textContent = text;
      rows.at(-1).push(piece);
    });
  }
  if (!rows.at(-1).length) rows.pop();
  const texts = rows.map((row) => row.map((piece) => piece.textContent).join(""));
  const columns = texts.filter((text) => /\S {2,}\S/.test(text) && text.length > 40);
  if (!pre.closest(".cell_input") && columns.length > 2) return;
  pre.textContent = "";
  rows.forEach((row, place) => {
    const line = document.createElement("span");
    line.className = "sbs-line";
    line.style.setProperty("--sbs-in", `${texts[place].search(/\S|$/)}ch`);
    line.append(...row, "\n");
    pre.append(line);
  });
}

const narrow = matchMedia("(max-width: 760px)");
function lay() {
  if (narrow.matches) document.querySelectorAll(".bd-article .highlight pre:not(:has(.sbs-line))").forEach(lines);
  reachable();
}

addEventListener("load", () => {
  lay();
  if (window.MathJax && MathJax.startup) MathJax.startup.promise.then(reachable);
});
addEventListener("resize", lay);
addEventListener("scroll", ({ target }) => {
  if (target instanceof Element && target.hasAttribute("data-wider")) seen(target);
}, { capture: true, passive: true });

// On paper nothing can be clicked: what is folded is open there.
const folded = [];
addEventListener("beforeprint", () => {
  for (const fold of document.querySelectorAll(".bd-article details:not([open])")) {
    fold.open = true;
    folded.push(fold);
  }
});
addEventListener("afterprint", () => folded.splice(0).forEach((fold) => { fold.open = false; }));

// The arrows that open a chapter's list have no words of their own.
for (const arrow of document.querySelectorAll("summary:has(> .toctree-toggle)")) {
  const title = arrow.closest("li").querySelector("a");
  arrow.setAttribute("aria-label", `What belongs to ${title.textContent.trim()}`);
}
