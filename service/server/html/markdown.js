"use strict";
// Markdown as elements. No text becomes HTML: elements are created one by one from the tokens of markdown-it, so markup
// in an answer is shown as text, images are not loaded, and a link leads somewhere only when it is followed.

const HIGHLIGHT_MAX_CHARACTERS = 50_000;
const MAX_NESTING = 40; // markdown-it leaves out what is deeper
const MAX_COLUMNS = 100; // browsers take minutes for tables of thousands
const LINK_PROTOCOLS = new Set(["http:", "https:", "mailto:"]);

let lowlight = null; // made for the first code that is highlighted
const highlighter = () => (lowlight ??= libraries.createLowlight(libraries.languages));
const markdown = new libraries.MarkdownIt({ html: false, linkify: false, breaks: true, maxNesting: MAX_NESTING }).use(mathematics);
// Hidden addresses are refused below, where their text can still be shown.
markdown.validateLink = () => true;

/** Return an address that may be followed, or null. */
function followed(address) {
  try {
    const url = new URL(address);
    return LINK_PROTOCOLS.has(url.protocol) ? url.href : null;
  } catch { return null; }
}

const CODE = (token, isFinal) => codeBlock(token.content.replace(/\n$/, ""), token.info?.trim().split(/\s+/)[0] ?? "", isFinal);
const LEAVES = {
  text: (token) => token.content,
  text_special: (token) => token.content,
  softbreak: () => make("br"),
  hardbreak: () => make("br"),
  hr: () => make("hr"),
  code_inline: (token) => make("code", { textContent: token.content }),
  image: (token) => `![${token.content}](${token.attrGet("src")})`,
  mathematics: (token) => formula(token.content, token.block, token.meta.isShown),
  fence: CODE,
  code_block: CODE,
};

/** Create the element that a token opens. */
function opened(token) {
  const alignment = /text-align:(\w+)/.exec(token.attrGet("style"))?.[1];
  switch (token.type) {
    case "heading_open": return make(`h${Math.min(6, Number(token.tag[1]) + 2)}`); // below the heading of its message
    case "ordered_list_open": return make("ol", { start: Number(token.attrGet("start") ?? 1) });
    case "td_open": case "th_open": return make(token.tag, alignment ? { className: alignment } : {});
    case "link_open": {
      const href = followed(token.attrGet("href"));
      return href ? make("a", { href, target: "_blank", rel: "noopener noreferrer", title: href }) : make("span", { title: token.attrGet("href") });
    }
    default: return make(token.tag);
  }
}

/** Append what tokens stand for to an element. */
function append(parent, tokens, isFinal) {
  const stack = [parent];
  for (const token of tokens) {
    if (token.hidden) continue; // the paragraphs of a tight list
    const box = stack.at(-1);
    if (token.type === "inline") append(box, token.children, isFinal);
    else if (token.nesting === 0) box.append(LEAVES[token.type](token, isFinal));
    else if (token.nesting < 0) stack.pop();
    else {
      const element = opened(token);
      box.append(token.type === "table_open" ? make("div", { className: "wide", tabIndex: 0, role: "group", ariaLabel: "Table" }, element) : element);
      stack.push(element);
    }
  }
}

/** Turn the tree of a highlighter, elements and text, into nodes. */
const nodes = (tree) => tree.children.map((child) => child.type === "text" ? child.value
  : make("span", { className: child.properties.className.join(" ") }, ...nodes(child)));

/** Show code, with its language and a button that copies it. */
function codeBlock(text, language, isFinal) {
  // What still grows is not highlighted: each token would do it again.
  const isHighlighted = isFinal && highlighter().registered(language) && text.length <= HIGHLIGHT_MAX_CHARACTERS;
  const code = make("code", {}, ...(isHighlighted ? nodes(highlighter().highlight(language, text)) : [text]));
  const copies = button("Copy", (event) => copy(text, event.target), { ariaLabel: "Copy the code" });
  return make("div", { className: "code" }, make("div", { className: "bar" }, make("span", { textContent: language.slice(0, 40) }), copies),
    make("pre", { tabIndex: 0, dir: "ltr", ariaLabel: "Code" }, code));
}

/** Split tokens into those of each block of the text. */
function blocksOf(tokens) {
  const blocks = [];
  let depth = 0;
  for (const token of tokens) {
    if (depth === 0) blocks.push([]);
    blocks.at(-1).push(token);
    depth += token.nesting;
  }
  return blocks;
}

/** Return whether a text had better be shown as it was written: it nests deeply, or has a table of very many columns. */
const isUnwieldy = (tokens) => tokens.some(({ level }) => level >= MAX_NESTING - 1)
  || tokens.filter(({ type }) => type === "th_open").length > MAX_COLUMNS;

/** Return JSON with line breaks, if a text is an object of JSON and that leaves its numbers and names as they are. */
function laidOut(text) {
  if (!text.startsWith("{") || !text.endsWith("}")) return null;
  try {
    const indented = JSON.stringify(JSON.parse(text), null, 2), bare = (json) => json.replaceAll(/\s/g, "");
    return bare(indented) === bare(text) ? indented : text;
  } catch { return null; }
}

const shownBlocks = new WeakMap(); // of a box: the source of each of its blocks

/** Show a text that may still grow; blocks that have not changed stay, and with them what a reader has selected. */
function renderMarkdown(box, text, isComplete) {
  const json = laidOut(text.trim()), source = json === null ? text : `\`\`\`json\n${json}\n\`\`\``, env = {};
  const lines = source.split("\n"), tokens = markdown.parse(source, env);
  if (isUnwieldy(tokens)) {
    shownBlocks.delete(box);
    box.replaceChildren(make("p", { className: "as-written", textContent: source }));
    return;
  }
  const blocks = blocksOf(tokens.filter(({ type }) => type !== "reference_definition"));
  const before = shownBlocks.get(box) ?? [];
  const sources = blocks.map(([first], index) => {
    const isFinal = isComplete || index < blocks.length - 1;
    return `${isFinal} ${first.type} ${lines.slice(...first.map).join("\n")}`;
  });
  let same = 0;
  // A link may refer to the end of the text, so that its block changes although its source does not.
  while (!env.references && same < before.length && before[same] === sources[same]) same += 1;
  while (box.childNodes.length > same) box.lastChild.remove();
  for (let index = same; index < blocks.length; index += 1) append(box, blocks[index], isComplete || index < blocks.length - 1);
  shownBlocks.set(box, sources);
}
