// Result files of `eagleray bench … --output-json`, and those of `vllm bench serve`.

import { bytes, count, millis, number } from "./format.js";

// latencies are the times that a result may have percentiles of.
const latencies = [
  ["ttft", "Time to first token"],
  ["tpot", "Time per output token"],
  ["itl", "Inter-token latency"],
  ["e2el", "End-to-end latency"],
];

// known are figures with a name of their own: key, label, how it is shown, +1 where more is better
// and −1 where less is.
const known = [
  ["request_throughput", "Requests/s", number, 1],
  ["requests_per_second", "Requests/s", number, 1],
  ["request_goodput", "Good requests/s", number, 1],
  ["output_throughput", "Output tokens/s", number, 1],
  ["total_token_throughput", "All tokens/s", number, 1],
  ["tokens_per_second", "All tokens/s", number, 1],
  ["max_output_tokens_per_s", "Output tokens in the best second", number, 1],
  ["max_concurrent_requests", "Requests at once, at most", count, 0],
  ["completed", "Requests completed", count, 0],
  ["failed", "Requests failed", count, -1],
  ["num_requests", "Requests", count, 0],
  ["total_input_tokens", "Input tokens", count, 0],
  ["total_output_tokens", "Output tokens", count, 0],
  ["total_num_tokens", "Tokens", count, 0],
  ["duration", "Seconds", number, 0],
  ["elapsed_time", "Seconds", number, 0],
  ["avg_latency", "Mean latency, s", number, -1],
];

// parse reads the text of a file: one result, or one on each line. It throws an Error that names
// the file. Of what is not an object nothing can be shown.
export function parse(name, text) {
  const objects = [];
  try {
    objects.push(JSON.parse(text));
  } catch (whole) {
    try {
      for (const line of text.split("\n")) {
        if (line.trim()) objects.push(JSON.parse(line));
      }
    } catch {
      throw new Error(`${name}: ${whole.message}`);
    }
  }
  return objects.map((raw, i) => {
    if (raw === null || typeof raw !== "object" || Array.isArray(raw)) {
      throw new Error(`${name}: not a result of a benchmark`);
    }
    return { name: objects.length > 1 ? `${name} #${i + 1}` : name, raw };
  });
}

// describe says in a line what was run.
export function describe({ raw }) {
  const parts = [raw.label, raw.model_id, raw.date];
  if (raw.request_rate !== undefined) parts.push(`${raw.request_rate} requests/s`);
  if (raw.max_concurrency) parts.push(`at most ${raw.max_concurrency} at once`);
  if (raw.num_prompts) parts.push(`${count(raw.num_prompts)} prompts`);
  return parts.filter(Boolean).join(" · ");
}

// rows are the figures of the results side by side: {label, values, show, better}.
export function rows(results) {
  const list = [];
  const used = new Set();
  const row = (key, label, show, better, scale = 1) => {
    const values = results.map(({ raw }) =>
      typeof raw[key] === "number" ? raw[key] * scale : null,
    );
    used.add(key);
    if (values.some((v) => v !== null)) list.push({ label, values, show, better });
  };
  for (const [key, label, show, better] of known) row(key, label, show, better);
  for (const [key, title] of latencies) {
    for (const [part, name] of [
      ["mean", "mean"],
      ["median", "median"],
      ["std", "deviation"],
    ]) {
      row(`${part}_${key}_ms`, `${title}, ${name}`, millis, part === "std" ? 0 : -1);
    }
    const found = new Set(
      results
        .flatMap(({ raw }) => Object.keys(raw))
        .filter((k) => k.startsWith("p") && k.endsWith(`_${key}_ms`)),
    );
    for (const k of [...found].sort((a, b) => rank(a) - rank(b))) {
      row(k, `${title}, p${rank(k)}`, millis, -1);
    }
  }
  // Whatever else is a number, under its own name.
  const flat = results.map(({ raw }) => flatten(raw));
  for (const key of new Set(flat.flatMap((f) => Object.keys(f)))) {
    if (used.has(key)) continue;
    const show = /bytes/i.test(key) ? bytes : number;
    list.push({ label: key, values: flat.map((f) => f[key] ?? null), show, better: 0 });
  }
  return list;
}

const rank = (key) => Number(key.slice(1, key.indexOf("_")));

// flatten lists the numbers of an object by their path; lists are left out.
function flatten(value, path = "", found = {}) {
  for (const [k, v] of Object.entries(value)) {
    const at = path ? `${path}.${k}` : k;
    if (typeof v === "number") found[at] = v;
    else if (v && typeof v === "object" && !Array.isArray(v)) flatten(v, at, found);
  }
  return found;
}

// distributions are what can be drawn of the results: {title, curves}, where a curve is a list of
// [percentile, milliseconds] pairs for each result, empty where it has none.
export function distributions(results) {
  const list = latencies.map(([key, title]) => ({
    title,
    curves: results.map((r) => curve(r, key)),
  }));
  list.push({
    title: "Latency of a batch",
    curves: results.map(({ raw }) =>
      Object.entries(raw.percentiles ?? {}).map(([p, v]) => [Number(p), ms(v)]),
    ),
  });
  // Figures of the queue are objects of p50, p99 and p999, named for their unit.
  const named = (raw) =>
    Object.keys(raw).filter((k) => k.endsWith("_us") && typeof raw[k]?.p50 === "number");
  for (const key of new Set(results.flatMap(({ raw }) => named(raw)))) {
    list.push({
      title: key[0].toUpperCase() + key.slice(1, -3).replaceAll("_", " "),
      curves: results.map(({ raw }) =>
        [
          [50, "p50"],
          [90, "p90"],
          [99, "p99"],
          [99.9, "p999"],
        ]
          .filter(([, k]) => typeof raw[key]?.[k] === "number")
          .map(([p, k]) => [p, raw[key][k] / 1000]),
      ),
    });
  }
  return list.filter(({ curves }) => curves.some((c) => c.length > 0));
}

// curve is the distribution of a latency in milliseconds as [percentile, value] pairs, rising. With
// the times of each request it is drawn from them, else from the percentiles in the file.
function curve({ raw }, key) {
  const all = samples(raw, key);
  if (all.length > 0) {
    all.sort((a, b) => a - b);
    return grid.map((p) => [p, quantile(all, p / 100)]);
  }
  const points = new Map();
  for (const [k, v] of Object.entries(raw)) {
    if (typeof v !== "number") continue;
    if (k === `median_${key}_ms`) points.set(50, v);
    if (/^p[\d.]+_/.test(k) && k.endsWith(`_${key}_ms`)) points.set(rank(k), v);
  }
  return [...points].sort((a, b) => a[0] - b[0]);
}

const grid = [
  0, 5, 10, 20, 30, 40, 50, 60, 70, 75, 80, 85, 90, 92, 94, 95, 96, 97, 98, 99, 99.5, 99.9,
];

// samples are the single times of a detailed result, in milliseconds.
function samples(raw, key) {
  const ok = (i) => !raw.errors?.[i];
  if (key === "e2el" && Array.isArray(raw.latencies) && raw.ttfts)
    return raw.latencies.filter((_, i) => ok(i)).map(ms);
  if (!Array.isArray(raw.ttfts)) return [];
  if (key === "ttft") return raw.ttfts.filter((_, i) => ok(i)).map(ms);
  if (key === "itl")
    return (raw.itls ?? [])
      .filter((_, i) => ok(i))
      .flat()
      .map(ms);
  if (key === "tpot" && raw.latencies && raw.output_lens) {
    return raw.latencies
      .map((l, i) =>
        ok(i) && raw.output_lens[i] > 1 ? ms((l - raw.ttfts[i]) / (raw.output_lens[i] - 1)) : null,
      )
      .filter((v) => v !== null);
  }
  return [];
}

const ms = (seconds) => seconds * 1000;

// quantile interpolates as numpy does.
function quantile(sorted, q) {
  const at = q * (sorted.length - 1);
  const i = Math.floor(at);
  return i + 1 < sorted.length ? sorted[i] + (at - i) * (sorted[i + 1] - sorted[i]) : sorted[i];
}
