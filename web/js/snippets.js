// A request as a command or a program that makes it. The key is never written out.

import { withKey } from "./api.js";

const address = () => new URL(".", location.href).href.replace(/\/$/, "");
const pathOf = (body) => (body.messages ? "/v1/chat/completions" : "/v1/completions");

export function curl(body) {
  const quote = (s) => `'${s.replaceAll("'", `'\\''`)}'`;
  const lines = [
    `curl -N ${quote(address() + pathOf(body))}`,
    `-H 'Content-Type: application/json'`,
  ];
  if (withKey()) lines.push(`-H "Authorization: Bearer $EAGLERAY_API_KEY"`);
  lines.push(`-d ${quote(JSON.stringify(body, null, 2))}`);
  return lines.join(" \\\n  ") + "\n";
}

// Fields that OpenAI's own client has no parameter for.
const beside = ["top_k", "min_p", "repetition_penalty", "return_metrics"];

export function python(body) {
  const known = Object.entries(body).filter(([k]) => !beside.includes(k));
  const extra = Object.fromEntries(Object.entries(body).filter(([k]) => beside.includes(k)));
  const args = known.map(([k, v]) => `    ${k}=${literal(v)},`);
  if (Object.keys(extra).length) args.push(`    extra_body=${literal(extra)},`);
  const chat = Boolean(body.messages);
  const key = withKey() ? `os.environ["EAGLERAY_API_KEY"]` : `"none"`;
  return (
    (withKey() ? "import os\n\n" : "") +
    `from openai import OpenAI

client = OpenAI(base_url=${literal(address() + "/v1")}, api_key=${key})
stream = client.${chat ? "chat.completions" : "completions"}.create(
${args.join("\n")}
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].${chat ? 'delta.content or ""' : "text"}, end="", flush=True)
print()
`
  );
}

// literal is a JSON value as Python writes it.
function literal(v) {
  if (v === null) return "None";
  if (v === true) return "True";
  if (v === false) return "False";
  if (Array.isArray(v)) return `[${v.map(literal).join(", ")}]`;
  if (typeof v === "object") {
    return `{${Object.entries(v)
      .map(([k, x]) => `${JSON.stringify(k)}: ${literal(x)}`)
      .join(", ")}}`;
  }
  return JSON.stringify(v);
}

// copy puts a text on the clipboard and says so on the button. Browsers offer the clipboard to
// pages of this machine and over TLS; elsewhere the older way remains.
export async function copy(button, text) {
  let done = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    done = document.execCommand("copy");
    area.remove();
    button.focus();
  }
  button.dataset.label ??= button.textContent;
  button.textContent = done ? "Copied" : "Not allowed";
  setTimeout(() => (button.textContent = button.dataset.label), 1200);
}
