// What the page shows: embedded as compressed blocks, or asked of the server that served the page.

const token = new URLSearchParams(location.search).get("token");
export const live = !document.getElementById("data:index");

const json = async (stream) => new Response(stream.pipeThrough(new DecompressionStream("gzip"))).json();

function embedded(name) {
  const block = document.getElementById(`data:${name}`);
  if (!block) throw new Error(`the page has no ${name}`);
  const bytes = Uint8Array.from(atob(block.textContent), (c) => c.charCodeAt(0));
  return json(new Blob([bytes]).stream());
}

async function ask(path, body) {
  const headers = { Authorization: `Bearer ${token}` };
  const answer = await fetch(path, body === undefined ? { headers } : { method: "POST", headers, body: JSON.stringify(body) });
  if (answer.status === 204) return null;
  const value = await answer.json();
  if (!answer.ok) throw new Error(value.error ?? answer.statusText);
  return value;
}

/** The index; `null` where it is the known one. */
export async function loadIndex(known = "") {
  const index = live ? await ask(`/index?have=${known}`) : await embedded("index");
  if (index) {
    chunks.clear();
    index.runs.forEach((run, number) => run.iterations.forEach((it) => prepare(run, number, it)));
  }
  return index;
}

const chunks = new Map(); // promises, the latest ones
const KEPT = 24;

function chunk(name) {
  let found = chunks.get(name);
  chunks.delete(name);
  found ??= live ? ask(`/chunk/${encodeURIComponent(name)}`) : embedded(name);
  chunks.set(name, found);
  if (chunks.size > KEPT) chunks.delete(chunks.keys().next().value);
  return found;
}

/** All of an episode: what its line has, and messages, turns and tokens. */
export async function loadEpisode(row) {
  const more = (await chunk(row.chunk))[row.place];
  return { ...more, row, turnOf: turnsOf(more), lanes: placedLanes(more) ?? lanesOf(more.tokens) };
}

/** Which turn each message of a conversation is the reply of, or -1, where the places of replies are recorded. */
export function turnsAt(places, conversation, messages) {
  const turns = messages.map(() => -1);
  places?.forEach(([number, place], turn) => number === conversation && place < turns.length && (turns[place] = turn));
  return turns;
}

/** The conversations of an episode of an evaluation that has several, as they are numbered: whose each is, and its turns. */
function placedLanes({ contexts, places, roles }) {
  if (!contexts || !places) return null;
  return Array.from({ length: contexts.length + 1 }, (_, n) => ({ role: roles?.[n], turns: places.flatMap(([number], turn) => (number === n ? [turn] : [])) }));
}

/** Which turn each message is the reply of, or -1: the last assistant messages are the turns, of several contexts the last one's. */
function turnsOf({ messages, rewards, tokens, contexts, places }) {
  const replies = messages.flatMap((m, n) => (m.role === "assistant" ? [n] : []));
  const found = messages.map(() => -1);
  if (contexts) return turnsAt(places, contexts.length, messages);
  const lanes = lanesOf(tokens);
  const turns = lanes && replies.length < rewards.length ? lanes.find(({ last }) => last).turns : rewards.map((_, k) => k);
  const first = lanes ? Math.max(0, turns.length - replies.length) : 0;
  replies.slice(-turns.length || replies.length).forEach((n, k) => (found[n] = turns[first + k]));
  return found;
}

/** The contexts of an episode with several, in the order in which they began: the segment, and its turns. */
export function lanesOf(tokens) {
  if (!tokens || tokens.segments.length < 2) return null;
  const lanes = tokens.segments.map((start, segment) => ({ start, segment, turns: [], last: segment === tokens.segments.length - 1 }));
  for (const [begin, , turn] of tokens.spans) {
    const { turns } = lanes.findLast(({ start }) => start <= begin);
    if (turns.at(-1) !== turn) turns.push(turn);
  }
  return lanes.sort((a, b) => (a.turns[0] ?? Infinity) - (b.turns[0] ?? Infinity) || a.segment - b.segment);
}

export const act = (what, body) => ask(`/${what}`, body);

// --- lines of lists

const NAMES = {
  id: "episode_id", group: "group_id", task: "task_key", source: "data_source", status: "status", stop: "stop",
  parent: "forked_from", from: "forked_turn", reward: "total_reward", signal: "signal", mean: "group_mean",
  std: "group_std", turns: "turns", tokens: "tokens", success: "success", chunk: "chunk", place: "place", saved: "saved",
};

function prepare(run, number, it) {
  it.run = number;
  it.normed = Boolean(run.config?.algorithm?.norm_adv);
  it.path = `/run/${number}/${it.kind}/${it.number}`;
  it.name = it.info.title ?? (it.kind === "evaluation" ? "evaluation" : `${it.kind} ${it.number}`);
  const size = it.rows.episode_id?.length ?? 0;
  it.list = Array.from({ length: size }, (_, n) => {
    const row = { it };
    for (const [key, column] of Object.entries(NAMES)) row[key] = it.rows[column][n];
    return row;
  });
  it.byId = new Map(it.list.map((row) => [row.id, row]));
  it.groups = new Map();
  for (const row of it.list) {
    const name = row.group || row.id;
    if (!it.groups.has(name)) it.groups.set(name, []);
    it.groups.get(name).push(row);
  }
  it.ordered = [...it.groups.values()].flatMap(ordered);
}

/** Roots in their order, each followed by what was forked from it. */
export function ordered(rows) {
  const ids = new Set(rows.map((row) => row.id));
  const children = Map.groupBy ? Map.groupBy(rows, (r) => r.parent) : groupBy(rows, (r) => r.parent);
  const found = [];
  const add = (row, depth) => {
    row.depth = depth;
    found.push(row);
    (children.get(row.id) ?? []).forEach((each) => each !== row && depth < 20 && add(each, depth + 1));
  };
  rows.filter((row) => !ids.has(row.parent)).forEach((row) => add(row, 0));
  return found;
}

function groupBy(values, key) {
  const found = new Map();
  for (const value of values) found.set(key(value), [...(found.get(key(value)) ?? []), value]);
  return found;
}

export const pathOf = (row) => `${row.it.path}/e/${encodeURIComponent(row.id)}`;
export const groupPath = (row) => `${row.it.path}/g/${encodeURIComponent(row.group || row.id)}`;

/** Rows that a filter lets through; its fields are texts, empty for all. `found`: ids in whose words a text was found. */
export function filtered(rows, f, found) {
  const words = (f.q ?? "").toLowerCase();
  const [min, max] = [f.min, f.max].map((text) => (text === undefined || text === "" ? null : Number(text)));
  return rows.filter(
    (row) =>
      (min === null || row.reward >= min) &&
      (max === null || row.reward <= max) &&
      ["stop", "status", "source", "signal"].every((name) => !f[name] || (row[name] ?? "") === f[name]) &&
      (!f.forks || (f.forks === "forks") === Boolean(row.parent)) &&
      (!words ||
        found?.has(row) ||
        `${row.id}\n${row.task}\n${row.it.openings[row.group] ?? ""}`.toLowerCase().includes(words)),
  );
}

const VALUES = { iteration: (row) => row.it.number, opening: (row) => row.it.openings[row.group], stop: (row) => row.stop || row.status };

/** Rows by a column, `-name` for the largest first; those that have no value of it come last. Without a name, as they are. */
export function sorted(rows, by) {
  if (!by) return rows;
  const [name, down] = by.startsWith("-") ? [by.slice(1), true] : [by, false];
  const value = VALUES[name] ?? ((row) => row[name]);
  const absent = (v) => v === null || v === undefined || v === "";
  return [...rows].sort((one, other) => {
    const [a, b] = [value(one), value(other)];
    if (absent(a) || absent(b)) return absent(a) - absent(b);
    return (a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1);
  });
}

/** Why a turn's reward moved none of its tokens; nothing where it moved some, or where the learner was not asked. */
export function unmoved({ row, tokens }, turn) {
  if (!tokens?.advantage) return "";
  let [place, any] = [0, false];
  for (const [begin, end, of] of tokens.spans) {
    if (of === turn) {
      any = true;
      if (tokens.advantage.slice(place, place + end - begin).some((v) => v !== null && v !== 0)) return "";
    }
    place += end - begin;
  }
  if (!any) return "";
  return {
    tied: "moved no token: its siblings earned the same",
    masked: "moved no token: the episodes of its group do not count",
    zero: "moved no token: the estimator gives its group no advantage",
  }[row.signal] ?? "moved no token: its siblings earned the same on this turn, or it was left out";
}

/**
 * What a token's advantage is the sum of: (return − baseline) ÷ scale + the user's move + the teacher. Where advantages are
 * normalized over the batch (`norm_adv`), the move is a part of what is divided, and the teacher is not.
 */
export function advantageOf({ gain, base, advantage, reaction, teacher, normed }) {
  const difference = gain !== null && base !== null ? gain - base : null;
  if (difference === null || advantage === null) return { difference, scale: null };
  const [inside, outside] = normed ? [reaction ?? 0, 0] : [0, reaction ?? 0];
  const own = advantage - outside - (teacher ?? 0);
  // Files keep 11 bits: what is left of larger numbers is no number.
  const known = Math.abs(own) > 2e-3 * Math.max(Math.abs(advantage), Math.abs(outside), Math.abs(teacher ?? 0));
  return { difference, scale: known ? (difference + inside) / own : null };
}

/** The rows in whose messages a text stands, as they are found. */
export async function* searched(rows, words) {
  const wanted = words.toLowerCase();
  for (const [n, row] of rows.entries()) {
    const { messages, contexts = [] } = await loadEpisode(row);
    if (JSON.stringify([...contexts.flat(), ...messages].map((m) => [m.content, m.tool_calls])).toLowerCase().includes(wanted)) yield { n, row };
    else if (n % 64 === 0) yield { n };
  }
}

// --- numbers

export const sum = (values) => values.reduce((total, value) => total + (value ?? 0), 0);
/** The largest size of a number, as the end of a scale. A call with a hundred thousand arguments is refused, so none is made. */
export const largest = (values) => values.reduce((most, value) => Math.max(most, Math.abs(value ?? 0)), 1e-9);
export const mean = (values) => (values.length ? sum(values) / values.length : null);

/** The share of rows that are solved, of those that can be, in percent; `null` without one. */
export function solved(rows) {
  const known = rows.filter((row) => row.success !== null);
  return known.length ? 100 * mean(known.map((row) => Number(row.success))) : null;
}

export function num(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isSafeInteger(value)) return String(value).replace("-", "−");
  const text = Math.abs(value) >= 1e-4 && Math.abs(value) < 1e6 ? String(Number(value.toPrecision(digits))) : value.toExponential(2);
  return text.replace("-", "−");
}

export function quantile(values, q) {
  const known = values.filter((v) => v !== null && v !== undefined).sort((a, b) => a - b);
  return known.length ? known[Math.min(known.length - 1, Math.floor(q * known.length))] : 0;
}
