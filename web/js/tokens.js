// Tokens coloured by how sure the model was of them. The chosen one shows what else it might have
// said.

import { h } from "./dom.js";
import { percent } from "./format.js";

// tokenView shows tokens in an element. Arrow keys, or the pointer, go through them.
export function tokenView(element) {
  const decoder = new TextDecoder(); // a character may be spread over tokens
  const detail = h(
    "p",
    { class: "alternatives" },
    "The paler a token, the surer the model was. Choose one to see what else it might have said.",
  );
  const list = h("span", {
    class: "tokens",
    tabindex: "0",
    role: "group",
    "aria-label": "Tokens; arrow keys show the alternatives of each",
  });
  element.append(list, detail);
  let chosen = -1;

  list.addEventListener("keydown", (e) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
    if (!by) return;
    e.preventDefault();
    choose(Math.min(Math.max(chosen + by, 0), list.children.length - 1));
  });
  list.addEventListener("click", (e) => {
    const i = [...list.children].indexOf(e.target.closest(".token"));
    if (i >= 0) choose(i);
  });

  function choose(i) {
    if (!list.children[i]) return;
    list.children[chosen]?.classList.remove("chosen");
    chosen = i;
    const token = list.children[i];
    token.classList.add("chosen");
    const scored = token.scored;
    const others = scored.top_logprobs ?? [];
    detail.replaceChildren(
      h("b", {}, shown(scored.token)),
      ` ${percent(Math.exp(scored.logprob))}`,
      others.length ? " — " : "",
      ...others.map((o) =>
        h(
          "span",
          { class: "other" },
          h("code", {}, shown(o.token)),
          ` ${percent(Math.exp(o.logprob))}`,
        ),
      ),
    );
  }

  return {
    add(scored) {
      for (const s of scored) {
        const text = s.bytes ? decoder.decode(new Uint8Array(s.bytes), { stream: true }) : s.token;
        const token = h("span", { class: "token" }, text);
        token.style.setProperty("--doubt", String(1 - Math.exp(s.logprob)));
        token.scored = s;
        list.append(token);
      }
    },
    // end marks what is no part of the answer: the token that ended it.
    end(answer) {
      list.append(decoder.decode());
      let length = 0;
      for (const token of list.children) {
        length += token.textContent.length;
        token.classList.toggle("beyond", length > answer.length);
      }
    },
  };
}

// shown makes white space visible.
function shown(token) {
  return token.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "␣");
}
