// Words of models, users and files. They reach the page as text nodes alone.
import { useState } from "preact/hooks";

// C0 but tab and new line, DEL, C1, what turns the direction of writing or is invisible, lone surrogates, tags.
const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\uffff\u{e0000}-\u{e007f}]|\p{Cs}/gu;
const CLIP = 20000;

function shown(char) {
  const code = char.codePointAt(0);
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  return code === 0x7f ? "␡" : `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
}

/** A text with its control characters to be seen: strings, and elements for those. */
export function visible(text) {
  if (text.search(CONTROL) < 0) return text;
  const parts = [];
  let at = 0;
  for (const found of text.matchAll(CONTROL)) {
    parts.push(text.slice(at, found.index), <i class="control">{shown(found[0])}</i>);
    at = found.index + found[0].length;
  }
  return [...parts, text.slice(at)];
}

/** A long text, its beginning until the rest is asked for. */
export function Words({ text }) {
  const [all, setAll] = useState(false);
  if (all || text.length <= CLIP) return <div class="words">{visible(text)}</div>;
  return (
    <div class="words">
      {visible(text.slice(0, CLIP))}
      <button class="more" onClick={() => setAll(true)}>
        show all {text.length.toLocaleString("en")} characters
      </button>
    </div>
  );
}

/** A message's content as text: parts that are images are named, never loaded. */
export function contentOf(message) {
  if (typeof message.content === "string") return message.content;
  return (message.content ?? [])
    .map((part) => (part.type === "text" ? part.text : `[image: ${part.image_url?.url?.slice(0, 80) ?? "?"}]`))
    .join("\n");
}

export function Body({ message }) {
  const content = contentOf(message);
  return (
    <>
      {message.reasoning_content && (
        <details open class="reasoning">
          <summary>reasoning</summary>
          <Words text={message.reasoning_content} />
        </details>
      )}
      {(content || !message.tool_calls) && <Words text={content} />}
      {(message.tool_calls ?? []).map((call) => (
        <div class="call">
          <b>{visible(call.function.name)}</b>
          <Words text={call.function.arguments} />
        </div>
      ))}
    </>
  );
}
