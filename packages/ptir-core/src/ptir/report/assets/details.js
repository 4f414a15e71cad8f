// What is known of the part or op that is chosen.
const model = () => page.sections.find((section) => section.kind === "graph").data;

const details = (data, tree) => {
  const { parts, instructions, ports, texts } = data;
  const box = el("aside", { class: "details panel", "aria-live": "polite" });
  const button = (op) => {
    const part = tree.owner[op];
    const name = `${texts[instructions[op][NAME]]} ${texts[instructions[op][TYPE]]}`;
    return el("button", { class: "mono", onclick: () => part >= 0 && choose(part, op) }, name);
  };
  const value = (number) =>
    number < ports.length
      ? el("div", { class: "mono" }, `${ports[number].kind} ${ports[number].name}: ${ports[number].type}`)
      : el("div", {}, button(tree.maker.get(number)));
  const row = (name, ...content) => [el("dt", {}, name), el("dd", {}, ...content)];
  const readers = (op) => {
    const found = [];
    instructions.forEach((one, n) => { if (tree.owner[n] >= 0 && tree.sources(n).includes(op)) found.push(n); });
    return found;
  };

  const ofPart = (number) => {
    const part = parts[number], seconds = part.us * 1e-6;
    const speed = seconds ? `${rate(part.bytes / seconds, "B/s")}, ${rate(part.flops / seconds, "FLOP/s")}` : "";
    return [el("h3", {}, `${part.name} ${part.schedule}`),
      el("dl", {},
        ...row("layer", part.layer || "outside the layers"),
        ...row("computes", part.computes.join(", ") || "nothing but a copy"),
        ...row("time", `${time(part.us)}, ${part.items} workgroups`),
        ...row("moves", `${bytes(part.bytes)}, of that weights ${bytes(part.weights)}`),
        ...row("FLOPs", part.flops.toLocaleString("en")),
        ...row("speed", speed),
        ...row("parameters", part.parameters.join(", ") || "none"),
        ...row("reads", ...part.reads.slice(0, 30).map(([v, n]) => el("div", {}, value(v), ` ${bytes(n)}`))),
        ...row("writes", ...part.writes.slice(0, 30).map(([v, n]) => el("div", {}, value(v), ` ${bytes(n)}`))))];
  };
  const ofOp = (number) => {
    const one = instructions[number];
    return [el("h3", {}, texts[one[NAME]]),
      el("dl", {},
        ...row("type", texts[one[TYPE]]),
        ...row("functional", texts[one[FUNCTIONAL]]),
        ...row("layer", texts[one[LAYER]] || "outside the layers"),
        ...row("from", texts[one[PLACE]] || "a pass"),
        ...row("operands", ...one[OPERANDS].map(value)),
        ...row("read by", ...readers(number).slice(0, 30).map((n) => el("div", {}, button(n)))))];
  };
  const update = () => {
    if (choice.op !== null) box.replaceChildren(...ofOp(choice.op));
    else if (choice.part !== null) box.replaceChildren(...ofPart(choice.part));
    else box.replaceChildren(el("p", { class: "quiet" }, "Choose a row, a point or a bar."));
  };
  choice.heard.push(update);
  update();
  return box;
};
