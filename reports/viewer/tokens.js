// The tokens of a completion: colours by the chosen quantity, values by pointer and keys.
const tokens = document.getElementById("tokens");
if (tokens) {
  const stretch = JSON.parse(document.getElementById("stretch").textContent);
  const spans = [...tokens.children];
  const choice = document.getElementById("colour");
  const label = document.getElementById("token");
  let on = -1;

  const tell = (i) => {
    if (on >= 0) spans[on].classList.remove("on");
    on = i;
    spans[i].classList.add("on");
    tokens.setAttribute("aria-activedescendant", spans[i].id);
    const values = stretch.quantities.map((each) => `${each.name} ${each.values[i]}`);
    label.textContent = `token ${stretch.first + i}, id ${stretch.ids[i]}: ${values.join(" · ")}`;
  };
  tokens.addEventListener("pointerover", (event) => {
    const i = spans.indexOf(event.target);
    if (i < 0) return;
    tell(i);
    readout.replaceChildren(row("token", String(stretch.first + i)), row("id", String(stretch.ids[i])),
      ...stretch.quantities.map((each) => row(each.name, each.values[i])));
    showReadout(event.pageX, event.pageY);
  });
  tokens.addEventListener("pointerleave", () => { readout.hidden = true; });
  tokens.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -20, ArrowDown: 20, Home: -1e9, End: 1e9 }[event.key];
    if (!step) return;
    event.preventDefault();
    tell(Math.max(0, Math.min(spans.length - 1, (on < 0 ? (step > 0 ? -1 : 0) : on) + step)));
    spans[on].scrollIntoView({ block: "nearest" });
  });
  choice.addEventListener("change", () => {
    const each = stretch.quantities.find((one) => one.key === choice.value);
    spans.forEach((span, i) => { span.className = each.shades[i]; });
    document.getElementById("meaning").textContent = each.meaning;
    if (on >= 0) tell(on);
    if (document.body.dataset.run) {
      const here = new URL(location.href);
      here.searchParams.set("colour", choice.value);
      history.replaceState(null, "", here);
    }
  });
  if (tokens.dataset.at) {
    const i = Number(tokens.dataset.at) - stretch.first;
    if (spans[i]) {
      tell(i);
      tokens.scrollTop = spans[i].offsetTop - tokens.offsetTop - tokens.clientHeight / 2;
    }
  }
}
