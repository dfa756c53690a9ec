"use strict";
// Mathematics in Markdown: where TeX begins and ends, and how it is shown. What KaTeX cannot read stays as it was written.

const MATHEMATICS_MAX_LINES = 100;
const MAX_FORMULAS = 1000; // of one answer
const FORMULA_MAX_CHARACTERS = 5000;
const DEFINING_MAX_CHARACTERS = 500; // of one that defines commands, which may stand for much more
const DEFINES = /\\(?:[egx]?def|(?:future)?let|(?:re|provide)?(?:new)?command)(?![a-z])/i;
const FORMULA_WIDE_CHARACTERS = 60; // from which on one within a line has a line of its own, which scrolls
const FORMULAS_KEPT = 500; // an answer that grows shows the same ones again and again
// Bounds for what is not trusted. Source: KaTeX's documentation of its options.
const KATEX = { throwOnError: true, strict: "ignore", trust: false, maxExpand: 300, maxSize: 20 };

/**
 * Find TeX in Markdown, which would take its underscores and backslashes for markup.
 *
 * A dollar opens and closes by the rule of pandoc's extension tex_math_dollars, so prices stay prices.
 */
function mathematics(parser) {
  const BLOCKS = [["$$", "$$"], ["\\[", "\\]"]];
  const found = (state, tag, content) => {
    const count = state.env.formulas = (state.env.formulas ?? 0) + 1;
    return Object.assign(state.push("mathematics", tag, 0), { content, meta: { isShown: count <= MAX_FORMULAS } });
  };
  const closes = (text, position) => !/\s/.test(text[position - 1]) && !/\d/.test(text[position + 1] ?? "");

  parser.inline.ruler.before("escape", "mathematics", (state, isSilent) => {
    const { src, pos } = state, two = src.slice(pos, pos + 2);
    const end = { $$: "$$", "\\(": "\\)", "\\[": "\\]" }[two] ?? (src[pos] === "$" ? "$" : null);
    if (end === null) return false;
    const start = pos + (end === "$" ? 1 : 2);
    if (end === "$" && /\s/.test(src[start] ?? " ")) return false;
    // Where a search met no end, a later one meets none either: a text of dollars takes linear time.
    const unclosed = (state.env.unclosed ??= new Map()), known = unclosed.get(src) ?? {};
    if (start >= known[end]) return false;
    let stop = src.indexOf(end, start);
    while (end === "$" && stop >= 0 && !closes(src, stop)) stop = src.indexOf(end, stop + 1);
    if (stop < 0) unclosed.set(src, { ...known, [end]: start });
    if (stop <= start) return false;
    if (!isSilent) found(state, "code", src.slice(pos, stop + end.length));
    state.pos = stop + end.length;
    return true;
  });

  parser.block.ruler.before("fence", "mathematics", (state, startLine, endLine, isSilent) => {
    const line = (index) => state.src.slice(state.bMarks[index] + state.tShift[index], state.eMarks[index]).trimEnd();
    const first = line(startLine), pair = BLOCKS.find(([open]) => first.startsWith(open));
    if (!pair || state.sCount[startLine] - state.blkIndent >= 4) return false;
    let last = startLine;
    while (!(line(last).endsWith(pair[1]) && (last > startLine || first.length > 4))) {
      last += 1;
      if (last >= endLine || last - startLine >= MATHEMATICS_MAX_LINES || state.sCount[last] < state.blkIndent) return false;
    }
    if (isSilent) return true;
    const token = found(state, "pre", state.getLines(startLine, last + 1, state.blkIndent, false));
    token.map = [startLine, last + 1];
    state.line = last + 1;
    return true;
  }, { alt: ["paragraph", "blockquote", "list"] });
}

const formulas = new Map(); // elements, or null for what cannot be shown, by TeX as it was written

/** Return TeX, with its marks around it, as an element; as it was written unless it is to be set. */
function formula(written, isBlock, isSet) {
  const [, open, tex] = /^(\$\$?|\\[([])([^]*?)(?:\$\$?|\\[\])])\s*$/.exec(written.trim()) ?? [];
  const isDisplay = isBlock || open === "$$" || open === "\\[", name = `${isDisplay} ${written}`;
  if (isSet && !formulas.has(name)) {
    if (formulas.size >= FORMULAS_KEPT) formulas.clear();
    formulas.set(name, typeset(tex, isDisplay));
  }
  const shown = isSet ? formulas.get(name)?.cloneNode(true) : null;
  if (!shown) return make(isBlock ? "pre" : "code", { className: "mathematics", dir: "ltr", textContent: written, ...(isBlock ? { tabIndex: 0 } : {}) });
  const isWide = isDisplay || tex.length > FORMULA_WIDE_CHARACTERS;
  return make(isBlock ? "div" : "span", {
    className: isWide ? "mathematics wide" : "mathematics", dir: "ltr", ...(isWide ? { tabIndex: 0, role: "group", ariaLabel: "Formula" } : {}),
  }, shown);
}

function typeset(tex, isDisplay) {
  if (tex === undefined || tex.length > (DEFINES.test(tex) ? DEFINING_MAX_CHARACTERS : FORMULA_MAX_CHARACTERS)) return null;
  const box = make("span"), { render } = libraries.katex();
  // A formula may define commands, but for itself alone.
  try { render(tex, box, { ...KATEX, displayMode: isDisplay, macros: {} }); } catch { return null; }
  return box.firstElementChild;
}
