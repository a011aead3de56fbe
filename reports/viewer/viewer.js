// Pages that follow the run, rows that are fetched as they are scrolled to, a search that streams.
async function ask(address) {
  const answer = await fetch(address + (address.includes("?") ? "&" : "?") + "json=1");
  const reply = await answer.json().catch(() => ({ error: "The viewer has ended. Start `reports serve` again." }));
  if (!answer.ok) throw new Error(reply.error || answer.statusText);
  return reply;
}

function say(place, error) {
  place.replaceChildren(element("p", { class: "notice", role: "alert" }, error.message));
}

// The page of a run: its parts, then its figures as they come into sight; again when there is more.
const slots = [...document.querySelectorAll("[data-figure-name]")];
const seen = new Set();
let version = "";

async function draw(slot) {
  const name = slot.dataset.figureName;
  try {
    const reply = await ask("figure?figure=" + encodeURIComponent(name));
    const open = slot.querySelector("details[open]") !== null;
    slot.innerHTML = reply.html;
    const figure = slot.firstElementChild;
    if (open) figure.querySelector("details").open = true;
    for (let i = charts.length - 1; i >= 0; i--) if (!charts[i].figure.isConnected) charts.splice(i, 1);
    addChart(figure, reply.facts, (x, row, series) => {
      location.href = "behind?" + new URLSearchParams({ figure: name, x, row, series });
    });
  } catch (error) { say(slot, error); }
}

async function tellStory() {
  const story = document.getElementById("story");
  try {
    story.innerHTML = (await ask("story")).html;
  } catch (error) { say(story, error); }
  story.removeAttribute("aria-busy");
}

const now = document.getElementById("now");
let pending = Promise.resolve();

// One after the other: the server has few cores, and what is on top is looked at first.
function queue(work) { pending = pending.then(work); return pending; }

async function look() {
  try {
    const reply = await ask("now");
    if (now.innerHTML !== reply.html) now.innerHTML = reply.html;
    if (version && version !== reply.version) {
      for (const slot of slots) if (seen.has(slot)) queue(() => draw(slot));
      queue(tellStory);
    }
    version = reply.version;
  } catch (error) { say(now, error); }
  setTimeout(look, document.hidden ? 5000 : 1000);
}

if (now) {
  queue(tellStory);
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting && !seen.has(entry.target)) {
        seen.add(entry.target);
        watcher.unobserve(entry.target);
        queue(() => draw(entry.target));
      }
    }
  }, { rootMargin: "400px" });
  slots.forEach((slot) => watcher.observe(slot));
  look();
}

const waiting = document.querySelector("[data-waiting]");
if (waiting) setTimeout(() => location.reload(), 1500);

// A list: only the rows in sight are in the page.
const HEIGHT = 28, STRETCH = 200, TALLEST = 2e7;

function rowOf(reply, index) {
  const cells = reply.cells.map((text, i) =>
    element("span", { role: "cell" }, i ? text : element("a", { href: reply.href }, text)));
  return element("div", { class: "row", role: "row", ...(index < 0 ? {} : { "aria-rowindex": index + 2 }) }, ...cells);
}

for (const list of document.querySelectorAll(".list[data-total]")) {
  const total = Number(list.dataset.total);
  const pane = list.querySelector(".window");
  const begun = [...pane.children];
  if (total <= begun.length) continue;
  const known = new Map(), asked = new Set();
  const tall = Math.min(total * HEIGHT, TALLEST);
  const space = element("div", {});
  space.style.height = tall + "px";
  const shown = new Map();
  pane.replaceChildren(space);
  pane.style.height = "560px";
  pane.tabIndex = 0;

  const fill = async (stretch) => {
    if (asked.has(stretch)) return;
    asked.add(stretch);
    try {
      const reply = await ask(`${list.dataset.source}&offset=${stretch * STRETCH}&limit=${STRETCH}`);
      reply.rows.forEach((each, i) => known.set(stretch * STRETCH + i, each));
      place();
    } catch (error) {
      asked.delete(stretch);
      say(document.getElementById("total"), error);
    }
  };
  const place = () => {
    // In a list taller than browsers can scroll, a pixel stands for more than its share of a row.
    const visible = Math.ceil(pane.clientHeight / HEIGHT);
    const range = Math.max(1, tall - pane.clientHeight);
    const top = Math.round(pane.scrollTop / range * Math.max(0, total - visible));
    const first = Math.max(0, top - 10), last = Math.min(total - 1, top + visible + 10);
    for (const [index, line] of shown) {
      if (index < first || index > last) { line.remove(); shown.delete(index); }
    }
    for (let index = first; index <= last; index++) {
      if (!known.has(index)) { fill(Math.floor(index / STRETCH)); continue; }
      let line = shown.get(index);
      if (!line) {
        line = rowOf(known.get(index), index);
        line.classList.add("placed");
        shown.set(index, line);
        const next = [...shown.keys()].filter((other) => other > index).sort((a, b) => a - b)[0];
        pane.insertBefore(line, next === undefined ? null : shown.get(next));
      }
      line.style.top = pane.scrollTop + (index - top) * HEIGHT + "px";
    }
  };
  pane.addEventListener("scroll", () => requestAnimationFrame(place));
  place();
}

document.addEventListener("keydown", (event) => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const line = step && document.activeElement && document.activeElement.closest(".list .row");
  if (!line) return;
  event.preventDefault();
  const links = [...line.closest(".list").querySelectorAll(".row a")];
  const next = links[links.indexOf(document.activeElement) + step];
  if (next) next.focus();
});

// A search: hits as they come, until there are no more or somebody stops it.
const hits = document.getElementById("hits");
if (hits) {
  const stop = new AbortController();
  const progress = document.getElementById("progress");
  const button = document.getElementById("cancel");
  button.addEventListener("click", () => stop.abort());
  const read = async () => {
    const answer = await fetch(hits.dataset.search, { signal: stop.signal });
    if (!answer.ok) throw new Error(await answer.text());
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "", found = 0;
    for (;;) {
      const { done, value } = await reader.read();
      const lines = (rest + (value || "")).split("\n");
      rest = lines.pop();
      for (const line of lines.filter(Boolean)) {
        const reply = JSON.parse(line);
        if (reply.error) throw new Error(reply.error);
        if (reply.cells) {
          const made = rowOf(reply, -1);
          made.classList.add("hit");
          made.append(element("span", { class: "around" }, reply.around));
          hits.append(made);
          found += 1;
        } else progress.textContent = `${found} found, ${reply.looked} of ${reply.of} rollouts looked at`;
      }
      if (done) break;
    }
    progress.textContent = `${found} found, all looked at` + (found >= 1000 ? " until there were 1,000" : "");
  };
  read().catch((error) => {
    if (error.name === "AbortError") progress.textContent += "; stopped";
    else say(progress, error);
  }).finally(() => { button.hidden = true; });
}
