// Comes behind explorer.js and uses its tools: layers and heads to choose from (the model view), who
// looks at whom in one head (the head view), and what one score is made of (the neuron view).

KINDS.attention = attention;

function attention(root, data) {
  const view = { root, data, ...data.start, all: false };
  root.textContent = "";
  const bar = make(root, "div", { class: "sbs-row" });
  if (data.looks.length > 1) {
    const label = make(bar, "label", {}, data.label), list = make(label, "select", { "aria-label": data.label });
    data.looks.forEach(({ name }, at) => make(list, "option", { value: at }, name));
    list.value = view.look;
    list.addEventListener("input", () => { view.look = Number(list.value); furnish(view); });
  }
  view.heads = make(root, "div", { class: "sbs-model" });
  view.place = make(root, "div", { class: "sbs-row sbs-panels" });
  view.said = make(root, "p", { class: "sbs-said", "aria-live": "polite" });
  view.neurons = make(root, "div", { class: "sbs-neurons" });
  furnish(view);
}

const lookOf = ({ data, look: at }) => data.looks[at];
const layerOf = (view) => lookOf(view).layers[view.layer];
const heatOf = (view) => layerOf(view).heat[view.head];
const levelAt = (view, row, column) => heatOf(view)[row * layerOf(view).columns.length + column];
const rowOf = (view) => layerOf(view).columns.map((_, column) => levelAt(view, view.row, column));
const named = (view, words, at) => (lookOf(view).grid ? words[at] : `${words[at]} (place ${at})`);
const digits = (number) => (Math.abs(number) < 0.005 ? 0 : number).toFixed(2);
const share = (level) => (level < 0 ? "hidden" : `${(level / 10).toFixed(1)} %`);

function furnish(view) { // another text or picture, or another layer: other tokens
  view.layer = limit(view.layer, lookOf(view).layers.length);
  view.head = limit(view.head, layerOf(view).heat.length);
  view.row = limit(view.row, layerOf(view).rows.length);
  view.column = limit(view.column, layerOf(view).columns.length);
  addModel(view);
  view.place.textContent = "";
  (lookOf(view).grid ? addPictures : addLists)(view);
  refresh(view);
}

function choosePart(view, part) {
  const before = view.layer;
  Object.assign(view, part);
  if (view.layer !== before) furnish(view);
  else refresh(view);
}

function refresh(view) {
  for (const { cell, canvas, layer, head } of view.model) {
    const chosen = layer === view.layer && head === view.head;
    cell.setAttribute("aria-selected", String(chosen));
    cell.setAttribute("tabindex", chosen ? "0" : "-1");
    paintMap(view, canvas, layer, head);
  }
  view.redraw();
  const { rows, columns, name } = layerOf(view), levels = rowOf(view), most = levels.indexOf(Math.max(...levels));
  view.said.textContent = `${name}, head ${view.head}: ${named(view, rows, view.row)} gives `
    + `${named(view, columns, view.column)} ${share(levels[view.column])} of its attention; `
    + `most, ${share(levels[most])}, goes to ${named(view, columns, most)}.`;
  drawNeurons(view);
}

// ---- the model view: a small map for each head

function addModel(view) {
  const { heads, data } = view;
  heads.textContent = "";
  const table = make(heads, "table", { class: "sbs-table sbs-heads", role: "grid", "aria-label": "layers and heads" });
  make(table, "caption", {}, data.titles[0]);
  const line = make(make(table, "thead"), "tr"), body = make(table, "tbody"), { layers } = lookOf(view);
  make(line, "td", {});
  for (let head = 0; head < Math.max(...layers.map(({ heat }) => heat.length)); head++) make(line, "th", { scope: "col" }, `head ${head}`);
  view.model = layers.flatMap(({ name, heat }, layer) => {
    const row = make(body, "tr");
    make(row, "th", { scope: "row" }, name);
    return heat.map((_, head) => {
      const cell = make(row, "td", { role: "gridcell", "aria-label": `${name}, head ${head}` });
      const go = (to, at) => {
        to = limit(to, layers.length);
        choosePart(view, { layer: to, head: limit(at, layers[to].heat.length) });
        view.model.find((one) => one.layer === view.layer && one.head === view.head).cell.focus();
      };
      cell.addEventListener("click", () => go(layer, head));
      onArrows(cell, (down, right) => go(layer + down, head + right));
      return { cell, layer, head, canvas: make(cell, "canvas") };
    });
  });
}

function onArrows(node, move) {
  node.addEventListener("keydown", (event) => {
    const step = ARROWS[event.key];
    if (!step) return;
    event.preventDefault();
    move(...step);
  });
}

function paintMap(view, canvas, layer, head) { // of a text all rows; of a picture what the chosen token looks at
  const { grid, front, layers } = lookOf(view), { rows, columns, heat } = layers[layer];
  const start = grid ? view.row * columns.length + front : 0;
  const [height, width] = grid || [rows.length, columns.length];
  paintLevels(canvas, heat[head].slice(start, start + height * width), width, height);
}

function paintLevels(canvas, levels, width, height) {
  Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d"), target = context.createImageData(width, height);
  const most = Math.max(1, ...levels);
  levels.forEach((level, at) => target.data.set([...color(level / most), 255], 4 * at));
  context.putImageData(target, 0, 0);
}

// ---- the head view of a text: two lists of tokens, and lines between them

function addLists(view) {
  const { rows, columns, heat } = layerOf(view), high = 26;
  const left = addList(view, rows, "who looks", "row"), tall = high * Math.max(rows.length, columns.length);
  const box = make(view.place, "div"), title = make(box, "p", { class: "sbs-title" });
  const svg = make(box, "svg", { width: 190, viewBox: `0 0 190 ${tall}`, "aria-hidden": "true",
    preserveAspectRatio: "none", style: `height: ${tall}px` }); // narrower where there is less room
  const button = make(title, "button", { type: "button" }, "all rows");
  button.addEventListener("click", () => { view.all = !view.all; view.redraw(); });
  const right = addList(view, columns, "who is looked at", "column", heat.length);
  view.redraw = () => {
    button.setAttribute("aria-pressed", String(view.all));
    svg.textContent = "";
    rows.forEach((_, row) => columns.forEach((_, column) => {
      const level = levelAt(view, row, column), own = row === view.row;
      if (level < 10 || !(own || view.all)) return;
      make(svg, "path", { d: `M0 ${(row + 0.5) * high}L190 ${(column + 0.5) * high}`, stroke: "currentColor",
        "stroke-width": 0.5 + level / 160, "stroke-opacity": own ? 0.25 + (0.75 * level) / 1000 : 0.15 });
    }));
    mark(left, view.row);
    mark(right, view.column);
    right.forEach((item, column) => {
      item.querySelector("output").textContent = share(levelAt(view, view.row, column));
      item.querySelectorAll("i").forEach((spot, head) => {
        const line = heat[head].slice(view.row * columns.length, (view.row + 1) * columns.length);
        spot.style.background = `rgb(${color(line[column] / Math.max(1, ...line))})`;
        spot.toggleAttribute("data-lit", head === view.head);
      });
    });
  };
}

function addList(view, words, title, part, heads = 0) {
  const box = make(view.place, "div");
  make(box, "p", { class: "sbs-title" }, title);
  const list = make(box, "ol", { role: "listbox", "aria-label": title, class: "sbs-tokens" });
  const items = words.map((word, at) => {
    const item = make(list, "li", { role: "option", "aria-label": `${at}: ${word}` });
    make(item, "span", {}, word);
    if (heads) make(item, "output", {});
    for (let head = 0; head < heads; head++) make(item, "i", { title: `head ${head}` });
    const go = (to) => {
      choosePart(view, { [part]: limit(to, words.length) });
      items[view[part]].focus();
    };
    item.addEventListener("click", () => go(at));
    onArrows(item, (down) => go(at + down));
    return item;
  });
  return items;
}

function mark(items, chosen) {
  items.forEach((item, at) => {
    item.setAttribute("aria-selected", String(at === chosen));
    item.setAttribute("tabindex", at === chosen ? "0" : "-1");
  });
}

// ---- the head view of a picture: who looks is chosen on the left, who is looked at on the right

function addPictures(view) {
  const { front, image, grid: [gh, gw] } = lookOf(view), source = view.data.images[image];
  const wide = 264, tall = (wide * gh) / gw, words = layerOf(view).rows.slice(0, front);
  const sides = ["row", "column"].map((part, side) => {
    const box = make(view.place, "div"), title = view.data.titles[1 + side];
    make(box, "p", { class: "sbs-title" }, title);
    const buttons = words.map((word, at) => {
      const button = make(box, "button", { type: "button", "aria-label": `${title}: ${word}` }, word);
      button.addEventListener("click", () => choosePart(view, { [part]: at }));
      return button;
    });
    const svg = make(box, "svg", { role: "application", tabindex: "0", viewBox: `-4 -4 ${wide + 8} ${tall + 8}`,
      width: wide + 8, "aria-label": `${title}: ${gh} rows, ${gw} columns. Arrow keys choose.` });
    Object.assign(svg, { wide, tall });
    svg.style.cursor = "pointer";
    const go = (row, column) => choosePart(view, { [part]: front + limit(row, gh) * gw + limit(column, gw) });
    svg.addEventListener("click", (event) => {
      const area = svg.getBoundingClientRect(), scale = (wide + 8) / area.width;
      go(Math.floor((((event.clientY - area.top) * scale - 4) / tall) * gh),
        Math.floor((((event.clientX - area.left) * scale - 4) / wide) * gw));
    });
    onArrows(svg, (down, right) => {
      const cell = view[part] - front;
      if (cell < 0) go(0, 0);
      else go(Math.floor(cell / gw) + down, (cell % gw) + right);
    });
    return { part, svg, buttons };
  });
  const box = { width: wide / gw, height: tall / gh }, at = (cell) => ({ ...box, x: (cell % gw) * box.width, y: Math.floor(cell / gw) * box.height });
  view.redraw = () => sides.forEach(({ part, svg, buttons }) => {
    svg.textContent = "";
    if (part === "row") paintPixels(svg, source, [0, 0, source.height, source.width]);
    const levels = rowOf(view), most = Math.max(1, ...levels.slice(front));
    levels.slice(front).forEach((level, cell) => {
      const rgb = color(level / most), seen = part === "column";
      const tile = make(svg, "rect", { ...at(cell), fill: seen ? `rgb(${rgb})` : "none", stroke: "#888", "stroke-width": 0.5 });
      make(tile, "title", {}, `row ${Math.floor(cell / gw)}, column ${cell % gw}: ${share(level)}`);
      if (seen) make(svg, "text", { x: at(cell).x + box.width / 2, y: at(cell).y + box.height / 2 + 4, "text-anchor": "middle",
        fill: inkOn(rgb), "pointer-events": "none" }, (level / 10).toFixed(0));
    });
    buttons.forEach((button, token) => {
      button.setAttribute("aria-pressed", String(view[part] === token));
      if (part === "column") button.textContent = `${words[token]}: ${share(levels[token])}`;
    });
    if (view[part] < front) return;
    for (const [stroke, width] of [["#000", 6], ["#fff", 3]]) make(svg, "rect", { ...at(view[part] - front), fill: "none", stroke, "stroke-width": width, "pointer-events": "none" });
  });
}

// ---- the neuron view: query times key, feature by feature; the sum is the score

function drawNeurons(view) {
  const { neurons } = view, { q, k, width, rows, columns } = layerOf(view);
  const open = neurons.querySelector("details")?.open;
  neurons.textContent = "";
  if (!q) return;
  const take = (all, at) => all[view.head].slice(at * width, (at + 1) * width).map((level) => level / 1000);
  const query = take(q, view.row), products = columns.map((_, at) => take(k, at).map((part, f) => part * query[f]));
  const scores = products.map((parts) => parts.reduce((sum, part) => sum + part, 0) / Math.sqrt(width));
  const table = make(neurons, "table", { class: "sbs-table sbs-numbers" });
  make(table, "caption", {}, `one score, feature by feature: ${rows[view.row]} asks, ${columns[view.column]} is asked`);
  const head = make(make(table, "thead"), "tr"), body = make(table, "tbody");
  make(head, "th", {}, "feature");
  for (let f = 0; f < width; f++) make(head, "th", { scope: "col" }, f);
  const lines = { query, key: take(k, view.column), product: products[view.column] };
  for (const [name, numbers] of Object.entries(lines)) {
    const line = make(body, "tr"), most = Math.max(...numbers.map(Math.abs), 1e-9);
    make(line, "th", { scope: "row" }, name);
    for (const number of numbers) {
      const rgb = color((number / most + 1) / 2);
      make(line, "td", { style: `background-color: rgb(${rgb}); color: ${inkOn(rgb)}` }, digits(number));
    }
  }
  const score = scores[view.column];
  make(neurons, "p", { class: "sbs-sum" }, `The ${width} products sum to ${digits(score * Math.sqrt(width))}; divided by `
    + `√${width} that is the score, ${digits(score)}. After the softmax over all keys: ${share(levelAt(view, view.row, view.column))}.`);
  const fold = make(neurons, "details"), all = (make(fold, "summary", {}, "all keys of this query"), make(fold, "table", { class: "sbs-table" }));
  fold.open = Boolean(open);
  const top = make(make(all, "thead"), "tr"), rest = make(all, "tbody");
  for (const word of ["key", "products", "score", "share"]) make(top, "th", { scope: "col" }, word);
  const most = Math.max(...products.flat().map(Math.abs), 1e-9);
  columns.forEach((word, at) => {
    const line = make(rest, "tr");
    make(line, "th", { scope: "row" }, word);
    paintLevels(make(make(line, "td", { class: "sbs-band" }), "canvas"), products[at].map((part) => (part / most + 1) / 2), width, 1);
    make(line, "td", { class: "sbs-score" }, digits(scores[at]));
    make(line, "td", { class: "sbs-score" }, share(levelAt(view, view.row, at)));
  });
}
