"""The page in a browser: it draws, it shows the simulator's numbers, the keys and the pointer work, and nothing goes wrong."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from checkmate import Compute, Graph, Op, Schedule, Value, solve
from checkmate.report.facts import recomputed, without_recomputation
from checkmate.report.page import write_report
from checkmate.schedule import steps_from_sequence
from chromium import Chromium, chromium, program
from support import random_graph, random_steps, training_chain, with_reuse

pytestmark = pytest.mark.skipif(program() is None, reason="there is no Chromium on the path")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with chromium(tmp_path_factory.mktemp("profile")) as found:
        yield found


def planned() -> Schedule:
    return solve(training_chain(20, size=3 * 2**20), "40%")


def show(browser: Chromium, schedule: Schedule, path: Path, others: tuple[Schedule, ...] = (), **how: Any) -> None:
    write_report(schedule, path, others)
    browser.open(path, **how)
    assert browser.complaints == []


def colours(browser: Chromium, canvas: str) -> dict[str, int]:
    """How many pixels of a canvas have which colour; those with none are left out."""
    return browser.evaluate(f"""(() => {{
      const canvas = document.getElementById({canvas!r});
      const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", {{ willReadFrequently: true }});
      copy.drawImage(canvas, 0, 0);
      const pixels = new Uint32Array(copy.getImageData(0, 0, canvas.width, canvas.height).data.buffer);
      const found = {{}};
      for (const pixel of pixels) if (pixel) found[pixel] = (found[pixel] ?? 0) + 1;
      return found;
    }})()""")


def position(browser: Chromium) -> int:
    """What is looked at, counted from 0; every part of the page says the same."""
    shown = int(browser.evaluate("document.getElementById('memory-canvas').getAttribute('aria-valuenow')")) - 1
    assert browser.evaluate("document.getElementById('held-where').textContent").startswith(f"computation {shown + 1} ")
    assert f"computation {shown + 1}:" in browser.evaluate("document.getElementById('schedule-status').textContent")
    return shown


def span(browser: Chromium) -> dict[str, int]:
    """The picture of the schedule, from which zooming and moving are seen."""
    browser.drawn()
    return colours(browser, "schedule-canvas")


#: The colour of each mark of a canvas, as a pixel of it.
_PIXEL = """(() => {
  const one = document.body.appendChild(document.createElement("span"));
  one.style.color = "var(--NAME)";
  const [r, g, b] = getComputedStyle(one).color.match(/[0-9]+/g).map(Number);
  one.remove();
  return new Uint32Array(new Uint8Array([r, g, b, 255]).buffer)[0];
})()"""
_MARKS = {"memory-canvas": ("plan", "plain", "budget", "again"), "schedule-canvas": ("first", "again", "retained")}


def check_drawn(browser: Chromium, background: str) -> None:
    """Both pictures have all their marks, in the colours of this theme."""
    browser.drawn()
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == background
    for canvas, marks in _MARKS.items():
        found = colours(browser, canvas)
        for mark in marks:
            assert found.get(str(browser.evaluate(_PIXEL.replace("NAME", mark))), 0) > 20, (canvas, mark)


def test_every_view_is_drawn(browser: Chromium, tmp_path: Path) -> None:
    schedule = planned()
    others = (solve(schedule.graph, "60%"), solve(schedule.graph, "80%"))
    light, dark = "rgb(255, 255, 255)", "rgb(20, 24, 31)"
    show(browser, schedule, tmp_path / "r.html", others)
    check_drawn(browser, light)
    show(browser, schedule, tmp_path / "r.html", others, dark=True)
    check_drawn(browser, dark)
    browser.colours("light")  # the system's, while the page is open
    check_drawn(browser, light)
    browser.evaluate("document.getElementById('theme').click()")
    check_drawn(browser, dark)
    browser.colours("dark")
    browser.evaluate("document.getElementById('theme').click()")
    check_drawn(browser, light)
    assert browser.evaluate("document.querySelectorAll('#curve circle').length") == 4  # two others, this one, the plain step
    assert browser.evaluate("document.querySelectorAll('#again-table tbody tr').length") == len(recomputed(schedule))
    layers = browser.evaluate("({...document.getElementById('layers').dataset})")
    assert layers == {"plan": str(schedule.peak), "plain": str(schedule.graph.no_recompute_peak)}
    rows = browser.evaluate("[...document.querySelectorAll('#layers > * .cell:last-child')].map(cell => +cell.dataset.bytes)")
    assert sum(rows) == schedule.peak
    assert browser.complaints == []


#: Walks over the whole step with the right arrow, and reads what is shown at each computation.
_WALK = """(() => {
  const canvas = document.getElementById("memory-canvas"), total = document.getElementById("held-total");
  const press = key => canvas.dispatchEvent(new KeyboardEvent("keydown", { key }));
  const seen = [];
  press("Home");
  for (let number = 0; number < COUNT; number++) {
    const rows = [...document.querySelectorAll("#held-rows tr")].map(row => +row.dataset.bytes);
    const exact = (total.textContent.match(/[(]([0-9,]+) bytes[)]/) ?? total.textContent.match(/^([0-9]+) B/))[1];
    seen.push([+total.dataset.position, rows.reduce((a, b) => a + b, 0), +exact.replaceAll(",", ""), rows.every((size, place) => !place || place >= 100 || size <= rows[place - 1])]);
    press("ArrowRight");
  }
  return seen;
})()"""


@pytest.mark.parametrize("which", ["chain", "reuse", "several copies"])
def test_what_is_shown_is_what_the_simulator_says(browser: Chromium, tmp_path: Path, which: str) -> None:
    rng = random.Random(5)
    if which == "chain":
        schedule = solve(training_chain(150, size=10_000_019), "30%")
    else:
        graph = with_reuse(rng, random_graph(rng, 40, 30), 0.9 if which == "reuse" else 0.0)
        schedule = Schedule(graph, random_steps(rng, graph) if which == "several copies" else without_recomputation(graph).steps)
    show(browser, schedule, tmp_path / "r.html")
    plain = without_recomputation(schedule.graph)
    for shown, expected in (("plan", schedule), ("plain", plain)):
        during = [size for size, step in zip(expected.trace.during, expected.steps, strict=True) if isinstance(step, Compute)]
        radio = f"document.querySelector('input[name=shown][value={shown}]')?.click()"
        browser.evaluate(radio)
        count = sum(isinstance(step, Compute) for step in schedule.steps)
        seen = browser.evaluate(_WALK.replace("COUNT", str(count)))
        assert {place for place, _, _, _ in seen} == set(range(len(during)))
        for place, rows, exact, sorted_by_size in seen:
            assert rows == exact == during[place]
            assert sorted_by_size
    assert browser.complaints == []


def test_who_keeps_what(browser: Chromium, tmp_path: Path) -> None:
    ops = [
        Op("load", 1.0, (), (0,)),
        Op("work", 2.0, (0,), (1,), workspace=50, layer="net.0"),
        Op("more", 1.0, (1,), (2, 3)),
        Op("gradient", 3.0, (0, 2), (4,), phase="backward", layer="net.0"),
    ]
    sizes = [Value("x", 10), Value("y", 20), Value("z", 30), Value("unread", 5), Value("dx", 40, keep=True)]
    graph = Graph(ops, sizes, fixed_memory=7)
    show(browser, Schedule(graph, steps_from_sequence(graph, [0, 1, 2, 0, 3])), tmp_path / "r.html")
    text = "[...document.querySelectorAll('#held-rows tr')].map(row => [...row.cells].map(cell => cell.textContent))"
    assert browser.evaluate(text) == [  # the peak: op 1
        ["work workspace", "net.0", "50 B", "", "now", "only while it runs"],
        ["work", "net.0", "20 B", "", "now", "more in 1"],
        ["load", "", "10 B", "", "1", "read now"],
        ["parameters, buffers, inputs", "", "7 B", "", "always", "the whole step"],
    ]
    browser.evaluate("document.getElementById('memory-canvas').focus()")
    browser.press("ArrowRight")
    assert browser.evaluate(text)[0] == ["more", "", "30 B", "", "now", "gradient in 2"]
    assert browser.evaluate(text)[-2:][1] == ["more", "", "5 B", "", "now", "freed at once"]
    browser.press("ArrowRight")
    assert "computed again, the 2nd time" in browser.evaluate("document.getElementById('schedule-status').textContent")
    browser.press("End")
    assert browser.evaluate(text)[0] == ["gradient", "net.0", "40 B", "", "now", "kept to the end"]


def test_keys(browser: Chromium, tmp_path: Path) -> None:
    schedule = planned()
    computed = [
        (step.op, size) for step, size in zip(schedule.steps, schedule.trace.during, strict=True) if isinstance(step, Compute)
    ]
    peak = [size for _, size in computed].index(schedule.peak)
    plain = schedule.graph.no_recompute_profile
    plain_peak = [op for op, _ in computed].index(plain.index(max(plain)))
    show(browser, schedule, tmp_path / "r.html")
    assert position(browser) == peak
    for canvas in ("memory-canvas", "schedule-canvas"):
        browser.evaluate(f"document.getElementById('{canvas}').focus()")
        page = max(1, round(len(computed) / 20))
        end = len(computed) - 1
        keys = [("Home", 0), ("ArrowLeft", 0), ("ArrowRight", 1), ("PageDown", 1 + page), ("PageUp", 1), ("End", end)]
        for key, place in [*keys, ("ArrowLeft", end - 1), ("p", peak), ("o", plain_peak)]:
            browser.press(key)
            assert position(browser) == place, key
        browser.press("Home")
        browser.press("ArrowRight", shift=True)
        assert position(browser) == 10
        whole = span(browser)
        browser.press("+")
        closer = span(browser)
        assert closer != whole
        browser.press("-")
        assert span(browser) == whole
        browser.press("+")
        browser.press("End")  # what is looked at stays visible
        assert span(browser) not in (whole, closer)
        browser.press("0")
        browser.press("Home")
        browser.press("ArrowRight", shift=True)
        assert span(browser) == whole
    browser.press("p")
    browser.press("ArrowDown")
    below = schedule.graph.ops[computed[peak][0] + 1].name
    assert browser.evaluate("document.getElementById('schedule-status').textContent").startswith(below)
    assert position(browser) == peak
    # A control is reached and used without the pointer, and a table is sorted.
    browser.evaluate("document.querySelector('#again-table th button').focus()")
    browser.press("Enter")
    browser.call("Input.dispatchKeyEvent", type="char", text="\r")
    names = browser.evaluate("[...document.querySelectorAll('#again-table tbody code')].map(cell => cell.textContent)")
    assert names and names == sorted(names)
    assert browser.complaints == []


def test_the_pointer(browser: Chromium, tmp_path: Path) -> None:
    show(browser, planned(), tmp_path / "r.html")
    browser.evaluate("document.getElementById('schedule-canvas').scrollIntoView({block: 'center'})")
    box = browser.evaluate(
        "(({x, y, width, height}) => [x, y, width, height])(document.getElementById('schedule-canvas').getBoundingClientRect())"
    )
    at = lambda across, down: (box[0] + across * box[2], box[1] + down * box[3])  # noqa: E731
    browser.mouse("mouseMoved", *at(0.3, 0.5))
    first = position(browser)
    browser.mouse("mouseMoved", *at(0.6, 0.5))
    second = position(browser)
    assert second > first
    whole = span(browser)
    browser.click(*at(0.6, 0.5))
    browser.mouse("mouseMoved", *at(0.3, 0.5))
    assert position(browser) == second  # held
    whole = span(browser)
    browser.mouse("mouseWheel", *at(0.6, 0.5), deltaX=0, deltaY=-400)
    closer = span(browser)
    assert closer != whole
    browser.mouse("mousePressed", *at(0.6, 0.5), button="left", clickCount=1)
    browser.mouse("mouseMoved", *at(0.5, 0.4), button="left", buttons=1)
    browser.mouse("mouseReleased", *at(0.5, 0.4), button="left", clickCount=1)
    assert span(browser) != closer and position(browser) == second
    browser.press("Escape")
    browser.mouse("mouseMoved", *at(0.2, 0.5))
    assert position(browser) != second
    browser.evaluate("document.getElementById('turned').click()")
    before = position(browser)
    browser.mouse("mouseMoved", *at(0.2, 0.9))  # rows are stages now
    assert position(browser) > before
    browser.evaluate("document.activeElement.blur()")
    turned = span(browser)
    browser.mouse("mouseWheel", *at(0.6, 0.5), deltaX=0, deltaY=-120)  # nobody chose this picture: the page scrolls
    assert span(browser) == turned
    assert browser.complaints == []


def test_names_stay_text(browser: Chromium, tmp_path: Path) -> None:
    bad = "</script><img src=x onerror='window.bad=1'><script>window.bad=1</script><!--<script>"
    ops = [
        Op(bad, 1.0, (), (0,), layer=bad),
        Op("b", 1.0, (0,), (1,)),
        Op("{{ 7 * 7 }}\ud800", 1.0, (0, 1), (2,), layer=f"a.{bad}"),
    ]
    graph = Graph(ops, [Value(bad, 8), Value("y", 8), Value("z", 8)], name=bad)
    show(browser, Schedule(graph, steps_from_sequence(graph, [0, 1, 0, 2])), tmp_path / "r.html")
    assert browser.evaluate("window.bad") is None
    assert browser.evaluate("document.querySelectorAll('img').length") == 0
    assert browser.evaluate("document.querySelector('#again-table tbody code').textContent") == bad


@pytest.mark.parametrize("what", ["no ops", "one op", "nothing again", "no cost"])
def test_small_steps(browser: Chromium, tmp_path: Path, what: str) -> None:
    graphs = {
        "no ops": Graph([], [], 5),
        "one op": Graph.from_arrays([1.0], [0], []),
        "nothing again": training_chain(5),
        "no cost": Graph.from_arrays([0.0, 0.0], [5, 5], [(0, 1)]),
    }
    graph = graphs[what]
    steps = steps_from_sequence(graph, [0, 1, 0]) if what == "no cost" else without_recomputation(graph).steps
    show(browser, Schedule(graph, steps), tmp_path / "r.html")
    if graph.num_ops:
        browser.evaluate("document.querySelector('input[name=axis][value=cost]').click()")
        browser.evaluate("document.getElementById('memory-canvas').focus()")
        for key in ("Home", "ArrowRight", "+", "End", "o", "-", "0"):
            browser.press(key)
        browser.drawn()
        assert sum(colours(browser, "memory-canvas").values()) > 100
    assert browser.complaints == []


def test_layers(browser: Chromium, tmp_path: Path) -> None:
    """Groups of one are joined, what fills most is open, what is in a group adds up, and long lists are grouped by names."""
    layers = ["net.0.a", "net.0.b", "net.0.b", "head.c", ""] + [f"k.conv{n % 5}_block{n}" for n in range(60)]
    ops = [Op(f"op_{number}", 1.0, (), (number,), layer=layer) for number, layer in enumerate(layers)]
    sizes = [1000, 20, 10, 300, 7] + [1 + number for number in range(60)]
    graph = Graph(ops, [Value(f"v{number}", size, keep=True) for number, size in enumerate(sizes)])
    show(browser, without_recomputation(graph), tmp_path / "r.html")

    def rows(inside: str) -> list[list[Any]]:
        found = browser.evaluate(f"""[...document.querySelectorAll('{inside} > details > summary, {inside} > .row')].map(row =>
          [row.querySelector('.name').textContent, +row.querySelector('.cell').dataset.bytes])""")
        return found

    assert rows("#layers") == [["k", 1830], ["net.0", 1030], ["head.c op_3", 300], ["op_4", 7]]
    assert browser.evaluate("[...document.querySelectorAll('#layers > details')].map(one => one.open)") == [True, False]
    inner = rows("#layers > details:first-child > .inside")
    assert [name for name, _ in inner] == ["conv4", "conv3", "conv2", "conv1", "conv0"] and sum(size for _, size in inner) == 1830
    browser.evaluate("document.querySelectorAll('#layers > details > summary')[1].focus()")
    browser.press("Enter")
    browser.call("Input.dispatchKeyEvent", type="char", text="\r")
    browser.drawn()
    assert rows("#layers > details:nth-child(2) > .inside") == [["a op_0", 1000], ["b", 30]]
    assert browser.complaints == []


def test_without_scripts(browser: Chromium, tmp_path: Path) -> None:
    schedule = planned()
    write_report(schedule, tmp_path / "r.html", [solve(schedule.graph, "70%")])
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.load(tmp_path / "r.html")
        seen = browser.evaluate("document.body.innerText")
        hidden = browser.evaluate("[...document.querySelectorAll('.needs-script')].map(one => getComputedStyle(one).display)")
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)
    assert "The pictures need JavaScript" in seen and hidden and set(hidden) == {"none"}
    for text in (
        "this schedule",
        "values of the forward pass",
        "proven at least",
        f"{schedule.overhead:.4f}",
        recomputed(schedule)[0].op,
    ):
        assert text in seen


def test_five_thousand_ops(browser: Chromium, tmp_path: Path) -> None:
    graph = training_chain(2500, size=3_000_000)
    sequence = list(range(2500))
    for op in range(2500, 5000):
        layer = 4999 - op
        if layer % 50 == 49:
            sequence += range(layer - 48, layer)
        sequence.append(op)
    schedule = Schedule(graph, steps_from_sequence(graph, sequence))
    show(browser, schedule, tmp_path / "r.html")
    assert (tmp_path / "r.html").stat().st_size < 3e6
    whole = colours(browser, "schedule-canvas")
    assert len(whole) > 8
    browser.evaluate("document.getElementById('schedule-canvas').focus()")
    for key in ("p", "+", "+", "+", "+", "ArrowRight"):
        browser.press(key)
    assert span(browser) != whole
    assert browser.evaluate("document.querySelectorAll('#held-rows tr').length") == 101
    assert browser.complaints == []
