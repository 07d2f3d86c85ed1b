// Two runs, or two evaluations, on the tasks that both have played.
import { useMemo, useState } from "preact/hooks";
import { largest, loadEpisode, num } from "./data.js";
import { Beside } from "./group.jsx";
import { Estimate, Lines, Reward, useLoaded, Whiskers } from "./parts.jsx";
import { go, useKeys } from "./route.js";
import { Curves } from "./run.jsx";
import { visible } from "./text.jsx";

const named = (index, [run, kind, number]) => `${index.runs[run].name}${kind === "evaluation" ? "" : `, ${kind} ${number}`}`;
const iteration = (index, [run, kind, number]) => index.runs[run].iterations.find((it) => it.kind === kind && it.number === number);

export function Compare({ index, number }) {
  const pair = index.pairs[number];
  const [worst, setWorst] = useState(true);
  const tasks = useMemo(() => byDifference(pair, worst), [pair, worst]);
  const [at, setAt] = useState(0);
  useKeys({
    j: () => setAt((n) => Math.min(n + 1, tasks.length - 1)),
    k: () => setAt((n) => Math.max(n - 1, 0)),
    Enter: () => tasks[at] && go(`/compare/${number}/task/${tasks[at].n}`),
  });
  const most = largest(tasks.map(({ difference }) => difference));
  return (
    <section>
      <div class="facts">
        <h1>{index.runs.map((run, n) => [n > 0 && " and ", <a href={`#/run/${n}`} class={`run${n}`}>{visible(run.name)}</a>])}</h1>
        {index.pairs.length > 1 && (
          <select value={number} onChange={(e) => go(`/compare/${e.target.value}`)}>
            {index.pairs.map((each, n) => <option value={n}>{visible(`${each.first.slice(1).join(" ")} and ${each.second.slice(1).join(" ")}`)}</option>)}
          </select>
        )}
      </div>
      {!pair ? <p class="problem">They have no task in common, so there is nothing to compare task by task.</p> : (
        <>
          <p>{pair.tasks.length} tasks that both played{sumAlone(pair.alone)}; intervals of 95 %, over tasks.</p>
          <table>
            <tr><th></th><th>{visible(named(index, pair.first))}</th><th>{visible(named(index, pair.second))}</th><th>difference</th><th></th></tr>
            {Object.entries(pair.estimates).map(([name, { first, second, difference }]) => (
              <tr data-estimate={name}>
                <th>{name}</th>
                <td><Estimate of={first} percent={name === "success"} /></td>
                <td><Estimate of={second} percent={name === "success"} /></td>
                <td><Estimate of={difference} percent={name === "success"} signed /></td>
                <td><Whiskers of={[["difference", difference]]} range={[0]} /></td>
              </tr>
            ))}
          </table>
          <h2>Tasks <button class="aside" onClick={() => setWorst(!worst)}>{worst ? "worse first" : "better first"}</button></h2>
          <div class="line head pairs"><span>difference</span><span>task</span><span>opening</span><span>first</span><span>second</span></div>
          <Lines items={tasks} height={30} at={at} name="tasks" line={({ n, task, difference }, place) => (
            <a class={`line pairs${place === at ? " here" : ""}`} href={`#/compare/${number}/task/${n}`}>
              <Reward value={difference} most={most} />
              <span>{visible(task[1])}</span>
              <span class="muted">{visible(openingOf(index, pair, task))}</span>
              <span>{num(task[3], 3)}</span><span>{num(task[6], 3)}</span>
            </a>
          )} />
        </>
      )}
      <Curves runs={index.runs} />
    </section>
  );
}

function byDifference(pair, worst = true) {
  const all = (pair?.tasks ?? []).map((task, n) => ({ n, task, difference: task[6] - task[3] }));
  return all.sort((a, b) => (worst ? a.difference - b.difference : b.difference - a.difference));
}

function sumAlone([a, b]) {
  return a + b > 0 ? ` (${a} only the first, ${b} only the second)` : "";
}

const rowsOf = (it, [source, key]) => it.list.filter((row) => row.source === source && row.task === key && !row.parent);

function openingOf(index, pair, task) {
  const it = iteration(index, pair.first);
  it.openingByTask ??= new Map(it.list.map((row) => [`${row.source}\n${row.task}`, it.openings[row.group] ?? ""]));
  return it.openingByTask.get(`${task[0]}\n${task[1]}`) ?? "";
}

export function CompareTask({ index, pair, place, number }) {
  const task = pair.tasks[number];
  const sides = [pair.first, pair.second].map((ref) => rowsOf(iteration(index, ref), task).slice(0, 2));
  const tasks = useMemo(() => byDifference(pair), [pair]);
  const move = (by) => {
    const next = tasks[tasks.findIndex(({ n }) => n === number) + by];
    if (next) go(`/compare/${place}/task/${next.n}`);
  };
  useKeys({ j: () => move(1), k: () => move(-1) });
  const rows = sides.flatMap((some) => some.slice(0, sides.flat().length > 3 ? 1 : 2));
  const [episodes, instead] = useLoaded(() => Promise.all(rows.map(loadEpisode)), [pair, number]);
  return (
    <section>
      <div class="facts">
        <h1>{visible(task[1])}</h1>
        <span>{visible(named(index, pair.first))}: mean of {task[2]} <b>{num(task[3])}</b></span>
        <span>{visible(named(index, pair.second))}: mean of {task[5]} <b>{num(task[6])}</b></span>
      </div>
      {episodes ? <Beside episodes={episodes} names={rows.map((row) => `${index.runs[row.it.run].name} ${row.id}`)} /> : instead}
    </section>
  );
}
