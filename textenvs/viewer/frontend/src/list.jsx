// Episodes of an iteration, or of all of them: filters, and a list that scrolls however long it is.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { filtered, groupPath, largest, mean, num, pathOf, searched, solved, sorted } from "./data.js";
import { Lines, Reward, Tag } from "./parts.jsx";
import { go, same, set, trail, useKeys } from "./route.js";
import { visible } from "./text.jsx";

const CHOICES = { stop: "stop", status: "status", source: "data source", signal: "signal" };

export function List({ its, route }) {
  const rows = useMemo(() => its.flatMap((it) => it.ordered), [its]);
  const f = route.query;
  const [found, setFound] = useState(null); // rows in whose words the search stands
  const [searching, setSearching] = useState("");
  const shown = useMemo(() => sorted(filtered(rows, f, found), f.sort), [rows, route.hash, found]);
  const [at, setAt] = useState(() => (trail.hash === route.hash ? Math.max(0, shown.findIndex((row) => same(row, trail.row))) : 0));
  Object.assign(trail, { path: route.path, hash: route.hash, rows: shown });
  const most = useMemo(() => largest(rows.map((row) => row.reward)), [rows]);
  const run = useRef(0);

  useEffect(() => {
    setFound(null);
    setSearching("");
    run.current += 1;
  }, [f.q]);
  const searchWords = async () => {
    const mine = (run.current += 1);
    const hits = new Set();
    for await (const { n, row } of searched(rows, f.q ?? "")) {
      if (mine !== run.current) return;
      if (row) hits.add(row);
      setSearching(`${n + 1} of ${rows.length}`);
    }
    setFound(hits);
    setSearching(`${hits.size} have it in their words`);
  };
  useKeys({
    j: () => setAt((n) => Math.min(n + 1, shown.length - 1)),
    k: () => setAt((n) => Math.max(n - 1, 0)),
    Enter: () => shown[at] && go(pathOf(shown[at])),
  });
  const before = useRef(route.hash);
  useEffect(() => {
    if (before.current !== route.hash) setAt(0);
    before.current = route.hash;
  }, [route.hash]);

  const options = (name) => [...new Set(rows.map((row) => row[name] ?? ""))].filter(Boolean).sort();
  const [one, several] = [its.length === 1, options("source").length > 1];
  return (
    <section class="fill">
      {its.map((it) => it.problem && <p class="problem">{visible(it.problem)}</p>)}
      {one && <Facts it={its[0]} />}
      <form class="filters" onSubmit={(event) => event.preventDefault()}>
        <input data-search type="search" placeholder="search task, opening, id" value={f.q ?? ""}
          onInput={(e) => set({ q: e.target.value })} onKeyDown={(e) => e.key === "Enter" && f.q && searchWords()} />
        {f.q && <button onClick={searchWords}>search in all words</button>}
        <label>reward <input class="number" type="number" step="any" name="min" placeholder="min" value={f.min ?? ""} onInput={(e) => set({ min: e.target.value })} />
          {" to "}<input class="number" type="number" step="any" name="max" placeholder="max" value={f.max ?? ""} onInput={(e) => set({ max: e.target.value })} /></label>
        {Object.entries(CHOICES).map(([name, label]) => options(name).length > 1 && (
          <select name={name} value={f[name] ?? ""} onChange={(e) => set({ [name]: e.target.value })}>
            <option value="">{label}</option>
            {options(name).map((text) => <option value={text}>{visible(text)}</option>)}
          </select>
        ))}
        {rows.some((row) => row.parent) && (
          <select name="forks" value={f.forks ?? ""} onChange={(e) => set({ forks: e.target.value })}>
            <option value="">roots and forks</option>
            <option value="roots">roots</option>
            <option value="forks">forks</option>
          </select>
        )}
        <span class="muted" data-count>{shown.length} of {rows.length}{searching && ` · ${searching}`}</span>
      </form>
      <div class={`line head${one ? "" : " wide"}`}>
        {!one && <Sort name="iteration" label="iteration" by={f.sort} />}
        <Sort name="reward" label="reward" by={f.sort} /><Sort name="task" label="task" by={f.sort} /><Sort name="opening" label="opening" by={f.sort} />
        <Sort name="turns" label="turns" by={f.sort} /><Sort name="tokens" label="tokens" by={f.sort} /><Sort name="stop" label="ended by" by={f.sort} />
        <Sort name="signal" label="signal" by={f.sort} />
      </div>
      <Lines items={shown} height={30} at={at} name="episodes" line={(row, n) => <Line row={row} wide={!one} most={most} here={n === at} several={several} />} />
    </section>
  );
}

/** The head of a column: the first click sorts by it, largest first; the second the other way; the third not at all. */
function Sort({ name, label, by }) {
  const [mark, next] = by === `-${name}` ? [" ↓", name] : by === name ? [" ↑", ""] : ["", `-${name}`];
  return <button class="sort" title={`sort by ${label}`} onClick={() => set({ sort: next })}>{label}{mark}</button>;
}

function Line({ row, wide, most, here, several }) {
  return (
    <a class={`line${wide ? " wide" : ""}${here ? " here" : ""}`} href={`#${pathOf(row)}`} role="row">
      {wide && <span>{visible(row.it.name)}</span>}
      <Reward value={row.reward} most={most} />
      <span style={{ paddingLeft: `${Math.min(row.depth, 6) * 14}px` }}>
        {row.parent && <span class="muted">{row.saved ? "✎" : "↳"} {row.from + 1} </span>}
        {several && <span class="muted">{visible(row.source)} </span>}
        {visible(row.task || row.id)}
      </span>
      <span class="muted">{visible(row.it.openings[row.group] ?? "")}</span>
      <span>{row.turns}</span>
      <span>{row.tokens || ""}</span>
      <span><Tag text={row.stop || row.status} /></span>
      <span><Tag text={row.signal} /></span>
    </a>
  );
}

/** What holds for the whole iteration, and its groups as strips of their rewards. */
function Facts({ it }) {
  const roots = it.list.filter((row) => !row.parent);
  const groups = [...it.groups.values()];
  const signals = groups.filter((rows) => rows[0].signal === "signal").length;
  const rewards = roots.map((row) => row.reward);
  const range = rewards.reduce(([low, high], reward) => [Math.min(low, reward), Math.max(high, reward)], [Infinity, -Infinity]);
  const steps = it.info.steps ?? [];
  return (
    <>
      <div class="facts">
        <h1>{visible(it.name)}</h1>
        <span><b>{roots.length}</b> episodes{it.list.length > roots.length && <> and <b>{it.list.length - roots.length}</b> forks</>}</span>
        <span>mean reward <b>{num(mean(rewards), 3)}</b></span>
        {solved(roots) !== null && <span>solved <b>{num(solved(roots), 3)} %</b></span>}
        {groups.some((rows) => rows[0].signal) && <span>groups with signal <b>{signals} of {groups.length}</b></span>}
        {it.info.version !== undefined && it.info.version !== null && <span>weights <b>{it.info.version}</b></span>}
        {steps.length > 0 && <Steps steps={steps} />}
      </div>
      {groups.length < roots.length && (
        <details class="groups">
          <summary>{groups.length} groups</summary>
          <div class="strips">{groups.map((rows) => <Strip rows={rows} range={range} />)}</div>
        </details>
      )}
    </>
  );
}

function Steps({ steps }) {
  const names = Object.keys(steps[0]);
  return (
    <details>
      <summary>{steps.length} optimizer {steps.length === 1 ? "step" : "steps"}</summary>
      <table>
        <tr>{names.map((name) => <th>{name}</th>)}</tr>
        {steps.map((step) => <tr>{names.map((name) => <td>{num(step[name])}</td>)}</tr>)}
      </table>
    </details>
  );
}

function Strip({ rows, range: [low, high] }) {
  const x = (v) => 6 + (108 * (v - low)) / (high - low || 1);
  const roots = rows.filter((row) => !row.parent);
  return (
    <a class="strip" href={`#${groupPath(rows[0])}`} title={`mean ${num(rows[0].mean)}, spread ${num(rows[0].std)}`}>
      <svg viewBox="0 0 120 22" width="120" height="22">
        <line class="axis" x1="6" x2="114" y1="11" y2="11" />
        {rows[0].mean !== null && <line class="mean" x1={x(rows[0].mean)} x2={x(rows[0].mean)} y1="3" y2="19" />}
        {roots.map((row, n) => <circle cx={x(row.reward)} cy={7 + ((n * 5) % 9)} r="2.6" />)}
      </svg>
      <span>{visible(rows[0].task)}</span>
      <Tag text={rows[0].signal} />
    </a>
  );
}
