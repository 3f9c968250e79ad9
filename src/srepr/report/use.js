/* Using this model: what it confuses, what rejection and sets of labels bring, and another mix of classes. */

const GROUPS = ["all", "many", "medium", "few"];
const sample = (kind) =>
  svg("svg", { class: "mark", viewBox: "0 0 16 16", "aria-hidden": "true" }, line(`curve ${kind}`, 0, 8, 16, 8));

function rejectionChart({ coverage, kept, risk, area, by }) {
  const TOP = 10, SIZE = 220, height = TOP + SIZE + 44;
  const shown = GROUPS.filter((group) => risk[group]);
  const most = Math.max(...shown.flatMap((group) => risk[group].map((x) => x ?? 0))), steps = ticks(most);
  const y = linear([0, steps.at(-1)], [TOP + SIZE, TOP]);

  function draw(width) {
    const x = linear([0, 1], [LEFT, width - RIGHT]);
    const nodes = rules(steps, y, width, (v) => `${Number((100 * v).toPrecision(3))} %`);
    for (const group of shown) {
      const places = coverage.map((share, i) => [share, risk[group][i]]).filter(([, value]) => value !== null);
      const points = places.map(([share, value]) => [x(share), y(value)]).join(" ");
      nodes.push(svg("polyline", { class: `curve ${group}`, points }));
    }
    nodes.push(...[0, 0.5, 1].map((share) =>
      text(share === 0 ? "" : share === 1 ? "end" : "middle", x(share), TOP + SIZE + 18, percent(share, 0))));
    nodes.push(text("middle", x(0.5), height - 6, "inputs that are kept"));
    const marks = coverage.map((share, i) => ({
      x: x(share),
      lines: [`${percent(share, 0)} kept`, ...shown.map((group) => group === "all"
        ? `all: ${percent(risk.all[i])} wrong`
        : `${group}: ${percent(kept[group][i], 0)} kept, ${percent(risk[group][i])} wrong`)],
    }));
    return { height, nodes, marks };
  }
  return chart({
    title: "Errors among what is kept",
    about: "The most doubtful inputs go to a person. The curves show how many of the others are wrong, of all classes " +
      `and of each group, against the share that is kept. The order is that of ${by}. The mean over all shares (AURC) ` +
      `is ${decimal(area)}.`,
    legend: shown.map((group) => html("span", {}, sample(group), group)),
    draw,
    table: () => ({
      headings: ["Kept", "Wrong", ...shown.slice(1).flatMap((group) => [`${group} kept`, "wrong"])],
      rows: coverage.map((share, i) => [percent(share, 0), percent(risk.all[i]),
        ...shown.slice(1).flatMap((group) => [percent(kept[group][i], 0), percent(risk[group][i])])]),
    }),
  });
}

function drawSets({ sets, without_sets: without }) {
  find("#sets .wide").hidden = find("#sets .footnote").hidden = !sets;
  if (!sets) {
    find("#sets .lede").textContent = without;
    return;
  }
  find("#sets .lede").textContent = `With --coverage ${sets.coverage}, srepr predict gives a set of labels, one of ` +
    `which is right with a probability of ${percent(sets.coverage, 0)} in the class mix of training (${sets.form}).`;
  const rows = sets.rows.map(({ group, tested, coverage, size }) =>
    row(group, cells([whole(tested), percent(coverage), size.toFixed(2)])));
  fill(find("#sets table"), [html("tr", {}, ...["Classes", "Tested", "Coverage", "Labels"].map(column))], rows);
  find("#sets .footnote").textContent = sets.note;
}

/* The mix. Without adjustment, the metrics are weighted sums of means over the classes of each size. */

const METRICS = { acc: ["Accuracy", percent], nll: ["NLL", decimal], ece: ["ECE", decimal] };
const mix = { run: null, figures: [] };

function mixed({ sizes, classes: times, right, nll, gaps }, power) {
  const weights = sizes.map((size) => size ** power), all = total(weights.map((weight, i) => weight * times[i]));
  const average = (values) => total(values.map((value, i) => weights[i] * number(value))) / all;
  const ece = total(gaps[0].map((_, bin) => Math.abs(average(gaps.map((row) => row[bin])))));
  return { acc: average(right), nll: average(nll), ece };
}

/* [as it is, adjusted] at a position of the slider. */
function atPosition({ use }, i) {
  const { exponents, adjusted } = use.mix, keys = Object.keys(METRICS);
  return [mixed(use.mix, exponents[i]), Object.fromEntries(keys.map((key) => [key, number(adjusted[key][i])]))];
}

function sharesAt(run, power) {
  const parts = run.counts.map((n, k) => ({ group: run.groups[k], share: run.tested[k] ? Math.max(n, 1) ** power : 0 }));
  const all = total(parts.map((part) => part.share));
  return GROUPS.slice(1).filter((group) => run.groups.includes(group))
    .map((group) => [group, total(parts.map((part) => (part.group === group ? part.share : 0))) / all]);
}

function positionName(power) {
  if (power === 0) return "every class the same";
  const part = Math.abs(power) === 1 ? "" : `, to the power ${Math.abs(power)}`;
  return power > 0 ? `as trained${part}` : `turned round${part}`;
}

function mixChart(run, key) {
  const [label, said] = METRICS[key], TOP = 10, SIZE = 150, height = TOP + SIZE + 30, { exponents } = run.use.mix;
  const values = exponents.map((_, i) => atPosition(run, i).map((found) => found[key]));
  const finite = values.flat().filter(Number.isFinite), steps = key === "acc" ? [0, 0.25, 0.5, 0.75, 1] : ticks(Math.max(...finite, 0));
  const y = linear([0, steps.at(-1)], [TOP + SIZE, TOP]);

  function draw(width) {
    const x = linear([0, exponents.length - 1], [LEFT, width - RIGHT]), here = Number(find("[name=mix]").value);
    const nodes = rules(steps, y, width, key === "acc" ? (v) => `${100 * v} %` : (v) => Number(v.toPrecision(3)));
    nodes.push(line("guide", x(here), TOP, x(here), TOP + SIZE));
    ["plain", "adjusted"].forEach((kind, side) => {
      const places = values.map((pair, i) => [x(i), y(pair[side])]).filter(([, at]) => Number.isFinite(at));
      nodes.push(svg("polyline", { class: `curve ${kind}`, points: places.join(" ") }));
    });
    nodes.push(text("", x(0), height - 8, "as trained"), text("end", x(exponents.length - 1), height - 8, "turned round"));
    const marks = values.map(([plain, adjusted], i) => {
      const lines = [`as it is: ${said(plain)}`, `adjusted: ${said(adjusted)}`];
      return { x: x(i), lines: [positionName(exponents[i]), ...lines] };
    });
    return { height, nodes, marks };
  }
  return chart({
    title: label,
    about: `${label} in mixes of classes from that of training over equal shares to the reverse, with probabilities ` +
      "as they are and adjusted to the mix.",
    legend: [["plain", "as it is"], ["adjusted", "adjusted"]].map(([kind, words]) => html("span", {}, sample(kind), words)),
    draw,
    table: () => ({
      headings: ["Mix", "As it is", "Adjusted"],
      rows: values.map((pair, i) => [positionName(exponents[i]), ...pair.map((value) => said(value))]),
    }),
  });
}

function drawPosition() {
  const slider = find("[name=mix]"), i = Number(slider.value), { run } = mix, power = run.use.mix.exponents[i];
  slider.setAttribute("aria-valuetext", positionName(power));
  const names = ["Probabilities as they are", "Adjusted to the mix (--prior)"];
  const rows = atPosition(run, i).map((found, side) =>
    row(names[side], cells(Object.entries(METRICS).map(([key, [, said]]) => said(found[key])))));
  const headings = [`Class shares: ${positionName(power)}`, ...Object.values(METRICS).map(([label]) => label)];
  fill(find("#mix table"), [html("tr", {}, ...headings.map(column))], rows);
  const untested = run.tested.filter((n) => !n).length;
  const [noun, verb] = untested === 1 ? ["class", "does"] : ["classes", "do"];
  const missing = untested ? ` ${whole(untested)} ${noun} without ${run.use.part} examples ${verb} not count.` : "";
  const shares = sharesAt(run, power).map(([group, share]) => `${group} ${percent(share)}`);
  find("#mix .footnote").textContent = `Inputs of each group in this mix: ${shares.join(", ")}.${missing}`;
  for (const figure of mix.figures) figure.redraw();
}

function openMix() {
  find("[name=mix]").addEventListener("input", drawPosition);
  find("#mix form").addEventListener("submit", (event) => event.preventDefault());
}

function drawUse(run) {
  const { part, rejection } = run.use;
  find("#use .lede").textContent = `What ${run.after.name} did with the ${part} examples: which classes it takes for ` +
    "which others, what is gained if the most doubtful inputs go to a person, and what changes if the classes come in " +
    "other shares.";
  find("#use .matrix").replaceChildren(...confusionMatrix(run));
  find("#rejection").replaceChildren(rejectionChart(rejection),
    html("p", { class: "footnote" }, `Ordered by ${rejection.by}. AURC ${decimal(rejection.area)}.`));
  drawSets(run.use);
  find("#mix .lede").textContent = `The ${part} examples are weighted: each class gets a share in proportion to n^a, ` +
    "where n counts its training examples, from a = 1 to a = −1. If the mix is known, srepr predict --prior adjusts " +
    "the probabilities to it; --prior estimate finds it from the inputs.";
  Object.assign(mix, { run, figures: Object.keys(METRICS).map((key) => mixChart(run, key)) });
  find("#mix .charts").replaceChildren(...mix.figures);
  drawPosition();
}
