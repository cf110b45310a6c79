"use strict";
// What a page of fedax does beyond its tables: colours, sorting, filtering and the charts. Texts
// from data go in as text, never as HTML.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const charts = [];
  const NUM_COLOURS = 6;
  const DASHES = [[], [9, 4], [2, 3], [11, 3, 2, 3]];  // as the swatches, see marks.py
  const FEW_POINTS = 60, FEW_BANDS = 8, FEW_CURVES = 40, MOST_READ = 7, FEWEST_TO_FILTER = 6, HEIGHT = 320;

  const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const make = (tag, text = "", properties = {}) =>
    Object.assign(document.createElement(tag), { textContent: text }, properties);
  const short = (value) => String(Number(value.toPrecision(5)));

  // Light and dark ----------------------------------------------------------------------------

  const system = matchMedia("(prefers-color-scheme: dark)");
  const themeButton = make("button", "", { type: "button", id: "theme" });
  let asked = null;
  try { asked = localStorage.getItem("fedax-theme"); } catch { /* a browser that keeps nothing */ }

  function theme(name) {
    root.dataset.theme = name || asked || (system.matches ? "dark" : "light");
    themeButton.textContent = root.dataset.theme === "dark" ? "Light colours" : "Dark colours";
    for (const chart of charts) chart.plot.redraw(false);
  }
  themeButton.addEventListener("click", () => {
    asked = root.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("fedax-theme", asked); } catch { /* likewise */ }
    theme();
  });
  system.addEventListener("change", () => theme());
  addEventListener("beforeprint", () => theme("light"));
  addEventListener("afterprint", () => theme());
  document.querySelector("header").append(themeButton);
  theme();

  // Tables --------------------------------------------------------------------------------------

  const key = (row, column) => {
    const cell = row.cells[column];
    if (!("value" in cell.dataset)) return cell.textContent.trim();
    return cell.dataset.value === "" ? null : Number(cell.dataset.value);
  };

  function compare(a, b, sign) {
    if (a === null || b === null) return (a === null) - (b === null);  // nothing comes last
    if (typeof a === "number" && typeof b === "number") return sign * (a - b);
    return sign * String(a).localeCompare(String(b), undefined, { numeric: true });
  }

  function sorts(table) {
    const heads = [...table.tHead.rows[0].cells];
    const body = table.tBodies[0];
    heads.forEach((head, column) => {
      const button = make("button", head.textContent, { type: "button" });
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const rows = [...body.rows].map((row) => [key(row, column), row]);
        rows.sort((a, b) => compare(a[0], b[0], up ? 1 : -1));
        body.append(...rows.map(([, row]) => row));
      });
    });
  }

  function filters(table) {
    const rows = [...table.tBodies[0].rows];
    if (rows.length < FEWEST_TO_FILTER) return;
    const words = make("input", "", { type: "search", placeholder: "words" });
    const label = make("label", "Filter rows: ");
    label.append(words);
    const count = make("output", `${rows.length} rows`);
    count.setAttribute("aria-live", "polite");
    words.addEventListener("input", () => {
      const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
      let left = 0;
      for (const row of rows) {
        const text = `${row.textContent} ${row.dataset.words || ""}`.toLowerCase();
        row.hidden = !wanted.every((word) => text.includes(word));
        left += !row.hidden;
      }
      count.textContent = left < rows.length ? `${left} of ${rows.length} rows` : `${left} rows`;
    });
    const bar = make("div", "", { className: "filter" });
    bar.append(label, count);
    table.parentElement.before(bar);
  }

  for (const table of document.querySelectorAll("table.sorts")) {
    sorts(table);
    filters(table);
  }

  // Charts ----------------------------------------------------------------------------------------

  const colour = (series) => css(`--c${series % NUM_COLOURS}`);
  const dash = (series) => DASHES[Math.floor(series / NUM_COLOURS) % DASHES.length];
  const stepped = [1, 2, 5].flatMap((n) => [...Array(9).keys()].map((e) => n * 10 ** e));
  stepped.sort((a, b) => a - b);

  // The mean of what was measured in the last so many rounds.
  function smooth(x, y, rounds) {
    if (rounds === 1) return y;
    let sum = 0, count = 0, first = 0;
    return y.map((value, i) => {
      if (value !== null) { sum += value; count += 1; }
      for (; x[first] <= x[i] - rounds; first++) {
        if (y[first] !== null) { sum -= y[first]; count -= 1; }
      }
      return value === null || count === 0 ? null : sum / count;
    });
  }

  function swatch(series) {
    const space = "http://www.w3.org/2000/svg";
    const svg = document.createElementNS(space, "svg");
    const line = document.createElementNS(space, "line");
    svg.setAttribute("class", "swatch");
    for (const [name, value] of Object.entries({
      x1: 0, x2: 26, y1: 4, y2: 4, "stroke-width": 3, stroke: `var(--c${series % NUM_COLOURS})`,
      "stroke-dasharray": dash(series).join(" "),
    })) line.setAttribute(name, value);
    svg.append(line);
    return svg;
  }

  class Chart {
    constructor(figure, given) {
      this.figure = figure;
      this.given = given;
      this.view = given.views[0];
      this.window = 1;
      this.box = figure.querySelector(".plot");
      this.note = figure.querySelector(".note");
      this.readout = make("div", "", { className: "readout", hidden: true });
      this.readout.setAttribute("aria-live", "polite");
      this.boxes = [...document.querySelectorAll(`input[data-chart="${figure.id}"]`)];
      this.shown = given.labels.map(() => false);
      this.cells = new Map();  // of the heat maps
      for (const cell of document.querySelectorAll("[data-curve]")) {
        this.cells.set(Number(cell.dataset.curve), cell);
      }
      for (const box of this.boxes) this.shown[box.dataset.series] = box.checked;
      if (!this.boxes.length) this.shown.fill(true);
      for (const [series, cell] of this.cells) cell.setAttribute("aria-pressed", this.shown[series]);
      this.draw();
      this.listen();
      figure.chart = this;
    }

    format(value) {
      return this.view.percent ? `${short(100 * value)}%` : short(value);
    }

    draw() {
      const { x, y } = this.view;
      const old = this.plot && this.view === this.drawn ? this.plot.scales.x : null;
      this.plot?.destroy();
      this.drawn = this.view;
      const many = this.shown.length > FEW_CURVES;
      const log = this.figure.querySelector(".log")?.checked;
      const quiet = () => css("--quiet"), line = () => css("--line");
      const axis = { stroke: quiet, grid: { stroke: line, width: 1 }, ticks: { stroke: line } };
      this.plot = new uPlot({
        width: this.box.clientWidth, height: HEIGHT, legend: { show: false },
        cursor: {
          drag: { x: true, y: false, dist: 4 }, focus: { prox: many ? -1 : 30 },
          points: { show: !many },
        },
        focus: { alpha: 0.35 },
        scales: {
          x: { time: false, range: (_, low, high) => low === high ? [low - 1, high + 1] : [low, high] },
          y: { distr: log ? 3 : 1, range: (plot, low, high) => this.range(plot, low, high, log) },
        },
        axes: [
          { ...axis, label: "round", labelSize: 18, labelGap: 0, labelFont: "12px system-ui", incrs: stepped, space: 60 },
          {
            ...axis,
            values: (_, splits) => splits.map((value) => value === null ? null : this.format(value)),
            size: (_, texts) => 20 + 7 * Math.max(3, ...(texts || []).map((t) => t ? t.length : 0)),
          },
        ],
        series: [{}, ...y.map((_, i) => ({
          label: this.given.labels[i], show: this.shown[i], stroke: () => colour(i), width: 1.6,
          dash: this.dash(i), spanGaps: true, points: { show: false },
        }))],
        hooks: {
          drawAxes: [(plot) => this.inside(plot, () => this.drawBands(plot))],
          draw: [(plot) => this.inside(plot, () => {
            this.drawPoints(plot);
            this.drawReferences(plot);
          })],
          setCursor: [(plot) => this.read(plot)],
        },
      }, [x, ...y.map((values) => smooth(x, values, this.window))], this.box);
      this.plot.over.append(this.readout);
      if (old) this.plot.setScale("x", { min: old.min, max: old.max });
      this.say();
    }

    // Among very many curves no dashes are seen, and they are slow to draw.
    dash(series) {
      return this.shown.filter(Boolean).length > FEW_CURVES ? [] : dash(series);
    }

    // What diverges would leave nothing to see of the others: there the picture ends.
    range(plot, low, high, log) {
      this.cut = false;
      if (low === null) return [log ? 0.1 : 0, 1];
      if (log) return uPlot.rangeLog(low, high, 10, true);
      for (const { value } of this.view.references || []) {
        low = Math.min(low, value);
        high = Math.max(high, value);
      }
      let start = 0;
      plot.series.slice(1).forEach(({ show }, i) => {
        const first = show && this.view.y[i].find((value) => value !== null);
        start = Math.max(start, Math.abs(first || 0));
      });
      if (start && high > 20 * start) {
        this.cut = true;
        high = 2 * start;
      }
      return low === high ? [low - 0.5, high + 0.5] : uPlot.rangeNum(Math.min(low, high), high, 0.08, true);
    }

    inside(plot, draw) {
      const { ctx, bbox } = plot, aside = 4 * uPlot.pxRatio;  // for points at either end
      ctx.save();
      ctx.beginPath();
      ctx.rect(bbox.left - aside, bbox.top, bbox.width + 2 * aside, bbox.height);
      ctx.clip();
      draw();
      ctx.restore();
    }

    each(draw) {
      this.shown.forEach((shown, i) => { if (shown) draw(i); });
    }

    drawBands(plot) {
      const { spread, x, y } = this.view;
      const few = this.shown.filter(Boolean).length <= FEW_BANDS;
      if (!spread || !few || this.window > 1) return;
      this.each((i) => {
        if (!spread[i]) return;
        const there = x.map((_, k) => k).filter((k) => spread[i][k] !== null && y[i][k] !== null);
        const point = (k, sign) => plot.ctx.lineTo(
          plot.valToPos(x[k], "x", true), plot.valToPos(y[i][k] + sign * spread[i][k], "y", true),
        );
        plot.ctx.beginPath();
        for (const k of there) point(k, 1);
        for (const k of there.reverse()) point(k, -1);
        plot.ctx.fillStyle = colour(i);
        plot.ctx.globalAlpha = 0.15;
        plot.ctx.fill();
        plot.ctx.globalAlpha = 1;
      });
    }

    // Of a sample: hollow. Where points are many, only those that are not.
    drawPoints(plot) {
      const { sampled, x } = this.view;
      const [from, to] = plot.series[0].idxs || [0, -1];
      if (this.shown.filter(Boolean).length > FEW_CURVES) return;
      this.each((i) => {
        const values = plot.data[i + 1], hollow = new Set(sampled?.[i] || []), there = [];
        for (let k = from; k <= to; k++) if (values[k] !== null) there.push(k);
        const few = there.length < FEW_POINTS;
        if (!few && !hollow.size) return;
        plot.ctx.strokeStyle = colour(i);
        plot.ctx.lineWidth = 1.4 * uPlot.pxRatio;
        for (const k of few ? there : there.filter((k) => !hollow.has(k))) {
          plot.ctx.beginPath();
          plot.ctx.arc(
            plot.valToPos(x[k], "x", true), plot.valToPos(values[k], "y", true),
            2.6 * uPlot.pxRatio, 0, 2 * Math.PI,
          );
          plot.ctx.fillStyle = hollow.has(k) ? css("--paper") : colour(i);
          plot.ctx.fill();
          plot.ctx.stroke();
        }
      });
    }

    drawReferences(plot) {
      const { ctx, bbox } = plot;
      for (const { label, value } of this.view.references || []) {
        const at = plot.valToPos(value, "y", true);
        ctx.strokeStyle = ctx.fillStyle = css("--quiet");
        ctx.lineWidth = uPlot.pxRatio;
        ctx.setLineDash([6 * uPlot.pxRatio, 4 * uPlot.pxRatio]);
        ctx.beginPath();
        ctx.moveTo(bbox.left, at);
        ctx.lineTo(bbox.left + bbox.width, at);
        ctx.stroke();
        ctx.font = `${12 * uPlot.pxRatio}px system-ui, sans-serif`;
        ctx.textAlign = "right";
        const place = [label, bbox.left + bbox.width - 6, at - 5 * uPlot.pxRatio];
        ctx.setLineDash([]);
        ctx.strokeStyle = css("--paper");  // so that it is read on curves
        ctx.lineWidth = 4 * uPlot.pxRatio;
        ctx.strokeText(...place);
        ctx.fillText(...place);
      }
    }

    // The values under the pointer, those nearest to it if there are many.
    read(plot) {
      const { idx, left, top } = plot.cursor;
      const rows = [];
      if (idx !== null && idx !== undefined && left >= 0) {
        this.each((i) => {
          const value = plot.data[i + 1][idx];
          if (value !== null && value !== undefined) {
            rows.push({ i, value, far: Math.abs(plot.valToPos(value, "y") - top) });
          }
        });
      }
      this.readout.hidden = !rows.length;
      if (!rows.length) return;
      rows.sort((a, b) => a.far - b.far);
      const nearest = rows[0], more = rows.length - MOST_READ;
      const read = rows.slice(0, MOST_READ).sort((a, b) => b.value - a.value);
      this.readout.replaceChildren(make("div", `round ${this.view.x[idx]}`), ...read.map((row) => {
        const entry = make("div", "", { className: row === nearest ? "nearest" : "" });
        entry.append(
          swatch(row.i), make("span", this.given.labels[row.i]), make("b", this.format(row.value)),
        );
        return entry;
      }));
      if (more > 0) this.readout.append(make("div", `and ${more} more`));
      const right = left > plot.over.clientWidth / 2;
      this.readout.style.left = right ? "auto" : `${left + 14}px`;
      this.readout.style.right = right ? `${plot.over.clientWidth - left + 14}px` : "auto";
      this.readout.style.top = "6px";
    }

    say() {
      const words = [];
      if (this.cut) words.push("Curves that leave the picture at the top have values far beyond it.");
      if (this.window > 1) {
        words.push(`Each point is the mean of the last ${this.window} rounds up to it.`);
      }
      if (this.view.spread && this.window === 1) {
        words.push(
          `Mean over the seeds; the shade is one sample standard deviation to either side${
            this.shown.filter(Boolean).length > FEW_BANDS ? `, shown of up to ${FEW_BANDS} curves` : ""
          }.`,
        );
      }
      if (this.view.note) words.push(this.view.note);
      if (!this.shown.some(Boolean)) words.push("No curve is chosen: tick some below.");
      this.note.textContent = words.join(" ");
    }

    show(series, shown) {
      this.shown[series] = shown;
      this.cells.get(series)?.setAttribute("aria-pressed", shown);
      for (const box of this.boxes) if (Number(box.dataset.series) === series) box.checked = shown;
      this.plot.setSeries(series + 1, { show: shown });
    }

    showAll(wanted) {
      this.plot.batch(() => {
        for (const box of this.boxes) {
          const series = Number(box.dataset.series);
          if (this.shown[series] !== wanted(box)) this.show(series, wanted(box));
        }
      });
      this.shown.forEach((_, i) => { this.plot.series[i + 1].dash = this.dash(i); });
      queueMicrotask(() => this.say());
    }

    ends() {
      const { x } = this.view;
      return [x[0], x[x.length - 1]];
    }

    zoom(factor) {
      const [first, last] = this.ends(), { min, max } = this.plot.scales.x, { left } = this.plot.cursor;
      const centre = left > 0 ? this.plot.posToVal(left, "x") : (min + max) / 2;
      const low = Math.max(first, centre - (centre - min) * factor);
      const high = Math.min(last, centre + (max - centre) * factor);
      if (high - low >= 1) this.plot.setScale("x", { min: low, max: high });
    }

    whole() {
      const [min, max] = this.ends();
      this.plot.setScale("x", { min, max });
    }

    // To the next measured round, or at one round to the next curve.
    step(across, up) {
      const { plot, view } = this, values = [];
      let idx = plot.cursor.idx;
      const known = (k) => this.shown.some((shown, i) => shown && plot.data[i + 1][k] !== null);
      if (idx === null || idx === undefined || plot.cursor.left < 0) {
        idx = plot.series[0].idxs[0];
        while (!known(idx) && idx < view.x.length - 1) idx++;
      } else if (across) {
        let next = idx + across;
        while (next >= 0 && next < view.x.length && !known(next)) next += across;
        if (next >= 0 && next < view.x.length) idx = next;
      }
      this.each((i) => {
        if (plot.data[i + 1][idx] !== null) values.push(plot.valToPos(plot.data[i + 1][idx], "y"));
      });
      if (!values.length) return;
      values.sort((a, b) => a - b);
      let { top } = plot.cursor;
      const near = values.reduce((a, b) => Math.abs(b - top) < Math.abs(a - top) ? b : a);
      top = up ? values[Math.min(values.length - 1, Math.max(0, values.indexOf(near) - up))] : near;
      plot.setCursor({ left: plot.valToPos(view.x[idx], "x"), top });
    }

    listen() {
      const keys = {
        ArrowLeft: () => this.step(-1, 0), ArrowRight: () => this.step(1, 0),
        ArrowUp: () => this.step(0, 1), ArrowDown: () => this.step(0, -1),
        "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2),
        0: () => this.whole(), Escape: () => this.plot.setCursor({ left: -10, top: -10 }),
      };
      this.box.addEventListener("keydown", (event) => {
        const act = event.ctrlKey || event.metaKey || event.altKey ? null : keys[event.key];
        if (!act) return;
        event.preventDefault();
        act();
      });
      const on = (selector, kind, act) =>
        this.figure.querySelector(selector)?.addEventListener(kind, act);
      on(".in", "click", () => this.zoom(0.5));
      on(".out", "click", () => this.zoom(2));
      on(".whole", "click", () => this.whole());
      on(".log", "change", () => this.draw());
      on(".smooth", "change", (event) => { this.window = Number(event.target.value); this.draw(); });
      on(".view", "change", (event) => { this.view = this.given.views[event.target.value]; this.draw(); });
      for (const box of this.boxes) {
        box.addEventListener("change", () => {
          const ticked = new Set(this.boxes.filter((b) => b.checked));
          this.showAll((b) => ticked.has(b));
        });
      }
      for (const [series, cell] of this.cells) {
        cell.addEventListener("click", () => this.showAll((box) => {
          const own = Number(box.dataset.series);
          return own === series ? !this.shown[own] : this.shown[own];
        }));
      }
      const first = this.shown.slice();
      on(".all", "click", () => this.showAll((box) => !box.closest("tr")?.hidden));
      on(".nothing", "click", () => this.showAll(() => false));
      on(".first", "click", () => this.showAll((box) => first[box.dataset.series]));
      new ResizeObserver(() => {
        if (this.box.clientWidth && this.box.clientWidth !== this.plot.width) {
          this.plot.setSize({ width: this.box.clientWidth, height: HEIGHT });
        }
      }).observe(this.box);
    }
  }

  data.charts.forEach((given, i) => charts.push(new Chart(document.getElementById(`chart-${i}`), given)));

  // The command, to take away ----------------------------------------------------------------------

  for (const text of document.querySelectorAll("pre.command")) {
    const button = make("button", "Copy", { type: "button" });
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(text.textContent);
        button.textContent = "Copied";
      } catch {  // not allowed: it is marked, for the user to copy
        getSelection().selectAllChildren(text);
        button.textContent = "Marked: press Ctrl-C";
      }
    });
    text.after(button);
  }
})();
