// Numbers for people, the same in every part of the page.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

// number has three digits or more: 1,234, 56.7, 8.90, 0.0123.
export function number(v) {
  if (v === undefined || v === null || Number.isNaN(v)) return "–";
  const a = Math.abs(v);
  if (a === 0) return "0";
  if (a >= 100) return whole.format(v);
  if (Number.isInteger(v)) return String(v);
  if (a >= 10) return v.toFixed(1);
  if (a >= 1) return v.toFixed(2);
  return String(Number(v.toPrecision(3)));
}

export const count = (v) => whole.format(v);

// millis shows milliseconds, as seconds from ten of them on.
export function millis(v) {
  if (v === undefined || v === null) return "–";
  return v >= 10000 ? `${number(v / 1000)} s` : `${number(v)} ms`;
}

export function bytes(v) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  while (v >= 1024 && i < units.length - 1) {
    v /= 1024;
    i++;
  }
  return `${number(v)} ${units[i]}`;
}

export function percent(share) {
  if (share > 0 && share < 0.001) return "< 0.1 %";
  return `${number(Math.round(share * 1000) / 10)} %`;
}

export function clock(ms) {
  return new Date(ms).toLocaleTimeString("en-GB");
}

export const plural = (n, one, many = one + "s") => `${count(n)} ${n === 1 ? one : many}`;
