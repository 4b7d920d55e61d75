// The schedule: what is computed when, first and again, and when each op's values are in memory.

const MAP_HEIGHT = 520;

function scheduleView() {
  const canvas = byId("schedule-canvas");
  const status = byId("schedule-status");
  const height = MAP_HEIGHT - MARGIN.top - MARGIN.bottom;
  const count = data.ops.name.length;
  let width = 0;

  // Places of the axes as pixels: across is the time and down the op, or the other way round as in the paper.
  const scale = (place, [from, to], begin, size) => begin + ((place - from) / (to - from || 1)) * size;
  const across = (place) => scale(place, state.turned ? state.rows : state.span, MARGIN.left, width);
  const down = (place) => scale(place, state.turned ? state.span : state.rows, MARGIN.top, height);

  /** Fill from one place to another of time and of ops, at least `least` pixels each way. */
  function fill(context, begin, end, op, least) {
    const [time, row] = state.turned ? [down, across] : [across, down];
    const [t, r] = [time(begin), row(op)];
    const [dt, dr] = [Math.max(least, time(end) - t), Math.max(least, row(op + 1) - r)];
    if (state.turned) context.fillRect(r, t, dr, dt);
    else context.fillRect(t, r, dt, dr);
  }

  function draw() {
    const [context, all] = sized(canvas, MAP_HEIGHT);
    width = all - MARGIN.left - MARGIN.right;
    if (width <= 0) return;
    axes(context);
    context.save();
    context.beginPath();
    context.rect(MARGIN.left, MARGIN.top, width, height);
    context.clip();
    const [from, to] = state.span;
    const [top, bottom] = [Math.floor(state.rows[0]), Math.ceil(state.rows[1])];
    const inside = (op) => op >= top && op < bottom;
    context.fillStyle = colours.retained;
    for (let stay = 0; stay < plan.stays.length; stay += 3) {
      const op = data.values.op[plan.stays[stay]];
      const [begin, end] = [edge(plan.stays[stay + 1]), edge(plan.stays[stay + 2])];
      if (inside(op) && end >= from && begin <= to) fill(context, begin, end, op, 0.75);
    }
    for (const first of [true, false]) { // recomputations last: the rarest must not be hidden
      context.fillStyle = first ? colours.first : colours.again;
      for (let position = positionAt(from); position <= positionAt(to); position++) {
        const op = plan.ops[position];
        if (plan.first[position] === first && inside(op)) fill(context, edge(position), edge(position + 1), op, first ? 1.6 : 2.2);
      }
    }
    context.restore();
    cursor(context);
  }

  function axes(context) {
    const begin = backwardOp < 0 ? null : plan.at.get(backwardOp);
    if (state.turned) {
      opTicks(context, (op) => [across(op), MAP_HEIGHT - MARGIN.bottom + 8], "center", "top");
      timeTicks(context);
      upwards(context, state.axis === "cost" ? "computing" : "computations of the plan");
      context.textAlign = "center";
      context.textBaseline = "top";
      context.fillText("op", MARGIN.left + width / 2, MAP_HEIGHT - MARGIN.bottom + 24);
    } else {
      opTicks(context, (op) => [MARGIN.left - 8, down(op)], "right", "middle");
      timeAxis(context, width, across, MAP_HEIGHT - MARGIN.bottom);
      upwards(context, "op");
    }
    line(context, colours.line, 1, () => {
      context.beginPath();
      context.rect(MARGIN.left - 0.5, MARGIN.top - 0.5, width + 1, height + 1);
    });
    if (begin === null) return;
    const [left, level] = state.turned ? [across(backwardOp), down(edge(begin))] : [across(edge(begin)), down(backwardOp)];
    context.setLineDash([2, 3]);
    line(context, colours.muted, 1, () => {
      context.beginPath();
      if (level > MARGIN.top && level < MARGIN.top + height) {
        context.moveTo(MARGIN.left, level);
        context.lineTo(MARGIN.left + width, level);
      }
      if (left > MARGIN.left && left < MARGIN.left + width) {
        context.moveTo(left, MARGIN.top);
        context.lineTo(left, MARGIN.top + height);
      }
    });
    context.setLineDash([]);
  }

  /** The label of the axis on the left. */
  function upwards(context, text) {
    context.save();
    context.textAlign = "center";
    context.textBaseline = "top";
    context.translate(2, MARGIN.top + height / 2);
    context.rotate(-Math.PI / 2);
    context.fillText(text, 0, 0);
    context.restore();
  }

  function opTicks(context, at, align, baseline) {
    context.textAlign = align;
    context.textBaseline = baseline;
    context.fillStyle = colours.muted;
    for (const tick of ticks(...state.rows, state.turned ? width / 90 : height / 60)) {
      if (Number.isInteger(tick)) context.fillText(whole(tick), ...at(tick));
    }
  }

  function timeTicks(context) {
    context.textAlign = "right";
    context.textBaseline = "middle";
    const shares = state.axis === "cost" ? 100 : 1;
    for (const tick of ticks(shares * state.span[0], shares * state.span[1], height / 60)) {
      const text = shares === 1 ? whole(Number(tick.toPrecision(9))) : `${Number(tick.toPrecision(6))}%`;
      context.fillText(text, MARGIN.left - 8, down(tick / shares));
    }
  }

  function cursor(context) {
    const time = (edge(state.position) + edge(state.position + 1)) / 2;
    const [left, level] = state.turned ? [across(state.row + 0.5), down(time)] : [across(time), down(state.row + 0.5)];
    context.globalAlpha = 0.55;
    line(context, colours.ink, 1, () => {
      context.beginPath();
      if (left >= MARGIN.left && left <= MARGIN.left + width) {
        context.moveTo(left, MARGIN.top);
        context.lineTo(left, MARGIN.top + height);
      }
      if (level >= MARGIN.top && level <= MARGIN.top + height) {
        context.moveTo(MARGIN.left, level);
        context.lineTo(MARGIN.left + width, level);
      }
    });
    context.globalAlpha = 1;
  }

  function update() {
    const [position, op] = [state.position, state.row];
    const layer = layerOf(op);
    const stage = Math.min(plan.stage[position] + 1, count);
    status.replaceChildren(
      element("code", {}, data.ops.name[op]),
      layer ? path(layer) : "",
      ` op ${whole(op)} in stage ${whole(stage)}, computation ${whole(position + 1)}: ${stateOf(op, position)}`,
    );
  }

  canvas.addEventListener("keydown", (event) => {
    if (key(event, true)) event.preventDefault();
  });
  byId("turned").addEventListener("change", (event) => {
    state.turned = event.target.checked;
    redraw();
  });
  const placeOf = (left, top) => {
    const [one, other] = [clamp(left - MARGIN.left, 0, width) / width, clamp(top - MARGIN.top, 0, height) / height];
    const [time, row] = state.turned ? [other, one] : [one, other];
    const inside = ([from, to], share) => from + share * (to - from);
    return [inside(state.span, time), inside(state.rows, row)];
  };
  pointers(canvas, placeOf, () => ({ width, height, both: true }));
  views.push({ draw, update });
}

/** What an op does, or what is with its values, at a computation of the plan. */
function stateOf(op, position) {
  if (plan.ops[position] === op) {
    return plan.first[position] ? "computed for the first time" : `computed again, the ${ordinal(plan.nth[position])} time`;
  }
  for (let stay = 0; stay < plan.stays.length; stay += 3) {
    const [value, begin, end] = [plan.stays[stay], plan.stays[stay + 1], plan.stays[stay + 2]];
    if (data.values.op[value] !== op || begin > position || position >= end) continue;
    const read = nextRead(plan, value, position, end);
    if (read === position) return `in memory since ${whole(begin + 1)}, read now`;
    return `in memory since ${whole(begin + 1)}${read < 0 ? "" : `, read next by ${data.ops.name[plan.ops[read]]} in ${whole(read - position)}`}`;
  }
  return plan.at.get(op) > position ? "not computed yet" : "not in memory";
}
