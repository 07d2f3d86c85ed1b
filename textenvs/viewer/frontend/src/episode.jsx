// An episode: the conversation, its tokens in colour, and what a token's advantage is the sum of.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { advantageOf, groupPath, lanesOf, largest, live, loadEpisode, num, pathOf, quantile, sum, turnsAt, unmoved } from "./data.js";
import { Reward, Tag, useLoaded } from "./parts.jsx";
import { go, read, same, set, trail, useKeys } from "./route.js";

import { Body, visible } from "./text.jsx";

/** How tokens are coloured: a number of each, and the middle of its scale, from which both sides have a colour. */
const COLOURS = {
  none: {},
  advantage: { of: (t) => t.advantage, middle: 0, text: "what the loss was given" },
  logprob: { of: (t) => t.logprob?.map((v) => v && -v), text: "surprise: minus log-probability in the rollout, nats" },
  ratio: { of: (t) => t.ratio?.map((v) => (v > 0 ? Math.log(v) : null)), middle: 0, show: Math.exp, text: "policy in training to the one before" },
  entropy: { of: (t) => t.entropy, text: "nats, of the learner's distribution" },
  mismatch: { of: (t) => t.mismatch, middle: 0, text: "learner's log-probability minus the engine's" },
  weight: { of: (t) => t.importance_weight?.map((v) => (v > 0 ? Math.log(v) : null)), middle: 0, show: Math.exp, text: "of the off-policy correction" },
};
const NAMES = Object.keys(COLOURS);
const MOST = 4000; // tokens of a message that are drawn before all are asked for
const MESSAGES = 1000; // likewise messages of a conversation, and turns in the table beside it

export function EpisodeView({ row, route }) {
  const [episode, instead] = useLoaded(() => loadEpisode(row), [row.chunk, row.place]);
  return episode ? <Loaded episode={episode} route={route} /> : instead;
}

function Loaded({ episode, route }) {
  const { row, tokens } = episode;
  const chosen = tokens && COLOURS[route.query.color] ? route.query.color : tokens?.advantage ? "advantage" : "none";
  const scale = useMemo(() => scaleOf(tokens, chosen), [tokens, chosen]);
  const selected = route.query.token === undefined ? null : Number(route.query.token);
  const raw = route.query.raw === "1";
  const places = useMemo(() => (tokens ? tokens.spans.flatMap(([a, b]) => Array.from({ length: b - a }, (_, n) => a + n)) : []), [tokens]);
  const box = useRef();
  trail.row = row;
  const list = trail.rows.some((each) => same(each, row)) ? trail.rows : row.it.ordered;
  const near = (by) => list[list.findIndex((each) => same(each, row)) + by];
  const keep = (other) => other && go(`${pathOf(other)}${route.query.color ? `?color=${route.query.color}` : ""}`);
  const move = (by) => {
    const now = read().query.token;
    const n = now === undefined ? (by > 0 ? -1 : places.length) : places.indexOf(Number(now));
    if (places[n + by] !== undefined) set({ token: places[n + by] });
  };
  useKeys({
    j: () => keep(near(1)),
    k: () => keep(near(-1)),
    ArrowRight: () => move(1),
    ArrowLeft: () => move(-1),
    t: () => tokens && set({ raw: raw ? "" : "1" }),
    Escape: () => set({ token: "" }),
    ...Object.fromEntries(NAMES.map((name, n) => [String(n), () => tokens && set({ color: name })])),
  });
  useEffect(() => {
    box.current.querySelectorAll(".token.selected").forEach((each) => each.classList.remove("selected"));
    if (selected === null) return;
    const each = box.current.querySelector(`[data-token="${selected}"]`);
    each?.classList.add("selected");
    each?.scrollIntoView({ block: "nearest" });
  }, [selected, chosen, raw]);
  const clicked = (event) => {
    const place = event.target.closest("[data-token]")?.dataset.token;
    if (place !== undefined && places.includes(Number(place))) set({ token: place });
  };
  return (
    <section class="episode">
      <Head episode={episode} />
      <Lanes episode={episode} />
      {tokens && (
        <div class="colours">
          {NAMES.map((name, n) => (
            <button class={name === chosen ? "chosen" : ""} title={`${COLOURS[name].text ?? "as people read it"} (${n})`} disabled={n > 0 && !has(tokens, name)} onClick={() => set({ color: name })}>
              {name === "none" ? "read" : name === "logprob" ? "log-probability" : name}
            </button>
          ))}
          <button class={raw ? "chosen" : ""} title="every token, as the model saw them (t)" onClick={() => set({ raw: raw ? "" : "1" })}>all tokens</button>
          {chosen !== "none" && <Legend scale={scale} name={chosen} />}
        </div>
      )}
      <div class="sides">
        <div class="conversation" ref={box} onClick={clicked}>
          {episode.contexts && !raw && <Left episode={episode} />}
          {episode.roles && !raw && <p class="whose muted">context {episode.roles.length}<Whose role={episode.roles.at(-1)} /></p>}
          {raw && tokens ? <Raw episode={episode} scale={scale} /> : <Conversation episode={episode} scale={scale} coloured={chosen !== "none"} />}
        </div>
        {selected !== null && tokens && places.includes(selected) ? <Sum episode={episode} place={selected} /> : <Aside episode={episode} />}
      </div>
    </section>
  );
}

const has = (tokens, name) => COLOURS[name].of(tokens)?.some((v) => v !== null) ?? false;

function Head({ episode: { row, error } }) {
  return (
    <>
      <div class="facts">
        <h1>{visible(row.task || row.id)}</h1>
        <span>reward <b>{num(row.reward)}</b></span>
        <Tag text={row.status} /><Tag text={row.stop} /><Tag text={row.signal} />
        {row.parent && <span>forked from <a href={`#${pathOf({ ...row, id: row.parent })}`}>{visible(row.parent)}</a> before turn {row.from + 1}</span>}
        <a href={`#${groupPath(row)}`}>its group</a>
      </div>
      {error && <p class="problem">{visible(error)}</p>}
    </>
  );
}

/** The contexts of an episode, a lane each: which turn was in which, and what it earned. */
function Lanes({ episode: { row, tokens, rewards, lanes } }) {
  if (!lanes) return null;
  const most = largest(rewards);
  const first = new Map(tokens?.spans.map(([begin, , turn]) => [turn, begin]).reverse());
  const show = (turn) => (tokens ? set({ token: first.get(turn), raw: "1" }) : reveal(turn));
  return (
    <div class="lanes" data-lanes={lanes.length}>
      {lanes.slice(0, MESSAGES).map(({ turns, role }, n) => [
        <span style={{ gridRow: n + 1, gridColumn: 1 }}>context {n + 1}<Whose role={role} /></span>,
        turns.slice(0, MESSAGES).map((turn) => (
          <button style={{ gridRow: n + 1, gridColumn: turn + 2 }} title={`turn ${turn + row.from + 1} in context ${n + 1}: reward ${num(rewards[turn], 3)}`} onClick={() => show(turn)}>
            {turn + row.from + 1}<i class={rewards[turn] < 0 ? "minus" : "plus"} style={{ width: `${(100 * Math.abs(rewards[turn] ?? 0)) / most}%` }} />
          </button>
        )),
      ])}
    </div>
  );
}

/** Whose a context is, where several roles speak. */
const Whose = ({ role }) => role && <> of {visible(role)}</>;

/** Show a turn's reply, also in a context that was left. */
function reveal(turn) {
  const reply = document.querySelector(`[data-turn="${turn}"]`);
  const left = reply?.closest("details");
  if (left) left.open = true;
  reply?.scrollIntoView({ block: "center" });
}

/** Conversations that were left before the current one, where they are recorded as messages. */
function Left({ episode: { contexts, places, roles, rewards } }) {
  const [most, setMost] = useState(MESSAGES);
  return contexts.map((messages, n) => {
    const turns = turnsAt(places, n, messages);
    return (
      <details class="left-context" data-context={n + 1}>
        <summary>context {n + 1}<Whose role={roles?.[n]} /> <span class="muted">was left after {messages.length} messages</span></summary>
        {messages.slice(0, most).map((message, m) => (
          <article class={`message ${message.role}`} data-turn={turns[m] >= 0 ? turns[m] : undefined}>
            <h4>
              {message.role}
              {turns[m] >= 0 && <><span class="muted"> turn {turns[m] + 1}</span><span class="right">reward <b>{num(rewards[turns[m]], 3)}</b></span></>}
            </h4>
            <Body message={message} />
          </article>
        ))}
        {messages.length > most && <button class="more" onClick={() => setMost(Infinity)}>show all {messages.length} messages</button>}
      </details>
    );
  });
}

function Conversation({ episode, scale, coloured }) {
  const { messages, turnOf, rewards, moved, moves, reaction, tokens, row } = episode;
  const [most, setMost] = useState(MESSAGES);
  const spans = useMemo(() => {
    const found = new Map(); // by turn
    for (const span of tokens?.text && coloured ? tokens.spans : []) found.set(span[2], [...(found.get(span[2]) ?? []), span]);
    return found;
  }, [tokens, coloured]);
  return messages.slice(0, most).map((message, n) => {
    const turn = turnOf[n];
    const parts = (turn >= 0 && spans.get(turn)) || [];
    return (
      <article class={`message ${message.role}`} data-turn={turn >= 0 ? turn : undefined}>
        <h4>
          {message.role}{message.name && <> {visible(message.name)}</>}
          {turn >= 0 && <span class="muted"> turn {turn + row.from + 1}</span>}
          <span class="right">
            {turn >= 0 && <>reward <b>{num(rewards[turn], 3)}</b></>}
            {turn >= 0 && moved && moved[turn] !== rewards[turn] && <> → <b>{num(moved[turn], 3)}</b></>}
            {moves[turn] && <span class="muted" data-move={moves[turn]}>the user {visible(moves[turn])}{credited(reaction, turn) !== null && <>: <b>{signed(reaction[turn])}</b></>}</span>}
            {turn >= 0 && unmoved(episode, turn) && <span class="muted" data-unmoved={turn}>{unmoved(episode, turn)}</span>}
            {live && turn >= 0 && !episode.contexts && <a class="continue" href={`#${pathOf(row)}?continue=${turn + row.from}`}>continue before this</a>}
          </span>
        </h4>
        {parts.length ? <Tokens tokens={tokens} parts={parts} scale={scale} /> : <Body message={message} />}
      </article>
    );
  }).concat(messages.length > most ? [<button class="more" onClick={() => setMost(Infinity)}>show all {messages.length} messages</button>] : [], live && !["completed", "truncated_turns"].includes(row.status) ? [<p><a class="continue" href={`#${pathOf(row)}?continue=${rewards.length + row.from}`}>continue after the last turn</a></p>] : []);
}

/** Runs of action tokens, in colour. */
function Tokens({ tokens, parts, scale }) {
  const [all, setAll] = useState(false);
  const places = parts.flatMap(([a, b]) => Array.from({ length: b - a }, (_, n) => a + n));
  return (
    <div class="words tokens">
      {(all ? places : places.slice(0, MOST)).map((place) => <Token key={place} tokens={tokens} place={place} scale={scale} />)}
      {!all && places.length > MOST && <button class="more" onClick={() => setAll(true)}>show all {places.length} tokens</button>}
    </div>
  );
}

function Token({ tokens, place, scale }) {
  const n = scale.at.get(place);
  const text = tokens.text ? tokens.text[place] : ` ${tokens.ids[place]}`;
  const clipped = n !== undefined && tokens.clipped?.[n] === 1;
  const style = n === undefined ? undefined : { backgroundColor: scale.colour(n) };
  return <span class={`token${n === undefined ? " given" : ""}${clipped ? " clipped" : ""}`} data-token={place} style={style}>{shown(text)}</span>;
}

function shown(text) {
  if (text === "") return <i class="control">…</i>; // a part of a character
  return text.includes("\n") ? text.split(/(\n)/).map((part) => (part === "\n" ? ["⏎", "\n"] : visible(part))) : visible(text);
}

function Raw({ episode: { tokens, row }, scale }) {
  const [most, setMost] = useState(MOST);
  const ends = [...tokens.segments.slice(1), tokens.ids.length];
  const lanes = lanesOf(tokens);
  const name = (segment) => {
    const n = lanes.findIndex((lane) => lane.segment === segment);
    const turns = lanes[n].turns.slice(0, MESSAGES).map((turn) => turn + row.from + 1);
    return <h4>context {n + 1} <span class="muted">{turns.length ? `turns ${turns.join(", ")}` : "no turn"}</span></h4>;
  };
  return tokens.segments.map((start, n) => (
    <article class="message">
      {lanes && name(n)}
      <div class="words tokens">
        {Array.from({ length: Math.min(ends[n] - start, most) }, (_, m) => <Token key={start + m} tokens={tokens} place={start + m} scale={scale} />)}
        {ends[n] - start > most && <button class="more" onClick={() => setMost(Infinity)}>show all {ends[n] - start} tokens</button>}
      </div>
    </article>
  ));
}

/** Where each action token stands in the learner's columns, and the colour of its number. */
function scaleOf(tokens, name) {
  const at = new Map();
  if (!tokens) return { at, colour: () => "" };
  tokens.spans.forEach(([a, b]) => {
    for (let place = a; place < b; place += 1) at.set(place, at.size);
  });
  const { of, middle, show = (v) => v } = COLOURS[name];
  const values = of?.(tokens) ?? [];
  const most = quantile(values.map((v) => v !== null && v !== undefined && Math.abs(v)).filter((v) => v !== false), 0.98) || 1e-6;
  const colour = (n) => {
    const value = values[n];
    if (value === null || value === undefined) return "";
    const share = Math.min(1, Math.abs(value) / most);
    const which = middle === undefined ? "--scale" : value < 0 ? "--minus" : "--plus";
    return `rgb(var(${which}) / ${(0.6 * share ** 0.8).toFixed(3)})`;
  };
  return { at, values, most, colour, two: middle !== undefined, ends: middle === undefined ? [0, most] : [show(-most), show(most)] };
}

function Legend({ scale, name }) {
  return (
    <span class="legend">
      {num(scale.ends[0], 2)} <i class={scale.two ? "two" : "one"} /> {num(scale.ends[1], 2)}
      <span class="muted"> {COLOURS[name].text}</span>
    </span>
  );
}

/** What is known of the episode. */
function Aside({ episode }) {
  const { row, terms, rewards, metrics, tokens, record, greedy, env_seed, task_index } = episode;
  const facts = {
    "data source": row.source, episode: row.id, group: row.group, "group mean": row.mean, "group spread": row.std, "greedy reward": greedy,
    tokens: row.tokens, "action tokens": tokens?.advantage?.length ?? tokens?.logprob?.length, "task index": task_index, "environment's seed": env_seed,
    weights: tokens ? [...new Set(tokens.version)].join(", ") : null, ...record, ...metrics,
  };
  const most = largest(rewards);
  return (
    <aside>
      {tokens && <p class="muted">Click a token to see what its advantage is made of.</p>}
      <h3>Rewards as earned</h3>
      <table>
        {rewards.slice(0, MESSAGES).map((reward, k) => (
          <tr>
            <th>turn {k + row.from + 1}</th><td><Reward value={reward} most={most} /></td>
            <td class="muted">{terms.length === rewards.length && Object.entries(terms[k]).filter(([, v]) => v).map(([name, v]) => <div>{visible(name)} {num(v, 3)}</div>)}</td>
          </tr>
        ))}
        {rewards.length > MESSAGES && <tr><th>{rewards.length - MESSAGES} more turns</th><td><Reward value={sum(rewards.slice(MESSAGES))} most={most} /></td></tr>}
        {terms.length !== rewards.length && Object.entries(terms[0] ?? {}).map(([name, v]) => <tr><th>{visible(name)}</th><td>{num(v, 3)}</td></tr>)}
      </table>
      <dl>{Object.entries(facts).filter(([, v]) => v !== null && v !== undefined && v !== "").map(([name, v]) => [<dt>{visible(name)}</dt>, <dd>{typeof v === "number" ? num(v) : visible(String(v))}</dd>])}</dl>
    </aside>
  );
}

/** What the user's move added to the advantage of a turn; `null` where it added nothing. */
const credited = (reaction, turn) => reaction?.[turn] ?? null;
const signed = (value) => `${value > 0 ? "+" : ""}${num(value, 3)}`;

// Files keep 11 bits of most numbers.
const close = (a, b) => a !== null && b !== null && Math.abs(a - b) <= 1e-3 * Math.max(1, Math.abs(a), Math.abs(b));

/** The sum that a token's advantage and its loss are. */
function Sum({ episode, place }) {
  const { row, tokens, rewards, terms, moved, moves, fork_value } = episode;
  const n = tokens.spans.reduce((before, [a, b]) => before + Math.max(0, Math.min(place, b) - a), 0);
  const turn = tokens.spans.find(([a, b]) => a <= place && place < b)[2];
  const at = (name) => tokens[name]?.[n] ?? null;
  const paid = moved ?? rewards;
  const [all, onward] = [sum(paid), sum(paid.slice(turn))];
  const [gain, base, advantage] = [at("returns"), at("baseline"), at("advantage")];
  const trained = row.signal !== "masked";
  const reaction = trained ? credited(episode.reaction, turn) : null;
  const teacher = trained ? at("teacher_advantage") : null;
  const { normed } = row.it;
  const { difference, scale } = advantageOf({ gain, base, advantage, reaction, teacher, normed });
  const move = <Item name="the user's move" sign="+" value={reaction} k="reaction" why={moves[turn] ? visible(moves[turn]) : ""} />;
  const [ratio, clipped, loss, weight] = [at("ratio"), at("clipped"), at("loss"), at("loss_weight")];
  const learner = at("mismatch") === null ? null : at("logprob") + at("mismatch");
  const why = {
    returns: close(gain, all) ? "what the episode earned in all" : close(gain, onward) ? "earned from this turn on" : "discounted, or with values, by the estimator",
    baseline: close(base, row.mean) ? "the group's mean" : close(base, fork_value?.[turn] ?? null) ? "the state's value by its forks" : "by the estimator",
    scale: close(scale, row.std) ? "the group's spread" : "by the estimator",
  };
  return (
    <aside class="sum" data-sum>
      <button class="plain" onClick={() => set({ token: "" })} title="Escape">✕</button>
      <h3><span class="token">{shown(tokens.text ? tokens.text[place] : String(tokens.ids[place]))}</span></h3>
      <p class="muted">token {place} (id {tokens.ids[place]}), turn {turn + row.from + 1}, weights {tokens.version[n]}</p>
      <h4>reward of the turn</h4>
      <table>
        {Object.entries(terms[turn] ?? {}).map(([name, v]) => <Item name={visible(name)} value={v} />)}
        <Item name="earned" value={rewards[turn]} k="earned" total />
        {moved && <Item name="credit moved" sign="+" value={moved[turn] - rewards[turn]} k="moved" />}
        {moved && <Item name="credited" value={moved[turn]} k="credited" total />}
      </table>
      {advantage === null ? <p class="muted">The learner did not compute this token.</p> : (
        <>
          <h4>advantage</h4>
          <table>
            <Item name="return" value={gain} k="return" why={gain !== null && why.returns} />
            {base === null ? <tr><td colSpan="3" class="muted">no one number is subtracted by this estimator</td></tr> : (
              <>
                <Item name="baseline" sign="−" value={base} k="baseline" why={why.baseline} />
                <Item name="" value={difference} k="difference" total />
                {normed && move}
                {scale !== null && !close(scale, 1) && <Item name="scale" sign="÷" value={scale} k="scale" why={why.scale} />}
              </>
            )}
            {(base === null || !normed) && move}
            <Item name="teacher" sign="+" value={teacher} k="teacher" />
            <Item name="advantage" value={advantage} k="advantage" total why={advantage > 0 ? "made more likely" : advantage < 0 ? "made less likely" : "left as it is"} />
          </table>
          <h4>loss</h4>
          <table>
            <Item name="ratio" value={ratio} k="ratio" why={clipped === 1 ? "clipped: no gradient" : clipped === 0 ? "not clipped" : ""} />
            <Item name="importance weight" value={at("importance_weight")} k="weight" />
            <Item name="its loss" value={loss} k="loss" />
            <Item name="weight in the sum" sign="×" value={weight} k="loss_weight" />
            {loss !== null && weight !== null && <Item name="share of the loss" value={loss * weight} k="share" total />}
          </table>
        </>
      )}
      <h4>log-probability</h4>
      <table>
        <Item name="engine" value={at("logprob")} k="logprob" why={`${num(100 * Math.exp(at("logprob")), 3)} %`} />
        {learner !== null && <Item name="learner" value={learner} k="learner" why={`${num(100 * Math.exp(learner), 3)} %`} />}
        <Item name="mismatch" value={at("mismatch")} k="mismatch" />
        <Item name="entropy" value={at("entropy")} k="entropy" why="nats" />
      </table>
    </aside>
  );
}

function Item({ name, sign = "", value, k, total, why }) {
  if (value === null || value === undefined) return null;
  return (
    <tr class={total ? "total" : ""}>
      <th>{sign && <i>{sign}</i>} {name}</th>
      <td data-k={k} data-v={value}>{num(value)}</td>
      <td class="muted">{why}</td>
    </tr>
  );
}
