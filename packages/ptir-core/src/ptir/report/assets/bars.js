// Horizontal bars with a value each, and where known the least and the most of it.
kinds.bars = ({ unit, rows }) => {
  const most = Math.max(...rows.map((row) => row.high ?? row.value), 1e-300);
  const share = (value) => `${(100 * value) / most}%`;
  return el("div", { class: "bars panel" }, ...rows.flatMap((row) => [
    el("span", {}, row.name),
    el("span", { class: "track" }, el("i", { style: `width:${share(row.value)}` }),
      row.low === undefined ? null : el("b", { style: `left:${share(row.low)};width:${share(row.high - row.low)}`,
        title: `${row.low.toFixed(1)} to ${row.high.toFixed(1)} ${unit}` })),
    el("span", {}, `${row.value.toFixed(1)} ${unit}`)]));
};
