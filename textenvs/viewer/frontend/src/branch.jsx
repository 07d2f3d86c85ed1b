// Continue from here: a recorded episode played again up to a turn, and on by hand, by the expert or by a model.
import { useEffect, useState } from "preact/hooks";
import { act, loadEpisode, num, ordered, pathOf, sum } from "./data.js";
import { Forks, Said } from "./group.jsx";
import { useLoaded } from "./parts.jsx";
import { visible } from "./text.jsx";

export function Branch({ index, row, turn, refresh }) {
  const [branch, setBranch] = useState(null);
  const [busy, setBusy] = useState("");
  const [problem, setProblem] = useState("");
  const [saved, setSaved] = useState("");
  const [episodes, instead] = useLoaded(() => Promise.all(ordered(row.it.groups.get(row.group || row.id)).map(loadEpisode)), [row]);
  const run = index.runs[row.it.run];
  const { info } = row.it;
  const known = info.environment ?? (run.kind === "evaluation" ? run.config.environment : null);
  const environment = info.components ? known?.[info.components[row.group]] : known; // of a mixture

  const ask = async (what, body) => {
    setBusy(what);
    setProblem("");
    try {
      const answer = await act(what, { branch: branch?.branch, ...body });
      if (what === "save") {
        setSaved(answer.saved);
        await refresh();
      } else setBranch({ ...branch, ...answer });
      return true;
    } catch (error) {
      setProblem(error.message);
      return false;
    } finally {
      setBusy("");
    }
  };
  useEffect(() => {
    if (branch) document.querySelector("main").scrollTo({ top: 1e9 }); // where it goes on
  }, [branch?.messages.length]);
  const open = () => ask("open", { run: row.it.run, kind: row.it.kind, number: row.it.number, chunk: row.chunk, place: row.place, turn });
  if (!episodes) return instead;
  const lane = branch && {
    rewards: branch.rewards,
    row: { id: "this branch", parent: row.id, from: turn, reward: sum(branch.rewards), stop: branch.stop, saved: true, open: true },
  };
  const lanes = [...episodes];
  if (lane) lanes.splice(lanes.findIndex((each) => each.row.id === row.id) + 1, 0, lane);
  return (
    <section class="branch">
      <div class="facts"><h1>Continue {turn === 0 ? "from the opening" : `after turn ${turn}`}</h1><a href={`#${pathOf(row)}`}>{visible(row.id)}</a></div>
      <Forks episodes={lanes} here={lane ? "this branch" : row.id} />
      {problem && <p class="problem" role="alert">{visible(problem)}</p>}
      {!branch ? (
        <>
          {environment ? (
            <p>This makes <b>{visible(environment.id)}</b> on this machine, as the file says it was: <code>{visible(JSON.stringify(environment.options ?? {}))}</code></p>
          ) : <p class="problem">The file does not say which environment was played: an older version wrote it.</p>}
          <button class="main" onClick={open} disabled={Boolean(busy) || !environment}>{busy ? "playing the recorded turns …" : "open it"}</button>
        </>
      ) : (
        <>
          {branch.differences.length === 0 ? (
            <p class="tag good" data-replayed>played again: the {branch.kept} messages equal the record</p>
          ) : (
            <div class="problem" data-differences>
              Played again, the conversation is not the recorded one; the branch goes on from what it is now.
              <ul>{branch.differences.map((text) => <li>{visible(text)}</li>)}</ul>
            </div>
          )}
          <Messages branch={branch} />
          {branch.done ? <p><b>The episode is over</b> ({visible(branch.stop ?? "")}{branch.error && `: ${branch.error}`}); it earned {num(sum(branch.rewards))} since turn {turn}.</p> : <Controls branch={branch} busy={busy} ask={ask} />}
          {branch.rewards.length > 0 && <p><button onClick={() => ask("save")} disabled={Boolean(busy)}>save this branch</button> {saved && <span data-saved>{visible(saved)}</span>}</p>}
        </>
      )}
    </section>
  );
}

function Messages({ branch }) {
  let turn = -1;
  return branch.messages.map((message, n) => {
    const own = n >= branch.kept;
    if (own && message.role === "assistant") turn += 1;
    const reply = own && message.role === "assistant";
    return (
      <div class={own ? "new" : "kept"}>
        <Said message={message} reward={reply ? branch.rewards[turn] : undefined}>{reply && <span class="muted"> by {branch.by[turn]}</span>}</Said>
      </div>
    );
  });
}

function Controls({ branch, busy, ask }) {
  const [text, setText] = useState("");
  const [tool, setTool] = useState("");
  const [given, setGiven] = useState("{}");
  const empty = !text.trim() && !tool;
  const send = async () => {
    if (empty || busy) return;
    const calls = tool ? [{ name: tool, arguments: given }] : [];
    if (await ask("reply", { content: text, calls })) {
      setText("");
      setTool("");
      setGiven("{}");
    }
  };
  return (
    <div class="controls">
      <textarea rows="4" placeholder="the assistant's reply; Ctrl-Enter sends it" value={text} onInput={(e) => setText(e.target.value)}
        onKeyDown={(e) => e.key === "Enter" && (e.ctrlKey || e.metaKey) && send()} />
      {branch.tools.length > 0 && (
        <p>
          <select value={tool} onChange={(e) => setTool(e.target.value)}>
            <option value="">call no tool</option>
            {branch.tools.map(({ name }) => <option value={name}>{visible(name)}</option>)}
          </select>
          {tool && <input class="arguments" value={given} onInput={(e) => setGiven(e.target.value)} aria-label="arguments, JSON" />}
        </p>
      )}
      <p>
        <button class="main" onClick={send} disabled={empty || Boolean(busy)}>send</button>
        {branch.policies.map((policy) => (
          <>
            <button onClick={() => ask("play", { policy, turns: 1 })} disabled={Boolean(busy)}>{policy}: one turn</button>
            <button onClick={() => ask("play", { policy, turns: 100 })} disabled={Boolean(busy)}>{policy}: to the end</button>
          </>
        ))}
        {!branch.policies.includes("model") && <span class="muted"> a model: start with --local FOLDER or --model NAME --base-url URL</span>}
        {busy && <span class="muted"> waiting …</span>}
      </p>
    </div>
  );
}
