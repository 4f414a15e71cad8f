// Kernels under the roofs: FLOPs a second over FLOPs a byte, both in powers of ten.
kinds.roofline = ({ roofs }) => {
  const alike = new Map();
  model().parts.forEach((part, n) => {
    if (!part.flops || !part.bytes || !part.us) return;
    const key = [part.name, part.computes, part.flops, part.bytes].join("|");
    const found = alike.get(key) || { part, first: n, us: 0, count: 0 };
    found.us += part.us;
    found.count += 1;
    alike.set(key, found);
  });
  const points = [...alike.values()].map((one) => ({
    ...one, x: one.part.flops / one.part.bytes, y: (one.part.flops * one.count) / (one.us * 1e-6) }));
  if (!points.length) return el("p", { class: "quiet" }, "No kernel computes with floats.");
  const whole = points.reduce((sum, one) => sum + one.us, 0);
  const [memory, peak] = [roofs.bytes_per_second, roofs.flops_per_second];
  const xs = points.map((p) => p.x).concat(memory && peak ? [peak / memory] : []);
  const ys = points.map((p) => p.y).concat(peak ? [peak] : []);
  const span = (values) => [Math.floor(Math.log10(Math.min(...values)) - 0.2), Math.ceil(Math.log10(Math.max(...values)) + 0.2)];
  const [x0, x1] = span(xs), [y0, y1] = span(ys);
  const W = 1000, H = 420, L = 96, B = 46, T = 12, R = 20;
  const x = (value) => L + ((Math.log10(value) - x0) / (x1 - x0)) * (W - L - R);
  const y = (value) => H - B - ((Math.log10(value) - y0) / (y1 - y0)) * (H - B - T);
  const drawing = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": "roofline of the kernels" });
  for (let n = x0; n <= x1; n++)
    drawing.append(svg("line", { class: "axis", x1: x(10 ** n), x2: x(10 ** n), y1: T, y2: H - B }),
      svg("text", { x: x(10 ** n), y: H - B + 17, "text-anchor": "middle" }, `${Number((10 ** n).toPrecision(1))}`));
  for (let n = y0; n <= y1; n++)
    drawing.append(svg("line", { class: "axis", x1: L, x2: W - R, y1: y(10 ** n), y2: y(10 ** n) }),
      svg("text", { x: L - 8, y: y(10 ** n) + 4, "text-anchor": "end" }, rate(10 ** n, "FLOP/s")));
  drawing.append(svg("text", { x: (L + W) / 2, y: H - 8, "text-anchor": "middle" }, "FLOPs a byte"));
  if (memory) {
    const top = peak ? Math.min(peak, 10 ** x1 * memory) : 10 ** y1, low = Math.max(10 ** x0, 10 ** y0 / memory);
    const corner = Math.min(10 ** x1, top / memory);
    let path = `M${x(low)},${y(low * memory)}L${x(corner)},${y(corner * memory)}`;
    if (peak && corner < 10 ** x1) path += `L${x(10 ** x1)},${y(peak)}`;
    drawing.append(svg("path", { class: "roof", d: path }));
  }
  const dots = points.sort((a, b) => b.us - a.us).map((one) => {
    const bound = Math.min(...[memory && one.x * memory, peak].filter(Boolean));
    const said = `${one.part.name}: ${one.part.computes.join(", ")}\n${one.count} ×, ${time(one.us)} in all, ${percent(one.us / whole)}\n`
      + `${rate(one.y, "FLOP/s")} at ${one.x.toPrecision(3)} FLOPs a byte`
      + (Number.isFinite(bound) ? `, ${percent(one.y / bound)} of the roof` : "");
    const dot = svg("circle", { cx: x(one.x), cy: y(one.y), r: 4 + 26 * Math.sqrt(one.us / whole), fill: color(one.part.name),
      "fill-opacity": 0.55, onclick: () => choose(one.first) }, svg("title", {}, said));
    drawing.append(dot);
    return [one, dot];
  });
  choice.heard.push(() => dots.forEach(([one, dot]) => dot.classList.toggle("chosen", one.first === choice.part)));
  const names = [...new Set(points.map((one) => one.part.name))];
  return el("div", { class: "drawing panel" }, drawing, legend(names));
};

const legend = (names) => el("div", { class: "legend" },
  ...names.map((name) => el("span", {}, el("i", { style: `background:${color(name)}` }), name)));
