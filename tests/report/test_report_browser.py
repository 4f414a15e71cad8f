"""A page in a browser: Chromium opens it, a script at its end uses it as a reader would.

What the script finds is written into the document, which Chromium prints.
"""

from __future__ import annotations

import html
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from devices import tool
from ptir.report import bars, page, table
from ptir.report.page import Section

LAYERS, PARTS, OPS = 100, 20, 5
"""Of the large program: 100 layers of 20 kernels of 5 ops."""
DRIVER = (Path(__file__).parent / "driver.html").read_text(encoding="utf-8")
"""Runs a script in the page, and writes what it says instead of the page."""


def program(layers: int, parts: int, ops: int) -> list[Section]:
    """A program of as many layers, each with so many kernels of so many ops, in a row."""
    texts = ["tanh", "f32[4]", "model.py:7", "gelu", *(f"h.{n}" for n in range(layers))]
    count = layers * parts * ops
    instructions = [[0, 1, 2, 3, 4 + n // (parts * ops), [n], [n + 1]] for n in range(count)]
    made = [
        {
            "name": ("linear", "map")[n % 2],
            "kind": "kernel",
            "schedule": "serial",
            "layer": f"h.{n // parts}",
            "computes": ["gelu", "add"],
            "parameters": [f"w.{n}"],
            "members": [*range(n * ops, (n + 1) * ops)],
            "reads": [[n * ops, 16]],
            "writes": [[(n + 1) * ops, 16]],
            "bytes": 32 * (1 + n % 5),
            "weights": 0,
            "flops": 64 * (1 + n % 3),
            "items": 1,
            "us": 1.0 + n % 7,
        }
        for n in range(layers * parts)
    ]
    graph = {
        "instructions": instructions,
        "parts": made,
        "ports": [{"name": "x", "kind": "input", "type": "f32[4]"}],
        "outputs": [count],
        "texts": texts,
    }
    roofs = {"bytes_per_second": 1e8, "flops_per_second": 1e9}
    return [
        Section("graph", "Program", graph),
        Section("roofline", "Roofline", {"roofs": roofs}),
        Section("timeline", "Timeline", {}),
        Section("memory", "Memory", {"live": [16] * len(made), "arena": 64}),
        table("Rows", ["name", "n"], [[f"row {n}", n] for n in range(1000)]),
        bars("Speed", "tok/s", [{"name": "tg64", "value": 5.0, "low": 4.0, "high": 6.0}]),
    ]


def driven(folder: Path, sections: list[Section], script: str, *options: str) -> dict[str, Any]:
    """What a script finds in a page with these sections."""
    made = page("a program", [("ran on", "paper")], sections)
    file = folder / "page.html"
    end = DRIVER.replace("SCRIPT", script)
    file.write_text(made.replace("</body>", f"{end}</body>"), encoding="utf-8")
    command = [
        *(tool("chromium"), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
        *("--window-size=1400,1000", "--virtual-time-budget=2000", f"--user-data-dir={folder}/u"),
        *(*options, "--dump-dom", file.as_uri()),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    found = re.search(r'<pre id="said">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr[-2000:]
    said: dict[str, Any] = json.loads(html.unescape(found[1]))
    assert said.pop("faults") == []
    return said


def test_layers_open_to_kernels_and_kernels_to_ops(tmp_path: Path) -> None:
    script = """
      said.folded = names();
      all(".fold")[0].click();
      said.layer = names();
      all(".fold")[2].click();
      said.kernel = names();
      const box = one(".list");
      all(".row")[0].click();
      press(box, "ArrowLeft");
      said.again = names();
      press(box, "ArrowDown"); press(box, "ArrowRight");
      said.second = names().length;
    """
    said = driven(tmp_path, program(3, 2, 4), script)
    assert said["folded"] == ["h.0", "h.1", "h.2"]
    assert said["layer"] == ["h.0", "linear", "map", "h.1", "h.2"]
    assert said["kernel"] == ["h.0", "linear", "map", *["tanh"] * 4, "h.1", "h.2"]
    assert said["again"] == ["h.0", "h.1", "h.2"]
    assert said["second"] == 5


def test_ten_thousand_instructions_are_searched_and_only_those_in_view_are_drawn(
    tmp_path: Path,
) -> None:
    script = """
      said.folded = all(".row").length;
      button("open all").click();
      said.height = one(".rows").style.height;
      said.drawn = all(".row").length;
      const input = one(".tools input");
      type(input, "gelu w.1234");
      said.found = one(".count").textContent;
      press(input, "Enter");
      said.at = one(".count").textContent;
      said.chosen = all(".row.chosen").map((row) => row.title);
      said.details = one(".details").innerText;
      type(input, "tanh");
      said.ops = one(".count").textContent;
      scroll(one(".list"), 1e9);
      said.last = names().slice(-1)[0];
      said.marked = all(".row.hit").length > 0;
      said.inDocument = document.getElementsByTagName("*").length;
    """
    said = driven(tmp_path, program(LAYERS, PARTS, OPS), script)
    rows = LAYERS * (1 + PARTS * (1 + OPS))
    assert said["height"] == f"{22 * rows}px"
    assert said["folded"] < 60
    assert said["drawn"] < 60
    assert (said["found"], said["at"]) == ("1 found", "1 of 1")
    assert said["chosen"] == ["linear gelu add w.1234 h.61"]
    assert "h.61" in said["details"]
    assert "w.1234" in said["details"]
    assert said["ops"] == f"{LAYERS * PARTS * OPS} found"
    assert (said["last"], said["marked"]) == ("tanh", True)
    assert said["inDocument"] < 5000


def test_what_is_chosen_in_one_drawing_is_shown_in_all(tmp_path: Path) -> None:
    script = """
      const dot = one("circle");
      dot.dispatchEvent(new MouseEvent("click", { bubbles: true }));
      said.dot = dot.classList.contains("chosen");
      said.row = all(".row.chosen").length;
      said.line = one("line.roof").getAttribute("visibility");
      said.title = dot.querySelector("title").textContent;
      const canvas = one("#section-2 canvas"), right = canvas.getBoundingClientRect().right;
      const at = { bubbles: true, pointerId: 1, clientX: right - 2 };
      canvas.setPointerCapture = () => {};
      canvas.dispatchEvent(new PointerEvent("pointerdown", at));
      canvas.dispatchEvent(new PointerEvent("pointerup", at));
      said.part = choice.part;
      said.layer = one(".details").innerText;
      one(".details button").click();
      said.op = choice.op;
    """
    said = driven(tmp_path, program(3, 2, 4), script)
    assert (said["dot"], said["row"], said["line"]) == (True, 1, "visible")
    assert "of the roof" in said["title"]
    assert (said["part"], "h.2" in said["layer"]) == (5, True)
    assert said["op"] == 19  # the last op of the part before makes what it reads


def test_a_table_is_sorted_and_searched(tmp_path: Path) -> None:
    script = """
      const section = one("#section-4");
      const cells = () => all("#section-4 tbody tr").map((row) => row.innerText.trim());
      said.shown = cells().length;
      said.said = section.querySelector(".count").textContent;
      section.querySelectorAll("th")[1].click();
      said.first = cells()[0];
      type(section.querySelector("input"), "row 99");
      said.found = cells().length;
      said.bar = one(".bars .track i").style.width;
    """
    said = driven(tmp_path, program(1, 1, 1), script)
    assert (said["shown"], said["said"]) == (400, "1000 rows, the first 400 shown")
    assert said["first"].split("\t") == ["row 999", "999"]
    assert said["found"] == 19  # 99, 199 to 899, 990 to 999
    assert said["bar"] == "83.3333%"


def luminance(color: str) -> float:
    """Relative luminance of ``rgb(r, g, b)``, as WCAG 2.2 defines it."""
    values = [int(part) / 255 for part in re.findall(r"\d+", color)[:3]]
    red, green, blue = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("dark", [False, True])
def test_text_is_readable_in_dark_and_light(dark: bool, tmp_path: Path) -> None:
    script = """
      if (DARK) button("dark / light").click();
      all(".fold")[0].click();
      const ground = (element) => {
        for (; element; element = element.parentElement) {
          const color = getComputedStyle(element).backgroundColor;
          if (!color.startsWith("rgba(0, 0, 0, 0")) return color;
        }
      };
      said.theme = document.documentElement.dataset.theme;
      const queries = ["h1", ".facts dt", "nav a", ".row.layer", ".row.part", "td", "th", "button"];
      const pair = (query) => (found) => [query, getComputedStyle(found).color, ground(found)];
      said.pairs = queries.flatMap((query) => all(query).slice(0, 2).map(pair(query)));
    """.replace("DARK", str(dark).lower())
    said = driven(tmp_path, program(2, 2, 2), script)
    assert said["theme"] == ("dark" if dark else "light")
    assert len(said["pairs"]) > 12
    for query, ink, ground in said["pairs"]:
        low, high = sorted((luminance(ink), luminance(ground)))
        assert (high + 0.05) / (low + 0.05) >= 4.5, (query, ink, ground)


def test_a_picture_of_the_page_is_no_empty_sheet(tmp_path: Path) -> None:
    from PIL import Image

    made, out = page("a program", [], program(6, 4, 3)), tmp_path / "shot.png"
    (tmp_path / "page.html").write_text(made, encoding="utf-8")
    command = [
        *(tool("chromium"), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
        *("--window-size=1400,2400", "--virtual-time-budget=5000", f"--user-data-dir={tmp_path}/u"),
        *(f"--screenshot={out}", (tmp_path / "page.html").as_uri()),
    ]
    subprocess.run(command, capture_output=True, timeout=300, check=True)
    colors = Image.open(out).convert("RGB").getcolors(1 << 24)
    assert colors is not None
    saturated = sum(n for n, (r, g, b) in colors if max(r, g, b) - min(r, g, b) > 60)
    assert saturated > 5000  # bars, points and meters of kernels
