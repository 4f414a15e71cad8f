// A program as a tree that folds: layers hold parts, parts hold ops. Data only, no document.
// A row is [depth, group, part, op]; op and part are -1 where the row is of what holds them.
const NAME = 0, TYPE = 1, PLACE = 2, FUNCTIONAL = 3, LAYER = 4, OPERANDS = 5, RESULTS = 6;

const folding = (model) => {
  const { parts, instructions, texts } = model;
  const groups = [];
  parts.forEach((part, n) => {
    const last = groups[groups.length - 1];
    if (last && last.layer === part.layer) last.parts.push(n);
    else groups.push({ layer: part.layer, parts: [n] });
  });
  const groupOf = [];
  groups.forEach((group, n) => group.parts.forEach((part) => (groupOf[part] = n)));
  const owner = new Int32Array(instructions.length).fill(-1);
  parts.forEach((part, n) => {
    for (const op of part.members) if (owner[op] < 0) owner[op] = n;
  });
  const maker = new Map();
  instructions.forEach((one, n) => one[RESULTS].forEach((value) => maker.set(value, n)));

  // Makers of an op's operands that are in a part; what is in none (views, constants) is looked through.
  const sources = (op) => {
    const found = [], pending = [...instructions[op][OPERANDS]], seen = new Set();
    while (pending.length) {
      const value = pending.pop(), made = maker.get(value);
      if (made === undefined || seen.has(value)) continue;
      seen.add(value);
      if (owner[made] >= 0) found.push(made);
      else pending.push(...instructions[made][OPERANDS]);
    }
    return found;
  };

  const openGroups = new Set(), openParts = new Set();
  let rows = [], rowOf = new Map(), edges = [];
  const key = (group, part, op) => `${group} ${part} ${op}`;
  const at = (part, op) => {
    const group = groupOf[part];
    if (!openGroups.has(group)) return rowOf.get(key(group, -1, -1));
    return rowOf.get(openParts.has(part) ? key(group, part, op) : key(group, part, -1));
  };

  const rebuild = () => {
    rows = [];
    groups.forEach((group, g) => {
      rows.push([0, g, -1, -1]);
      if (!openGroups.has(g)) return;
      for (const p of group.parts) {
        rows.push([1, g, p, -1]);
        if (openParts.has(p)) for (const op of parts[p].members) rows.push([2, g, p, op]);
      }
    });
    rowOf = new Map(rows.map((row, n) => [key(row[1], row[2], row[3]), n]));
    const known = new Set();
    edges = [];
    parts.forEach((part, p) => {
      const own = new Set(part.members);
      for (const op of part.members) {
        for (const made of sources(op)) {
          const from = at(own.has(made) ? p : owner[made], made), to = at(p, op);
          const edge = from * rows.length + to;
          if (from === to || known.has(edge)) continue;
          known.add(edge);
          edges.push([from, to]);
        }
      }
    });
  };
  rebuild();

  const textOf = (row) => {
    const [, g, p, op] = row;
    if (op >= 0) return [NAME, TYPE, PLACE, FUNCTIONAL].map((f) => texts[instructions[op][f]]).join(" ");
    if (p < 0) return groups[g].layer || "outside the layers";
    const part = parts[p];
    return [part.name, ...part.computes, ...part.parameters, part.layer].join(" ");
  };

  return {
    groups, owner, maker, groupOf, sources,
    rows: () => rows,
    edges: () => edges,
    isOpen: (row) => (row[2] < 0 ? openGroups.has(row[1]) : openParts.has(row[2])),
    toggle(row) {
      const [open, number] = row[2] < 0 ? [openGroups, row[1]] : [openParts, row[2]];
      if (!open.delete(number)) open.add(number);
      rebuild();
    },
    all(open) {
      openGroups.clear();
      openParts.clear();
      if (open) {
        groups.forEach((_, g) => openGroups.add(g));
        parts.forEach((_, p) => openParts.add(p));
      }
      rebuild();
    },
    // The number of a part's or an op's row, after opening what holds it.
    reveal(part, op = -1) {
      const closed = !openGroups.has(groupOf[part]) || (op >= 0 && !openParts.has(part));
      openGroups.add(groupOf[part]);
      if (op >= 0) openParts.add(part);
      if (closed) rebuild();
      return rowOf.get(key(groupOf[part], part, op));
    },
    // Everything that holds all the words: [part, op] pairs, in order.
    search(text) {
      const words = text.toLowerCase().split(/\s+/).filter(Boolean), found = [];
      if (!words.length) return found;
      const holds = (row) => {
        const all = textOf(row).toLowerCase();
        return words.every((word) => all.includes(word));
      };
      parts.forEach((part, p) => {
        if (holds([1, groupOf[p], p, -1])) found.push([p, -1]);
        for (const op of part.members) if (holds([2, groupOf[p], p, op])) found.push([p, op]);
      });
      return found;
    },
    textOf,
  };
};
