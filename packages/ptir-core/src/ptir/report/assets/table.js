// A table that is sorted by its titles and searched by words; long ones show their first rows.
const SHOWN = 400;
kinds.table = ({ columns, rows }) => {
  const plain = (cell) => (cell !== null && typeof cell === "object" ? cell.text : cell);
  const isNumber = columns.map((_, n) => rows.length > 0 && rows.every((row) => typeof plain(row[n]) === "number" || plain(row[n]) === null));
  const text = rows.map((row) => row.map(plain).join(" ").toLowerCase());
  let order = rows.map((_, n) => n), by = -1, down = false, words = [];
  const body = el("tbody"), count = el("span", { class: "count" });
  const cell = (value, n) => {
    const tone = value !== null && typeof value === "object" ? value.tone : "";
    return el("td", { class: [isNumber[n] ? "end" : "", tone].join(" ") }, String(plain(value) ?? ""));
  };
  const update = () => {
    const found = order.filter((n) => words.every((word) => text[n].includes(word)));
    body.replaceChildren(...found.slice(0, SHOWN).map((n) => el("tr", {}, ...rows[n].map(cell))));
    const more = found.length > SHOWN ? `, the first ${SHOWN} shown` : "";
    count.textContent = `${found.length} rows${more}`;
  };
  const sort = (n) => {
    [by, down] = [n, by === n ? !down : isNumber[n]];
    const less = (a, b) => (isNumber[n] ? (plain(a) ?? -Infinity) - (plain(b) ?? -Infinity) : String(plain(a)).localeCompare(String(plain(b))));
    order.sort((a, b) => less(rows[a][n], rows[b][n]) * (down ? -1 : 1) || a - b);
    update();
  };
  const search = el("input", { type: "search", placeholder: "search", "aria-label": "search the table",
    oninput: () => { words = search.value.toLowerCase().split(/\s+/).filter(Boolean); update(); } });
  const titles = columns.map((name, n) => el("th", { class: isNumber[n] ? "end" : "", onclick: () => sort(n), title: "sort" }, name));
  update();
  return el("div", {}, rows.length > 8 ? el("div", { class: "tools" }, search, count) : null,
    el("div", { class: "scroll panel" }, el("table", {}, el("thead", {}, el("tr", {}, ...titles)), body)));
};
