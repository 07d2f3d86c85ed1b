// A group: the episodes of one task, the tree of their forks, and siblings side by side.
import { useState } from "preact/hooks";
import { largest, loadEpisode, num, ordered, pathOf } from "./data.js";
import { Reward, Tag, useLoaded } from "./parts.jsx";
import { go, set, useKeys } from "./route.js";
import { Body, visible } from "./text.jsx";

export function Group({ it, rows, route }) {
  const list = ordered(rows);
  const [at, setAt] = useState(0);
  const [episodes, instead] = useLoaded(() => Promise.all(list.map(loadEpisode)), [rows]);
  const picked = (route.query.pick ?? "").split(",").filter(Boolean).map(Number).filter((n) => n < list.length);
  const chosen = picked.length ? picked : extremes(list);
  const most = largest(list.map((row) => row.reward));
  useKeys({
    j: () => setAt((n) => Math.min(n + 1, list.length - 1)),
    k: () => setAt((n) => Math.max(n - 1, 0)),
    Enter: () => go(pathOf(list[at])),
  });
  const pick = (n) => set({ pick: (chosen.includes(n) ? chosen.filter((x) => x !== n) : [...chosen, n]).join(",") });
  const { mean, std, signal } = list[0];
  return (
    <section>
      <div class="facts">
        <h1>{visible(list[0].task || list[0].group)}</h1>
        <span class="muted">{visible(list[0].source)}</span>
        {mean !== null && <span>mean <b>{num(mean)}</b>, spread <b>{num(std)}</b></span>}
        <Tag text={signal} />
      </div>
      <div class="pairup">
        <table class="siblings">
          <tr><th>beside</th><th title="of a fork: from its turn on">reward</th><th>episode</th><th>turns</th><th>tokens</th><th>ended by</th></tr>
          {list.map((row, n) => (
            <tr class={n === at ? "here" : ""}>
              <td><input type="checkbox" checked={chosen.includes(n)} onChange={() => pick(n)} aria-label={`show ${row.id} side by side`} /></td>
              <td><Reward value={row.reward} most={most} /></td>
              <td style={{ paddingLeft: `${8 + 14 * Math.min(row.depth, 6)}px` }}>
                <a href={`#${pathOf(row)}`}>{row.parent && `${row.saved ? "✎" : "↳"} from turn ${row.from + 1}: `}{visible(row.id)}</a>
              </td>
              <td>{row.turns}</td><td>{row.tokens || ""}</td><td><Tag text={row.stop || row.status} /></td>
            </tr>
          ))}
        </table>
        {episodes && <Forks episodes={episodes} />}
      </div>
      {episodes ? <Beside episodes={chosen.map((n) => episodes[n])} names={chosen.map((n) => list[n].id)} /> : instead}
    </section>
  );
}

/** The best and the worst root. */
function extremes(list) {
  const roots = list.flatMap((row, n) => (row.parent ? [] : [n])).sort((a, b) => list[b].reward - list[a].reward);
  return roots.length > 1 ? [roots[0], roots.at(-1)] : list.slice(0, 2).map((_, n) => n);
}

/** Roots and forks as lanes of turns; a lane begins at the turn that it was forked before. `extra`: one not saved yet. */
export function Forks({ episodes, here }) {
  const lane = new Map(episodes.map((episode, n) => [episode.row.id, n]));
  const [dx, dy] = [42, 24];
  const turns = Math.max(...episodes.map(({ row, rewards }) => row.from + rewards.length));
  const most = largest(episodes.flatMap(({ rewards }) => rewards));
  const [width, height] = [Math.max(turns * dx + 190, 240), episodes.length * dy + 20];
  const x = (turn) => 14 + turn * dx;
  const y = (n) => 22 + n * dy;
  return (
    <div class="forks">
      <svg viewBox={`0 0 ${width} ${height}`} width={width} height={height} role="img" aria-label="roots and forks">
        {Array.from({ length: turns }, (_, k) => <text class="muted" x={x(k + 1)} y="9" text-anchor="middle">{k + 1}</text>)}
        {episodes.map(({ row, rewards, fork_value }, n) => {
          const parent = lane.get(row.parent);
          const begin = x(row.from);
          return (
            <a class={`lane${row.saved ? " saved" : ""}${row.id === here ? " here" : ""}`} href={row.it && !row.open ? `#${pathOf(row)}` : undefined}>
              <title>{row.id}</title>
              {parent !== undefined && <path d={`M${begin} ${y(parent)}V${y(n)}`} />}
              <path d={`M${begin} ${y(n)}H${x(row.from + rewards.length)}`} />
              {rewards.map((reward, k) => (
                <circle cx={x(row.from + k + 1)} cy={y(n)} r={4 + 3 * Math.min(1, Math.abs(reward) / most)} class={reward > 0 ? "plus" : reward < 0 ? "minus" : ""}>
                  <title>{`turn ${row.from + k + 1}: reward ${num(reward)}`}</title>
                </circle>
              ))}
              {(fork_value ?? []).map((value, k) => value !== null && <text x={x(row.from + k) + 3} y={y(n) + 11} class="value">V {num(value, 2)}</text>)}
              <text x={x(row.from + rewards.length) + 12} y={y(n) + 4}>{num(row.reward, 3)} {row.stop ?? ""}</text>
            </a>
          );
        })}
      </svg>
    </div>
  );
}

/** Conversations from the first message in which they differ. */
export function Beside({ episodes, names }) {
  const [common, setCommon] = useState(false);
  if (episodes.length < 2) return <p class="muted">Tick two episodes or more to see them side by side.</p>;
  const same = (n) => new Set(episodes.map(({ messages }) => JSON.stringify(messages[n] ?? null))).size === 1;
  let first = 0;
  while (first < Math.max(...episodes.map(({ messages }) => messages.length)) && same(first)) first += 1;
  const [one] = episodes;
  const shared = prefix(episodes.map(({ messages }) => messages[first]?.content));
  return (
    <>
      <h2>Side by side</h2>
      {first > 0 && (
        <p class="muted">
          The first {first === 1 ? "message is" : `${first} messages are`} the same.{" "}
          <button class="plain" onClick={() => setCommon(!common)}>{common ? "hide" : "show"}</button>
        </p>
      )}
      {common && one.messages.slice(0, first).map((message) => <Said message={message} />)}
      <div class="beside" style={{ gridTemplateColumns: `repeat(${episodes.length}, minmax(260px, 1fr))` }}>
        {episodes.map((episode, n) => (
          <div data-column>
            <h3><a href={`#${pathOf(episode.row)}`}>{visible(names[n])}</a> <b>{num(episode.row.reward, 3)}</b> <Tag text={episode.row.stop || episode.row.status} /></h3>
            {episode.messages.slice(first).map((message, m) => <Said message={message} shared={m === 0 ? shared : 0} reward={episode.rewards[episode.turnOf[first + m]]} />)}
          </div>
        ))}
      </div>
    </>
  );
}

/** How many characters texts begin with alike. */
function prefix(texts) {
  if (texts.some((text) => typeof text !== "string")) return 0;
  let n = 0;
  while (n < texts[0].length && texts.every((text) => text[n] === texts[0][n])) n += 1;
  return n;
}

export function Said({ message, shared = 0, reward, children }) {
  const dimmed = shared > 0 && typeof message.content === "string" && shared < 20000;
  return (
    <article class={`message ${message.role}`}>
      <h4>
        {message.role}{message.name && <> {visible(message.name)}</>}
        {reward !== undefined && <span class="right">reward {num(reward, 3)}</span>}
        {children}
      </h4>
      {dimmed ? <div class="words"><span class="muted">{visible(message.content.slice(0, shared))}</span>{visible(message.content.slice(shared, 20000))}</div> : <Body message={message} />}
    </article>
  );
}
