// Of the report and of the viewer: hover readout with one iteration cursor across all charts, light or dark. No network.
"use strict";
const readout = document.getElementById("readout");
const charts = [];

function element(tag, attributes, ...content) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...content);
  return made;
}

function row(label, value, tone) {
  const key = tone ? [element("i", { class: "b" + tone })] : [];
  return element("div", {}, element("span", {}, ...key, label), element("b", {}, value));
}

function nearest(facts, x) {
  let best = 0;
  facts.px.forEach((px, i) => { if (Math.abs(px - x) < Math.abs(facts.px[best] - x)) best = i; });
  return best;
}

function setCursor(iteration) {
  for (const { svg, facts } of charts) {
    const i = iteration === null ? -1 : facts.x.indexOf(iteration);
    const bottom = svg.viewBox.baseVal.height - 26;
    svg.querySelector(".cursor").setAttribute("d", i < 0 ? "" : `M${facts.px[i]} 10V${bottom}`);
  }
}

// Show the readout beside a point of the page.
function showReadout(pageX, pageY) {
  readout.hidden = false;
  const left = Math.min(pageX + 14, window.scrollX + document.documentElement.clientWidth - readout.offsetWidth - 8);
  readout.style.left = Math.max(8, left) + "px";
  readout.style.top = pageY + 16 + "px";
}

function show(chart, i, y, pageX, pageY) {
  const { facts } = chart;
  readout.replaceChildren(row("iteration", String(facts.x[i])));
  if (facts.rows) {
    const r = Math.floor((y - facts.top) / facts.row);
    if (r >= 0 && r < facts.rows.length) readout.append(row(facts.rows[r], facts.cells[r][i] ?? "–"));
  } else {
    for (const one of facts.series) readout.append(row(one.name, one.values[i], one.tone));
  }
  showReadout(pageX, pageY);
  setCursor(facts.x[i]);
}

function hide() {
  readout.hidden = true;
  setCursor(null);
}

// Make a figure answer to pointer and keys; `follow` is told the iteration, row and series that was chosen.
function addChart(figure, facts, follow) {
  const chart = { figure, facts, svg: figure.querySelector("svg.chart") };
  if (!chart.svg || !facts || !facts.x.length) return;
  charts.push(chart);
  let at = 0;
  chart.svg.addEventListener("pointermove", (event) => {
    const box = chart.svg.getBoundingClientRect();
    const scale = chart.svg.viewBox.baseVal.width / box.width;
    at = nearest(chart.facts, (event.clientX - box.left) * scale);
    show(chart, at, (event.clientY - box.top) * scale, event.pageX, event.pageY);
  });
  chart.svg.addEventListener("pointerleave", hide);
  chart.figure.tabIndex = 0;
  chart.figure.addEventListener("keydown", (event) => {
    if (follow && event.key === "Enter" && event.target === figure) follow(facts.x[at], "", "");
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    at = Math.max(0, Math.min(chart.facts.x.length - 1, at + step));
    const box = chart.svg.getBoundingClientRect();
    const scale = box.width / chart.svg.viewBox.baseVal.width;
    show(chart, at, 30, window.scrollX + box.left + chart.facts.px[at] * scale, window.scrollY + box.top + 20);
  });
  chart.figure.addEventListener("blur", hide);
  if (follow) chart.svg.addEventListener("click", (event) => {
    const box = chart.svg.getBoundingClientRect();
    const scale = chart.svg.viewBox.baseVal.width / box.width;
    const r = facts.rows ? Math.floor(((event.clientY - box.top) * scale - facts.top) / facts.row) : -1;
    const tone = [...event.target.classList].find((name) => /^t\d$/.test(name));
    const series = tone && facts.series ? facts.series.find((one) => "t" + one.tone === tone) : null;
    follow(facts.x[nearest(facts, (event.clientX - box.left) * scale)], (facts.rows || [])[r] || "",
      series ? series.name : "");
  });
}

document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark"
    : window.matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});

const island = document.getElementById("data");
if (island) {
  const data = JSON.parse(island.textContent);
  for (const figure of document.querySelectorAll("figure[data-figure]")) {
    addChart(figure, data.figures[figure.dataset.figure]);
  }
}
