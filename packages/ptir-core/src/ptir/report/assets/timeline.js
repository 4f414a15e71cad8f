// One run on a canvas: a bar for each part, layers above; wheel zooms, dragging moves.
kinds.timeline = () => {
  const { parts } = model(), starts = [];
  let whole = 0;
  for (const part of parts) {
    starts.push(whole);
    whole += part.us;
  }
  if (!whole) return el("p", { class: "quiet" }, "Parts were not timed.");
  let from = 0, to = whole;
  const canvas = el("canvas", { tabindex: 0, role: "img", "aria-label": "timeline of a run" });
  const said = el("div", { class: "legend mono" }, "\u00a0");
  const place = (event) => from + ((event.clientX - canvas.getBoundingClientRect().left) / canvas.clientWidth) * (to - from);
  const partAt = (at) => {
    let low = 0, high = parts.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (starts[middle] <= at) low = middle;
      else high = middle - 1;
    }
    return low;
  };
  const redraw = sharp(canvas, 110, (context, width, height) => {
    const x = (at) => ((at - from) / (to - from)) * width;
    context.font = "11px system-ui, sans-serif";
    const last = partAt(to);
    let layer = null, begin = 0;
    const band = (end) => {
      if (layer === null) return;
      const left = Math.max(0, x(begin)), right = Math.min(width, x(end));
      context.fillStyle = ink("--track");
      context.fillRect(left, 4, Math.max(0.5, right - left - 1), 18);
      context.fillStyle = ink("--soft");
      if (right - left > 34) context.fillText(layer || "outside", left + 4, 17, right - left - 8);
    };
    for (let n = partAt(from); n <= last; n++) {
      const part = parts[n], left = x(starts[n]), wide = x(starts[n] + part.us) - left;
      if (part.layer !== layer) {
        band(starts[n]);
        [layer, begin] = [part.layer, starts[n]];
      }
      context.fillStyle = color(part.name);
      context.fillRect(left, 28, Math.max(0.4, wide - (wide > 3 ? 0.6 : 0)), 52);
      if (n === choice.part) {
        context.strokeStyle = ink("--ink");
        context.lineWidth = 2;
        context.strokeRect(left, 27, Math.max(1, wide), 54);
      }
      if (wide > 46) {
        context.fillStyle = "#fff";
        context.fillText(part.name, left + 4, 58, wide - 8);
      }
    }
    band(to);
    context.fillStyle = ink("--soft");
    for (let n = 0; n <= 5; n++) {
      const at = from + ((to - from) * n) / 5;
      context.textAlign = n === 0 ? "left" : n === 5 ? "right" : "center";
      context.fillText(time(at), (width * n) / 5, height - 8);
    }
    context.textAlign = "left";
  });
  const move = (begin, span) => {
    span = Math.max(0.05, Math.min(whole, span));
    from = Math.max(0, Math.min(whole - span, begin));
    to = from + span;
    redraw();
  };
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const at = place(event), span = (to - from) * (event.deltaY > 0 ? 1.25 : 0.8);
    move(at - ((at - from) / (to - from)) * span, span);
  }, { passive: false });
  let dragged = null;
  canvas.addEventListener("pointerdown", (event) => { dragged = { x: event.clientX, from, moved: false }; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointermove", (event) => {
    const part = parts[partAt(place(event))];
    said.textContent = `${part.layer || "outside the layers"}  ${part.name}  ${part.computes.join(", ")}  ${time(part.us)}`;
    if (!dragged) return;
    dragged.moved ||= Math.abs(event.clientX - dragged.x) > 3;
    move(dragged.from - ((event.clientX - dragged.x) / canvas.clientWidth) * (to - from), to - from);
  });
  canvas.addEventListener("pointerup", (event) => {
    if (dragged && !dragged.moved) choose(partAt(place(event)));
    dragged = null;
  });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -0.2, ArrowRight: 0.2 }[event.key];
    const zoom = { "+": 0.8, "-": 1.25 }[event.key];
    if (step) move(from + step * (to - from), to - from);
    else if (zoom) move(from + ((1 - zoom) * (to - from)) / 2, (to - from) * zoom);
  });
  choice.heard.push(redraw);
  const names = [...new Set(parts.map((part) => part.name))];
  return el("div", { class: "drawing panel" }, canvas, said,
    el("div", { class: "tools" }, el("button", { onclick: () => move(0, whole) }, "whole run")), legend(names));
};
