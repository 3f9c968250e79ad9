const DATA = JSON.parse(find("#data").textContent);
const { columns: COLUMNS } = DATA;
const KEYS = Object.keys(COLUMNS);
const unique = (things) => [...new Set(things)];

/* Verdict: the sentence, then four numbers. */

function tile(label, before, after, { scale = 1, digits = 3, unit = "", difference = "", lessIsBetter = false }) {
  const [old, now] = [before, after].map((x) => Number((scale * number(x)).toFixed(digits)));
  const change = now - old, sign = change > 0 ? "+" : "−", judged = change > 0 === lessIsBetter ? "worse" : "better";
  const words = change ? `${sign}${decimal(Math.abs(change), digits)}${difference}, ${judged}` : "no change";
  return html("div", {}, html("dt", {}, label), html("dd", { class: "number" }, decimal(now, digits) + unit),
    html("dd", {}, `was ${decimal(old, digits)}${unit}`), html("dd", {}, words));
}

function verdict(run, several) {
  const { before, after } = run, accuracy = { scale: 100, digits: 1, unit: "\u00a0%", difference: " points" };
  const rarest = ["few", "medium", "many"].find((group) => before[group] !== null);
  const tiles = [
    tile(`Accuracy, ${rarest}-shot`, before[rarest], after[rarest], accuracy),
    tile("Accuracy, all", before.acc, after.acc, accuracy),
    tile("NLL", before.nll, after.nll, { lessIsBetter: true }),
    tile("ECE", before.ece, after.ece, { lessIsBetter: true }),
  ];
  return html("article", {}, ...(several ? [html("h2", {}, run.name)] : []),
    html("p", { class: "sentence" }, run.verdict.replaceAll(" %", "\u00a0%")),
    html("p", { class: "flips" }, several ? `${run.source}: ${run.facts}. ${run.flips}` : run.flips),
    html("dl", { class: "tiles" }, ...tiles));
}

/* Every classifier of every run. */

const order = { run: 0, key: null, descending: false };

function drawResults() {
  const { runs } = DATA, several = runs.length > 1;
  const names = unique(runs.flatMap((run) => run.results.map((result) => result.name)));
  const found = names.map((name) => ({ name, by: runs.map((run) => run.results.find((r) => r.name === name)) }));
  const value = (classifier, i, key) => number(classifier.by[i]?.[key] ?? null);

  const sorts = (label, i, key) => {
    const active = order.run === i && order.key === key;
    return heading(label, active, order.descending, () => {
      const highestFirst = key !== "name" && !COLUMNS[key].lower_is_better;
      Object.assign(order, { run: i, key, descending: active ? !order.descending : highestFirst });
      drawResults();
    });
  };
  const group = (run) => html("th", { scope: "colgroup", colspan: KEYS.length }, run.name, muted(` ${run.source}`));
  const labels = runs.flatMap((_, i) => KEYS.map((key) => sorts(COLUMNS[key].title, i, key)));
  const headings = [html("tr", {}, sorts("Classifier", 0, "name"), ...labels)];
  if (several) headings.unshift(html("tr", {}, html("td"), ...runs.map(group)));

  const best = runs.map((_, i) => Object.fromEntries(KEYS.map((key) => {
    const values = found.map((classifier) => value(classifier, i, key)).filter((x) => x !== null);
    return [key, COLUMNS[key].lower_is_better ? Math.min(...values) : Math.max(...values)];
  })));
  const cell = (x, i, key) => {
    const kinds = [x === best[i][key] && "best", several && key === KEYS[0] && "starts"].filter(Boolean);
    const shown = !COLUMNS[key].percent ? decimal(x) : x === null ? NONE : (100 * x).toFixed(2);
    return html("td", { class: kinds.join(" ") || null }, shown);
  };
  const by = (classifier) => (order.key === "name" ? classifier.name : value(classifier, order.run, order.key));
  const rows = (order.key ? sorted(found, by, order.descending) : found).map((classifier) => {
    const side = ["before", "after"].find((side) => runs.some((run) => run[side].name === classifier.name));
    const numbers = runs.flatMap((_, i) => {
      const diverged = classifier.by[i]?.diverged;
      if (diverged) return [html("td", { class: "note starts", colspan: KEYS.length }, `diverged: ${cut(diverged, 60)}`)];
      return KEYS.map((key) => cell(value(classifier, i, key), i, key));
    });
    const marked = row(classifier.name, numbers);
    if (side) marked.firstChild.prepend(mark(side));
    marked.classList.toggle("compared", Boolean(side));
    return marked;
  });
  fill(find("#results table"), headings, rows);
}

/* Mistakes, cost, settings, provenance. */

function mistakesOf(run, { class: k, examples, confusions }) {
  const wrong = run.tested[k] - Math.round(run.after.per_class[k] * run.tested[k]);
  const pictures = examples.filter((example) => example.image).map(({ image, predicted, confidence }) => {
    const name = run.classes[predicted], sure = percent(confidence, 0);
    const alt = `${run.classes[k]}, taken for ${name}, ${sure}`;
    return html("li", {}, html("img", { src: image, alt, class: image.startsWith("data:image/png") && "small" }),
      ...[name, sure].map((words) => html("span", { "aria-hidden": "true", title: words }, words)));
  });
  const frequent = confusions.map(({ class: other, count }) => {
    const share = `${whole(count)} of ${whole(wrong)} mistakes, ${percent(count / wrong, 0)}`;
    return html("li", {}, html("span", {}, run.classes[other]), muted(share), bar(count / wrong));
  });
  const accuracies = `${percent(run.after.per_class[k])} right, before ${percent(run.before.per_class[k])}`;
  return html("article", {}, html("h3", {}, run.classes[k]),
    html("p", {}, `${accuracies}; ${whole(run.counts[k])} training examples, ${run.groups[k]}-shot`),
    ...(pictures.length ? [html("ul", { class: "pictures" }, ...pictures)] : []),
    html("ul", { class: "confusions", "aria-label": "Most frequent confusions" }, ...frequent));
}

function drawWorst(run) {
  find("#worst .lede").textContent = run.worst.length
    ? `The ${run.worst.length} classes that ${run.after.name} gets wrong most often: what it takes them for, and ` +
      "the mistakes that it was surest of, each with the class that it named and how sure it was."
    : `${run.after.name} makes no mistake on these examples.`;
  find("#worst .cards").replaceChildren(...run.worst.map((bad) => mistakesOf(run, bad)));
}

function drawCost(run) {
  const most = Math.max(...run.cost.map((item) => item.seconds));
  const rows = run.cost.map(({ what, seconds }) =>
    row(what, [html("td", {}, duration(seconds)), html("td", { class: "meter" }, bar(seconds / most))]));
  fill(find("#cost table"), [html("tr", {}, column("What"), column("Time"), html("td"))], rows);
}

const terms = (entries) =>
  Object.entries(entries).flatMap(([name, value]) => [html("dt", {}, name), html("dd", {}, value)]);

function drawRun(run) {
  openClasses(run);
  find("#calibration .charts").replaceChildren(reliability(run, "before"), reliability(run, "after"));
  drawDispersion(run);
  drawWorst(run);
  drawCost(run);
  find("#settings .lists").replaceChildren(
    html("div", {}, html("h3", {}, "Stage 1: the representation"), html("dl", {}, ...terms(run.settings))),
    html("div", {}, html("h3", {}, `Stage 2: ${run.after.name}`), html("dl", {}, ...terms(run.head_settings))),
  );
  const provenance = { run: run.name, ...run.provenance, report: `srepr ${DATA.version}` };
  find("#provenance dl").replaceChildren(...terms(provenance));
}

/* Colours: as the system has them until the button is pressed. Pages opened from a disk may have no storage. */

function openTheme() {
  const system = matchMedia("(prefers-color-scheme: dark)"), root = document.documentElement, button = find("#theme");
  const stored = (work) => {
    try { return work(sessionStorage); } catch { return null; }
  };
  const other = () => ((root.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark" ? "light" : "dark");
  const label = () => (button.querySelector("span").textContent = other() === "dark" ? "Dark" : "Light");
  const kept = stored((storage) => storage.getItem("theme"));
  if (kept) root.dataset.theme = kept;
  button.addEventListener("click", () => {
    root.dataset.theme = other();
    stored((storage) => storage.setItem("theme", root.dataset.theme));
    label();
  });
  system.addEventListener("change", label);
  label();
}

function openPage({ runs }) {
  const several = runs.length > 1, sources = unique(runs.map((run) => run.source)).join(", ");
  find("#title").textContent = several ? `${runs.length} runs` : `${sources}, run ${runs[0].name}`;
  find("#facts").textContent = several ? sources : runs[0].facts;
  find("#verdict").classList.toggle("several", several);
  find("#verdict").replaceChildren(...runs.map((run) => verdict(run, several)));
  find("#runs").hidden = !several;
  find("#runs").append(...runs.map((run, i) => {
    const radio = html("input", { type: "radio", name: "run", checked: i === 0, change: () => drawRun(run) });
    return html("label", {}, radio, html("span", {}, run.name));
  }));
  openTheme();
  openControls();
  drawResults();
  drawRun(runs[0]);
}

openPage(DATA);
