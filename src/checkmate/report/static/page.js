// What all views share: the data of the page, the position that is looked at, colours, and small helpers.
// The files of this folder are put one after the other into one function when a page is written.

const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

/** An element with attributes and children. Text is text, never markup: names come from files. */
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** A path that lines may be broken in after each part. */
function path(text) {
  return element("span", { class: "layer" }, ...text.split(/(?<=[./])/).flatMap((part) => [part, element("wbr")]).slice(0, -1));
}

// --- numbers for people ---

/** As Python writes it: of two nearest numbers the one whose last digit is even. */
function fixed(number, digits) {
  const scaled = number * 10 ** digits;
  const below = Math.floor(scaled);
  const rest = scaled - below;
  return ((rest > 0.5 || (rest === 0.5 && below % 2 === 1) ? below + 1 : below) / 10 ** digits).toFixed(digits);
}

const UNITS = [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10], ["B", 1]];
const unitOf = (size) => UNITS.find(([, factor]) => size >= factor) ?? UNITS[UNITS.length - 1];

function bytes(size) {
  const [unit, factor] = unitOf(size);
  return unit === "B" ? `${size} B` : `${fixed(size / factor, size / factor < 10 ? 2 : 1)} ${unit}`;
}

const whole = (number) => number.toLocaleString("en-US");
const percent = (share) => (share === 0 ? "0%" : `${fixed(100 * share, Math.abs(share) < 0.0995 ? 2 : 1)}%`);

/** Round numbers that divide 0 to `top` into at most `most` parts. */
function ticks(from, to, most) {
  const rough = (to - from) / most || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999999);
  const found = [];
  for (let number = Math.ceil(from / step) * step; number <= to + step * 1e-9; number += step) found.push(number);
  return found;
}

function ordinal(number) {
  const ending = number % 100 >= 11 && number % 100 <= 13 ? "th" : (["th", "st", "nd", "rd"][number % 10] ?? "th");
  return `${number}${ending}`;
}

// --- what is drawn: the plan, and the step without recomputation ---

/** A run with what the views look up in it. */
function prepared(run) {
  const length = run.ops.length;
  const seen = new Map();
  const time = new Float64Array(length + 1); // shares of computing every op once
  const found = {
    ...run, length, time, first: [], nth: [], stage: [], at: new Map(), reads: new Map(),
    peak: run.during.reduce((best, size, position) => (size > run.during[best] ? position : best), 0),
  };
  run.ops.forEach((op, position) => {
    const before = seen.get(op) ?? 0;
    found.stage.push(seen.size);
    found.first.push(before === 0);
    found.nth.push(before + 1);
    seen.set(op, before + 1);
    if (before === 0) found.at.set(op, position);
    time[position + 1] = time[position] + data.ops.cost[op];
    for (const value of data.ops.inputs[op]) {
      if (!found.reads.has(value)) found.reads.set(value, []);
      found.reads.get(value).push(position);
    }
  });
  return found;
}

const plan = prepared(data.plan);
const plain = data.plain ? prepared(data.plain) : plan;
const hasPlain = Boolean(data.plain);

/** For each computation of the plan the place of the plain step that is as far: it waits while something is computed again. */
const plainPlace = (() => {
  const firsts = plan.ops.filter((_, position) => plan.first[position]);
  return plan.stage.map((stage) => plain.at.get(firsts[Math.min(stage, firsts.length - 1)]));
})();

const backwardOp = data.order === "given" ? data.ops.backward.indexOf(1) : -1;
const layerOf = (op) => data.layers[data.ops.layer[op]];

/** The first computation from `position` to `end` that reads the value; -1 if none does. */
function nextRead(run, value, position, end) {
  const reads = run.reads.get(value) ?? [];
  let low = 0;
  let high = reads.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (reads[middle] < position) low = middle + 1;
    else high = middle;
  }
  return low < reads.length && reads[low] <= end ? reads[low] : -1;
}

/** Everything that is in memory while a computation runs, the largest first; the sizes add up to the simulator's number. */
function heldAt(run, position) {
  const held = [];
  const running = run.ops[position];
  if (data.fixed) held.push({ kind: "fixed", size: data.fixed });
  if (data.ops.workspace[running]) held.push({ kind: "workspace", op: running, size: data.ops.workspace[running] });
  for (let stay = 0; stay < run.stays.length; stay += 3) {
    const [value, begin, end] = [run.stays[stay], run.stays[stay + 1], run.stays[stay + 2]];
    if (begin > position || position >= end) continue;
    const op = data.values.op[value];
    held.push({
      kind: data.ops.backward[op] ? "backward" : "forward", op, value, begin, end, size: data.values.size[value],
      read: nextRead(run, value, position, end),
    });
  }
  return held.sort((one, other) => other.size - one.size || (one.op ?? -1) - (other.op ?? -1));
}

// --- the state of the page ---

const state = {
  position: plan.peak, // computation of the plan that is looked at
  row: plan.ops[plan.peak] ?? 0, // op that is looked at in the schedule
  held: false, // the pointer does not move the position
  axis: "count",
  shown: "plan",
  turned: false,
  span: [0, plan.length], // what is visible of the axis of computations or of time
  rows: [0, data.ops.name.length],
};
const views = []; // {draw(), update()}; what follows the position at once, and what is drawn in the next frame
let waiting = false;

const edges = () => (state.axis === "count" ? null : plan.time);
const edge = (position) => (edges() ? edges()[position] : position);
const axisEnd = () => edge(plan.length);

/** The computation at a place of the axis. */
function positionAt(place) {
  if (!edges()) return clamp(Math.floor(place), 0, plan.length - 1);
  let low = 0;
  let high = plan.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (plan.time[middle] <= place) low = middle;
    else high = middle - 1;
  }
  return low;
}

function clamp(number, low, high) {
  return Math.max(low, Math.min(high, number));
}

function redraw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    for (const view of views) view.draw?.();
  });
}

/** Look at a computation, and at an op: its own unless another is named. */
function look(position, row = null, follow = true) {
  state.position = clamp(position, 0, plan.length - 1);
  state.row = clamp(row ?? plan.ops[state.position], 0, data.ops.name.length - 1);
  if (follow) {
    state.span = containing(state.span, edge(state.position), edge(state.position + 1), axisEnd());
    state.rows = containing(state.rows, state.row, state.row + 1, data.ops.name.length);
  }
  for (const view of views) view.update?.();
  redraw();
}

/** The range moved as little as possible, so that it contains what lies from `begin` to `end`. */
function containing([from, to], begin, end, most) {
  const shift = begin < from ? begin - from : end > to ? end - to : 0;
  const low = clamp(from + shift, 0, Math.max(0, most - (to - from)));
  return [low, low + (to - from)];
}

/** A range of which `factor` is visible, around a place that stays where it is. */
function zoomed([from, to], place, factor, most, least) {
  const width = clamp((to - from) * factor, Math.min(least, most), most);
  const low = clamp(place - ((place - from) / (to - from || 1)) * width, 0, most - width);
  return [low, low + width];
}

function zoom(factor, place = (edge(state.position) + edge(state.position + 1)) / 2, row = null) {
  const least = (axisEnd() * 8) / Math.max(8, plan.length);
  state.span = zoomed(state.span, place, factor, axisEnd(), least);
  if (row !== null) state.rows = zoomed(state.rows, row, factor, data.ops.name.length, 8);
  redraw();
}

function showAll() {
  state.span = [0, axisEnd()];
  state.rows = [0, data.ops.name.length];
  redraw();
}

function pan(share, rows) {
  const [from, to] = state.span;
  const low = clamp(from + share * (to - from), 0, axisEnd() - (to - from));
  state.span = [low, low + to - from];
  const [top, bottom] = state.rows;
  const high = clamp(top + rows * (bottom - top), 0, data.ops.name.length - (bottom - top));
  state.rows = [high, high + bottom - top];
  redraw();
}

/** Keys that both pictures know. Returns whether it was one. */
function key(event, withRows) {
  if (event.ctrlKey || event.metaKey || event.altKey) return false;
  const page = Math.max(1, Math.round(plan.length / 20));
  const far = event.shiftKey ? 10 : 1;
  const row = withRows ? state.row : null;
  const moves = {
    ArrowLeft: () => look(state.position - far, row),
    ArrowRight: () => look(state.position + far, row),
    PageUp: () => look(state.position - page, row),
    PageDown: () => look(state.position + page, row),
    Home: () => look(0, row),
    End: () => look(plan.length - 1, row),
    p: () => look(plan.peak),
    o: () => look(plainPlace.indexOf(plain.peak)),
    "+": () => zoom(0.5, undefined, withRows ? state.row + 0.5 : null),
    "=": () => zoom(0.5, undefined, withRows ? state.row + 0.5 : null),
    "-": () => zoom(2, undefined, withRows ? state.row + 0.5 : null),
    0: showAll,
    Escape: () => hold(false),
  };
  if (withRows) {
    moves.ArrowUp = () => look(state.position, state.row - far);
    moves.ArrowDown = () => look(state.position, state.row + far);
  }
  const move = moves[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  move?.();
  return Boolean(move);
}

function hold(held) {
  state.held = held;
  for (const view of views) view.update?.();
}

// --- colours, canvases ---

const probe = document.body.appendChild(element("span", { hidden: "" }));
let colours = {};

function readColours() {
  const names = [
    "ink", "muted", "line", "page", "plan", "plan-area", "plain", "plain-area", "budget", "again", "first", "retained", "fixed-area",
  ];
  for (const name of names) {
    probe.style.color = `var(--${name})`;
    colours[name] = getComputedStyle(probe).color;
  }
}

/** A canvas of the full width of its parent, sharp on every screen. Returns its context and size in CSS pixels. */
function sized(canvas, height) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "12px system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif";
  return [context, width];
}

const MARGIN = { left: 64, right: 16, top: 18, bottom: 40 };

/** Lets the pointer move the position, drag the visible range, and hold what is looked at; the wheel zooms a view that has the focus. */
function pointers(canvas, placeOf, areaOf) {
  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    drag = { x: event.offsetX, y: event.offsetY, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (drag) {
      const [dx, dy] = [event.offsetX - drag.x, event.offsetY - drag.y];
      drag.moved ||= Math.hypot(dx, dy) > 4;
      if (drag.moved) {
        const area = areaOf();
        const [time, rows] = state.turned && area.both ? [dy / area.height, dx / area.width] : [dx / area.width, dy / area.height];
        pan(-time, area.both ? -rows : 0);
        [drag.x, drag.y] = [event.offsetX, event.offsetY];
      }
    } else if (!state.held) {
      const [place, row] = placeOf(event.offsetX, event.offsetY);
      look(positionAt(place), row === null ? null : Math.floor(row), false);
    }
  });
  canvas.addEventListener("pointerup", (event) => {
    if (drag && !drag.moved) {
      const [place, row] = placeOf(event.offsetX, event.offsetY);
      look(positionAt(place), row === null ? null : Math.floor(row), false);
      hold(!state.held);
    }
    drag = null;
  });
  canvas.addEventListener("pointercancel", () => (drag = null));
  canvas.addEventListener("wheel", (event) => {
      if (document.activeElement !== canvas && !event.ctrlKey && !event.metaKey) return; // the page scrolls
      event.preventDefault();
      const [place, row] = placeOf(event.offsetX, event.offsetY);
      zoom(1.0015 ** clamp(event.deltaY * (event.deltaMode ? 30 : 1), -600, 600), place, row);
    }, { passive: false });
}

/** The theme: as the system says until the reader chooses. */
function themes() {
  const button = byId("theme");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  const changed = () => {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", isDark() ? "switch to light colours" : "switch to dark colours");
    readColours();
    redraw();
  };
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    changed();
  });
  dark.addEventListener("change", changed);
  changed();
}
