// Python wraps this file in a function and adds one call of start(). The numbers of an explorer are
// JSON, in a script element next to it.

const STEPS = ["440154", "472d7b", "3b528b", "2c728e", "21918c", "28ae80", "5ec962", "addc30", "fde725"]
  .map((hex) => [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16))); // viridis: only gets lighter
const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
const DRAWN = ["svg", "image", "path", "rect", "text", "title"];

// ---- tools of both kinds

function make(parent, tag, attributes = {}, text = "") {
  const node = DRAWN.includes(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.textContent = text;
  return parent.appendChild(node);
}

function color(share) {
  const at = Math.max(0, Math.min(share * 8, 7.999)), i = Math.floor(at);
  return STEPS[i].map((low, c) => Math.round(low + (STEPS[i + 1][c] - low) * (at - i)));
}

function inkOn(rgb) { // black or white, whichever stands out more: at least 4.5 to 1
  const [red, green, blue] = rgb.map((level) => {
    const part = level / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000" : "#fff";
}

function limit(index, size) {
  return Math.max(0, Math.min(size - 1, index));
}

const KINDS = { pictures, product };

function start(id) { // a page may hold an explorer twice
  for (const root of document.querySelectorAll(`[id="${id}"]`)) {
    if (root.explorer) continue;
    root.explorer = true;
    const tag = root.parentNode.querySelector(`script[data-for="${id}"]`);
    // JupyterLab would take the arrow keys and move to another cell.
    root.setAttribute("data-lm-suppress-shortcuts", "true");
    root.addEventListener("keydown", (event) => event.stopPropagation());
    KINDS[tag.dataset.kind](root, JSON.parse(tag.textContent));
  }
}

// ---- pictures: controls choose a frame, a click in its grid chooses a query

function pictures(root, data) {
  const view = { root, data, chosen: data.controls.map((control) => control.start), query: data.query };
  view.margin = data.rows || data.columns ? 40 : 0;
  view.widest = Math.max(...data.frames.map((frame) => frame.grid[1]));
  view.spot = placeOf(view).map((index, axis) => (index + 0.5) / frameOf(view).grid[axis]);
  root.textContent = "";
  const bar = make(root, "div", { class: "sbs-row" });
  data.controls.forEach((control, i) => addControl(view, bar, control, i));
  view.buttons = data.buttons.map((text, i) => {
    const button = make(bar, "button", { type: "button" }, text);
    button.addEventListener("click", () => { view.query = i; draw(view); });
    return button;
  });
  const panels = make(root, "div", { class: "sbs-row sbs-panels" });
  const kinds = data.frames[0].image === null ? ["heat"] : ["image", data.frames[0].heat ? "heat" : "zoom"];
  view.panels = kinds.map((kind, i) => addPanel(view, panels, kind, data.titles[i] || ""));
  if (kinds.includes("heat")) addScale(view);
  view.said = make(root, "p", { class: "sbs-said", "aria-live": "polite" });
  draw(view);
}

function frameOf({ data, chosen }) {
  return data.frames[chosen.reduce((sum, at, i) => sum * data.controls[i].options.length + at, 0)];
}

function placeOf(view) { // row and column of the chosen query; negative for a button
  const cell = view.query - view.data.buttons.length, columns = frameOf(view).grid[1];
  return view.data.select === "row" ? [cell, 0] : [Math.floor(cell / columns), cell % columns];
}

function levelsOf(view) { // the numbers of the map that is shown, and the brightest level
  const { heat } = frameOf(view), levels = heat[heat.length > 1 ? view.query : 0];
  const { peak, unit } = view.data;
  return { levels, most: peak === null ? Math.max(1, ...levels) : peak * unit };
}

function percent(view, level) {
  return view.data.unit === 1000 ? (level / 10).toFixed(1) : String(level);
}

function choose(view, row, column) {
  const [rows, columns] = frameOf(view).grid;
  row = limit(row, rows);
  column = limit(column, columns);
  view.query = view.data.buttons.length + (view.data.select === "row" ? row : row * columns + column);
  view.spot = [(row + 0.5) / rows, (column + 0.5) / columns];
  draw(view);
}

function change(view, control, at) { // another grid: stay on the cell that covers the same spot
  const { spot, query } = view, extra = view.data.buttons.length;
  view.chosen[control] = at;
  if (query < extra || !view.data.select) return draw(view);
  if (view.data.select === "row") return choose(view, query - extra, 0);
  choose(view, ...frameOf(view).grid.map((size, axis) => Math.floor(spot[axis] * size)));
  view.spot = spot;
}

function addControl(view, bar, control, i) {
  const label = make(bar, "label", {}, control.label);
  const input = control.slider
    ? make(label, "input", { type: "range", min: 0, max: control.options.length - 1, step: 1 })
    : make(label, "select");
  if (!control.slider) control.options.forEach((text, at) => make(input, "option", { value: at }, text));
  input.value = control.start;
  input.setAttribute("aria-label", control.label);
  const output = control.slider && make(label, "output");
  const say = () => { // a list says its option by itself
    if (!output) return;
    output.textContent = control.options[view.chosen[i]];
    input.setAttribute("aria-valuetext", output.textContent);
  };
  input.addEventListener("input", () => { change(view, i, Number(input.value)); say(); });
  say();
}

function addPanel(view, panels, kind, title) {
  const box = make(panels, "div"), { margin } = view;
  make(box, "p", { class: "sbs-title" }, title);
  const svg = make(box, "svg", { role: "img" });
  if (view.data.select && kind !== "zoom") {
    svg.setAttribute("role", "application");
    svg.setAttribute("tabindex", "0");
    svg.style.cursor = "pointer";
    svg.addEventListener("click", (event) => {
      const area = svg.getBoundingClientRect(), [rows, columns] = frameOf(view).grid;
      const scale = svg.viewBox.baseVal.width / area.width;
      choose(view, Math.floor((((event.clientY - area.top) * scale - margin) / svg.tall) * rows),
        Math.floor((((event.clientX - area.left) * scale - margin) / svg.wide) * columns));
    });
    svg.addEventListener("keydown", (event) => {
      const step = ARROWS[event.key];
      if (!step) return;
      event.preventDefault();
      const button = view.query < view.data.buttons.length;
      choose(view, ...(button ? [0, 0] : placeOf(view).map((index, axis) => index + step[axis])));
    });
  }
  return { kind, svg, title };
}

function addScale(view) {
  const { data, root } = view, mask = data.unit === 1;
  const scale = make(root, "div", { class: "sbs-row sbs-scale" });
  make(scale, "span", {}, data.label);
  const legend = make(scale, "span"), bar = (legend.append(mask ? "no (0) " : "0 "), make(legend, "span"));
  for (let i = 0; i < 9; i += mask ? 8 : 1) make(bar, "i", { style: `background: rgb(${color(i / 8)})` });
  legend.append(" ");
  view.top = make(legend, "b", {}, mask ? "yes (1)" : "");
}

function draw(view) {
  for (const panel of view.panels) paint(view, panel);
  view.buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(i === view.query)));
  if (view.top && view.data.unit !== 1) view.top.textContent = `${percent(view, levelsOf(view).most)} %`;
  const { caption } = frameOf(view), [row, column] = placeOf(view);
  view.said.textContent = typeof caption !== "string" ? caption[view.data.select ? view.query : 0]
    : caption.replaceAll("{row}", row).replaceAll("{column}", column).replaceAll("{token}", view.query);
}

function paint(view, { kind, svg, title }) {
  const { data, margin } = view, { grid: [rows, columns], image } = frameOf(view);
  const source = data.images[image], wide = source ? 300 : Math.min(300, view.widest * 60) * (columns / view.widest);
  const tall = source ? (wide * source.height) / source.width : (wide / columns) * rows;
  const cell = { w: wide / columns, h: tall / rows };
  Object.assign(svg, { wide, tall, textContent: "" });
  svg.setAttribute("viewBox", `${-margin} ${-margin} ${wide + margin + 4} ${tall + margin + 4}`);
  svg.setAttribute("width", wide + margin + 4);
  svg.setAttribute("aria-label", `${title || "grid"}: ${rows} rows, ${columns} columns.`
    + (svg.tabIndex === 0 ? " Arrow keys choose." : ""));
  if (kind === "zoom") {
    const [r, c] = placeOf(view), ph = source.height / rows, pw = source.width / columns;
    paintPixels(svg, source, [r * ph, c * pw, ph, pw]);
    return;
  }
  if (kind === "heat") paintHeat(view, svg, cell);
  else paintPixels(svg, source, [0, 0, source.height, source.width]);
  paintLines(view, svg, cell);
}

function paintPixels(svg, image, [top, left, height, width]) {
  const bytes = atob(image.pixels), canvas = document.createElement("canvas");
  Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d"), target = context.createImageData(width, height);
  for (let p = 0; p < width * height; p++) {
    const from = ((top + Math.floor(p / width)) * image.width + left + (p % width)) * image.channels;
    for (let c = 0; c < 3; c++) target.data[4 * p + c] = bytes.charCodeAt(from + (image.channels === 3 ? c : 0));
    target.data[4 * p + 3] = 255;
  }
  context.putImageData(target, 0, 0);
  make(svg, "image", { x: 0, y: 0, width: svg.wide, height: svg.tall, preserveAspectRatio: "none",
    style: "image-rendering: pixelated", href: canvas.toDataURL() });
}

function paintHeat(view, svg, { w, h }) {
  const { levels, most } = levelsOf(view), columns = frameOf(view).grid[1], mask = view.data.unit === 1;
  levels.forEach((level, at) => {
    const row = Math.floor(at / columns), column = at % columns, rgb = color(level / most);
    const text = mask ? String(level) : percent(view, level);
    const box = make(svg, "rect", { x: column * w, y: row * h, width: w, height: h, fill: `rgb(${rgb})` });
    make(box, "title", {}, `row ${row}, column ${column}: ${text}${mask ? "" : " %"}`);
    if (w < 30) return;
    make(svg, "text", { x: (column + 0.5) * w, y: (row + 0.5) * h + 5, "text-anchor": "middle",
      fill: inkOn(rgb), "pointer-events": "none" }, text);
  });
}

function paintLines(view, svg, { w, h }) {
  const { data, margin, query } = view, { grid: [rows, columns] } = frameOf(view), { wide, tall } = svg;
  let lines = "";
  for (let i = 0; i <= rows; i++) lines += `M0 ${i * h}H${wide}`;
  for (let i = 0; i <= columns; i++) lines += `M${i * w} 0V${tall}`;
  make(svg, "path", { d: lines, stroke: "#000", "stroke-width": 2 });
  make(svg, "path", { d: lines, stroke: "#fff", "stroke-width": 1 });
  if (margin) {
    const words = { fill: "currentColor", "text-anchor": "middle" };
    for (let i = 0; data.columns && i < columns; i++) make(svg, "text", { ...words, x: (i + 0.5) * w, y: -6 }, i);
    for (let i = 0; data.rows && i < rows; i++) make(svg, "text", { ...words, x: -10, y: (i + 0.5) * h + 5 }, i);
    make(svg, "text", { ...words, x: Math.max(wide / 2, 10), y: -25 }, data.columns);
    make(svg, "text", { ...words, transform: `translate(-26 ${tall / 2}) rotate(-90)` }, data.rows);
  }
  if (!data.select || query < data.buttons.length) return;
  const [r, c] = placeOf(view), row = data.select === "row";
  const box = { x: row ? 0 : c * w, y: r * h, width: row ? wide : w, height: h, fill: "none", "pointer-events": "none" };
  make(svg, "rect", { ...box, stroke: "#000", "stroke-width": 6 });
  make(svg, "rect", { ...box, stroke: "#fff", "stroke-width": 3 });
}

// ---- product: the tables stand in the page already; a number of the result is taken apart

function product(root, data) {
  const parts = [...root.querySelectorAll(".sbs-part")];
  let at = data.chosen;
  const choose = (part, row, column) => {
    const rows = [...part.querySelectorAll(".sbs-result tbody tr")];
    at = [limit(row, rows.length), 0];
    at[1] = limit(column, rows[at[0]].cells.length - 1);
    light(part, rows[at[0]].querySelectorAll("td")[at[1]]);
  };
  for (const part of parts) {
    const table = part.querySelector(".sbs-result");
    table.setAttribute("role", "grid");
    part.querySelector(".sbs-said").setAttribute("aria-live", "polite");
    [...table.tBodies[0].rows].forEach((line, row) => [...line.querySelectorAll("td")].forEach((cell, column) => {
      cell.setAttribute("role", "gridcell");
      cell.addEventListener("click", () => { choose(part, row, column); cell.focus(); });
      cell.addEventListener("keydown", (event) => {
        const step = ARROWS[event.key];
        if (!step) return;
        event.preventDefault();
        choose(part, row + step[0], column + step[1]);
        table.querySelector('td[tabindex="0"]').focus();
      });
    }));
    choose(part, ...at);
  }
  for (const title of root.querySelectorAll(".sbs-part > .sbs-title")) title.hidden = true; // the list says it
  if (parts.length > 1) addParts(root, data, parts, (part) => choose(part, ...at));
}

function light(part, cell) { // a number lights up when it agrees with the chosen one in the axes that they share
  const place = placed(cell);
  for (const other of part.querySelectorAll("[data-at]")) {
    const shared = Object.entries(placed(other)).filter(([axis]) => axis in place);
    other.toggleAttribute("data-lit", shared.length > 0 && shared.every(([axis, index]) => place[axis] === index));
  }
  for (const other of part.querySelectorAll(".sbs-result td")) {
    other.setAttribute("aria-selected", String(other === cell));
    other.setAttribute("tabindex", other === cell ? "0" : "-1");
  }
  part.querySelector(".sbs-said").textContent = cell.dataset.said;
}

function placed(cell) { // "i=0 j=2" -> { i: "0", j: "2" }
  return Object.fromEntries(cell.dataset.at.split(" ").map((pair) => pair.split("=")));
}

function addParts(root, data, parts, show) { // one part at a time, chosen from a list
  const bar = make(root, "div", { class: "sbs-row" }), label = make(bar, "label", {}, data.loop);
  root.prepend(bar);
  const input = make(label, "select");
  parts.forEach((_part, i) => make(input, "option", { value: i }, String(i)));
  const turn = () => parts.forEach((part, i) => {
    part.hidden = i !== Number(input.value);
    if (!part.hidden) show(part);
  });
  input.addEventListener("input", turn);
  turn();
}
