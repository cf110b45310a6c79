"use strict";
// What a page of fedax does: colours, tables that sort and filter, its charts (charts.js).
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const charts = [];
  const FEWEST_TO_FILTER = 6;

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

  data.charts.forEach((given, i) => {
    charts.push(new Chart(document.getElementById(`chart-${i}`), given));
  });

  // The command, to take away -----------------------------------------------------------------

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
