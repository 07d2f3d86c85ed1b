// The address's hash: a path, and settings of the view.
import { useEffect, useLayoutEffect, useState } from "preact/hooks";

/** Where the page is now; a view that was drawn a moment ago may be behind. */
export function read() {
  const hash = location.hash.slice(1) || "/";
  const [path, query = ""] = hash.split("?");
  return {
    hash,
    path,
    parts: path.split("/").slice(1).filter(Boolean).map(decode),
    query: Object.fromEntries(new URLSearchParams(query)),
  };
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function useRoute() {
  const [route, setRoute] = useState(read);
  useEffect(() => {
    const changed = () => setRoute(read());
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return route;
}

/** The list that was looked at last, with its filters, and the row that was opened; so that the way back leads there. */
export const trail = { path: "", hash: "", rows: [], row: null };

export const same = (a, b) => a?.id === b?.id && a?.it.path === b?.it.path;

export const go = (path) => (location.hash = path);

/** Change settings of the view, in the address too; the way back does not stop at each of them. */
export function set(changes) {
  const { path, query } = read();
  const all = Object.fromEntries(Object.entries({ ...query, ...changes }).filter(([, v]) => v !== "" && v !== null && v !== undefined));
  const text = new URLSearchParams(all).toString();
  history.replaceState(null, "", `#${path}${text && `?${text}`}`);
  dispatchEvent(new HashChangeEvent("hashchange"));
}

/** Keys, unless somebody types. */
export function useKeys(keys) {
  useLayoutEffect(() => {
    const pressed = (event) => {
      const typing = event.target.closest?.("input, textarea, select");
      if (event.ctrlKey || event.metaKey || event.altKey || (typing && event.key !== "Escape")) return;
      if (typing) return event.target.blur();
      const key = { ArrowDown: "j", ArrowUp: "k" }[event.key] ?? event.key;
      if (key === "Enter" && event.target.closest?.("a, button, summary")) return;
      if (keys[key]) {
        event.preventDefault();
        keys[key]();
      }
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  });
}
