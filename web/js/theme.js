// Light, dark, or as the system says. Others are told of a change by the event "theme" of the
// document.

const order = ["auto", "light", "dark"];
const name = "eagleray-theme";

function stored() {
  try {
    return localStorage.getItem(name);
  } catch {
    return null; // storage is refused: the choice lasts as long as the page
  }
}

function store(value) {
  try {
    localStorage.setItem(name, value);
  } catch {
    // As above.
  }
}

// theme makes a button change the theme.
export function theme(button) {
  let now = order.includes(stored()) ? stored() : "auto";
  const apply = () => {
    if (now === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = now;
    button.textContent = `Theme: ${now}`;
    document.dispatchEvent(new Event("theme"));
  };
  button.addEventListener("click", () => {
    now = order[(order.indexOf(now) + 1) % order.length];
    store(now);
    apply();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", apply);
  apply();
}

// colour is the value of a CSS variable as the canvas understands it.
export function colour(variable) {
  const probe = document.createElement("span");
  probe.style.color = `var(${variable})`;
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}
