// Whether the server is there. When it has gone, the page says so and asks until it is back.

import { setText } from "./dom.js";

const every = 2000; // milliseconds between two questions

// presence shows a line while the server does not answer. The event "back" tells the document that
// it does again.
export function presence(line) {
  let asking = false;

  async function ask() {
    if (asking) return;
    asking = true;
    line.hidden = false;
    setText(
      line,
      "The server does not answer. It has ended, or the connection to it is lost; " +
        "asking until it is back. What you see is kept.",
    );
    for (;;) {
      await new Promise((resolve) => setTimeout(resolve, every));
      try {
        await fetch("ping", { cache: "no-store", credentials: "omit" });
        break; // whatever it says, it is there
      } catch {
        // Not yet.
      }
    }
    asking = false;
    line.hidden = true;
    document.dispatchEvent(new Event("back"));
  }

  document.addEventListener("gone", ask);
}
