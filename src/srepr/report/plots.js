/* Calibration: by the group of the predicted class, and the reliability diagram of one classifier in one view. */
function drawReliability({ after, use }) {
  const rows = use.reliability.map(({ group, predicted, accuracy, confidence, ece }) =>
    row(group, cells([whole(predicted), percent(accuracy), percent(confidence), decimal(ece)])));
  const names = ["Predicted", "Predictions", "Right", "Mean confidence", "ECE"];
  fill(find("#calibration table"), [html("tr", {}, ...names.map(column))], rows);
  find("#calibration .footnote").textContent = `${after.name}, ${use.part} examples as they are. A class is calibrated ` +
    "if its mean confidence is its precision; the table of classes has both.";
}

function reliability(view, kind) {
  const { name, ece, bins } = view[kind], error = decimal(number(ece));
  const TOP = 10, SIZE = 250, STRIP = 40, floor = TOP + SIZE + 44 + STRIP, height = floor + 20;
  const total = bins.reduce((sum, bin) => sum + bin.count, 0), most = Math.max(...bins.map((bin) => bin.count));
  const y = linear([0, 1], [TOP + SIZE, TOP]);

  function draw(width) {
    const x = linear([0, 1], [LEFT, width - RIGHT]), step = x(1 / bins.length) - x(0), thick = step - 2;
    const nodes = rules([0, 0.25, 0.5, 0.75, 1], y, width, (v) => `${100 * v} %`);
    const marks = [];
    bins.forEach(({ count, confidence, accuracy }, i) => {
      if (!count) return;
      const left = x(i / bins.length) + 1, strip = Math.max((STRIP * count) / most, 1);
      const top = y(Math.max(accuracy, confidence)), gap = Math.abs(y(accuracy) - y(confidence));
      nodes.push(rect(`fill-${kind}`, left, y(accuracy), thick, y(0) - y(accuracy)));
      nodes.push(rect("gap", left, top, thick, gap));
      const hatch = accuracy > confidence ? "hatch inside" : "hatch";
      for (let at = top + 4; at < top + gap; at += 5) nodes.push(line(hatch, left, at, left + thick, at));
      nodes.push(rect("count", left, floor - strip, thick, strip));
      const lines = [`accuracy ${percent(accuracy)}`, `${whole(count)} predictions, ${percent(count / total)} of all`];
      marks.push({ x: left + thick / 2, lines: [`Confidence ${percent(confidence)}`, ...lines] });
    });
    nodes.push(
      line("guide", x(0), y(0), x(1), y(1)),
      line("grid", LEFT, floor, width - RIGHT, floor),
      text("", x(0), y(0) + 18, "0 %"),
      text("middle", x(0.5), y(0) + 18, "50 %"),
      text("end", x(1), y(0) + 18, "100 %"),
      text("middle", x(0.5), y(0) + 34, "confidence"),
      text("middle", x(0.5), height - 4, "predictions with that confidence"),
    );
    return { height, nodes, marks };
  }
  return chart({
    title: view.title ? `${name}, ${view.title}` : name,
    about: `Reliability diagram: accuracy against confidence. The expected calibration error is ${error}.`,
    legend: [muted(`ECE ${error}`)],
    draw,
    table: () => ({
      headings: ["Confidence", "Accuracy", "Predictions"],
      rows: bins.filter((bin) => bin.count).map((b) => [percent(b.confidence), percent(b.accuracy), whole(b.count)]),
    }),
  });
}

/* Dispersion. */

const SPACES = { feature: "features", probability: "probabilities" };

function boxes(space, { pearson, quartiles }) {
  const names = ["lowest quarter", "second", "third", "highest"], r = decimal(pearson, 2);
  const TOP = 10, SIZE = 200, height = TOP + SIZE + 44;
  const most = Math.max(...quartiles.map((box) => box.high)), steps = ticks(most), [tick, unit] = units(most);
  const y = linear([0, steps.at(-1)], [TOP + SIZE, TOP]);

  function draw(width) {
    const { step, x } = columns(quartiles, width, 1), half = Math.min(step * 0.3, 34);
    const nodes = rules(steps, y, width, tick);
    const marks = quartiles.map(({ low, q1, median, q3, high }, i) => {
      nodes.push(
        line("whisker", x(i), y(low), x(i), y(q1)),
        line("whisker", x(i), y(q3), x(i), y(high)),
        rect("box", x(i) - half, y(q3), 2 * half, Math.max(y(q1) - y(q3), 1)),
        line("median", x(i) - half, y(median), x(i) + half, y(median)),
        text("middle", x(i), TOP + SIZE + 18, names[i]),
      );
      const lines = [`middle half ${small(q1)} to ${small(q3)}`, `whiskers ${small(low)} to ${small(high)}`];
      return { x: x(i), lines: [`NLL: ${names[i]}`, `median ${small(median)}`, ...lines] };
    });
    nodes.push(text("middle", (LEFT + width - RIGHT) / 2, height - 8, "examples by their NLL"));
    return { height, nodes, marks };
  }
  return chart({
    title: `Dispersion of ${SPACES[space]} by NLL`,
    about:
      "Box plots of the dispersion over four quarters of the examples, from the lowest NLL to the highest. " +
      `Pearson correlation with the NLL: ${r}.`,
    legend: [muted(`r = ${r}`), muted(unit)],
    draw,
    table: () => ({
      headings: ["NLL", "Whisker", "Quarter", "Median", "Three quarters", "Whisker"],
      rows: quartiles.map((b, i) => [names[i], ...[b.low, b.q1, b.median, b.q3, b.high].map(small)]),
    }),
  });
}

function byClass(run, space, { per_class }) {
  const TOP = 10, SIZE = 160, height = TOP + SIZE + 30;
  const named = run.classes.map((name, k) => ({ name, count: run.counts[k], value: per_class[k] }));
  const things = sorted(named, (c) => c.count, true);
  const most = Math.max(...things.map((c) => c.value ?? 0)), steps = ticks(most), [tick, unit] = units(most);
  const y = linear([0, steps.at(-1)], [TOP + SIZE, TOP]);

  function draw(width) {
    const { groups, step, x } = columns(things, width, 7), size = Math.min(Math.max(step / 3, 2), 5);
    const nodes = rules(steps, y, width, tick);
    const marks = groups.map((group, i) => {
      const [count, value] = ["count", "value"].map((key) => mean(group.map((c) => c[key])));
      if (value !== null) nodes.push(MARKS.after(x(i), y(value), size));
      return { x: x(i), lines: [nameOf(group), `${small(count)} training examples`, `dispersion ${small(value)}`] };
    });
    nodes.push(text("", LEFT, height - 8, "most examples"), text("end", width - RIGHT, height - 8, "fewest"));
    return { height, nodes, marks };
  }
  return chart({
    title: `Dispersion of ${SPACES[space]} by class`,
    about: "Mean dispersion of each class, from the class with the most training examples to the one with the fewest.",
    legend: [muted(unit)],
    draw,
    table: () => ({
      headings: ["Class", "Training examples", "Dispersion"],
      rows: things.map((c) => [c.name, whole(c.count), small(c.value)]),
    }),
  });
}

/* One metric of the averaged prediction of 1, 2, .. draws, beside the single averaged network. */
function ensemble(key, label, { ensemble: curve, single }) {
  const TOP = 10, SIZE = 150, height = TOP + SIZE + 40;
  const [said, tick] = key === "acc" ? [percent, (v) => (100 * v).toFixed(1)] : [decimal, decimal];
  const value = (point) => said(number(point[key])), finite = (point) => Number.isFinite(point[key]);
  const values = [...curve, single].filter(finite).map((point) => point[key]);
  const [low, high] = [Math.min(...values), Math.max(...values)], room = (high - low || 0.01) * 0.15;
  const y = linear([low - room, high + room], [TOP + SIZE, TOP]);

  function draw(width) {
    const { x } = columns(curve, width, 1);
    const nodes = rules(values.length ? [low, (low + high) / 2, high] : [], y, width, tick);
    if (finite(single)) nodes.push(line("guide", LEFT, y(single[key]), width - RIGHT, y(single[key])));
    const places = curve.map((point, i) => [x(i), y(point[key])]).filter((_, i) => finite(curve[i]));
    nodes.push(
      svg("polyline", { class: "curve", points: places.join(" ") }),
      ...places.map((place) => MARKS.after(...place)),
      ...curve.map((point, i) => text("middle", x(i), TOP + SIZE + 18, point.samples)),
      text("middle", (LEFT + width - RIGHT) / 2, height - 6, "networks averaged"),
    );
    const marks = curve.map((point, i) => {
      const lines = [`${label} ${value(point)}`, `averaged network: ${value(single)}`];
      return { x: x(i), lines: [`${point.samples} drawn`, ...lines] };
    });
    return { height, nodes, marks };
  }
  return chart({
    title: `Ensemble of draws: ${label}`,
    about:
      `${label} of the averaged prediction against the number of drawn networks; the dashed line is the single ` +
      "averaged network.",
    draw,
    table: () => ({
      headings: ["Networks", label],
      rows: [...curve.map((point) => [point.samples, value(point)]), ["single", value(single)]],
    }),
  });
}

function drawDispersion(run) {
  const found = run.dispersion, spaces = found ? Object.keys(SPACES) : [];
  const curves = found ? Object.entries({ acc: "accuracy", nll: "NLL", ece: "ECE" }) : [];
  find("#dispersion .lede").textContent = found
    ? `${found.samples} networks were drawn from the posterior of stage 1. Where they disagree about an example, ` +
      "the network is more likely to be wrong about it. The dashed line in the curves is the single averaged network."
    : "Left out of this page: no networks were drawn.";
  find("#dispersion .two").replaceChildren(
    ...spaces.map((space) => boxes(space, found[space])),
    ...spaces.map((space) => byClass(run, space, found[space])),
  );
  find("#dispersion .three").replaceChildren(...curves.map(([key, label]) => ensemble(key, label, found)));
}
