// The screen of the schedules and the triggers: when their prompts come next, and what became of the newest ones.
import { html, useState } from "./vendor/preact.js";
import { ago, duration, plural, shortId, when } from "./format.js";
import { LongText } from "./markdown.js";
import { Ask, Failure, Loading, State, useFresh, useNow, useTitle } from "./parts.js";
import { linkTo } from "./route.js";

const PAGE = 200;
const TONE = { active: "good", paused: "waiting", ended: "idle" };

const SCHEDULES = {
  noun: "schedule", title: "Schedules", list: "schedules", id: "schedule_id", runs: "runs", run: "run",
  none: "Nothing is due at a time of its own.",
  facts: (each, now) => [timesOf(each), each.next_at ? `next ${until(each.next_at, now)}` : null],
};
const TRIGGERS = {
  noun: "trigger", title: "Triggers", list: "triggers", id: "trigger_id", runs: "deliveries", run: "call",
  none: "No other service sends prompts.",
  facts: (each) => [`${each.scheme} calls at /triggers/${each.trigger_id}`],
};

export function Schedules({ connection }) {
  useTitle("Schedules and triggers");
  return html`<main class="screen" id="main" tabindex="-1"><div class="head"><h1>Schedules and triggers</h1></div>
    <${Plans} connection=${connection} kind=${SCHEDULES} /><${Plans} connection=${connection} kind=${TRIGGERS} /></main>`;
}

function Plans({ connection, kind }) {
  const now = useNow();
  const [failed, setFailed] = useState(null);
  const [leaving, setLeaving] = useState(null);
  const { value, error, again } = useFresh(() => connection.read(`${kind.noun}/list`, { limit: PAGE }), []);
  const plans = value?.[kind.list] ?? [];
  const send = async (method, params) => {
    await connection.call(`${kind.noun}/${method}`, params);
    again();
  };
  const pause = (each) => send("change", { [kind.id]: each[kind.id], paused: each.state !== "paused" }).then(() => setFailed(null), setFailed);
  const may = connection.can("session:write");
  return html`<section aria-labelledby=${kind.list}><h2 id=${kind.list}>${kind.title}</h2>
    ${error && html`<${Failure} error=${error} again=${again} />`}
    ${failed && html`<${Failure} error=${failed} />`}
    ${!value && !error && html`<${Loading} what=${`the ${kind.list}`} />`}
    ${value && html`<p class="quiet" role="status">${plans.length === 0 ? kind.none : plans.length < PAGE ? plural(plans.length, kind.noun) : `The oldest ${plural(PAGE, kind.noun)}`}${value.damaged?.length ? `, and ${value.damaged.length} that cannot be read` : ""}</p>`}
    <ol class="hits">${plans.map((each) => html`<li class="card" key=${each[kind.id]} data-plan=${each[kind.id]}>
      <div class="top-line"><p class="who">${each.session_id ? html`<a href=${linkTo("session", each.session_id)}>Session ${shortId(each.session_id)}</a>` : "A new session each time"}</p>
        <${State} state=${TONE[each.state]}>${each.state}<//></div>
      <${LongText} text=${each.prompt} />
      <p class="quiet">${[...kind.facts(each, now), `made by ${each.owner || "nobody known"} ${ago(each.created_at, now)}`].filter(Boolean).join(" · ")}</p>
      ${each.problem && html`<p class="notice bad">${each.problem}</p>`}
      <${Runs} kind=${kind} runs=${each[kind.runs] ?? []} now=${now} />
      ${may && html`<div class="buttons"><button class="danger" onClick=${() => setLeaving(each)}>Delete…</button>
        ${each.state !== "ended" && html`<button onClick=${() => pause(each)}>${each.state === "paused" ? "Resume" : "Pause"}</button>`}</div>`}
    </li>`)}</ol>
    ${leaving && html`<${Ask} title=${`Delete the ${kind.noun}?`} text="Its prompts come no more. One that waits already stays." action="Delete" danger act=${() => send("delete", { [kind.id]: leaving[kind.id] })} close=${() => setLeaving(null)} />`}
  </section>`;
}

/** The newest runs: the newest one in the open, the others folded. */
function Runs({ kind, runs, now }) {
  if (!runs.length) return html`<p class="quiet">${`No ${kind.run} yet.`}</p>`;
  const [newest, ...older] = runs;
  return html`<p>${"Last: "}<${Run} run=${newest} now=${now} /></p>
    ${older.length > 0 && html`<details><summary>${`${plural(older.length, kind.run)} before`}</summary><ol>${older.map((run) => html`<li key=${run.delivery_id ?? run.due}><${Run} run=${run} now=${now} /></li>`)}</ol></details>`}`;
}

function Run({ run, now }) {
  return html`<span><span title=${when(run.at)}>${ago(run.at, now)}</span>${`: ${endOf(run)}`}${run.session_id && html` (<a href=${linkTo("session", run.session_id)}>session ${shortId(run.session_id)}</a>)`}</span>`;
}

/** What became of a run, in words: `ended` is left out while its turn has not ended, and null if nobody knows. */
function endOf({ state, problem, ended }) {
  if (problem) return state === "fired" ? `its turn failed: ${problem}` : `${state}: ${problem}`;
  if (state !== "fired") return state;
  return ended ? "its turn has ended" : ended === null ? "sent" : "its turn has not ended";
}

function timesOf({ every, cron, zone, at }) {
  if (every) return `every ${every}`;
  return cron ? `${cron}${zone && zone !== "UTC" ? ` ${zone}` : ""}` : at ? `once, at ${when(at)}` : null;
}

function until(time, now) {
  const rest = Date.parse(time) - now;
  return rest > 0 ? `in ${duration(Math.ceil(rest / 1000) * 1000)}` : "now";
}
