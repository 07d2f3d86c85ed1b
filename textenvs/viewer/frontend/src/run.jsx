// A run: its curves, its iterations, its configuration; of an evaluation, its results with their intervals.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { mean, num, pathOf, solved } from "./data.js";
import { Estimate, Whiskers } from "./parts.jsx";
import { visible } from "./text.jsx";

// Metrics that are drawn first.
const FIRST = [
  /^train\/reward$/, /^val\/reward$/, /^train\/solved$/, /^val\/solved$/, /^train\/groups_tied$/, /entropy$/, /(^|\/)kl|approx_kl_k3/, /grad_norm$/,
  /actor\/clipped$/, /mismatch/, /response_tokens$/, /truncated$/,
];
const MOST = 12; // curves at first

export function Run({ index, run, number }) {
  const several = index.runs.length > 1;
  return (
    <section>
      <div class="facts">
        <h1>{visible(run.name)}</h1>
        <span class="muted">{visible(run.path)}</span>
        {several && <a href="#/compare">compare</a>}
        {index.runs.map((other, n) => n !== number && <a href={`#/run/${n}`}>{visible(other.name)}</a>)}
      </div>
      <Outcome run={run} />
      {run.results && <Results results={run.results} />}
      <div class="overview">
        <div><Iterations run={run} number={number} /></div>
        <div><Curves runs={[run]} /></div>
      </div>
      {Object.keys(run.config).length > 0 && (
        <details class="config">
          <summary>{run.kind === "evaluation" ? "what was evaluated" : "configuration"}</summary>
          <Tree value={run.config} />
        </details>
      )}
    </section>
  );
}

/** What came of it: what was played, before and after, the best and the worst episode, the first success. */
function Outcome({ run }) {
  const evaluated = run.kind === "evaluation";
  const environments = [...new Set([run.config.environment?.id, run.config.env?.id, ...run.iterations.map((it) => it.info.environment?.id)])].filter(Boolean);
  const policy = run.config.policy ?? {};
  const model = evaluated ? policy.model ?? policy.local ?? policy.script ?? policy.attack ?? policy.function : run.kind === "run" ? run.config.model?.path ?? "from scratch" : null;
  const played = run.iterations.filter((it) => it.list.length);
  const last = played.filter((it) => it.kind !== "train").at(-1) ?? played.at(-1);
  const roots = (last?.list ?? []).filter((row) => !row.parent && row.reward !== null);
  const by = (better) => roots.reduce((found, row) => (!found || better(row.reward, found.reward) ? row : found), null);
  const first = played.filter((it) => it.kind === "train").flatMap((it) => it.list).find((row) => row.success);
  const facts = [
    [environments.length > 1 ? "environments" : "environment", environments.join(", ")],
    [evaluated ? "policy" : "model", model],
    ...["val/solved", "val/reward", "train/solved", "train/reward"].map((name) => [NAMES[name], <Change run={run} name={name} />, ends(run, name)]),
    ["best episode", <Ref row={by((a, b) => a > b)} />, roots.length > 0],
    ["worst episode", <Ref row={by((a, b) => a < b)} />, roots.length > 1],
    ["first success", <Ref row={first} />, !evaluated && first],
  ].filter(([, value, known = value]) => known);
  if (!facts.length) return null;
  return <table class="outcome">{facts.map(([name, value]) => <tr><th>{name}</th><td>{typeof value === "string" ? visible(value) : value}</td></tr>)}</table>;
}

const NAMES = { "val/solved": "solved, held-out tasks", "val/reward": "reward, held-out tasks", "train/solved": "solved in training", "train/reward": "reward in training" };

/** The first and the last value of a metric, each with its iteration; nothing where it was logged less than twice. */
function ends(run, name) {
  const values = (run.metrics.values[name] ?? []).flatMap((value, n) => (value === null ? [] : [[run.metrics.steps[n], value]]));
  return values.length > 1 ? [values[0], values.at(-1)] : null;
}

function Change({ run, name }) {
  const found = ends(run, name);
  if (!found) return null;
  const show = ([step, value]) => <><b>{name.endsWith("solved") ? `${num(100 * value, 3)} %` : num(value, 3)}</b> <span class="muted">(iteration {step})</span></>;
  return <>{show(found[0])} → {show(found[1])}</>;
}

function Ref({ row }) {
  return row && <a href={`#${pathOf(row)}`}>{visible(row.task || row.id)}, {num(row.reward, 3)} <span class="muted">({visible(row.it.name)})</span></a>;
}

function Iterations({ run, number }) {
  if (!run.iterations.length) return <p class="muted">There are no episodes yet.</p>;
  return (
    <>
      <h2>Episodes <a class="aside" href={`#/run/${number}/all`}>all</a></h2>
      <table class="iterations">
        <tr><th></th><th>episodes</th><th>mean reward</th><th>solved</th>{run.kind !== "evaluation" && <th>groups with signal</th>}</tr>
        {[...run.iterations].reverse().map((it) => {
          const roots = it.list.filter((row) => !row.parent);
          const groups = [...it.groups.values()];
          const known = groups.some((rows) => rows[0].signal);
          return (
            <tr>
              <td><a href={`#${it.path}`}>{visible(it.name)}</a></td>
              <td>{it.problem && <span class="bad" title={it.problem}>unreadable</span>}{!it.problem && roots.length}{it.list.length > roots.length && ` + ${it.list.length - roots.length}`}</td>
              <td>{num(mean(roots.map((row) => row.reward)), 3)}</td>
              <td>{solved(roots) !== null && `${num(solved(roots), 3)} %`}</td>
              <td>{known ? `${groups.filter((rows) => rows[0].signal === "signal").length} of ${groups.length}` : ""}</td>
            </tr>
          );
        })}
      </table>
      {run.left_out.length > 0 && <p class="muted">{run.left_out.length} earlier ones are left out; --last all shows them.</p>}
    </>
  );
}

function Results({ results }) {
  const parts = { all: results.all, ...(Object.keys(results.data_sources).length > 1 ? results.data_sources : {}) };
  return Object.entries(parts).map(([name, numbers]) => {
    const lines = [
      ["success", numbers.success, true],
      ...["pass_hat_k", "pass_at_k"].flatMap((which) =>
        Object.entries(numbers[which] ?? {}).slice(1).map(([k, e]) => [`${which === "pass_hat_k" ? "pass^" : "pass@"}${k}`, e, true])),
      ["return", numbers.return],
      ...Object.entries(numbers.terms ?? {}).map(([term, e]) => [`  ${term}`, e]),
      ...["truncated", "assistant_turns", "user_turns", "tool_calls", "completion_tokens"].map((field) => [field.replace("_", " "), numbers[field], field === "truncated"]),
      ...Object.entries(numbers.metrics ?? {}).map(([metric, e]) => [`metric ${metric}`, e]),
    ].filter(([, e]) => e);
    return (
      <>
        <h2>{name === "all" ? "Results" : visible(name)}</h2>
        <p>
          {numbers.tasks} tasks, {numbers.episodes} episodes{numbers.failed > 0 && <b class="bad">, {numbers.failed} failed and in no number</b>};
          intervals of {num(100 * results.confidence)} %, clustered by task
        </p>
        <table>
          {lines.map(([label, e, rate]) => (
            <tr>
              <th class="pre">{visible(label)}</th>
              <td><Estimate of={e} percent={rate} /></td>
              <td>{rate && <Whiskers of={[[label, e]]} range={[0, 1]} />}</td>
            </tr>
          ))}
        </table>
      </>
    );
  });
}

/** Curves of one run's metrics, or of two on the same axes. */
export function Curves({ runs }) {
  const [filter, setFilter] = useState("");
  const [all, setAll] = useState(false);
  const names = useMemo(() => {
    const known = [...new Set(runs.flatMap((run) => Object.keys(run.metrics.values)))];
    const rank = (name) => FIRST.findIndex((pattern) => pattern.test(name)) >>> 0;
    return known.sort((a, b) => rank(a) - rank(b) || (a < b ? -1 : 1));
  }, [runs]);
  if (!names.length) return null;
  const wanted = names.filter((name) => name.toLowerCase().includes(filter.toLowerCase()));
  return (
    <>
      <h2>
        Metrics <input class="aside" type="search" placeholder={`filter ${names.length}`} value={filter} onInput={(e) => setFilter(e.target.value)} />
      </h2>
      <div class="curves">{wanted.slice(0, all ? undefined : MOST).map((name) => <Curve key={name} name={name} runs={runs} />)}</div>
      {wanted.length > MOST && !all && <button onClick={() => setAll(true)}>all {wanted.length}</button>}
    </>
  );
}

const COLOURS = ["--accent", "--second"];

function Curve({ name, runs }) {
  const box = useRef();
  useEffect(() => {
    const steps = [...new Set(runs.flatMap((run) => run.metrics.steps))].sort((a, b) => a - b);
    const lines = runs.map((run) => {
      const at = new Map(run.metrics.steps.map((step, n) => [step, run.metrics.values[name]?.[n] ?? null]));
      return steps.map((step) => at.get(step) ?? null);
    });
    const colour = (which) => getComputedStyle(document.documentElement).getPropertyValue(which).trim();
    const axis = { stroke: () => colour("--muted"), grid: { stroke: () => colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    const plot = new uPlot(
      {
        width: box.current.clientWidth || 300,
        height: 130,
        legend: { show: false },
        cursor: { y: false, points: { size: 6 } },
        scales: { x: { time: false }, y: { range: (u, low, high) => (low === high ? [low - 1, high + 1] : uPlot.rangeNum(low, high, 0.1, true)) } },
        axes: [{ ...axis, size: 22, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000] }, { ...axis, size: 52, values: (u, ticks) => ticks.map((tick) => num(tick, 3)) }],
        series: [{}, ...runs.map((run, n) => ({ stroke: () => colour(COLOURS[n]), width: 1.5, spanGaps: true, points: { show: steps.length < 30, size: 4 } }))],
        hooks: { setCursor: [(u) => show(u.cursor.idx, u.data)] },
      },
      [steps, ...lines],
      box.current,
    );
    const last = box.current.parentNode.querySelector("[data-value]");
    const show = (n, data) => {
      const place = n ?? data[0].length - 1;
      last.textContent = `${data.slice(1).map((line) => num(line[place])).join(" | ")}${n === null || n === undefined ? "" : ` at ${data[0][place]}`}`;
    };
    show(null, plot.data);
    const themed = new MutationObserver(() => plot.redraw());
    themed.observe(document.documentElement, { attributes: true });
    return () => {
      themed.disconnect();
      plot.destroy();
    };
  }, [runs, name]);
  return (
    <figure>
      <figcaption title={name}><span>{visible(name)}</span> <b data-value /></figcaption>
      <div ref={box} />
    </figure>
  );
}

function Tree({ value }) {
  if (value === null || typeof value !== "object") return <span class="leaf">{visible(JSON.stringify(value))}</span>;
  const entries = Object.entries(value);
  if (!entries.length) return <span class="leaf">{Array.isArray(value) ? "[]" : "{}"}</span>;
  return (
    <ul class="tree">
      {entries.map(([key, each]) => <li><span class="key">{visible(key)}</span> <Tree value={each} /></li>)}
    </ul>
  );
}
