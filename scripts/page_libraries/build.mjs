// Bundle the libraries of the chat page into one script, with the licences of all that is in it.
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const PAGE = "../../service/server/html/";

const { metafile, outputFiles: [bundle] } = await build({
  absWorkingDir: here("."), entryPoints: ["libraries.mjs"], bundle: true, minify: true, format: "iife", globalName: "libraries",
  target: "es2022", charset: "utf8", legalComments: "none", metafile: true, write: false,
});

const bundled = Object.keys(metafile.inputs).map((path) => /^node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(path)?.[1]);
const packages = [...new Set(bundled)].filter(Boolean).sort().map((name) => {
  const folder = here(`node_modules/${name}/`);
  const { version, license } = JSON.parse(readFileSync(`${folder}package.json`));
  const file = readdirSync(folder).find((entry) => /^licen[cs]e/i.test(entry));
  if (!file) throw new Error(`${name} has no file with its licence`);
  return { title: `${name} ${version}, ${license}`, text: readFileSync(folder + file, "utf8").trim() };
});

const banner = `// Bundled by \`make page-libraries\`: ${packages.map(({ title }) => title).join("; ")}.\n// libraries.LICENSES.txt has the licences.\n`;
writeFileSync(here(`${PAGE}libraries.js`), banner + bundle.text);
writeFileSync(here(`${PAGE}libraries.LICENSES.txt`), packages.map(({ title, text }) => `${title}\n\n${text}\n`).join(`\n${"-".repeat(80)}\n\n`));
console.log(packages.map(({ title }) => title).join("\n"));
