// Memory over the step, and what is in memory at one of its computations.

const MEMORY_HEIGHT = 300;
const FLAT = 1.5; // a budget so many times the peaks would make all the rest flat
const MOST_ROWS = 100;
const KINDS = {
  fixed: "parameters, buffers, inputs",
  forward: "values of the forward pass",
  backward: "gradients and other values of the backward pass",
  workspace: "workspace",
};

function memoryView() {
  const canvas = byId("memory-canvas");
  const peak = Math.max(plan.during[plan.peak], plain.during[plain.peak]);
  const budget = data.budget !== null && data.budget <= FLAT * peak ? data.budget : null;
  const top = Math.max(peak, budget ?? 0) * 1.04 || 1;
  const height = MEMORY_HEIGHT - MARGIN.top - MARGIN.bottom;
  let width = 0;
  const x = (place) => MARGIN.left + ((place - state.span[0]) / (state.span[1] - state.span[0] || 1)) * width;
  const y = (size) => MARGIN.top + height * (1 - size / top);

  /** A line of steps, between computations that are visible; `close` makes it an area. */
  function trace(context, sizeAt, close) {
    const [from, to] = visible();
    context.beginPath();
    if (close) context.moveTo(x(edge(from)), y(0));
    for (let position = from; position <= to; position++) {
      const level = y(sizeAt(position));
      if (position === from && !close) context.moveTo(x(edge(position)), level);
      else context.lineTo(x(edge(position)), level);
      context.lineTo(x(edge(position + 1)), level);
    }
    if (close) context.lineTo(x(edge(to + 1)), y(0));
  }

  function visible() {
    return [positionAt(state.span[0]), positionAt(state.span[1])];
  }

  function draw() {
    const [context, all] = sized(canvas, MEMORY_HEIGHT);
    width = all - MARGIN.left - MARGIN.right;
    if (width <= 0) return;
    memoryAxis(context, width, y, top);
    timeAxis(context, width, x, MEMORY_HEIGHT - MARGIN.bottom);
    context.save();
    context.beginPath();
    context.rect(MARGIN.left, 0, width, MEMORY_HEIGHT - MARGIN.bottom + 6);
    context.clip();
    if (hasPlain) {
      context.fillStyle = colours["plain-area"];
      trace(context, (position) => plain.during[plainPlace[position]], true);
      context.fill();
    }
    context.fillStyle = colours["plan-area"];
    trace(context, (position) => plan.during[position], true);
    context.fill();
    context.fillStyle = colours["fixed-area"];
    context.fillRect(MARGIN.left, y(data.fixed), width, y(0) - y(data.fixed));
    if (hasPlain) line(context, colours.plain, 1.5, () => trace(context, (position) => plain.during[plainPlace[position]], false));
    line(context, colours.plan, 1.8, () => trace(context, (position) => plan.during[position], false));
    againMarks(context);
    context.restore();
    budgetLine(context);
    cursor(context);
  }

  function againMarks(context) {
    const [from, to] = visible();
    context.fillStyle = colours.again;
    for (let position = from; position <= to; position++) {
      if (plan.first[position]) continue;
      const left = x(edge(position));
      context.fillRect(left, y(0) + 1, Math.max(1, x(edge(position + 1)) - left), 4);
    }
  }

  function budgetLine(context) {
    if (budget === null) return;
    const level = y(budget);
    context.setLineDash([6, 4]);
    line(context, colours.budget, 1.6, () => {
      context.beginPath();
      context.moveTo(MARGIN.left, level);
      context.lineTo(MARGIN.left + width, level);
    });
    context.setLineDash([]);
  }

  function cursor(context) {
    const left = Math.max(MARGIN.left, x(edge(state.position)));
    const right = Math.min(MARGIN.left + width, Math.max(left + 1, x(edge(state.position + 1))));
    if (left > MARGIN.left + width || right < MARGIN.left) return;
    const middle = (left + right) / 2;
    line(context, colours.ink, state.held ? 2 : 1, () => {
      context.beginPath();
      context.moveTo(middle, MARGIN.top);
      context.lineTo(middle, y(0));
    });
    const dots = [[plan.during[state.position], colours.plan]];
    if (hasPlain) dots.unshift([plain.during[plainPlace[state.position]], colours.plain]);
    for (const [size, colour] of dots) {
      context.beginPath();
      context.arc(middle, y(size), 4.5, 0, 2 * Math.PI);
      context.fillStyle = colour;
      context.fill();
      line(context, colours.page, 1.5, () => {});
    }
  }

  function update() {
    const position = state.position;
    const size = hasPlain ? `, ${bytes(plain.during[plainPlace[position]])} without recomputation` : "";
    canvas.setAttribute("aria-valuenow", position + 1);
    canvas.setAttribute(
      "aria-valuetext",
      `computation ${position + 1} of ${plan.length}, ${data.ops.name[plan.ops[position]]}: ${bytes(plan.during[position])}${size}`,
    );
  }

  canvas.setAttribute("aria-valuemin", 1);
  canvas.setAttribute("aria-valuemax", plan.length);
  canvas.addEventListener("keydown", (event) => key(event, false) && event.preventDefault());
  const placeOf = (left) => [state.span[0] + (clamp(left - MARGIN.left, 0, width) / width) * (state.span[1] - state.span[0]), null];
  pointers(canvas, placeOf, () => ({ width, height, both: false }));
  views.push({ draw, update });
}

function line(context, colour, width, path) {
  path();
  context.strokeStyle = colour;
  context.lineWidth = width;
  context.stroke();
}

function memoryAxis(context, width, y, top) {
  const [unit, factor] = unitOf(top);
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const tick of ticks(0, top / factor, 6)) {
    const level = Math.round(y(tick * factor)) + 0.5;
    line(context, colours.line, 1, () => {
      context.beginPath();
      context.moveTo(MARGIN.left, level);
      context.lineTo(MARGIN.left + width, level);
    });
    context.fillStyle = colours.muted;
    context.fillText(tick === 0 ? "0" : `${Number(tick.toPrecision(6))} ${unit}`, MARGIN.left - 8, level);
  }
}

/** The axis that both pictures share, below one of them. */
function timeAxis(context, width, x, level) {
  context.textAlign = "center";
  context.textBaseline = "top";
  context.fillStyle = colours.muted;
  const [from, to] = state.span;
  const shares = state.axis === "cost";
  for (const tick of ticks(shares ? 100 * from : from, shares ? 100 * to : to, Math.max(2, width / 110))) {
    const place = shares ? tick / 100 : tick;
    context.fillText(shares ? `${Number(tick.toPrecision(6))}%` : whole(Number(tick.toPrecision(9))), x(place), level + 8);
  }
  const label = shares ? "computing, as a share of the step without recomputation" : "computations of the plan";
  context.fillText(label, MARGIN.left + width / 2, level + 24);
  if (backwardOp < 0) return;
  const begin = x(edge(plan.at.get(backwardOp)));
  if (begin < MARGIN.left || begin > MARGIN.left + width) return;
  context.setLineDash([2, 3]);
  line(context, colours.muted, 1, () => {
    context.beginPath();
    context.moveTo(begin, 14);
    context.lineTo(begin, level);
  });
  context.setLineDash([]);
  context.textAlign = begin > MARGIN.left + width - 90 ? "right" : "left";
  context.fillText("backward", begin + (context.textAlign === "left" ? 4 : -4), 2);
}

// --- what is in memory at the position ---

function cursorView() {
  const body = byId("held-rows");
  const title = byId("held-title");
  const where = byId("held-where");
  const total = byId("held-total");
  for (const radio of document.querySelectorAll("input[name=shown]")) {
    radio.addEventListener("change", () => {
      state.shown = radio.value;
      look(state.position, state.row, false);
    });
  }

  function update() {
    const ofPlan = state.shown === "plan";
    const run = ofPlan ? plan : plain;
    const position = ofPlan ? state.position : plainPlace[state.position];
    const op = run.ops[position];
    const held = heldAt(run, position).filter((one) => one.size > 0);
    const sum = held.reduce((all, one) => all + one.size, 0);
    total.textContent = `${bytes(sum)} in memory${sum >= 1024 ? ` (${whole(sum)} bytes)` : ""}`;
    total.dataset.bytes = sum;
    total.dataset.position = position;
    title.replaceChildren(element("code", {}, data.ops.name[op]), layerOf(op) ? path(layerOf(op)) : "");
    const again = run.first[position] ? "" : `, computed again (the ${ordinal(run.nth[position])} time)`;
    const stage = ofPlan ? `, stage ${whole(Math.min(run.stage[position] + 1, data.ops.name.length))}` : "";
    const pinned = state.held ? " · held: click a picture or press Esc to let go" : "";
    where.textContent = `computation ${whole(position + 1)} of ${whole(run.length)}${stage}${again}${pinned}`;
    const rows = held.slice(0, MOST_ROWS).map((one) => row(run, position, one, held[0].size));
    const rest = held.slice(MOST_ROWS);
    if (rest.length) {
      const size = rest.reduce((all, one) => all + one.size, 0);
      rows.push(element("tr", { "data-bytes": size }, element("td", { colspan: 2 }, `${whole(rest.length)} more`),
        element("td", { class: "number" }, bytes(size)), element("td", { colspan: 3 })));
    }
    body.replaceChildren(...rows);
  }
  views.push({ update });
}

function row(run, position, one, most) {
  const name = one.kind === "fixed" ? KINDS.fixed : data.ops.name[one.op];
  const what = element("td", { title: one.value === undefined ? "" : `value ${data.values.name[one.value]}` });
  what.append(element("i", { class: `kind ${one.kind}`, title: KINDS[one.kind] }), one.kind === "fixed" ? name : element("code", {}, name));
  if (one.kind === "workspace") what.append(" workspace");
  const size = element("td", { class: "number" }, bytes(one.size));
  const share = element("td", { class: "share" }, element("i", { class: `bar ${one.kind}`, style: `width:${(100 * one.size) / most}%` }));
  return element("tr", { "data-bytes": one.size }, what, element("td", {}, one.op === undefined ? "" : path(layerOf(one.op))),
    size, share, element("td", { class: "number" }, since(run, position, one)), element("td", {}, ...keeper(run, position, one)));
}

function since(run, position, one) {
  if (one.kind === "fixed") return "always";
  if (one.kind === "workspace" || one.begin === position) return "now";
  return whole(one.begin + 1);
}

/** Who needs it next. */
function keeper(run, position, one) {
  if (one.kind === "fixed") return ["the whole step"];
  if (one.kind === "workspace") return ["only while it runs"];
  if (one.read === position) return ["read now"];
  if (one.read >= 0) return [element("code", {}, data.ops.name[run.ops[one.read]]), ` in ${whole(one.read - position)}`];
  if (one.end === position + 1 && one.begin === position && one.end < run.length) return ["freed at once"];
  if (data.values.keep[one.value] && one.end === run.length) return ["kept to the end"];
  return one.end > position + 1 ? ["nobody; freed later"] : ["nobody; freed next"];
}
