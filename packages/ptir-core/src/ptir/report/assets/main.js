// The page: title, facts, and every section drawn by what its kind registered.
const root = document.documentElement;
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const theme = (name) => {
  root.dataset.theme = name;
  for (const redraw of themed) redraw();
};
theme(dark.matches ? "dark" : "light");
dark.addEventListener("change", () => theme(dark.matches ? "dark" : "light"));

const titled = (section, n) => el("section", { id: `section-${n}` },
  el("h2", {}, section.title),
  section.note ? el("p", { class: "note" }, section.note) : null,
  kinds[section.kind](section.data));
document.getElementById("page").append(
  el("header", {}, el("h1", {}, page.title),
    el("button", { onclick: () => theme(root.dataset.theme === "dark" ? "light" : "dark") }, "dark / light")),
  el("dl", { class: "facts" }, ...page.facts.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
  el("nav", {}, ...page.sections.map((section, n) => el("a", { href: `#section-${n}` }, section.title))),
  ...page.sections.map(titled));
for (const draw of placed) draw();
root.dataset.ready = "yes";
