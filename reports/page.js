// Of the report: its charts, and the filters of its samples. No network, no eval.
const data = JSON.parse(document.getElementById("data").textContent);
for (const figure of document.querySelectorAll("figure[data-figure]")) {
  addChart(figure, data.figures[figure.dataset.figure]);
}

const samples = [...document.querySelectorAll(".sample")];
const buttons = [...document.querySelectorAll(".filters button")];
const search = document.getElementById("search");
const count = document.getElementById("count");

function filter() {
  const pressed = buttons.find((button) => button.getAttribute("aria-pressed") === "true");
  const kind = pressed ? pressed.dataset.kind : "";
  const words = search ? search.value.trim().toLowerCase() : "";
  let shown = 0;
  for (const sample of samples) {
    const fits = (!kind || sample.dataset.kinds.split(" ").includes(kind))
      && (!words || sample.textContent.toLowerCase().includes(words));
    sample.hidden = !fits;
    shown += fits;
  }
  if (count) count.textContent = `${shown} of ${samples.length}`;
}

for (const button of buttons) {
  button.addEventListener("click", () => {
    buttons.forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
    filter();
  });
}
if (search) search.addEventListener("input", filter);
filter();
