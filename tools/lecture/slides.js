// Starts the slides, or prints them as pages, one for each step, if the address ends with ?print.
"use strict";

// Scales down content that does not fit, which is rare.
function fit(frame) {
  const body = frame.querySelector(".body");
  for (const explorer of frame.querySelectorAll(".explorer")) {
    explorer.style.zoom = 1.5;
  }
  const over = () => {
    const box = body.getBoundingClientRect();
    const scale = box.width / body.offsetWidth || 1;
    const folded = "details:not([open]) > :not(summary), details:not([open]) > :not(summary) *";
    const inner = [...body.querySelectorAll("*")].filter((node) => !node.matches(folded))
      .map((node) => node.getBoundingClientRect());
    const bottom = Math.max(...inner.map((r) => r.bottom)), right = Math.max(...inner.map((r) => r.right));
    return Math.max((bottom - box.top) / (box.height + 2 * scale), (right - box.left) / (box.width + 2 * scale));
  };
  for (let time = 0; time < 12 && over() > 1; time += 1) {
    const explorer = body.querySelector(".explorer");
    for (const part of explorer ? [explorer] : body.children) {
      part.style.zoom = (part.style.zoom || 1) * Math.max(0.75, 0.99 / over());
    }
  }
  frame.dataset.fitted = "";
}

function fitAll(frames) {
  for (const frame of frames) {
    if (!("fitted" in frame.dataset)) fit(frame);
  }
}

// A copy with the content of canvases, which the browser does not copy.
function copied(frame) {
  const made = frame.cloneNode(true), painted = frame.querySelectorAll("canvas");
  made.querySelectorAll("canvas").forEach((canvas, place) => {
    if (painted[place].width && painted[place].height) canvas.getContext("2d").drawImage(painted[place], 0, 0);
  });
  return made;
}

function print() {
  document.body.className = "printed";
  const slides = [...document.querySelectorAll(".slides section section")];
  const sheet = document.createElement("div");
  for (const slide of slides) {
    const frame = slide.querySelector(".frame");
    for (let seen = 0; seen <= frame.querySelectorAll(".fragment").length; seen += 1) {
      const page = document.createElement("div");
      page.className = "page";
      page.dataset.kind = slide.dataset.kind;
      page.dataset.cells = slide.dataset.cells;
      page.append(copied(frame));
      [...page.querySelectorAll(".fragment")].slice(0, seen).forEach((node) => node.classList.add("seen"));
      sheet.append(page);
    }
  }
  document.querySelector(".reveal").replaceWith(sheet);
  sheet.querySelectorAll(".page").forEach((page, place) => {
    const number = document.createElement("div");
    number.className = "number";
    number.textContent = `${document.title.split(" ")[0]} · ${place + 1}`;
    page.append(number);
  });
}

document.fonts.ready.then(async () => {
  await Promise.all([...document.fonts].map((font) => font.load()));
  if (new URLSearchParams(location.search).has("print")) {
    print();
    fitAll(document.querySelectorAll(".frame"));
    document.documentElement.dataset.ready = "";
    return;
  }
  await Reveal.initialize({
    width: 1280, height: 720, margin: 0, center: false, hash: true, slideNumber: "c/t",
    controlsTutorial: false, transition: "none", backgroundTransition: "none",
    navigationMode: "default",
    // An explorer handles its own keys.
    keyboardCondition: (event) => !event.target.closest(".sbs-explorer"),
    plugins: [RevealNotes, RevealZoom],
  });
  const shown = () => fitAll([Reveal.getCurrentSlide().querySelector(".frame")]);
  Reveal.on("slidechanged", shown);
  shown();
  document.documentElement.dataset.ready = "";
});
