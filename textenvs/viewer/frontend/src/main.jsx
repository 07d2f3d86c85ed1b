// The shell: where the page is (the address's hash), what it shows there, keys.
import { render } from "preact";
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import "uplot/dist/uPlot.min.css";
import "./style.css";
import { Branch } from "./branch.jsx";
import { Compare, CompareTask } from "./compare.jsx";
import { groupPath, live, loadIndex } from "./data.js";
import { EpisodeView } from "./episode.jsx";
import { Group } from "./group.jsx";
import { List } from "./list.jsx";
import { go, read, trail, useKeys, useRoute } from "./route.js";
import { Run } from "./run.jsx";
import { visible } from "./text.jsx";

const KEYS = [
  ["j k, ↓ ↑", "next and previous line, or episode"],
  ["Enter", "open the line"],
  ["u", "up: episode, group, iteration, run"],
  ["/", "search"],
  ["0 … 6", "colour tokens by nothing, advantage, log-probability, ratio, entropy, mismatch, weight"],
  ["← →", "previous and next token, with its sum"],
  ["t", "the tokens as the model saw them"],
  ["d", "dark or light"],
  ["?", "these keys"],
];

function App() {
  const [index, setIndex] = useState(null);
  const [problem, setProblem] = useState("");
  const [help, setHelp] = useState(false);
  const stamp = useRef("");
  const route = useRoute();

  const refresh = useCallback(async () => {
    try {
      const found = await loadIndex(stamp.current);
      if (found) {
        stamp.current = found.stamp ?? "";
        setIndex(found);
      }
      setProblem("");
    } catch (error) {
      setProblem(live ? `the server does not answer (${error.message})` : error.message);
    }
  }, []);
  useEffect(() => {
    if (!live) {
      refresh();
      return undefined;
    }
    let timer;
    const follow = async () => {
      await refresh();
      timer = setTimeout(follow, 2000);
    };
    follow();
    return () => clearTimeout(timer);
  }, []);
  useEffect(() => {
    if (index) document.title = `${index.runs.map((run) => run.name).join(" and ")} · textenvs view`;
  }, [index]);
  useKeys({
    "?": () => setHelp(!help),
    Escape: () => setHelp(false),
    u: () => index && go(up(index, read())),
    d: toggleTheme,
    "/": () => document.querySelector("[data-search]")?.focus(),
  });

  return (
    <>
      <header>
        {index && <Crumbs index={index} route={route} />}
        <span class="right">
          {live && <span class={problem ? "tag bad" : "tag good"}>{problem ? "offline" : "live"}</span>}
          <button class="plain" onClick={toggleTheme} title="dark or light (d)">◐</button>
          <button class="plain" onClick={() => setHelp(!help)} title="keys (?)">?</button>
        </span>
      </header>
      {problem && <p class="problem" role="alert">{visible(problem)}</p>}
      {help && (
        <dialog open>
          <h2>Keys</h2>
          <dl class="keys">{KEYS.map(([key, text]) => [<dt>{key}</dt>, <dd>{text}</dd>])}</dl>
          <button onClick={() => setHelp(false)}>close</button>
        </dialog>
      )}
      <main>{index ? <View index={index} route={route} refresh={refresh} /> : !problem && <p class="muted">reading …</p>}</main>
    </>
  );
}

function View({ index, route, refresh }) {
  const [what, a, kind, b, leaf, id] = route.parts;
  if (what === "compare" || (what === undefined && index.runs.length > 1)) {
    const pair = index.pairs[Number(a ?? 0)];
    if (pair && kind === "task") return <CompareTask index={index} pair={pair} place={Number(a)} number={Number(b)} />;
    return <Compare index={index} number={Number(a ?? 0)} />;
  }
  const run = index.runs[Number(a ?? 0)];
  if (!run) return <Missing />;
  if (kind === undefined) return <Run index={index} run={run} number={Number(a ?? 0)} />;
  if (kind === "all") return <List its={run.iterations} route={route} />;
  const it = run.iterations.find((each) => each.kind === kind && String(each.number) === b);
  if (!it) return <Missing />;
  if (leaf === "g" && it.groups.has(id)) return <Group key={id} it={it} rows={it.groups.get(id)} route={route} />;
  const row = leaf === "e" && it.byId.get(id);
  if (row && route.query.continue !== undefined)
    return <Branch key={route.hash} index={index} row={row} turn={Number(route.query.continue)} refresh={refresh} />;
  if (row) return <EpisodeView key={row.it.path + row.id} row={row} route={route} />;
  return leaf ? <Missing /> : <List its={[it]} route={route} />;
}

const Missing = () => (
  <p class="problem">This is not (or no longer) here. <a href="#/">To the beginning</a></p>
);

function places(index, { parts, query }) {
  const [what, a, kind, b, leaf, id] = parts;
  const found = [[index.runs.map((run) => run.name).join(" | "), index.pairs.length || index.runs.length > 1 ? "/compare" : "/"]];
  if (what === "compare" || (what === undefined && index.runs.length > 1)) return kind === "task" ? [...found, [`comparison ${a}`, `/compare/${a}`], ["task", ""]] : found;
  const run = index.runs[Number(a ?? 0)];
  if (index.runs.length > 1 && run) found.push([run.name, `/run/${a ?? 0}`]);
  if (kind === "all") return [...found, ["all episodes", ""]];
  const it = run?.iterations.find((each) => each.kind === kind && String(each.number) === b);
  if (!it) return found;
  found.push([it.name, it.path]);
  const row = leaf === "e" ? it.byId.get(id) : leaf === "g" ? it.groups.get(id)?.[0] : null;
  if (row) found.push([row.task || row.group, groupPath(row)]);
  if (row && leaf === "e") found.push([row.id, `${it.path}/e/${encodeURIComponent(id)}`]);
  if (query.continue !== undefined) found.push([`from turn ${Number(query.continue) + 1}`, ""]);
  return found;
}

/** A list with the filters that it had. */
function up(index, route) {
  const path = places(index, route).at(-2)?.[1] ?? "/";
  return path === trail.path ? trail.hash : path;
}

function Crumbs({ index, route }) {
  return (
    <nav>
      {places(index, route).map(([name, path], n, all) => [
        n > 0 && <span class="muted"> › </span>,
        n === all.length - 1 && n > 0 ? <b title={name}>{visible(name)}</b> : <a href={`#${path}`} title={name}>{visible(name)}</a>,
      ])}
    </nav>
  );
}

function toggleTheme() {
  const dark = document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "light" : "dark";
}

render(<App />, document.getElementById("app"));
