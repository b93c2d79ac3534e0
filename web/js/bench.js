// Bench: measures this server, and opens result files. Those are read by the browser and sent
// nowhere.

import { compare } from "./compare.js";
import { h } from "./dom.js";
import { measure } from "./measure.js";
import { parse } from "./results.js";

export function bench(section, about) {
  const results = [];
  const measuring = measure(about, (raw) => {
    results.push({ name: `${raw.label}, ${raw.max_concurrency} at once`, raw });
    draw();
  });
  const input = h("input", {
    type: "file",
    id: "bench-files",
    accept: ".json,.jsonl,application/json",
    multiple: true,
    onchange: () => open(input.files),
  });
  const wrong = h("p", { class: "wrong", role: "alert", hidden: true });
  const shown = h("div", { class: "compare" });
  const drop = h(
    "div",
    { class: "drop card" },
    h("h2", {}, "Results of benchmarks"),
    h(
      "p",
      {},
      "Choose files written by ",
      h("code", {}, "eagleray bench … --output-json FILE"),
      ", or drop them here: one, or several to compare. They stay in this page.",
    ),
    h("label", { for: "bench-files", class: "hidden" }, "Result files"),
    input,
    h(
      "p",
      { class: "hint" },
      "With ",
      h("code", {}, "--save-detailed"),
      " the curves are drawn from each request. ",
      h("code", {}, "eagleray bench report A.json B.json -o report.html"),
      " writes the same view as a file.",
    ),
  );
  section.append(h("h1", { class: "hidden" }, "Bench"), measuring, drop, wrong, shown);
  section.addEventListener("dragover", (e) => e.preventDefault());
  section.addEventListener("drop", (e) => {
    e.preventDefault();
    open(e.dataTransfer.files);
  });

  async function open(files) {
    wrong.hidden = true;
    for (const file of files) {
      try {
        results.push(...parse(file.name, await file.text()));
      } catch (err) {
        wrong.hidden = false;
        wrong.textContent = err.message;
      }
    }
    input.value = "";
    draw();
  }

  function draw() {
    compare(shown, results, (i) => {
      results.splice(i, 1);
      draw();
    });
  }

  return {};
}
