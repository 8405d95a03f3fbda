function (id, data) {
  "use strict";
  // viridis in nine steps: its lightness only rises, so it survives a grey printer
  const STEPS = ["440154", "472d7b", "3b528b", "2c728e", "21918c", "28ae80", "5ec962", "addc30", "fde725"]
    .map((hex) => [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16)));
  const STYLE = `
    #${id} { color: inherit; font: 14px/1.45 system-ui, sans-serif; max-width: 760px; }
    #${id} .row { display: flex; flex-wrap: wrap; gap: 6px 22px; align-items: center; margin: 6px 0; }
    #${id} .row.panels { align-items: flex-start; }
    #${id} label { display: inline-flex; gap: 8px; align-items: center; }
    #${id} output { min-width: 2ch; font-weight: 600; }
    #${id} select, #${id} button { font: inherit; color: inherit; background: transparent;
      border: 1px solid currentColor; border-radius: 4px; padding: 2px 8px; }
    #${id} option { color: #000; background: #fff; }
    #${id} button[aria-pressed="true"] { font-weight: 600; box-shadow: inset 0 0 0 2px currentColor; }
    #${id} :focus-visible { outline: 3px solid #1a73e8; outline-offset: 2px; }
    #${id} svg { display: block; max-width: 100%; height: auto; font: 13px system-ui, sans-serif; }
    #${id} .title { margin: 0 0 4px; font-weight: 600; }
    #${id} .scale i { display: inline-block; width: 20px; height: 12px; vertical-align: -1px; }
    #${id} .scale span > span { display: inline-flex; vertical-align: -2px; border: 1px solid currentColor; }
    #${id} .said { margin: 6px 0; min-height: 2.9em; }`;

  const mask = data.unit === 1;
  const make = (parent, tag, attributes = {}, text = "") => {
    const drawn = ["svg", "image", "path", "rect", "text"].includes(tag);
    const node = drawn ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.textContent = text;
    return parent.appendChild(node);
  };
  const color = (value) => {
    const at = Math.min(value * 8, 7.999), i = Math.floor(at);
    return STEPS[i].map((low, c) => Math.round(low + (STEPS[i + 1][c] - low) * (at - i)));
  };
  const picture = (image, top, left, height, width) => {
    const bytes = atob(image.pixels), canvas = document.createElement("canvas");
    canvas.width = width;
    canvas.height = height;
    const context = canvas.getContext("2d"), target = context.createImageData(width, height);
    for (let p = 0; p < width * height; p++) {
      const from = ((top + Math.floor(p / width)) * image.width + left + (p % width)) * image.channels;
      for (let c = 0; c < 3; c++) target.data[4 * p + c] = bytes.charCodeAt(from + (image.channels === 3 ? c : 0));
      target.data[4 * p + 3] = 255;
    }
    context.putImageData(target, 0, 0);
    return canvas.toDataURL();
  };

  function build(root) {
    root.explorer = true;
    root.textContent = "";
    // JupyterLab would take the arrow keys and move to another cell.
    root.setAttribute("data-lm-suppress-shortcuts", "true");
    root.addEventListener("keydown", (event) => event.stopPropagation());
    make(root, "style", {}, STYLE);
    const chosen = data.controls.map((control) => control.start);
    const extra = data.buttons.length, margin = data.rows || data.columns ? 40 : 0;
    const widest = Math.max(...data.frames.map((frame) => frame.grid[1]));
    let query = data.query;
    const frame = () => data.frames[chosen.reduce((sum, at, i) => sum * data.controls[i].options.length + at, 0)];
    const place = () => (data.select === "row" ? [query - extra, 0]
      : [Math.floor((query - extra) / frame().grid[1]), (query - extra) % frame().grid[1]]);
    let spot = place().map((index, axis) => (index + 0.5) / frame().grid[axis]);
    const choose = (row, column) => {
      const [rows, columns] = frame().grid;
      row = Math.max(0, Math.min(rows - 1, row));
      column = Math.max(0, Math.min(columns - 1, column));
      query = extra + (data.select === "row" ? row : row * columns + column);
      spot = [(row + 0.5) / rows, (column + 0.5) / columns];
      draw();
    };
    const keep = (change) => { // another grid: stay on the cell that covers the same spot
      const before = spot;
      change();
      if (query < extra || !data.select) return draw();
      if (data.select === "row") return choose(query - extra, 0);
      choose(...frame().grid.map((size, axis) => Math.floor(before[axis] * size)));
      spot = before;
    };

    const bar = make(root, "div", { class: "row" });
    data.controls.forEach((control, i) => {
      const label = make(bar, "label", {}, control.label);
      const input = control.slider
        ? make(label, "input", { type: "range", min: 0, max: control.options.length - 1, step: 1 })
        : make(label, "select");
      if (!control.slider) control.options.forEach((text, at) => make(input, "option", { value: at }, text));
      input.value = control.start;
      const output = control.slider && make(label, "output", {}, control.options[control.start]);
      input.setAttribute("aria-valuetext", control.options[control.start]);
      input.addEventListener("input", () => keep(() => {
        chosen[i] = Number(input.value);
        input.setAttribute("aria-valuetext", control.options[chosen[i]]);
        if (output) output.textContent = control.options[chosen[i]];
      }));
    });
    const buttons = data.buttons.map((text, i) => {
      const button = make(bar, "button", { type: "button" }, text);
      button.addEventListener("click", () => { query = i; draw(); });
      return button;
    });

    const panels = make(root, "div", { class: "row panels" });
    const kinds = data.frames[0].image === null ? ["heat"] : ["image", data.frames[0].heat ? "heat" : "zoom"];
    const views = kinds.map((kind, i) => {
      const box = make(panels, "div");
      make(box, "p", { class: "title" }, data.titles[i] || "");
      const svg = make(box, "svg", { role: "img" });
      if (data.select && kind !== "zoom") {
        svg.setAttribute("role", "application");
        svg.setAttribute("tabindex", "0");
        svg.style.cursor = "pointer";
        svg.addEventListener("click", (event) => {
          const area = svg.getBoundingClientRect(), [rows, columns] = frame().grid;
          const scale = svg.viewBox.baseVal.width / area.width;
          choose(Math.floor((((event.clientY - area.top) * scale - margin) / svg.tall) * rows),
            Math.floor((((event.clientX - area.left) * scale - margin) / svg.wide) * columns));
        });
        svg.addEventListener("keydown", (event) => {
          const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
          if (!step) return;
          event.preventDefault();
          const at = query < extra ? [0, 0] : place().map((index, axis) => index + step[axis]);
          choose(...at);
        });
      }
      return [kind, svg];
    });
    if (kinds.includes("heat")) {
      const scale = make(root, "div", { class: "row scale" });
      make(scale, "span", {}, data.label);
      const ends = mask ? ["no (0)", "yes (1)"] : ["0", `${Math.round(data.peak * 100)} %`];
      const legend = make(scale, "span", {}, `${ends[0]} `), bar = make(legend, "span");
      for (let i = 0; i < 9; i += mask ? 8 : 1) make(bar, "i", { style: `background: rgb(${color(i / 8)})` });
      legend.append(` ${ends[1]}`);
    }
    const said = make(root, "p", { class: "said", "aria-live": "polite" });

    function paint(kind, svg) {
      const { grid: [rows, columns], image, heat } = frame(), source = data.images[image];
      const wide = source ? 300 : Math.min(300, widest * 60) * (columns / widest);
      const tall = source ? (wide * source.height) / source.width : (wide / columns) * rows;
      const w = wide / columns, h = tall / rows, [r, c] = place();
      Object.assign(svg, { wide, tall, textContent: "" });
      svg.setAttribute("viewBox", `${-margin} ${-margin} ${wide + margin + 4} ${tall + margin + 4}`);
      svg.setAttribute("width", wide + margin + 4);
      svg.setAttribute("aria-label", `${data.titles[kinds.indexOf(kind)] || "grid"}: ${rows} rows, ${columns} columns.`
        + (svg.tabIndex === 0 ? " Arrow keys choose." : ""));
      const whole = { x: 0, y: 0, width: wide, height: tall, preserveAspectRatio: "none", style: "image-rendering: pixelated" };
      if (kind === "zoom") {
        const ph = source.height / rows, pw = source.width / columns;
        make(svg, "image", { ...whole, href: picture(source, r * ph, c * pw, ph, pw) });
        return;
      }
      if (source) make(svg, "image", { ...whole, href: picture(source, 0, 0, source.height, source.width) });
      if (kind === "heat") {
        heat[heat.length > 1 ? query : 0].forEach((level, cell) => {
          const x = (cell % columns) * w, y = Math.floor(cell / columns) * h, rgb = color(level / data.unit / data.peak);
          make(svg, "rect", { x, y, width: w, height: h, fill: `rgb(${rgb})`, "fill-opacity": source ? 0.8 : 1 });
          if (w < 30) return;
          const dark = 0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2] < 128;
          make(svg, "text", { x: x + w / 2, y: y + h / 2 + 5, "text-anchor": "middle", fill: dark ? "#fff" : "#000" },
            mask ? level : data.unit === 100 ? level : (level / 10).toFixed(1));
        });
      }
      let lines = "";
      for (let i = 0; i <= rows; i++) lines += `M0 ${i * h}H${wide}`;
      for (let i = 0; i <= columns; i++) lines += `M${i * w} 0V${tall}`;
      make(svg, "path", { d: lines, stroke: "#000", "stroke-width": 2 });
      make(svg, "path", { d: lines, stroke: "#fff", "stroke-width": 1 });
      if (margin) {
        const words = { fill: "currentColor", "text-anchor": "middle" };
        for (let i = 0; i < columns; i++) make(svg, "text", { ...words, x: (i + 0.5) * w, y: -6 }, i);
        for (let i = 0; i < rows; i++) make(svg, "text", { ...words, x: -10, y: (i + 0.5) * h + 5 }, i);
        make(svg, "text", { ...words, x: Math.max(wide / 2, 10), y: -25 }, data.columns);
        make(svg, "text", { ...words, transform: `translate(-26 ${tall / 2}) rotate(-90)` }, data.rows);
      }
      if (data.select && query >= extra) {
        const box = data.select === "row" ? { x: 0, y: r * h, width: wide, height: h } : { x: c * w, y: r * h, width: w, height: h };
        make(svg, "rect", { ...box, fill: "none", stroke: "#000", "stroke-width": 6 });
        make(svg, "rect", { ...box, fill: "none", stroke: "#fff", "stroke-width": 3 });
      }
    }

    function draw() {
      for (const [kind, svg] of views) paint(kind, svg);
      buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(i === query)));
      const { caption } = frame(), [row, column] = place();
      said.textContent = typeof caption !== "string" ? caption[data.select ? query : 0]
        : caption.replaceAll("{row}", row).replaceAll("{column}", column).replaceAll("{token}", query);
    }
    draw();
  }

  for (const root of document.querySelectorAll(`[id="${id}"]`)) if (!root.explorer) build(root);
}
