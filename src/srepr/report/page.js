const DATA = JSON.parse(find("#data").textContent);
const { columns: COLUMNS } = DATA;
const KEYS = Object.keys(COLUMNS);
const unique = (things) => [...new Set(things)];

/* Classes, mistakes and settings are about the head as it is: it is the first view that has it so. */
for (const run of DATA.runs) Object.assign(run, { before: run.views[0].before, after: run.views[0].after });

/* Verdict: for each view the sentence, then four numbers, each with the 95 % interval of its change. */

function tile(label, view, key, { scale = 1, digits = 3, unit = "", points = "", lessIsBetter = false }, small) {
  const shown = (x) => Number((scale * number(x)).toFixed(digits)), interval = view.intervals[key]?.map(shown);
  const old = shown(view.before[key]), now = shown(view.after[key]), words = [`was ${decimal(old, digits)}${unit}`];
  if (small) words.push(`${whole(small)} test examples: too small to judge`);
  if (interval) {
    const [low, high] = interval, judged = low > 0 === lessIsBetter ? "worse" : "better";
    const signed = interval.map((x) => `${x < 0 ? "−" : "+"}${decimal(Math.abs(x), digits)}`);
    words.push(low > 0 || high < 0 ? judged : "no clear change", `${signed.join(" to ")}${points}`);
  }
  return html("div", {}, html("dt", {}, label), html("dd", { class: "number" }, decimal(now, digits) + unit),
    ...words.map((line) => html("dd", {}, line)));
}

function tiles({ small }, view) {
  const accuracy = { scale: 100, digits: 1, unit: "\u00a0%", points: " points" }, less = { lessIsBetter: true };
  const rarest = ["few", "medium", "many"].find((group) => view.before[group] !== null);
  return html("dl", { class: "tiles" },
    tile(`Accuracy, ${rarest}-shot`, view, rarest, accuracy, small[rarest]),
    tile(view.overall, view, "acc", accuracy),
    tile("NLL", view, "nll", less),
    tile("ECE", view, "ece", less));
}

function verdict(run, several) {
  const typeset = (words) => words.replaceAll(" %", "\u00a0%").replaceAll(/(?<=[ (])-(?=\d)/g, "−");
  const seen = run.views.flatMap((view) => [html("p", { class: "sentence" }, typeset(view.verdict)), tiles(run, view)]);
  const about = " Brackets, and the last lines above: 95 % confidence intervals of the change, by paired bootstrap.";
  return html("article", {}, ...(several ? [html("h2", {}, run.name)] : []), ...seen,
    html("p", { class: "flips" }, several ? `${run.source}: ${run.facts}. ${run.flips}` : run.flips, about));
}

/* Every classifier of every run: a table for each view. */

function openResults() {
  for (const title of unique(DATA.runs.flatMap((run) => run.views.map((view) => view.title)))) {
    const found = DATA.runs.map((run) => ({ run, view: run.views.find((view) => view.title === title) }));
    find("#results").append(...resultsOf(title, found.filter(({ view }) => view)));
  }
}

function resultsOf(title, parts) {
  const several = DATA.runs.length > 1, table = html("table");
  const order = { part: 0, key: null, descending: false };
  const names = unique(parts.flatMap(({ view }) => view.results.map((result) => result.name)));
  const found = names.map((name) => ({ name, by: parts.map(({ view }) => view.results.find((r) => r.name === name)) }));
  const value = (classifier, i, key) => number(classifier.by[i]?.[key] ?? null);
  const best = parts.map(({ run }, i) => Object.fromEntries(KEYS.filter((key) => !run.small[key]).map((key) => {
    const values = found.map((classifier) => value(classifier, i, key)).filter((x) => x !== null);
    return [key, COLUMNS[key].lower_is_better ? Math.min(...values) : Math.max(...values)];
  })));

  const sorts = (label, i, key) => {
    const active = order.part === i && order.key === key;
    return heading(label, active, order.descending, () => {
      const highestFirst = key !== "name" && !COLUMNS[key].lower_is_better;
      Object.assign(order, { part: i, key, descending: active ? !order.descending : highestFirst });
      draw();
    });
  };
  const group = ({ run }) => html("th", { scope: "colgroup", colspan: KEYS.length }, run.name, muted(` ${run.source}`));
  const cell = (x, i, key) => {
    const kinds = [x === best[i][key] && "best", several && key === KEYS[0] && "starts"].filter(Boolean);
    const shown = !COLUMNS[key].percent ? decimal(x) : x === null ? NONE : (100 * x).toFixed(2);
    const star = x !== null && parts[i].run.small[key] ? "*" : "";
    return html("td", { class: kinds.join(" ") || null }, shown + star);
  };
  const by = (classifier) => (order.key === "name" ? classifier.name : value(classifier, order.part, order.key));
  const numbers = (classifier) => parts.flatMap((_, i) => {
    const diverged = classifier.by[i]?.diverged;
    if (diverged) return [html("td", { class: "note starts", colspan: KEYS.length }, `diverged: ${cut(diverged, 60)}`)];
    return KEYS.map((key) => cell(value(classifier, i, key), i, key));
  });
  function draw() {
    const labels = parts.flatMap((_, i) => KEYS.map((key) => sorts(COLUMNS[key].title, i, key)));
    const headings = [html("tr", {}, sorts("Classifier", 0, "name"), ...labels)];
    if (several) headings.unshift(html("tr", {}, html("td"), ...parts.map(group)));
    const rows = (order.key ? sorted(found, by, order.descending) : found).map((classifier) => {
      const side = ["before", "after"].find((side) => parts.some(({ view }) => view[side].name === classifier.name));
      const marked = row(classifier.name, numbers(classifier));
      if (side) marked.firstChild.prepend(mark(side));
      marked.classList.toggle("compared", Boolean(side));
      return marked;
    });
    fill(table, headings, rows);
  }

  draw();
  const label = title ? `Every classifier, ${title}` : "Every classifier";
  const notes = parts.flatMap(({ run }) => run.footnotes.map((note) => (several ? `${note} (${run.name})` : note)));
  return [
    ...(title ? [html("h3", {}, title, muted(` ${parts[0].view.about}`))] : []),
    html("div", { class: "wide", tabindex: 0, role: "region", "aria-label": label }, table),
    ...notes.map((note) => html("p", { class: "footnote" }, note)),
  ];
}

/* Mistakes, cost, settings, provenance. */

const rightOf = (run, k) => Math.round((run.after.per_class[k] ?? 0) * run.tested[k]);

/* Examples of the class k as pictures or texts, each with the class that was named and how sure that was. */
function samples(run, k, examples) {
  const pictures = examples.filter((example) => example.image).map(({ image, predicted, confidence }) => {
    const name = run.classes[predicted], sure = percent(confidence, 0);
    const alt = `${run.classes[k]}, taken for ${name}, ${sure}`;
    return html("li", {}, html("img", { src: image, alt, class: image.startsWith("data:image/png") && "small" }),
      ...[name, sure].map((words) => html("span", { "aria-hidden": "true", title: words }, words)));
  });
  const texts = examples.filter((example) => example.text).map(({ text, predicted, confidence }) =>
    html("li", {}, html("q", {}, text), muted(`${run.classes[predicted]}, ${percent(confidence, 0)}`)));
  return [
    ...(pictures.length ? [html("ul", { class: "pictures" }, ...pictures)] : []),
    ...(texts.length ? [html("ul", { class: "texts", "aria-label": "Surest mistakes" }, ...texts)] : []),
  ];
}

function mistakesOf(run, { class: k, examples, confusions }) {
  const wrong = run.tested[k] - rightOf(run, k);
  const frequent = confusions.map(({ class: other, count }) => {
    const share = `${whole(count)} of ${whole(wrong)} mistakes, ${percent(count / wrong, 0)}`;
    return html("li", {}, html("span", {}, run.classes[other]), muted(share), bar(count / wrong));
  });
  const accuracies = `${percent(run.after.per_class[k])} right, before ${percent(run.before.per_class[k])}`;
  return html("article", {}, html("h3", {}, run.classes[k]),
    html("p", {}, `${accuracies}; ${whole(run.counts[k])} training examples, ${run.groups[k]}-shot`),
    ...samples(run, k, examples),
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

function drawChoice({ choice }) {
  find("#choice").hidden = !choice;
  if (!choice) return;
  find("#choice .lede").textContent = `The best candidate of each method, compared on ${choice.on} by the negative ` +
    "log-likelihood with every class counting the same. Among those within one standard error of the best, the " +
    "simplest was taken. The temperature divides the logits; the adjustment times the logarithm of the class shares " +
    "is added to them.";
  const rows = choice.candidates.map((found) => row(found.chosen ? `${found.title}, chosen` : found.title, [
    found.penalty, found.distill_weight ?? "-", found.temperature.toFixed(2), (found.adjustment ?? 0).toFixed(2),
    percent(found.balanced_acc), found.nll.toFixed(3),
    found.excess ? `+${found.excess.toFixed(3)} ± ${found.standard_error.toFixed(3)}` : "best",
  ].map((value) => html("td", {}, String(value)))));
  const names = ["Method", "Penalty", "Distillation", "Temperature", "Adjustment", "Balanced accuracy", "NLL",
    "Difference"];
  fill(find("#choice table"), [html("tr", {}, ...names.map((name) => column(name)))], rows);
}

const terms = (entries) =>
  Object.entries(entries).flatMap(([name, value]) => [html("dt", {}, name), html("dd", {}, value)]);

function drawRun(run) {
  openClasses(run);
  const diagrams = run.views.flatMap((view) => ["before", "after"].map((side) => reliability(view, side)));
  find("#calibration .charts").replaceChildren(...diagrams);
  drawReliability(run);
  drawDispersion(run);
  drawWorst(run);
  drawUse(run);
  drawCost(run);
  drawChoice(run);
  find("#settings .lists").replaceChildren(
    html("div", {}, html("h3", {}, "Stage 1: the representation"), html("dl", {}, ...terms(run.settings))),
    html("div", {}, html("h3", {}, `Stage 2: ${run.after.name}`), html("dl", {}, ...terms(run.head_settings))),
  );
  const provenance = { run: run.name, ...run.provenance, report: `srepr ${DATA.version}` };
  find("#provenance dl").replaceChildren(...terms(provenance));
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
  openMix();
  openResults();
  drawRun(runs[0]);
}

openPage(DATA);
