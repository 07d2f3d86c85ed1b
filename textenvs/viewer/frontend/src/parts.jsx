// Small things that several views show.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { num } from "./data.js";
import { visible } from "./text.jsx";

/** A number with a bar from zero, so that a column of them can be read at a glance. */
export function Reward({ value, most = 1 }) {
  const share = Math.min(1, Math.abs(value ?? 0) / (most || 1));
  return (
    <span class="reward">
      <span class="bar">
        <i class={value < 0 ? "minus" : "plus"} style={{ width: `${100 * share}%` }} />
      </span>
      {num(value, 3)}
    </span>
  );
}

const TONES = { signal: "good", tied: "dull", masked: "dull", zero: "dull", solved: "good", completed: "", aborted: "bad" };

export function Tag({ text }) {
  if (text === null || text === undefined || text === "") return null;
  const tone = TONES[text] ?? (/^(error|env_failed|user_failed)/.test(text) ? "bad" : /^(truncated|max_)/.test(text) ? "warn" : "");
  return <span class={`tag ${tone}`}>{visible(String(text))}</span>;
}

/** The lines of a long list that are in sight. `line(item, n)` draws one, `height` pixels high. */
export function Lines({ items, height, at, line, name }) {
  const box = useRef();
  const [view, setView] = useState({ top: 0, size: 800 });
  const measure = () => setView({ top: box.current.scrollTop, size: box.current.clientHeight });
  useLayoutEffect(measure, []);
  useEffect(() => {
    addEventListener("resize", measure);
    return () => removeEventListener("resize", measure);
  }, []);
  useLayoutEffect(() => {
    if (at === undefined) return;
    const { scrollTop, clientHeight } = box.current;
    if (at * height < scrollTop) box.current.scrollTop = at * height;
    else if ((at + 1) * height > scrollTop + clientHeight) box.current.scrollTop = (at + 1) * height - clientHeight;
  }, [at]);
  const first = Math.max(0, Math.floor(view.top / height) - 10);
  const last = Math.min(items.length, Math.ceil((view.top + view.size) / height) + 10);
  return (
    <div class="lines" ref={box} onScroll={measure} role="table" aria-label={name} aria-rowcount={items.length} tabIndex={0}>
      <div style={{ height: `${items.length * height}px`, position: "relative" }}>
        {items.slice(first, last).map((item, n) => (
          <div key={first + n} class="place" style={{ top: `${(first + n) * height}px`, height: `${height}px` }}>
            {line(item, first + n)}
          </div>
        ))}
      </div>
    </div>
  );
}

/** An estimate and its interval. */
export function Estimate({ of, percent = false, signed = false }) {
  if (!of) return <>–</>;
  const show = (v) => (v === null ? "" : (signed && v > 0 ? "+" : "") + (percent ? `${num(100 * v, 3)} %` : num(v, 3)));
  return (
    <>
      <b>{show(of.value)}</b>
      {of.low !== null && <span class="muted"> {show(of.low)} to {show(of.high)}</span>}
    </>
  );
}

/** Intervals on one scale, as lines. `of`: [label, estimate] pairs; `range`: numbers that the scale has at least. */
export function Whiskers({ of, range = [] }) {
  const known = of.filter(([, e]) => e && e.low !== null);
  if (!known.length) return null;
  const ends = known.flatMap(([, e]) => [e.low, e.high]).concat(range);
  const [low, high] = [Math.min(...ends), Math.max(...ends)];
  const x = (v) => 8 + (284 * (v - low)) / (high - low || 1);
  return (
    <svg class="whiskers" viewBox={`0 0 300 ${18 * known.length}`} width="300" height={18 * known.length} role="img">
      {low <= 0 && high >= 0 && <line class="axis" x1={x(0)} x2={x(0)} y1="0" y2={18 * known.length} />}
      {known.map(([name, e], n) => (
        <g transform={`translate(0 ${18 * n + 9})`}>
          <title>{name}</title>
          <line x1={x(e.low)} x2={x(e.high)} y1="0" y2="0" />
          <circle cx={x(e.value)} cy="0" r="4" />
        </g>
      ))}
    </svg>
  );
}

/** What is read later: its value, and in the meantime, or after an error, something to show instead. */
export function useLoaded(load, deps) {
  const [state, setState] = useState({});
  useEffect(() => {
    let wanted = true;
    load().then(
      (value) => wanted && setState({ value }),
      (error) => wanted && setState({ error }),
    );
    return () => (wanted = false);
  }, deps);
  const instead = state.error ? <p class="problem">{visible(state.error.message)}</p> : <p class="muted">reading …</p>;
  return [state.value, instead];
}
