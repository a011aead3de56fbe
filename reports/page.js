// Of the report: its charts. No network, no eval.
const data = JSON.parse(document.getElementById("data").textContent);
for (const figure of document.querySelectorAll("figure[data-figure]")) {
  addChart(figure, data.figures[figure.dataset.figure]);
}
