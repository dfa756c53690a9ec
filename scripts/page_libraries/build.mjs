// Bundle the libraries of the chat page into one script, with the licences of all that is in it, and the style and the
// fonts of mathematics.
import { copyFileSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const PAGE = "../../service/server/html/";
const KATEX = "node_modules/katex/dist/";
// A browser makes these from their regular faces: they are rare, and would take a seventh of all bytes of the page.
const LEFT_OUT = ["Caligraphic-Bold", "Fraktur-Bold", "Main-BoldItalic", "SansSerif-Bold", "SansSerif-Italic"];

/** Return a text with a replacement in `count` places. */
function replaced(text, pattern, replacement, count) {
  const found = [...text.matchAll(pattern)].length;
  if (found !== count) throw new Error(`${pattern} is there ${found} times, and not ${count}`);
  return text.replaceAll(pattern, replacement);
}

// The page's policy allows no attribute `style`, but the same through the element's object. The class `text` is the page's own.
const styles = {
  name: "styles", setup(building) {
    building.onLoad({ filter: /katex\.mjs$/ }, ({ path }) => {
      const text = readFileSync(path, "utf8");
      const unnamed = replaced(text, /\["mord", "text"\]/g, '["mord"]', 2);
      const styled = replaced(unnamed, /node\.setAttribute\(attr, (this\.attributes\[attr\]|value)\);/g, (_, value) => `setAttributeOf(node, attr, ${value});`, 4);
      return { contents: `${styled}\nfunction setAttributeOf(node, name, value) { if (name === "style") node.style.cssText = value; else node.setAttribute(name, value); }` };
    });
  },
};

const { metafile, outputFiles: [bundle] } = await build({
  absWorkingDir: here("."), entryPoints: ["libraries.mjs"], bundle: true, minify: true, format: "iife", globalName: "libraries",
  target: "es2022", charset: "utf8", legalComments: "none", metafile: true, write: false, plugins: [styles],
});

const bundled = Object.keys(metafile.inputs).map((path) => /node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(path)?.[1]);
const packages = [...new Set(bundled)].filter(Boolean).sort().map((name) => {
  const folder = here(`node_modules/${name}/`);
  const { version, license } = JSON.parse(readFileSync(`${folder}package.json`));
  const file = readdirSync(folder).find((entry) => /^licen[cs]e/i.test(entry));
  if (!file) throw new Error(`${name} has no file with its licence`);
  return { title: `${name} ${version}, ${license}`, text: readFileSync(folder + file, "utf8").trim() };
});

const banner = `// Bundled by \`make page-libraries\`: ${packages.map(({ title }) => title).join("; ")}.\n// libraries.LICENSES.txt has the licences.\n`;
if (!bundle.text.includes("cssText")) throw new Error("katex sets its styles by an attribute");
writeFileSync(here(`${PAGE}libraries.js`), banner + bundle.text);
writeFileSync(here(`${PAGE}libraries.LICENSES.txt`), packages.map(({ title, text }) => `${title}\n\n${text}\n`).join(`\n${"-".repeat(80)}\n\n`));

const isLeftOut = (face) => LEFT_OUT.some((name) => face.includes(`KaTeX_${name}.woff2`));
const style = replaced(readFileSync(here(`${KATEX}katex.min.css`), "utf8"), /,url\([^)]*\.woff\) format\("woff"\),url\([^)]*\.ttf\) format\("truetype"\)/g, "", 20)
  .replaceAll(/@font-face\{[^}]*\}/g, (face) => (isLeftOut(face) ? "" : face));
const { version } = JSON.parse(readFileSync(here("node_modules/katex/package.json")));
writeFileSync(here(`${PAGE}mathematics.css`), `/* Made by \`make page-libraries\` of katex ${version}, MIT; libraries.LICENSES.txt has the licence. */\n${style}\n`);
rmSync(here(`${PAGE}fonts`), { recursive: true, force: true });
mkdirSync(here(`${PAGE}fonts`));
for (const [, font] of style.matchAll(/url\(fonts\/([^)]*)\)/g)) copyFileSync(here(`${KATEX}fonts/${font}`), here(`${PAGE}fonts/${font}`));
console.log(packages.map(({ title }) => title).join("\n"));
