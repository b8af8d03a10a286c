(() => {
  const data = JSON.parse(document.getElementById("panel-data").textContent);
  const part = name => document.getElementById("panel-" + name);
  const [optimizer, rate, split, quantity, step] = ["optimizer", "rate", "split", "quantity", "step"].map(part);
  const box = { left: 46, right: 310, top: 24, bottom: 192 };

  const fill = (select, entries) => {
    const kept = select.value;
    select.replaceChildren(...entries.map(([value, text]) => new Option(text, value)));
    if (entries.some(([value]) => value === kept)) select.value = kept;
  };
  const shown = value => String(+value.toPrecision(3));
  const make = (name, attributes, text) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const scale = (low, high, from, to) => value => from + ((value - low) / (high - low || 1)) * (to - from);

  // Axes with three ticks each; returns the scales.
  const frame = (svg, title, [x0, x1], [y0, y1], across, up) => {
    const x = scale(x0, x1, box.left, box.right);
    const y = scale(y0, y1, box.bottom, box.top);
    const ink = { fill: "currentColor", "font-size": 11 };
    const line = { stroke: "currentColor", "stroke-width": 1, "stroke-opacity": 0.6 };
    const parts = [
      make("text", { ...ink, x: box.left, y: 14, "font-weight": 600 }, title),
      make("line", { ...line, x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }),
      make("line", { ...line, x1: box.left, x2: box.left, y1: box.top, y2: box.bottom }),
      make("text", { ...ink, x: (box.left + box.right) / 2, y: 224, "text-anchor": "middle" }, across),
      make("text", { ...ink, x: -(box.top + box.bottom) / 2, y: 10, transform: "rotate(-90)", "text-anchor": "middle" }, up),
    ];
    for (const share of [0, 0.5, 1]) {
      const u = x0 + share * (x1 - x0);
      const v = y0 + share * (y1 - y0);
      parts.push(make("text", { ...ink, x: x(u), y: 207, "text-anchor": "middle" }, shown(u)));
      parts.push(make("text", { ...ink, x: box.left - 5, y: y(v) + 4, "text-anchor": "end" }, shown(v)));
    }
    svg.replaceChildren(...parts);
    return { x, y };
  };

  const accent = "var(--accent)";
  const drawCurve = (run, chosen) => {
    const svg = part("curve");
    const curve = run.curves[quantity.value];
    if (!curve) return svg.replaceChildren();
    const [steps, values] = curve;
    const span = [Math.min(...values), Math.max(...values)];
    const { x, y } = frame(svg, data.quantities[quantity.value], [steps[0], steps.at(-1)], span, "step", "");
    const points = steps.map((s, i) => `${x(s).toFixed(1)},${y(values[i]).toFixed(1)}`).join(" ");
    svg.append(make("polyline", { points, fill: "none", stroke: accent, "stroke-width": 1.5 }));
    svg.append(make("line", { x1: x(chosen), x2: x(chosen), y1: box.top, y2: box.bottom, stroke: "currentColor", "stroke-dasharray": "3 3" }));
  };
  const drawReliability = bins => {
    const svg = part("reliability");
    const { x, y } = frame(svg, "reliability", [0, 1], [0, 1], "confidence", "accuracy");
    svg.append(make("line", { x1: x(0), y1: y(0), x2: x(1), y2: y(1), stroke: "currentColor", "stroke-dasharray": "2 3" }));
    const points = bins.map(([c, a]) => `${x(c).toFixed(1)},${y(a).toFixed(1)}`).join(" ");
    svg.append(make("polyline", { points, fill: "none", stroke: accent, "stroke-width": 1.5 }));
    const most = Math.max(...bins.map(bin => bin[2]));
    for (const [c, a, n] of bins) svg.append(make("circle", { cx: x(c), cy: y(a), r: 2 + 4 * Math.sqrt(n / most), fill: accent }));
  };
  const drawMargins = (counts, [low, high]) => {
    const svg = part("margins");
    const most = Math.max(...counts);
    const { x, y } = frame(svg, "margins", [low, high], [0, most], "margin (logits)", "samples");
    const width = (high - low) / counts.length;
    counts.forEach((n, i) => {
      const left = x(low + i * width);
      svg.append(make("rect", { x: left, y: y(n), width: x(low + (i + 1) * width) - left - 0.5, height: box.bottom - y(n), fill: accent }));
    });
    if (low < 0 && high > 0) svg.append(make("line", { x1: x(0), x2: x(0), y1: box.top, y2: box.bottom, stroke: "currentColor" }));
  };

  const draw = () => {
    const rates = data.optimizers[optimizer.value];
    fill(rate, Object.keys(rates).map(eta => [eta, "η = " + eta]));
    const run = rates[rate.value];
    for (const option of split.options) option.disabled = !(option.value in run.diagrams);
    if (!(split.value in run.diagrams)) split.value = Object.keys(run.diagrams)[0];
    fill(quantity, Object.keys(run.curves).map(name => [name, data.quantities[name]]));
    const diagrams = run.diagrams[split.value];
    step.max = diagrams.steps.length - 1;
    const at = Math.min(+step.value, diagrams.steps.length - 1);
    const chosen = diagrams.steps[at];
    step.setAttribute("aria-valuetext", "step " + chosen);
    const bins = diagrams.bins[at];
    const total = bins.reduce((sum, bin) => sum + bin[2], 0);
    const confidence = bins.reduce((sum, [c, , n]) => sum + c * n, 0) / total;
    const accuracy = bins.reduce((sum, [, a, n]) => sum + a * n, 0) / total;
    const error = bins.reduce((sum, [c, a, n]) => sum + Math.abs(c - a) * n, 0) / total;
    const words = `${run.run}, step ${chosen}, ${split.value}: ECE ${shown(error)}, accuracy ${shown(accuracy)}, mean confidence ${shown(confidence)}`;
    part("words").textContent = words;
    document.getElementById("panel").style.setProperty("--colour", data.colours[optimizer.value]);
    part("reliability").setAttribute("aria-label", "Reliability diagram. " + words);
    part("margins").setAttribute("aria-label", "Histogram of margins. " + words);
    part("curve").setAttribute("aria-label", data.quantities[quantity.value] + " over steps. " + words);
    drawCurve(run, chosen);
    drawReliability(bins);
    drawMargins(diagrams.margins[at], diagrams.edges);
  };
  fill(optimizer, Object.keys(data.optimizers).map(name => [name, name]));
  for (const control of [optimizer, rate, split, quantity, step]) control.addEventListener("input", draw);
  draw();
})();
