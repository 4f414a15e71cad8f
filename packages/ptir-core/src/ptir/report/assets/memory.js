// Bytes of intermediates that are needed while each part runs, as steps.
kinds.memory = ({ live, arena }) => {
  const most = Math.max(...live, 1), W = 1000, H = 190, L = 74, B = 24, T = 10;
  const x = (n) => L + (n / Math.max(1, live.length)) * (W - L - 8);
  const y = (value) => H - B - (value / most) * (H - B - T);
  let path = `M${L},${H - B}`;
  live.forEach((value, n) => (path += `L${x(n)},${y(value)}L${x(n + 1)},${y(value)}`));
  path += `L${x(live.length)},${H - B}Z`;
  const peak = live.indexOf(Math.max(...live));
  const mark = svg("line", { class: "roof", y1: T, y2: H - B, visibility: "hidden" });
  const drawing = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": "memory over a run",
    onclick: (event) => {
      const box = drawing.getBoundingClientRect(), at = ((event.clientX - box.left) / box.width) * W;
      choose(Math.max(0, Math.min(live.length - 1, Math.floor(((at - L) / (W - L - 8)) * live.length))));
    } },
    svg("path", { class: "area", d: path }), mark,
    svg("text", { x: L - 8, y: y(most) + 5, "text-anchor": "end" }, bytes(most)),
    svg("text", { x: L - 8, y: H - B, "text-anchor": "end" }, "0"),
    svg("text", { x: L, y: H - 6 }, "first part"), svg("text", { x: W - 8, y: H - 6, "text-anchor": "end" }, "last"));
  choice.heard.push(() => {
    mark.setAttribute("visibility", choice.part === null ? "hidden" : "visible");
    for (const side of ["x1", "x2"]) mark.setAttribute(side, x((choice.part ?? 0) + 0.5));
  });
  const planned = arena === null ? "they are allocated one by one" : `planned in ${bytes(arena)}`;
  return el("div", { class: "drawing panel" }, drawing,
    el("div", { class: "legend" }, el("span", {}, `most ${bytes(most)}, in part ${peak}; ${planned}`)));
};
