const dark = matchMedia("(prefers-color-scheme: dark)").matches;
const [text, line] = dark ? ["#aaa", "#444"] : ["#555", "#ddd"];
const colours = ["#2f6db5", "#c8553d"];
const charts = JSON.parse(document.getElementById("charts").textContent);
document.querySelectorAll("figure").forEach((figure, index) => {
  const { title, unit, marks } = charts[index];
  const lines = Object.entries(charts[index].lines).map(([name, points]) => ({ name, points }));
  const xs = [...new Set(lines.flatMap(({ points }) => points.map(([x]) => x)))].sort((a, b) => a - b);
  const values = lines.map(({ points }) => { const of = new Map(points); return xs.map((x) => of.get(x) ?? null); });
  const last = marks.length ? marks.at(-1)[0] : Math.max(1, xs.at(-1) ?? 1);
  const axis = { stroke: text, grid: { stroke: line, width: 1 }, ticks: { stroke: line }, font: "11px system-ui" };
  const percentile = (x) => `${(100 - 100 / 10 ** x).toPrecision(4)} %`;
  const across = marks.length ? { splits: () => marks.map(([at]) => at), values: () => marks.map(([, name]) => name) }
    : { values: (_plot, seconds) => seconds.map((each) => `${each} s`) };
  const plot = new uPlot({
    width: figure.clientWidth,
    height: 240,
    scales: {
      x: { time: false, range: () => (marks.length ? [0, last] : [-0.02 * last, 1.02 * last]) },
      y: { range: (_plot, _low, high) => [0, high > 0 ? high * 1.1 : 1] },
    },
    axes: [{ ...axis, ...across }, { ...axis, size: 72, values: (_plot, ticks) => ticks.map((y) => `${y} ${unit}`) }],
    series: [
      marks.length ? { label: "percentile", value: (_plot, x) => x && percentile(x) } : { label: "second" },
      ...lines.map(({ name }, at) => ({
        label: name,
        stroke: colours[at],
        width: 2,
        points: { show: xs.length < 60, size: 6, fill: colours[at] },
      })),
    ],
  }, [xs, ...values], figure);
  plot.root.setAttribute("role", "img");
  plot.root.setAttribute("aria-label", title);
  addEventListener("resize", () => plot.setSize({ width: figure.clientWidth, height: 240 }));
});
