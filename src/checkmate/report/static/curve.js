// Overhead against budget: schedules that were found, and what no schedule can have.

const CURVE_HEIGHT = 320;
const LABEL = 180; // pixels that the longest name of a point takes

function svg(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function curveView() {
  const place = byId("curve");
  const points = [...data.points].sort((one, other) => one.budget - other.budget);
  const low = data.least;
  const high = Math.max(...points.map((one) => one.budget), low);
  const reach = high - low || high || 1;
  const [from, to] = [Math.max(0, low - 0.08 * reach), high + 0.06 * reach];
  const most = 1.15 * Math.max(0.01, ...points.map((one) => one.overhead - 1));

  const inner = (width) => width - MARGIN.left - MARGIN.right;

  function draw() {
    const width = place.clientWidth;
    if (!width || place.dataset.width === `${width}`) return;
    place.dataset.width = width;
    const height = CURVE_HEIGHT - MARGIN.top - MARGIN.bottom;
    const x = (budget) => MARGIN.left + ((budget - from) / (to - from)) * inner(width);
    const y = (more) => MARGIN.top + height * (1 - clamp(more / most, 0, 1));
    const picture = svg("svg", { viewBox: `0 0 ${width} ${CURVE_HEIGHT}`, width, height: CURVE_HEIGHT, role: "img",
      "aria-label": "overhead against budget; the table below has the numbers" });
    axes(picture, x, y, width);
    const bounds = points.filter((one) => one.bound !== null);
    picture.append(impossible(bounds, x, y));
    picture.append(svg("rect", { class: "nothing", x: x(from), y: y(most), width: x(low) - x(from), height }));
    const label = svg("text", { class: "note", x: x(low) + 5, y: MARGIN.top + 11 }, `no schedule peaks below ${bytes(low)}`);
    picture.append(svg("line", { class: "least", x1: x(low), x2: x(low), y1: y(0), y2: MARGIN.top }), label);
    if (points.length > 1) {
      picture.append(svg("polyline", { class: "found", points: points.map((one) => `${x(one.budget)},${y(one.overhead - 1)}`).join(" ") }));
    }
    for (const one of points) picture.append(...marker(one, x, y, width));
    place.replaceChildren(picture);
  }

  function axes(picture, x, y, width) {
    for (const tick of ticks(0, 100 * most, 5)) {
      const level = y(tick / 100);
      picture.append(svg("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: level, y2: level }));
      picture.append(svg("text", { x: MARGIN.left - 8, y: level + 4, "text-anchor": "end" }, `${Number(tick.toPrecision(6))}%`));
    }
    const [unit, factor] = unitOf(to);
    for (const tick of ticks(from / factor, to / factor, Math.max(2, width / 120))) {
      const text = svg("text", { x: x(tick * factor), y: CURVE_HEIGHT - MARGIN.bottom + 18, "text-anchor": "middle" });
      text.append(`${Number(tick.toPrecision(6))} ${unit}`);
      picture.append(text);
    }
    const middle = MARGIN.left + inner(width) / 2;
    picture.append(svg("text", { x: middle, y: CURVE_HEIGHT - 6, "text-anchor": "middle" }, "budget"));
    picture.append(svg("text", { x: 0, y: 11 }, "more computing"));
  }

  /** A bound at one budget holds at all smaller ones. */
  function impossible(bounds, x, y) {
    const corners = [[low, 0]];
    let begin = low;
    bounds.forEach((one, number) => {
      const best = Math.max(...bounds.slice(number).map((other) => other.bound)) - 1;
      corners.push([begin, best], [one.budget, best]);
      begin = one.budget;
    });
    corners.push([begin, 0]);
    return svg("polygon", { class: "impossible", points: corners.map(([budget, more]) => `${x(budget)},${y(more)}`).join(" ") });
  }

  /** On the line through the points. */
  function overheadAt(budget) {
    const next = points.findIndex((one) => one.budget >= budget);
    if (next <= 0) return points[Math.max(0, next)].overhead;
    const [one, other] = [points[next - 1], points[next]];
    return one.overhead + ((budget - one.budget) / (other.budget - one.budget)) * (other.overhead - one.overhead);
  }

  function marker(one, x, y, width) {
    const [left, level] = [x(one.budget), y(one.overhead - 1)];
    const text = `${one.label}: ${bytes(one.budget)}, ${percent(one.overhead - 1)} more computing`;
    const made = [svg("circle", { class: one.kind, cx: left, cy: level, r: one.kind === "this" ? 6.5 : 4.5 }, svg("title", {}, text))];
    if (one.kind !== "other") {
      const end = left > width / 2;
      // The curve falls from left to right: what is written to the left of a point stands above the curve there.
      const above = end ? Math.min(level, y(overheadAt(from + ((left - LABEL - MARGIN.left) / inner(width)) * (to - from)) - 1)) : level;
      made.push(svg("text", { class: "label", x: left + (end ? -10 : 10), y: Math.max(12, above - 10), "text-anchor": end ? "end" : "start" },
        `${one.label}, ${percent(one.overhead - 1)}`));
    }
    return made;
  }

  views.push({ draw });
}
