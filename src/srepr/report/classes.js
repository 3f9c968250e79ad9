/* Class by class: one order and one filter for the chart and for the table. */

const ROWS = 20;
const DESCENDING = {
  count: true, name: false, before: false, after: false, change: true, precision: false, confidence: false, f1: false,
};
const classes = {
  run: null, all: [], shown: [], figure: null,
  text: "", group: "all", sort: "count", reversed: false, page: 0,
};

function openClasses(run) {
  const all = run.classes.map((name, k) => {
    const [before, after] = [run.before.per_class[k], run.after.per_class[k]];
    const change = before === null || after === null ? null : after - before;
    const [precision, confidence, f1] = [run.use.precision[k], run.use.confidence[k], run.use.f1[k]];
    const sizes = { count: run.counts[k], group: run.groups[k], tested: run.tested[k] };
    return { name, ...sizes, before, after, change, precision, confidence, f1 };
  });
  Object.assign(classes, { run, all, page: 0, figure: classChart(run) });
  find("#classes .charts").replaceChildren(classes.figure);
  drawClasses();
}

function drawClasses() {
  const { all, text: wanted, group, sort } = classes;
  const kept = all.filter((c) => (group === "all" || c.group === group) && c.name.toLowerCase().includes(wanted));
  classes.shown = sorted(kept, (c) => c[sort], DESCENDING[sort] !== classes.reversed);
  find("#classes output").textContent = `${whole(kept.length)} of ${whole(all.length)} classes`;
  find("#classes [name=sort]").value = sort;
  find("#classes [name=reverse]").setAttribute("aria-pressed", classes.reversed);
  classes.figure.redraw();
  drawClassTable();
}

function drawClassTable() {
  const { shown, page, run } = classes, first = page * ROWS, last = Math.min(first + ROWS, shown.length);
  const sorts = (key, label) =>
    heading(label, classes.sort === key, DESCENDING[key] !== classes.reversed, () => {
      Object.assign(classes, { sort: key, reversed: classes.sort === key && !classes.reversed, page: 0 });
      drawClasses();
    });
  const headings = [
    sorts("name", "Class"),
    sorts("count", "Training examples"),
    column("Group"),
    column("Tested"),
    sorts("before", run.before.name),
    sorts("after", run.after.name),
    sorts("change", "Change"),
    sorts("precision", "Precision"),
    sorts("confidence", "Confidence"),
    sorts("f1", "F1"),
  ];
  const body = shown.slice(first, last).map((c) =>
    row(c.name, cells([whole(c.count), c.group, whole(c.tested), percent(c.before), percent(c.after), points(c.change),
      percent(c.precision), percent(c.confidence), decimal(c.f1)])));
  const advice = "No class answers to that. Clear the search, or choose all groups.";
  const empty = html("tr", {}, html("td", { colspan: 10, class: "note" }, advice));
  fill(find("#classes table"), [html("tr", {}, ...headings)], body.length ? body : [empty]);
  find(".pages span").textContent = `${whole(first + 1)} to ${whole(last)} of ${whole(shown.length)}`;
  find(".pages [name=previous]").disabled = page === 0;
  find(".pages [name=next]").disabled = last === shown.length;
  find(".pages").hidden = shown.length <= ROWS;
}

function classChart(run) {
  const TOP = 28, ACCURACY = 220, GAP = 38, COUNT = 90, floor = TOP + ACCURACY + GAP + COUNT;
  const most = Math.max(...run.counts), tens = [1, 10, 100, 1000, 10000, 100000, 1000000].filter((n) => n <= most);
  const accuracy = linear([0, 1], [TOP + ACCURACY, TOP]);
  const logarithm = linear([0, Math.log10(most + 1)], [floor, floor - COUNT]);
  const count = (n) => logarithm(Math.log10(n + 1));

  function draw(width) {
    const { groups, share, step, x } = columns(classes.shown, width, 7);
    const size = Math.min(Math.max(step / 3, 2), 5), thick = Math.max(step * 0.7, 1);
    const named = share === 1 && step >= 13, level = step >= 56;
    const longest = Math.min(Math.max(...classes.shown.map((c) => c.name.length)), 12);
    const height = floor + (!named ? 6 : level ? 26 : 24 + 5.5 * longest);
    const nodes = [
      ...rules([0, 0.25, 0.5, 0.75, 1], accuracy, width, (v) => `${100 * v} %`),
      ...rules(tens, count, width, (n) => (n >= 1000 ? `${n / 1000}k` : n)),
      ...(classes.sort === "count" ? bands(groups, step, floor) : []),
      text("", LEFT, floor - COUNT - 8, `training examples${share > 1 ? ` (each column: ${share} classes)` : ""}`),
    ];
    const marks = groups.map((group, i) => {
      const [n, before, after] = ["count", "before", "after"].map((key) => mean(group.map((c) => c[key])));
      const change = before === null || after === null ? null : after - before;
      nodes.push(rect("count", x(i) - thick / 2, count(n), thick, Math.max(floor - count(n), 1)));
      if (change !== null) {
        nodes.push(line(`change ${change < 0 ? "down" : "up"}`, x(i), accuracy(before), x(i), accuracy(after)));
      }
      if (before !== null) nodes.push(MARKS.before(x(i), accuracy(before), size * 0.85));
      if (after !== null) nodes.push(MARKS.after(x(i), accuracy(after), size));
      if (named) {
        const label = text(level ? "middle" : "end", 0, 0, cut(group[0].name, level ? Math.floor(step / 7) : 12));
        const turned = level ? `translate(${x(i)} ${floor + 16})` : `translate(${x(i) + 4} ${floor + 16}) rotate(-50)`;
        label.setAttribute("transform", turned);
        nodes.push(label);
      }
      const [one] = group;
      const examples = share === 1
        ? `${whole(n)} training examples (${one.group}), ${whole(one.tested)} tested`
        : `${n.toFixed(1)} training examples on average`;
      const accuracies = [
        `${run.before.name}: ${percent(before)}`,
        `${run.after.name}: ${percent(after)} (${points(change)} points)`,
      ];
      return { x: x(i), lines: [nameOf(group), examples, ...accuracies] };
    });
    return { height, nodes, marks };
  }
  return chart({
    title: "Accuracy and size of each class",
    about:
      `Each class in the chosen order, with its accuracy under ${run.before.name} and under ${run.after.name} and ` +
      "its number of training examples on a logarithmic scale. The table below has the same numbers.",
    legend: ["before", "after"].map((side) => html("span", {}, mark(side), run[side].name)),
    draw,
  });
}

/* Where many-shot ends and few-shot begins; only the order by size has such places. */
function bands(groups, step, floor) {
  const nodes = [];
  let from = 0;
  groups.forEach((group, i) => {
    const here = group[0].group, next = groups[i + 1]?.[0].group;
    if (here === next) return;
    const [left, right] = [LEFT + step * from, LEFT + step * (i + 1)];
    if (next) nodes.push(line("guide", right, 8, right, floor));
    if (right - left > 48) nodes.push(text("middle", (left + right) / 2, 14, here));
    from = i + 1;
  });
  return nodes;
}

function openControls() {
  const form = find("#classes form");
  const change = (changes) => {
    Object.assign(classes, { page: 0 }, changes);
    drawClasses();
  };
  form.addEventListener("submit", (event) => event.preventDefault());
  form.elements.text.addEventListener("input", (event) => change({ text: event.target.value.trim().toLowerCase() }));
  form.elements.sort.addEventListener("change", (event) => change({ sort: event.target.value, reversed: false }));
  form.elements.reverse.addEventListener("click", () => change({ reversed: !classes.reversed }));
  for (const radio of form.querySelectorAll("[name=group]")) {
    radio.addEventListener("change", () => change({ group: radio.value }));
  }
  for (const [name, step] of [["previous", -1], ["next", 1]]) {
    find(`.pages [name=${name}]`).addEventListener("click", () => {
      classes.page += step;
      drawClassTable();
    });
  }
}
