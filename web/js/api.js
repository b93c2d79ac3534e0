// Requests to the server that the page came from, with the API key where there is one.

const stored = "eagleray-key";
let given = ""; // where storage is refused, the key lasts as long as the page

function keyOf() {
  try {
    return sessionStorage.getItem(stored) ?? given;
  } catch {
    return given;
  }
}

function keep(key) {
  given = key;
  try {
    sessionStorage.setItem(stored, key);
  } catch {
    // As above.
  }
}

// withKey says whether there is a key.
export const withKey = () => keyOf() !== "";

// Failure is an answer that is not 2xx.
export class Failure extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// Gone is a server that does not answer, or stopped in the middle. The event "gone" tells the
// document of it.
export class Gone extends Failure {
  constructor() {
    super(0, "The server does not answer: it has ended, or the connection to it is lost.");
  }
}

// reached waits for what only a server that is there can give. Browsers report a lost one as a
// TypeError of words that differ.
async function reached(promise) {
  try {
    return await promise;
  } catch (err) {
    if (!(err instanceof TypeError)) throw err;
    document.dispatchEvent(new Event("gone"));
    throw new Gone();
  }
}

let asking = null;

// askKey shows the dialog and waits for a key. Several requests share one question. The event "key"
// tells the document of the answer: what has failed for want of one goes on.
export function askKey(wrong) {
  asking ??= new Promise((resolve, reject) => {
    const dialog = document.getElementById("ask");
    const input = document.getElementById("ask-key");
    document.getElementById("ask-wrong").hidden = !wrong;
    input.value = "";
    dialog.returnValue = "";
    dialog.addEventListener(
      "close",
      () => {
        asking = null;
        if (input.value === "") {
          reject(new Failure(401, "the server asks for an API key"));
          return;
        }
        keep(input.value);
        input.value = "";
        resolve();
        document.dispatchEvent(new Event("key"));
      },
      { once: true },
    );
    dialog.addEventListener("cancel", () => (input.value = ""), { once: true });
    dialog.showModal();
  });
  document.getElementById("key").hidden = false;
  return asking;
}

// request fetches a path relative to the page. A 401 asks for the key and tries again.
export async function request(path, { method = "GET", body, signal } = {}) {
  for (;;) {
    const key = keyOf();
    const headers = {};
    if (key) headers.Authorization = `Bearer ${key}`;
    if (body) headers["Content-Type"] = "application/json";
    const answer = await reached(
      fetch(path, {
        method,
        headers,
        signal,
        body: body && JSON.stringify(body),
        credentials: "omit",
        cache: "no-store",
        redirect: "error",
      }),
    );
    if (answer.ok) return answer;
    if (answer.status === 401) {
      if (key === keyOf()) await askKey(key !== "");
      continue;
    }
    throw new Failure(answer.status, await reason(answer));
  }
}

async function reason(answer) {
  const text = await answer.text();
  try {
    return JSON.parse(text).error.message;
  } catch {
    return text.trim() || `the server answered ${answer.status}`;
  }
}

// events yields the server-sent events of an answer: {event, data}, data still as text.
export async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reached(reader.read());
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const e = { event: "message", data: "" };
        for (const line of part.split("\n")) {
          const colon = line.indexOf(":");
          const field = line.slice(0, colon);
          if (field === "data" || field === "event") e[field] = line.slice(colon + 1).trimStart();
        }
        yield e;
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // it may have failed already
  }
}
