/* The confusion matrix: true classes from top to bottom, named ones from left to right, both from the largest class to
   the smallest. Of more classes than SIDE, neighbours share a cell, and one can look inside. */

const SIDE = 100, LISTED = 8;
const total = (numbers) => numbers.reduce((sum, x) => sum + x, 0);

/* The ranks from .. to of classes in at most SIDE equal parts. */
function axis([from, to]) {
  const share = Math.ceil((to - from) / SIDE);
  return {
    from, to, single: share === 1, length: Math.ceil((to - from) / share),
    part: (i) => [from + i * share, Math.min(from + (i + 1) * share, to)],
    place: (rank) => Math.floor((rank - from) / share),
  };
}

/* The classes and the mistakes of a run, in the order of the matrix. */
function confusionsOf(run) {
  const { truth, predicted, count } = run.use.confusion;
  const order = sorted(run.classes.map((_, k) => k), (k) => run.counts[k], true), rank = [];
  order.forEach((k, place) => (rank[k] = place));
  const pairs = truth.map((k, i) => ({ truth: k, other: predicted[i], count: count[i] }));
  const classes = ([from, to]) => order.slice(from, to);
  const inside = ([from, to], k) => from <= rank[k] && rank[k] < to;
  return {
    pairs, rank, classes,
    within: (rows, columns) => pairs.filter((p) => inside(rows, p.truth) && inside(columns, p.other)),
    name: (ranks) => nameOf(classes(ranks).map((k) => ({ name: run.classes[k] }))),
    tested: (rows) => total(classes(rows).map((k) => run.tested[k])),
    right: (rows, columns) => {
      const both = [Math.max(rows[0], columns[0]), Math.min(rows[1], columns[1])];
      return both[0] < both[1] ? total(classes(both).map((k) => rightOf(run, k))) : 0;
    },
  };
}

function confusionMatrix(run) {
  const { pairs, rank, classes, within, name, tested, right } = confusionsOf(run);
  const everything = { rows: axis([0, rank.length]), columns: axis([0, rank.length]) };
  let view = everything, mistakes = new Map(), at = null, step = 0, left = 0, top = 0, width = 0;

  const key = (i, j) => i * SIDE + j;
  const placeOf = (pair) => [view.rows.place(rank[pair.truth]), view.columns.place(rank[pair.other])];
  function cell([i, j]) {
    const rows = view.rows.part(i), columns = view.columns.part(j), single = view.rows.single && view.columns.single;
    return { rows, columns, single, right: right(rows, columns), wrong: mistakes.get(key(i, j)) ?? 0, of: tested(rows) };
  }
  function words({ rows, columns, right: good, wrong, of }) {
    const same = rows[0] === columns[0] && rows[1] === columns[1], one = same && rows[1] - rows[0] === 1;
    const line = (what, n) => `${what}: ${whole(n)} of ${whole(of)} examples, ${percent(of ? n / of : null)}`;
    return [one ? name(rows) : `${name(rows)}, taken for ${name(columns)}`,
      ...(same || good ? [line("right", good)] : []), ...(one ? [] : [line("mistakes", wrong)])];
  }

  const about = "Rows are the true classes, columns the classes that were named, both from the largest class to the " +
    "smallest. The stronger the colour of a cell, the more of its row is in it.";
  const label = `Confusion matrix. ${about} The arrow keys move, Enter looks inside, Escape goes back.`;
  const image = svg("svg", { role: "img", "aria-label": about }), tip = html("div", { class: "tip", hidden: true });
  const spoken = { role: "application", "aria-roledescription": "matrix", "aria-label": label };
  const plot = html("div", { class: "plot", tabindex: 0, ...spoken }, image, tip);
  const said = html("div", { role: "status" }), frequent = html("div");

  function redraw() {
    width = plot.clientWidth;
    if (!width) return;
    const { rows, columns } = view, most = Math.max(rows.length, columns.length);
    const letters = Math.min(Math.max(...run.classes.map((words) => words.length)), 14), room = 12 + 6.6 * letters;
    const named = rows.single && columns.single && (width - room) / most >= 14;
    [left, top] = named ? [room, 4] : [20, 18];
    step = Math.min((width - left - 2) / most, 56);
    const floor = top + step * rows.length, height = floor + (named ? 20 + 5.5 * letters : 4);
    const nodes = [rect("field", left, top, step * columns.length, step * rows.length)];
    const put = (words, x, y, turn = "", kind = "end") =>
      nodes.push(svg("text", { class: kind, transform: `translate(${x} ${y}) ${turn}` }, words));
    for (let i = 0; i < rows.length; i += 1) {
      for (let j = 0; j < columns.length; j += 1) {
        const found = cell([i, j]), n = found.right || found.wrong;
        if (!n) continue;
        const square = rect(found.right ? "fill-after" : "fill-before", left + j * step, top + i * step, step, step);
        square.setAttribute("fill-opacity", (0.1 + 0.9 * Math.sqrt(n / found.of)).toFixed(3));
        nodes.push(square);
      }
      if (named) put(cut(name(rows.part(i)), 14), left - 6, top + step * (i + 0.5) + 4);
    }
    for (let j = 0; named && j < columns.length; j += 1) {
      put(cut(name(columns.part(j)), 14), left + step * (j + 0.5) + 4, floor + 14, "rotate(-50)");
    }
    if (!named) {
      put("named class →", left, 12, "", null);
      put("true class →", 6, top, "rotate(90)", null);
    }
    image.setAttribute("height", height);
    image.setAttribute("viewBox", `0 0 ${width} ${height}`);
    image.replaceChildren(svg("title", {}, "Confusion matrix"), svg("desc", {}, about), ...nodes);
    frame();
  }
  function frame() {
    image.querySelector(".chosen")?.remove();
    if (at) image.append(rect("chosen", left + at[1] * step - 1, top + at[0] * step - 1, step + 2, step + 2));
  }

  function look(next, chosen) {
    view = next;
    at = chosen;
    mistakes = new Map();
    for (const pair of within([view.rows.from, view.rows.to], [view.columns.from, view.columns.to])) {
      const here = key(...placeOf(pair));
      mistakes.set(here, (mistakes.get(here) ?? 0) + pair.count);
    }
    redraw();
    list();
    describe();
  }
  const enter = ({ rows, columns }, chosen = [0, 0]) => look({ rows: axis(rows), columns: axis(columns) }, chosen);
  function choose([i, j]) {
    at = [Math.min(Math.max(i, 0), view.rows.length - 1), Math.min(Math.max(j, 0), view.columns.length - 1)];
    frame();
    describe();
  }
  function choosePair(pair) {
    const found = cell(placeOf(pair));
    if (found.single) choose(placeOf(pair));
    else enter(found, [rank[pair.truth] - found.rows[0], rank[pair.other] - found.columns[0]]);
  }
  function describe() {
    if (!at) return said.replaceChildren(muted("Choose a cell to see what is in it."));
    const found = cell(at), [first, ...lines] = words(found), [k, other] = [found.rows, found.columns].map(classes);
    const surest = run.worst.filter((bad) => found.single && bad.class === k[0]).flatMap((bad) => bad.examples);
    const inside = html("button", { type: "button", click: () => enter(found) }, "Look inside");
    return said.replaceChildren(html("h4", {}, first), ...lines.map((line) => html("p", {}, line)),
      ...samples(run, k[0], surest.filter((example) => example.predicted === other[0])), ...(found.single ? [] : [inside]));
  }
  function list() {
    const here = within([view.rows.from, view.rows.to], [view.columns.from, view.columns.to]);
    const items = here.slice(0, LISTED).map((pair) => {
      const both = `${run.classes[pair.truth]} → ${run.classes[pair.other]}`;
      return html("li", {}, html("button", { type: "button", title: both, click: () => choosePair(pair) }, both),
        muted(`${whole(pair.count)} of ${whole(run.tested[pair.truth])}`), bar(pair.count / here[0].count));
    });
    const back = html("button", { type: "button", click: () => look(everything, null) }, "Show all classes");
    const missing = run.use.confusion.left_out;
    frequent.replaceChildren(html("h4", {}, items.length ? "Most frequent mistakes" : "No mistakes here"),
      html("ul", { class: "confusions" }, ...items), ...(view === everything ? [] : [back]),
      ...(missing ? [html("p", {}, `${whole(missing)} mistakes of rarer pairs are not in this page.`)] : []));
  }

  function under(event) {
    const box = plot.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    const place = [Math.floor((y - top) / step), Math.floor((x - left) / step)];
    const there = place.every((n, i) => n >= 0 && n < [view.rows, view.columns][i].length);
    return there ? { place, x, y } : null;
  }
  function hover(event) {
    const over = under(event);
    tip.hidden = !over;
    if (!over) return;
    const [first, ...lines] = words(cell(over.place));
    tip.replaceChildren(html("b", {}, first), ...lines.map((line) => html("div", {}, line)));
    tip.style.left = `${Math.min(Math.max(over.x - tip.offsetWidth / 2, 0), width - tip.offsetWidth)}px`;
    tip.style.bottom = `${plot.clientHeight - over.y + 30}px`;
  }
  function move(event) {
    const [i, j] = at ?? [0, 0], steps = { ArrowDown: [i + 1, j], ArrowUp: [i - 1, j] };
    const moves = { ...steps, ArrowRight: [i, j + 1], ArrowLeft: [i, j - 1], Home: [0, 0] };
    if (event.key in moves) choose(moves[event.key]);
    else if (event.key === "Enter" && at && !cell(at).single) enter(cell(at));
    else if (event.key === "Escape") look(everything, [0, 0]);
    else return;
    event.preventDefault();
  }
  plot.addEventListener("pointermove", hover);
  plot.addEventListener("pointerleave", () => (tip.hidden = true));
  plot.addEventListener("click", (event) => under(event) && choose(under(event).place));
  plot.addEventListener("focus", () => plot.matches(":focus-visible") && choose(at ?? [0, 0]));
  plot.addEventListener("keydown", move);
  new ResizeObserver(() => plot.clientWidth !== width && requestAnimationFrame(redraw)).observe(plot);
  look(everything, null);

  const square = (kind) =>
    svg("svg", { class: "mark", viewBox: "0 0 16 16", "aria-hidden": "true" }, rect(kind, 1, 1, 14, 14));
  const legend = [html("span", {}, square("fill-after"), "right"), html("span", {}, square("fill-before"), "mistakes")];
  const table = () => ({
    headings: ["Class", "Taken for", "Examples", "Of the class"],
    rows: pairs.slice(0, SIDE).map(({ truth, other, count }) =>
      [run.classes[truth], run.classes[other], whole(count), percent(count / run.tested[truth])]),
  });
  return [
    html("figure", {}, html("figcaption", {}, html("b", {}, "What it takes for what"), ...legend), plot,
      numbers("The most frequent mistakes", table)),
    html("div", { class: "panel" }, frequent, said),
  ];
}
