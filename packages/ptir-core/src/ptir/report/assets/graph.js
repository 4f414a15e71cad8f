// The program: rows that fold, arcs from makers to readers on their left, a search, details.
const GUTTER = 110, MOST_ARCS = 1500;

kinds.graph = (data) => {
  const tree = folding(data), { parts, instructions, texts } = data;
  const whole = parts.reduce((sum, part) => sum + part.us, 0) || 1;
  const box = el("div", { class: "list panel mono", tabindex: 0, role: "tree", "aria-label": "program" });
  const canvas = el("canvas", { "aria-hidden": "true" });
  box.append(canvas);
  let hits = [], hit = -1, marked = new Set();

  const figures = (row) => {
    if (row[3] >= 0) return null;
    const numbers = row[2] < 0 ? tree.groups[row[1]].parts : [row[2]];
    const sum = (field) => numbers.reduce((total, n) => total + parts[n][field], 0);
    return { us: sum("us"), bytes: sum("bytes"), count: numbers.length };
  };
  const label = (row) => {
    const [, g, p, op] = row;
    if (op >= 0) return [texts[instructions[op][NAME]], texts[instructions[op][TYPE]]];
    if (p >= 0) return [parts[p].name, parts[p].computes.join(", ")];
    const names = new Set(tree.groups[g].parts.map((n) => parts[n].name));
    return [tree.groups[g].layer || "outside the layers", [...names].join(", ")];
  };
  const draw = (n) => {
    const row = tree.rows()[n], [name, about] = label(row), found = figures(row);
    const fold = row[3] < 0 ? (tree.isOpen(row) ? "▾" : "▸") : "";
    const chosen = row[2] >= 0 && choice.part === row[2] && (choice.op ?? -1) === row[3];
    const classes = ["row", ["layer", "part", "op"][row[0]], chosen ? "chosen" : "",
      marked.has(`${row[2]} ${row[3]}`) ? "hit" : ""];
    const made = el("div", { class: classes.join(" "), role: "treeitem", title: tree.textOf(row),
      "aria-level": row[0] + 1, "aria-expanded": row[3] < 0 ? String(tree.isOpen(row)) : null },
      el("span", { style: `padding-left:${GUTTER + 8 + 16 * row[0]}px` },
        el("span", { class: "fold", onclick: (event) => { event.stopPropagation(); toggle(n); } }, fold), name),
      el("span", {}, about),
      el("span", { class: "meter", style: found ? "" : "visibility:hidden" },
        el("i", { style: `width:${found ? (100 * found.us) / whole : 0}%;background:${row[2] < 0 ? "" : color(parts[row[2]].name)}` })),
      el("span", { class: "end" }, found ? time(found.us) : ""),
      el("span", { class: "end" }, found ? bytes(found.bytes) : ""));
    made.addEventListener("click", () => pick(n));
    made.addEventListener("dblclick", () => toggle(n));
    return made;
  };

  let view = [0, 0];
  const arcs = () => {
    const height = box.clientHeight, ratio = window.devicePixelRatio || 1, context = canvas.getContext("2d");
    [canvas.width, canvas.height] = [GUTTER * ratio, height * ratio];
    canvas.style.cssText = `width:${GUTTER}px;height:${height}px;margin-bottom:${-height}px`;
    context.scale(ratio, ratio);
    const [first, end] = view, current = currentRow();
    let left = MOST_ARCS;
    const y = (n) => n * ROW - box.scrollTop + ROW / 2;
    const arc = (from, to) => {
      const reach = Math.min(GUTTER - 12, 10 + 7 * Math.log2(1 + to - from) * 2);
      context.beginPath();
      context.moveTo(GUTTER, y(from));
      context.bezierCurveTo(GUTTER - reach, y(from), GUTTER - reach, y(to), GUTTER, y(to));
      context.stroke();
    };
    context.strokeStyle = ink("--line");
    const strong = [];
    for (const [from, to] of tree.edges()) {
      if (from === current || to === current) strong.push([from, to]);
      else if (left > 0 && ((from >= first && from < end) || (to >= first && to < end))) {
        arc(from, to);
        left--;
      }
    }
    context.lineWidth = 1.6;
    for (const [from, to] of strong) {
      context.strokeStyle = to === current ? ink("--accent") : ink("--good");
      arc(from, to);
    }
  };
  const shown = list(box, draw, (first, end) => { view = [first, end]; arcs(); });
  const refresh = () => shown.show(tree.rows().length);
  let cursor = 0;
  const currentRow = () => cursor;
  const toggle = (n) => { tree.toggle(tree.rows()[n]); refresh(); };
  const pick = (n) => {
    cursor = n;
    const [, , part, op] = tree.rows()[n];
    if (part >= 0) choose(part, op < 0 ? null : op);
    else choose(null);
  };
  choice.heard.push(() => {
    if (choice.part !== null) {
      cursor = tree.reveal(choice.part, choice.op ?? -1);
      shown.reveal(cursor);
    }
    refresh();
  });
  box.addEventListener("keydown", (event) => {
    const rows = tree.rows(), row = rows[cursor];
    const moves = { ArrowDown: 1, ArrowUp: -1 };
    if (event.key in moves) pick(Math.max(0, Math.min(rows.length - 1, cursor + moves[event.key])));
    else if (event.key === "ArrowRight" && row[3] < 0 && !tree.isOpen(row)) toggle(cursor);
    else if (event.key === "ArrowLeft" && row[3] < 0 && tree.isOpen(row)) toggle(cursor);
    else return;
    event.preventDefault();
    shown.reveal(cursor);
  });

  const count = el("span", { class: "count", "aria-live": "polite" });
  const search = el("input", { type: "search", placeholder: "search: op, functional, layer, parameter, type, file:line", "aria-label": "search" });
  const go = (step) => {
    if (!hits.length) return;
    hit = (hit + step + hits.length) % hits.length;
    count.textContent = `${hit + 1} of ${hits.length}`;
    choose(hits[hit][0], hits[hit][1] < 0 ? null : hits[hit][1]);
  };
  search.addEventListener("input", () => {
    hits = tree.search(search.value);
    hit = -1;
    marked = new Set(hits.map(([part, op]) => `${part} ${op}`));
    count.textContent = search.value ? `${hits.length} found` : "";
    refresh();
  });
  search.addEventListener("keydown", (event) => {
    if (event.key === "Enter") go(event.shiftKey ? -1 : 1);
  });
  const open = (all) => { tree.all(all); cursor = 0; refresh(); };
  themed.push(arcs);
  placed.push(refresh);
  return el("div", {},
    el("div", { class: "tools" }, search, count,
      el("button", { onclick: () => go(-1) }, "previous"), el("button", { onclick: () => go(1) }, "next"),
      el("button", { onclick: () => open(true) }, "open all"), el("button", { onclick: () => open(false) }, "fold all")),
    el("div", { class: "graph" }, box, details(data, tree)));
};
