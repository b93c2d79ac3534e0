// The page: which of its parts is shown, what the server is, the API key.

import { askKey, request } from "./api.js";
import { bench } from "./bench.js";
import { chat } from "./chat.js";
import { setText } from "./dom.js";
import { bytes, plural } from "./format.js";
import { live } from "./live.js";
import { presence } from "./presence.js";
import { theme } from "./theme.js";

theme(document.getElementById("theme"));
presence(document.getElementById("gone"));

// Each page is made when it is first shown, and told when it is shown and hidden.
const makers = { chat, live, bench };
const made = {};
const about = describe();
let shown = null;

function show() {
  const asked = location.hash.slice(1);
  if (asked === "main") return; // the link that skips the navigation
  const name = asked in makers ? asked : "chat";
  if (name === shown) return;
  if (shown) {
    made[shown].hide?.();
    document.getElementById(`page-${shown}`).hidden = true;
  }
  shown = name;
  const section = document.getElementById(`page-${name}`);
  section.hidden = false;
  made[name] ??= makers[name](section, about);
  made[name].show?.();
  for (const link of document.querySelectorAll(".top nav a")) {
    if (link.hash === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.body.dataset.page = name;
  document.title = `${name[0].toUpperCase()}${name.slice(1)} · Eagle Ray`;
}

addEventListener("hashchange", show);
document.addEventListener("visibilitychange", () => {
  if (document.hidden) made[shown]?.hide?.();
  else made[shown]?.show?.();
});
document.getElementById("key").addEventListener("click", () => {
  askKey(false).catch(() => {});
});
show();

// describe asks what the server is, again where the key was given after the question had been
// dismissed.
async function describe() {
  for (;;) {
    try {
      return await (await request("window/about")).json();
    } catch (err) {
      if (err.status !== 401) throw err;
      setText(document.getElementById("about"), err.message);
    }
    await new Promise((go) => document.addEventListener("key", go, { once: true }));
  }
}

about.then(
  (a) => {
    setText(
      document.getElementById("about"),
      `${a.models[0]} · ${a.dtype} · ${bytes(a.weight_bytes)} of weights · ` +
        `${plural(a.devices.length, "rank")} · context ${a.max_model_len} · ${a.version}`,
    );
  },
  (err) => setText(document.getElementById("about"), err.message),
);
