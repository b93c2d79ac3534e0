// A report: the results that are written into the page.

import { compare } from "./compare.js";
import { parse } from "./results.js";
import { theme } from "./theme.js";

theme(document.getElementById("theme"));
const files = JSON.parse(document.getElementById("data").textContent);
compare(
  document.getElementById("compare"),
  files.flatMap((f) => parse(f.name, f.text)),
);
