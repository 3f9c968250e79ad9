/* One row for each input, the most doubtful first; a click on a heading sorts. */

const DATA = JSON.parse(find("#data").textContent);
const order = { key: "uncertainty", descending: true };

const TITLES = { uncertainty: "Doubt", reject: "For a person" };
const titleOf = (key) => TITLES[key] ?? key[0].toUpperCase() + key.slice(1).replace("_", " ");

/* What was predicted: a picture with its name, a text, or a row with its number and its numbers. */
function inputCell({ input, image, values }) {
  const picture = image && html("img", { src: image, alt: "", class: image.startsWith("data:image/png") && "small" });
  const words = html("span", {}, input, ...(values ? [html("span", { class: "muted" }, values)] : []));
  return html("th", { scope: "row", title: input }, html("div", {}, ...(picture ? [picture] : []), words));
}

function valueCell(key, value) {
  if (key.startsWith("probability")) return html("td", {}, percent(value));
  if (key === "uncertainty") return html("td", {}, decimal(value), html("div", { class: "level" }, bar(value)));
  if (key === "set") return html("td", { class: "words" }, value.join(", "), muted(` (${whole(value.length)})`));
  if (key === "reject") return html("td", {}, value ? "yes" : NONE);
  return html("td", { class: "words" }, typeof value === "number" ? small(value) : value);
}

/* Sets are sorted by their size, what goes to a person by whether it does. */
const sortValue = (value) => (Array.isArray(value) ? value.length : typeof value === "boolean" ? Number(value) : value);

function draw() {
  const { columns: keys, rows } = DATA;
  const press = (key) => () => {
    const words = typeof rows[0]?.[key] === "string";
    Object.assign(order, { key, descending: order.key === key ? !order.descending : !words });
    draw();
  };
  const headings = keys.map((key) => heading(titleOf(key), order.key === key, order.descending, press(key)));
  const body = sorted(rows, (row) => sortValue(row[order.key]), order.descending).map((row) =>
    html("tr", { class: row.reject && "rejected" }, inputCell(row),
      ...keys.slice(1).map((key) => valueCell(key, row[key]))));
  fill(find("#predictions table"), [html("tr", {}, ...headings)], body);
}

function openPage({ model, total, rows, rejected, sentences }) {
  find("#title").textContent = model;
  find("#facts").textContent = `${whole(total)} ${total === 1 ? "input" : "inputs"}, srepr ${DATA.version}`;
  const left = total - rows.length, shown = left
    ? `The ${whole(rows.length)} most doubtful inputs are shown; ${whole(left)} others are left out.`
    : "All inputs are shown, the most doubtful first.";
  const persons = rejected === null ? [] : [`${whole(rejected)} of ${whole(total)} are rejected: they go to a person.`];
  find("#predictions .lede").textContent = [shown, ...persons, ...sentences].join(" ");
  openTheme();
  draw();
}

openPage(DATA);
