// The screen of the load: the last hour as the gateway has kept it, as curves and as numbers.
import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { clock, count, duration } from "./format.js";
import { Failure, Loading, useLoaded, useTitle } from "./parts.js";

const EVERY = 10_000;
const HEIGHT = 150;
/** Seconds that a chart shows at least. */
const SHORTEST = 300;
const COLOURS = ["--accent", "--blue", "--warn", "--bad", "--good", "--quiet"];

/** Steps of an axis. */
const WHOLE = [0, 1, 2, 3, 4, 5, 6].flatMap((power) => [1, 2, 5].map((step) => step * 10 ** power));

const rate = (number) => (number === null ? "–" : number < 10 ? number.toFixed(1) : count(Math.round(number)));
const whole = (number) => (number === null ? "–" : count(Math.round(number)));
const ms = (number) => (number === null ? "–" : number < 10 ? `${number.toFixed(1)} ms` : duration(number));

/** The charts: each has its lines as name and value of a sample, and the form of its values. */
const CHARTS = [
  { title: "Turns a second", form: rate, lines: [["ended", (each, seconds) => each.turns / seconds]] },
  { title: "Events a second", form: rate, lines: [["of ended turns", (each, seconds) => each.events / seconds]] },
  { title: "Turns that run", form: whole, lines: [["run", (each) => each.running], ["wait for room", (each) => each.waiting]], of: (each) => each.limit },
  { title: "Model calls", form: ms, lines: [["median", (each) => each.model_p50_ms], ["p99", (each) => each.model_p99_ms], ["first piece, median", (each) => each.first_piece_p50_ms]] },
  { title: "Commits", form: ms, lines: [["median", (each) => each.commit_p50_ms], ["p99", (each) => each.commit_p99_ms]] },
  { title: "Event loop, timers late", form: ms, lines: [["p99", (each) => each.loop_p99_ms]] },
];

/** The library of the charts is only loaded with this screen. */
let library = null;
function charts() {
  library ??= import("./vendor/uplot.js").then((module) => module.default);
  if (!document.getElementById("uplot")) document.head.append(Object.assign(document.createElement("link"), { id: "uplot", rel: "stylesheet", href: "vendor/uplot.css" }));
  return library;
}

export function Load({ connection }) {
  useTitle("Load");
  const { value: plot, error: broken } = useLoaded(charts, []);
  const { value, error, again } = useLoaded(() => connection.read("metrics/history"), []);
  useEffect(() => {
    const timer = setTimeout(again, EVERY);
    return () => clearTimeout(timer);
  });
  const samples = value?.samples ?? [];
  const errors = [...new Set(samples.flatMap((each) => Object.keys(each.errors ?? {})))].sort();
  const all = errors.length ? [...CHARTS, { title: "Errors in ten seconds, by code", form: whole, lines: errors.slice(0, COLOURS.length).map((name) => [name, (each) => each.errors?.[name] ?? 0]) }] : CHARTS;
  return html`<main class="screen" id="main" tabindex="-1"><div class="head"><h1>Load</h1>
      ${samples.length > 0 && html`<p class="quiet" role="status">${clock(Date.parse(samples[0].at) - value.seconds * 1000)} to ${clock(samples.at(-1).at)}${value.processes > 1 ? `, ${value.processes} processes together` : ""}</p>`}</div>
    ${(error || broken) && html`<${Failure} error=${error ?? broken} again=${again} />`}
    ${!value && !error && html`<${Loading} what="the load" />`}
    ${value && !samples.length && html`<p class="empty">The gateway has just started: the first figures come after ${value.seconds} seconds.</p>`}
    ${plot && samples.length > 0 && html`<div class="charts">${all.map((chart) => html`<${Chart} key=${chart.title + chart.lines.length} chart=${chart} plot=${plot} samples=${samples} seconds=${value.seconds} />`)}</div>`}
    ${samples.length > 0 && html`<${Numbers} charts=${all} samples=${samples} seconds=${value.seconds} />`}
  </main>`;
}

const valueOf = (take, each, seconds) => take(each, seconds) ?? null;

function Chart({ chart, plot, samples, seconds }) {
  const box = useRef();
  const drawn = useRef();
  const [theme, setTheme] = useState(0);
  const data = [samples.map(({ at }) => Date.parse(at) / 1000), ...chart.lines.map(([, take]) => samples.map((each) => valueOf(take, each, seconds)))];
  useEffect(() => {
    const own = box.current;
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => resolved(own, style.getPropertyValue(name));
    const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") }, font: "11px system-ui" };
    const options = {
      width: own.clientWidth, height: HEIGHT, legend: { show: false }, cursor: { show: false }, scales: { x: { range: ({ data: [times] }) => [Math.min(times[0], times.at(-1) - SHORTEST), times.at(-1)] }, y: { range: (_plot, _low, high) => [0, high > 0 ? high * 1.1 : 1] } },
      axes: [{ ...axis, size: 28, space: 90, values: (_plot, times) => times.map((time) => clock(time * 1000).replace(/:\d\d(?=$|\s)/, "")) }, { ...axis, ...(chart.form === whole && { incrs: WHOLE }), size: 58, values: (_plot, values) => values.map(chart.form) }],
      series: [{}, ...chart.lines.map(([label], index) => ({ label, stroke: colour(COLOURS[index]), width: 1.5, points: { show: samples.length < 30, size: 4 } }))],
    };
    drawn.current = new plot(options, data, own);
    const observer = new ResizeObserver(() => drawn.current.setSize({ width: own.clientWidth, height: HEIGHT }));
    observer.observe(own);
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    const changed = () => setTheme((number) => number + 1);
    scheme.addEventListener("change", changed);
    return () => {
      observer.disconnect();
      scheme.removeEventListener("change", changed);
      drawn.current.destroy();
    };
  }, [theme]);
  useEffect(() => drawn.current.setData(data), [samples]);
  const latest = chart.lines.map(([name, take]) => [name, chart.form(valueOf(take, samples.at(-1), seconds))]);
  return html`<section class="card"><h2>${chart.title}${chart.of && html` <span class="quiet">of ${count(chart.of(samples.at(-1)))}</span>`}</h2>
    <p class="legend">${latest.map(([name, text], index) => html`<span><span class=${`swatch line${index}`} aria-hidden="true"></span>${name} <b>${text}</b></span>`)}</p>
    <div ref=${box} class="chart" role="img" aria-label=${`${chart.title} over time; now ${latest.map(([name, text]) => `${name} ${text}`).join(", ")}`}></div></section>`;
}

/** Return a colour as a canvas takes it: a custom property may be a light-dark(). */
function resolved(element, text) {
  element.style.color = text;
  const { color } = getComputedStyle(element);
  element.style.color = "";
  return color;
}

function Numbers({ charts: all, samples, seconds }) {
  const columns = all.flatMap(({ title, form, lines }) => lines.map(([name, take]) => ({ title, name, form, take })));
  return html`<details class="card"><summary>As numbers, the newest 30</summary><div class="wide" tabindex="0" role="region" aria-label="The load as numbers"><table class="plain"><thead><tr><th>Time</th>${columns.map(({ title, name }) => html`<th class="figure">${title}: ${name}</th>`)}</tr></thead>
    <tbody>${samples.slice(-30).reverse().map((each) => html`<tr key=${each.at}><td>${clock(each.at)}</td>${columns.map(({ form, take }) => html`<td class="figure">${form(valueOf(take, each, seconds))}</td>`)}</tr>`)}</tbody></table></div></details>`;
}
