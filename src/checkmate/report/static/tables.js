// What is computed again, as a table that can be sorted; and what is in memory at the peaks, by layer.

function againView() {
  const table = byId("again-table");
  if (!table || !data.again.length) return;
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  // In the order of the columns: what to sort by, and what to show.
  const columns = [
    [(one) => data.ops.name[one.op]], [(one) => layerOf(one.op), (one) => path(layerOf(one.op))], [(one) => one.times, (one) => whole(one.times)],
    [(one) => one.cost, (one) => percent(one.cost)], [(one) => one.size, (one) => bytes(one.size)],
    [(one) => one.saved, (one) => (one.saved ? bytes(one.saved) : "–")],
    [(one) => one.away, (one) => (one.away ? whole(one.away) : "–")],
  ];
  const rows = data.again.map((one) => {
    const cells = columns.map(([get, show], number) => {
      const cell = element("td", number < 2 ? {} : { class: "number" });
      if (number === 0) {
        const button = element("button", { type: "button", class: "jump", title: "show it in the schedule" }, element("code", {}, get(one)));
        button.addEventListener("click", () => showAgain(one.op));
        cell.append(button);
      } else cell.append(show ? show(one) : get(one));
      return cell;
    });
    return { one, row: element("tr", {}, ...cells) };
  });

  function sort(column, down) {
    const get = columns[column][0];
    const order = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
    rows.sort((a, b) => (down ? -1 : 1) * order(get(a.one), get(b.one)) || a.one.op - b.one.op);
    heads.forEach((head, number) => {
      if (number === column) head.setAttribute("aria-sort", down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    body.replaceChildren(...rows.map(({ row }) => row));
  }

  heads.forEach((head, number) => {
    const button = element("button", { type: "button" }, ...head.childNodes);
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const now = head.getAttribute("aria-sort");
      sort(number, now ? now === "ascending" : number >= 2);
    });
  });
  sort(3, true);
}

/** Go to where an op is computed again. */
function showAgain(op) {
  const position = plan.ops.findIndex((one, place) => one === op && !plan.first[place]);
  hold(true);
  look(position);
  byId("schedule-canvas").focus();
}

// --- by layer ---

const GROUPS = ["fixed", "forward", "backward", "workspace"];
const MOST_CHILDREN = 40;

/** The groups that an op is in, each a name and what stands before it: the parts of its layer, or its name without its number. */
function pathOf(op) {
  const layer = layerOf(op);
  const text = layer || data.ops.name[op].replace(/_\d+$/, "");
  const part = layer && !/[./]/.test(layer) ? /(_*)([^_]+)/g : /([./]*)([^./]+)/g; // Keras: conv5_block3_out
  return [...text.matchAll(part)].map((found) => [found[2], found[1]]);
}

function node(name, before = "") {
  return { name, before, total: { plan: 0, plain: 0 }, kinds: { plan: {}, plain: {} }, inner: new Map(), leaf: true };
}

function layerTree() {
  const root = node("");
  const runs = hasPlain ? [["plan", plan], ["plain", plain]] : [["plan", plan]];
  for (const [which, run] of runs) {
    for (const one of heldAt(run, run.peak)) {
      const leaf = one.kind === "fixed" ? KINDS.fixed : data.ops.name[one.op] + (one.kind === "workspace" ? " (workspace)" : "");
      const path = one.kind === "fixed" ? [] : pathOf(one.op);
      let at = root;
      // Groups and leaves may have the same name.
      for (const [key, name, before] of [...path.map((part) => [`/${part[0]}`, ...part]), [`=${leaf}`, leaf, ""]]) {
        add(at, which, one);
        at.leaf = false;
        if (!at.inner.has(key)) at.inner.set(key, node(name, before));
        at = at.inner.get(key);
      }
      add(at, which, one);
    }
  }
  return root;
}

function add(at, which, one) {
  at.total[which] += one.size;
  at.kinds[which][one.kind] = (at.kinds[which][one.kind] ?? 0) + one.size;
}

/** A group of one is no group: its name is joined with that of what is in it. The name of the group, that of an op, and what it is. */
function joined(one) {
  let [name, at] = [one.leaf ? "" : one.name, one];
  while (!at.leaf && at.inner.size === 1) {
    at = [...at.inner.values()][0];
    if (!at.leaf) name = at.name.startsWith(`${name}_`) ? at.name : name + at.before + at.name;
  }
  return at.leaf ? [at.name.startsWith(name) ? "" : name, at.name, at] : [name, "", at];
}

/** What is in a group; where that is too much for one list, by the beginnings of the names: of Keras, conv2 and conv3 of conv2_block1_out. */
function grouped(of) {
  if (of.inner.size <= MOST_CHILDREN) return of.inner;
  const groups = new Map();
  for (const [key, one] of of.inner) {
    const begin = one.name.split("_")[0];
    if (!groups.has(begin)) groups.set(begin, node(begin));
    const group = groups.get(begin);
    group.leaf = false;
    group.inner.set(key, one);
    for (const which of ["plan", "plain"]) {
      group.total[which] += one.total[which];
      for (const [kind, size] of Object.entries(one.kinds[which])) group.kinds[which][kind] = (group.kinds[which][kind] ?? 0) + size;
    }
  }
  return groups.size < of.inner.size && groups.size > 1 ? groups : of.inner;
}

function layersView() {
  const place = byId("layers");
  const root = layerTree();
  const most = Math.max(root.total.plan, root.total.plain) || 1;
  place.dataset.plan = root.total.plan;
  place.dataset.plain = root.total.plain;
  const largest = Math.max(...[...root.inner.values()].map((one) => Math.max(one.total.plan, one.total.plain)), 1);
  place.append(...children(root));

  function children(of) {
    const size = (one) => Math.max(one.total.plan, one.total.plain);
    const sorted = [...grouped(of).values()].filter((one) => size(one) > 0).sort((one, other) => size(other) - size(one));
    const shown = sorted.slice(0, MOST_CHILDREN).map((one) => rowOf(...joined(one)));
    const rest = sorted.slice(MOST_CHILDREN);
    if (rest.length) {
      const more = node(`${whole(rest.length)} more`);
      for (const which of ["plan", "plain"]) more.total[which] = rest.reduce((all, one) => all + one.total[which], 0);
      shown.push(rowOf(more.name, "", more));
    }
    return shown;
  }

  function rowOf(group, op, one) {
    const label = element("span", { class: "name" }, op === KINDS.fixed ? op : group);
    if (op && op !== KINDS.fixed) label.append(group ? " " : "", element("code", {}, op));
    const cells = hasPlain ? [label, bars(one, "plain"), bars(one, "plan")] : [label, bars(one, "plan")];
    if (one.leaf) return element("div", { class: "leaf row" }, ...cells);
    const inside = element("div", { class: "inside" });
    const details = element("details", {}, element("summary", { class: "row" }, ...cells), inside);
    const open = () => inside.firstChild || inside.append(...children(one));
    details.addEventListener("toggle", () => details.open && open());
    if (Math.max(one.total.plan, one.total.plain) > most / 2) {
      details.open = true; // what fills most says nothing before it is open
      open();
    }
    return details;
  }

  function bars(one, which) {
    const bar = element("span", { class: "stack" });
    for (const kind of GROUPS) {
      const size = one.kinds[which][kind];
      if (size) bar.append(element("i", { class: `bar ${kind}`, style: `width:${(100 * size) / largest}%`, title: `${KINDS[kind]}: ${bytes(size)}` }));
    }
    const total = one.total[which];
    const share = total ? ` ${fixed((100 * total) / (root.total[which] || most), 0)}%` : "";
    return element("span", { class: "cell", "data-bytes": total },
      element("span", { class: "number" }, total ? bytes(total) : "–", element("small", {}, share)), bar);
  }
}
