// Plots: uPlot with the page's colours and sizes. A plot is drawn again when the theme or its width
// changes.

import { h } from "./dom.js";
import { colour } from "./theme.js";

export const lines = ["--line-1", "--line-2", "--line-3", "--line-4", "--line-5", "--line-6"];

const dashes = [[], [6, 4], [2, 3], [10, 4, 2, 4], [12, 3], [3, 6]];

// whole are the distances between the marks of an axis that counts things.
const whole = [0, 1, 2, 3, 4, 5].flatMap((e) => [1, 2, 5].map((n) => n * 10 ** e));

// fitting is how wide an axis is for its values, so that none is cut.
function fitting(u, values, i, cycle) {
  const axis = u.axes[i];
  if (cycle > 1) return axis._size; // else the plot might never settle
  const longest = (values ?? []).reduce((a, b) => (b.length > a.length ? b : a), "");
  u.ctx.font = axis.font[0];
  return Math.ceil(axis.ticks.size + axis.gap + u.ctx.measureText(longest).width / uPlot.pxRatio);
}

// plot makes a plot in a figure. o has title, unit, names (one a series), show (a value in words),
// whole (values are whole numbers) and, where x is not time, splits and label for its axis. It
// returns {figure, set(data)}; data is uPlot's: x, then a list for each series, null for no value.
export function plot(o) {
  const host = h("div", { class: "plot" });
  const figure = h(
    "figure",
    { class: "card" },
    h("figcaption", {}, o.title, h("span", { class: "unit" }, o.unit ?? "")),
    host,
  );
  let chart = null;
  let data = [[], ...o.names.map(() => [])];
  let width = 0;

  function draw() {
    chart?.destroy();
    chart = null;
    width = host.clientWidth;
    if (width === 0) return; // hidden: drawn when it gets a width
    const text = colour("--muted"),
      grid = colour("--line");
    const axis = {
      stroke: text,
      grid: { stroke: grid, width: 1 },
      ticks: { show: false },
      font: "12px system-ui, sans-serif",
    };
    chart = new uPlot(
      {
        width,
        height: o.height ?? 160,
        padding: [null, o.splits ? null : 30, null, null], // half of a time
        scales: {
          // Time goes on from the right edge: a minute at least, so that the first does not jump.
          x: {
            time: !o.splits,
            range: o.range ?? ((_, from, to) => [Math.min(from, to - 60), to]),
          },
          y: {
            range: (_, low, high) => [0, o.max ?? Math.max((high ?? 0) * 1.1, o.least ?? 1e-6)],
          },
        },
        axes: [
          {
            ...axis,
            size: 30,
            ...(o.splits ? { splits: () => o.splits, values: (_, xs) => xs.map(o.label) } : {}),
            ...(o.splits
              ? {}
              : {
                  values: [
                    [60, "{HH}:{mm}", null, null, null, null, null, null, 0],
                    [1, "{HH}:{mm}:{ss}", null, null, null, null, null, null, 0],
                  ],
                  space: 80,
                }),
          },
          {
            ...axis,
            size: fitting,
            ...(o.whole ? { incrs: whole } : {}),
            values: (_, ys) => ys.map((y) => o.show(y)),
          },
        ],
        series: [
          {
            value: (_, x) =>
              x === null
                ? "–"
                : o.splits
                  ? o.label(x)
                  : new Date(x * 1000).toLocaleTimeString("en-GB"),
            label: o.xName ?? "time",
          },
          ...o.names.map((label, i) => ({
            label,
            stroke: colour(lines[i % lines.length]),
            width: 2,
            dash: dashes[i % dashes.length],
            spanGaps: Boolean(o.points),
            points: { show: Boolean(o.points), size: 7 },
            value: (_, v) => (v === null || v === undefined ? "–" : o.show(v)),
          })),
        ],
        cursor: { y: false, drag: { x: false, y: false } },
        legend: { live: true },
      },
      data,
      host,
    );
    requestAnimationFrame(newest);
  }

  // newest shows the last values in the legend while nothing is pointed at.
  function newest() {
    if (chart && !o.splits && data[0].length > 0 && !(chart.cursor.left >= 0))
      chart.setLegend({ idx: data[0].length - 1 });
  }

  new ResizeObserver(() => {
    if (Math.abs(host.clientWidth - width) > 1) draw();
  }).observe(host);
  document.addEventListener("theme", () => {
    if (host.isConnected) draw();
  });
  return {
    figure,
    set(next) {
      data = next;
      if (!chart) return;
      chart.setData(data);
      requestAnimationFrame(newest);
    },
  };
}
