// Bundles src/ into ../page.html: one file whose script and style are named by their hashes in its policy.
import { createHash } from "node:crypto";
import { writeFileSync } from "node:fs";
import { build } from "esbuild";

const bundled = await build({
  entryPoints: ["src/main.jsx"],
  bundle: true,
  minify: true,
  write: false,
  outdir: "out",
  format: "iife",
  target: ["chrome109", "firefox115", "safari16.4"],
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "inline",
  charset: "utf8",
});
const text = (ending) => bundled.outputFiles.find((file) => file.path.endsWith(ending)).text.trim();
const hash = (content) => `'sha256-${createHash("sha256").update(content).digest("base64")}'`;
const [script, style] = [text(".js"), text(".css")];
if (/<\/(script|style)/i.test(script + style) || (script + style).includes("<!--")) throw new Error("ends its element");

const policy = [
  "default-src 'none'",
  `script-src ${hash(script)}`,
  `style-src ${hash(style)}`,
  "connect-src 'none'",
  "base-uri 'none'",
  "form-action 'none'",
  "require-trusted-types-for 'script'",
].join("; ");
const page = `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="${policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>textenvs view</title>
<style>${style}</style>
<body><div id="app"></div>
<!--data-->
<script>${script}</script>
</body>
</html>
`;
writeFileSync(process.argv[2] ?? new URL("../page.html", import.meta.url), page);
