// A list of very many rows of one height, of which only those in view are in the document.
const ROW = 22;
const list = (box, draw, inView) => {
  const rows = el("div", { class: "rows" });
  box.append(rows);
  let count = 0, drawn = new Map();
  const update = () => {
    const first = Math.max(0, Math.floor(box.scrollTop / ROW) - 10);
    const end = Math.min(count, Math.ceil((box.scrollTop + box.clientHeight) / ROW) + 10);
    const next = new Map();
    for (let n = first; n < end; n++) {
      const row = drawn.get(n) || draw(n);
      row.style.top = `${n * ROW}px`;
      if (!drawn.has(n)) rows.append(row);
      next.set(n, row);
    }
    for (const [n, row] of drawn) if (!next.has(n)) row.remove();
    drawn = next;
    inView(first, end);
  };
  box.addEventListener("scroll", update);
  resized(box, update);
  return {
    show(total) {
      count = total;
      rows.style.height = `${total * ROW}px`;
      for (const row of drawn.values()) row.remove();
      drawn = new Map();
      update();
    },
    reveal(n) {
      const top = n * ROW;
      if (top < box.scrollTop || top > box.scrollTop + box.clientHeight - 2 * ROW)
        box.scrollTop = Math.max(0, top - box.clientHeight / 2);
    },
  };
};
