// Wakes the explorers of a page, and lets the keyboard reach what is wider than the window.

"use strict";

for (const data of document.querySelectorAll("script.sbs-data")) {
  const { for: id, kind, opens } = data.dataset;
  attentionCourse[opens](id, kind, JSON.parse(data.textContent));
}

// From a file, a browser refuses to open the pages found for their first words.
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;

function reachable() {
  const boxes = ".sbs-wide, .sbs-explorer, p:has(> img), .sbs-panels, .sbs-model, .sbs-neurons, .bd-article pre, .math, .MathJax, .pst-scrollable-table-container, .table-wrapper";
  for (const box of document.querySelectorAll(boxes)) {
    const wider = box.scrollWidth > box.clientWidth + 1;
    box.toggleAttribute("data-wider", wider);
    if (wider) box.setAttribute("tabindex", "0");
    else if (box.getAttribute("tabindex") === "0") box.removeAttribute("tabindex");
  }
}

addEventListener("load", () => {
  reachable();
  if (window.MathJax && MathJax.startup) MathJax.startup.promise.then(reachable);
});
addEventListener("resize", reachable);

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
