/* Scales and axes. */

const LEFT = 46, RIGHT = 10;
const linear = ([a, b], [from, to]) => (x) => from + ((x - a) / (b - a || 1)) * (to - from);

/* From 0 on, in at most five equal steps of 1, 2 or 5 times a power of ten, until `most` is reached. */
function ticks(most) {
  const power = 10 ** Math.floor(Math.log10(most || 1));
  const step = [0.2, 0.5, 1, 2, 5].map((x) => x * power).find((x) => x * 5 >= most * 0.999);
  return Array.from({ length: Math.ceil((most || 1) / step - 0.001) + 1 }, (_, i) => i * step);
}

/* Small numbers in units of a power of ten, which is said once: [format of a tick, the unit]. */
function units(most) {
  const power = most > 0 && most < 0.1 ? Math.floor(Math.log10(most)) : 0;
  const raised = String(power).replace(/./g, (digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit] ?? "⁻");
  return [(v) => Number((v / 10 ** power).toPrecision(3)), power ? `in 10${raised}` : ""];
}

/* Columns for so many things as there are: where they would be narrower than `least` pixels, neighbours share one. */
function columns(things, width, least) {
  const room = Math.max(Math.floor((width - LEFT - RIGHT) / least), 1);
  const share = Math.ceil(things.length / room) || 1;
  const groups = [];
  for (let i = 0; i < things.length; i += share) groups.push(things.slice(i, i + share));
  const step = (width - LEFT - RIGHT) / (groups.length || 1);
  return { groups, share, step, x: (i) => LEFT + step * (i + 0.5) };
}

const nameOf = (group) => {
  const [first, last] = [group[0].name, group.at(-1).name];
  return group.length === 1 ? first : `${group.length} classes: ${cut(first, 24)} … ${cut(last, 24)}`;
};

/* Shapes. The marks of before and after differ in form and filling, not in colour alone. */

const line = (kind, x1, y1, x2, y2) => svg("line", { class: kind, x1, y1, x2, y2 });
const text = (kind, x, y, words) => svg("text", { class: kind, x, y }, words);
const rect = (kind, x, y, width, height) => svg("rect", { class: kind, x, y, width, height });
const rules = (values, y, width, format) =>
  values.flatMap((v) => [line("grid", LEFT, y(v), width - RIGHT, y(v)), text("end", LEFT - 8, y(v) + 4, format(v))]);
const MARKS = {
  before: (x, y, r = 4) => svg("circle", { class: "before", cx: x, cy: y, r }),
  after: (x, y, r = 4.5) => svg("path", { class: "after", d: `M${x} ${y - r}l${r} ${r}l${-r} ${r}l${-r} ${-r}z` }),
};
const mark = (kind) =>
  svg("svg", { class: "mark", viewBox: "0 0 16 16", "aria-hidden": "true" }, MARKS[kind](8, 8, 6));

/* A figure that draws itself at the width it has. `draw(width)` gives its height, its nodes and its marks, from left
   to right, each with its x and the lines that the mouse over it, or the arrow keys, bring up. `table()` gives the
   headings and the rows of the same numbers. */
function chart({ title, about, legend = [], draw, table }) {
  const tip = html("div", { class: "tip", role: "status", hidden: true });
  const image = svg("svg", { role: "img", "aria-label": about });
  const label = `${title}. ${about} The arrow keys move along the chart.`;
  const spoken = { role: "application", "aria-roledescription": "chart", "aria-label": label };
  const plot = html("div", { class: "plot", tabindex: 0, ...spoken }, image, tip);
  let marks = [], width = 0, height = 0, at = -1;

  function redraw() {
    width = plot.clientWidth;
    if (!width) return;
    const drawn = draw(width);
    ({ marks, height } = drawn);
    image.setAttribute("height", height);
    image.setAttribute("viewBox", `0 0 ${width} ${height}`);
    image.replaceChildren(svg("title", {}, title), svg("desc", {}, about), ...drawn.nodes);
    hide();
  }
  function hide() {
    tip.hidden = true;
    at = -1;
    image.querySelector(".cursor")?.remove();
  }
  function show(index) {
    if (!marks.length) return;
    at = Math.min(Math.max(index, 0), marks.length - 1);
    const { x, lines: [first, ...others] } = marks[at];
    image.querySelector(".cursor")?.remove();
    image.append(line("cursor", x, 0, x, height));
    tip.replaceChildren(html("b", {}, first), ...others.map((words) => html("div", {}, words)));
    tip.hidden = false;
    tip.style.left = `${Math.min(Math.max(x - tip.offsetWidth / 2, 0), width - tip.offsetWidth)}px`;
  }
  function nearest(event) {
    const x = event.clientX - plot.getBoundingClientRect().left;
    const distances = marks.map((m) => Math.abs(m.x - x));
    show(distances.indexOf(Math.min(...distances)));
  }
  function move(event) {
    const steps = { ArrowRight: at + 1, ArrowLeft: at - 1, PageDown: at + 10, PageUp: at - 10 };
    const moves = { ...steps, Home: 0, End: marks.length };
    if (event.key === "Escape") hide();
    if (!(event.key in moves)) return;
    event.preventDefault();
    show(moves[event.key]);
  }
  plot.addEventListener("pointermove", nearest);
  plot.addEventListener("pointerleave", () => document.activeElement === plot || hide());
  plot.addEventListener("focus", () => plot.matches(":focus-visible") && show(Math.max(at, 0)));
  plot.addEventListener("blur", hide);
  plot.addEventListener("keydown", move);
  new ResizeObserver(() => plot.clientWidth !== width && requestAnimationFrame(redraw)).observe(plot);

  const figure = html("figure", {}, html("figcaption", {}, html("b", {}, title), ...legend), plot);
  if (table) figure.append(numbers(title, table));
  return Object.assign(figure, { redraw });
}

/* The numbers of a chart, made when they are asked for. */
function numbers(title, table) {
  const details = html("details", {}, html("summary", {}, "Show the numbers"));
  details.addEventListener("toggle", () => {
    if (details.childElementCount > 1) return;
    const { headings, rows } = table();
    const body = rows.map(([first, ...others]) => row(first, cells(others)));
    const content = fill(html("table"), [html("tr", {}, ...headings.map(column))], body);
    details.append(html("div", { class: "wide", tabindex: 0, role: "region", "aria-label": title }, content));
  });
  return details;
}
