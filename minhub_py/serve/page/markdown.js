// Markdown -> a tree of plain objects -> DOM nodes. HTML is never parsed.
//
// A safe subset of CommonMark with tables and strikethrough from GFM: headings, paragraphs, emphasis, code spans, fenced
// code, lists, block quotes, rules, links to http and https. Everything else, including HTML, is shown as text. Line ends
// in paragraphs are preserved, because chat models intend them. Indented code, setext headings and images are not
// supported.
//
// Leaves are ranges of the source, `{from, to}`, so that each character on the page can be assigned to a token.
// All loops take linear time, because a model can generate any text. Nesting is limited to DEPTH levels.

const DEPTH = 12;
const FENCE = /^ {0,3}(`{3,}(?!.*`)|~{3,})[ \t]*([^\s`]*)/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+|$)/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])( {1,4}(?=\S)| {1,}|$)/;
const TARGET = /^\(\s*<?((?:[^\s<>()]|\([^\s<>()]*\))*)>?(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)/;
const PUNCTUATION = /[!-/:-@[-`{-~]/;
const LETTER = /[\p{L}\p{N}]/u;

const node = (tag, kids, properties = {}) => ({ tag, kids, ...properties });

// The top-level blocks of `source` from offset `start`, each with its start offset `from`.
export function parse(source, start = 0) {
  const lines = [];
  for (let from = start; from < source.length;) {
    const end = source.indexOf("\n", from), to = end < 0 ? source.length : end;
    lines.push({ from, to });
    from = to + 1;
  }
  return blocks(source, lines, 0);
}

function blocks(source, lines, depth) {
  const result = [], text = line => source.slice(line.from, line.to), blank = line => !text(line).trim();
  for (let i = 0; i < lines.length;) {
    const first = i, line = text(lines[i]);
    let match, block;
    if (!line.trim()) { i++; continue }
    if ((match = FENCE.exec(line))) {
      const closing = new RegExp(`^ {0,3}${match[1][0]}{${match[1].length},}[ \\t]*$`);
      const body = [], indent = line.search(/\S/);
      for (i++; i < lines.length && !closing.test(text(lines[i])); i++) {
        const spaces = /^ {0,3}/.exec(text(lines[i]))[0].length;
        body.push({ from: lines[i].from + Math.min(spaces, indent), to: lines[i].to });
      }
      i++;
      block = node("code-block", ranges(source, body, true), { language: match[2].slice(0, 40) });
    } else if ((match = HEADING.exec(line))) {
      let end = line.trimEnd().length, hash = end; // closing #s are not part of the text
      while (line[hash - 1] === "#") hash--;
      if (" \t".includes(line[hash - 1] ?? " ")) end = line.slice(0, hash).trimEnd().length;
      const from = lines[i].from + match[0].length;
      block = node(`h${match[1].length}`, inline(source, [{ from, to: Math.max(from, lines[i].from + end) }]));
      i++;
    } else if (RULE.test(line)) {
      block = node("hr", []);
      i++;
    } else if (depth < DEPTH && QUOTE.test(line)) {
      const body = [];
      for (; i < lines.length && (match = QUOTE.exec(text(lines[i]))); i++)
        body.push({ from: lines[i].from + match[0].length, to: lines[i].to });
      block = node("blockquote", blocks(source, body, depth + 1));
    } else if (depth < DEPTH && ITEM.test(line)) {
      ({ block, i } = list(source, lines, i, depth, text, blank));
    } else if ((match = table(source, lines, i, text))) {
      ({ block, i } = match);
    } else {
      for (i++; i < lines.length && !blank(lines[i]) && !interrupts(text(lines[i]), depth) && !table(source, lines, i, text);) i++;
      const start = { from: lines[first].from + line.search(/\S/), to: lines[first].to };
      block = node("p", inline(source, [start, ...lines.slice(first + 1, i)]));
    }
    result.push({ ...block, from: lines[first].from });
  }
  return result;
}

function interrupts(line, depth) {
  const item = ITEM.exec(line);
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line)
    || (depth < DEPTH && (QUOTE.test(line) || (item && item[3] && (item[2].length === 1 || /^1[.)]$/.test(item[2])))));
}

function list(source, lines, start, depth, text, blank) {
  const kind = match => match[2].at(-1), first = ITEM.exec(text(lines[start]));
  const items = [];
  let i = start;
  for (let match; i < lines.length && (match = ITEM.exec(text(lines[i]))) && kind(match) === kind(first) && !RULE.test(text(lines[i]));) {
    // Lines indented by two spaces more than the marker belong to the item: models often indent less than CommonMark requires.
    const indent = match[1].length + 2, content = match[0].length;
    const body = [{ from: lines[i].from + content, to: lines[i].to }];
    let gap = false;
    for (i++; i < lines.length; i++) {
      const line = text(lines[i]), spaces = line.search(/\S/);
      if (spaces < 0) gap = true;
      else if (spaces >= indent) gap = false;
      else if (gap || ITEM.test(line) || interrupts(line, depth)) break;
      body.push({ from: lines[i].from + Math.max(0, Math.min(spaces, content)), to: lines[i].to });
    }
    items.push(node("li", blocks(source, body, depth + 1)));
  }
  const ordered = first[2].length > 1;
  return { i, block: node(ordered ? "ol" : "ul", items, ordered ? { start: parseInt(first[2], 10) } : {}) };
}

// A table whose header is line `i`, or null.
function table(source, lines, i, text) {
  if (i + 1 >= lines.length || !text(lines[i]).includes("|")) return null;
  const rule = text(lines[i + 1]);
  if (!rule.includes("-") || !/^[ \t:|-]+$/.test(rule)) return null;
  const marks = cells(source, lines[i + 1]).map(({ from, to }) => source.slice(from, to));
  const header = cells(source, lines[i]);
  if (marks.length !== header.length || !marks.every(mark => /^:?-+:?$/.test(mark))) return null;
  const side = marks.map(mark => mark.endsWith(":") ? (mark.startsWith(":") ? "center" : "right") : "left");
  const row = (tag, found) => node("tr", side.map((align, column) => node(tag, found[column] ? inline(source, [found[column]]) : [], { align })));
  const rows = [];
  let next = i + 2;
  for (; next < lines.length && text(lines[next]).includes("|"); next++) rows.push(row("td", cells(source, lines[next])));
  return { i: next, block: node("table", [node("thead", [row("th", header)]), node("tbody", rows)]) };
}

// The ranges of the cells in a table row, without surrounding space.
function cells(source, line) {
  const result = [];
  const push = (from, to) => {
    while (from < to && " \t".includes(source[from])) from++;
    while (to > from && " \t".includes(source[to - 1])) to--;
    result.push({ from, to });
  };
  let { from, to } = line;
  while (from < to && " \t".includes(source[from])) from++;
  while (to > from && " \t".includes(source[to - 1])) to--;
  if (source[from] === "|" && from < to) from++;
  if (to > from && source[to - 1] === "|" && source[to - 2] !== "\\") to--;
  for (let at = from; at <= to; at++) {
    if (at < to && source[at] === "\\") at++;
    else if (at === to || source[at] === "|") { push(from, at); from = at + 1 }
  }
  if (from <= to) push(from, to);
  return result;
}

// Leaves for complete lines, including their line ends, except the last line's.
function ranges(source, lines, last = false) {
  const result = [];
  lines.forEach((line, i) => {
    const to = (i + 1 < lines.length || last) && source[line.to] === "\n" ? line.to + 1 : line.to;
    if (result.length && result.at(-1).to === line.from) result.at(-1).to = to;
    else if (to > line.from) result.push({ from: line.from, to });
  });
  return result;
}

// Emphasis, code spans and links within lines. Potential opening delimiters are on a stack; a closing delimiter matches
// the nearest opening delimiter of its type, and the delimiters between them become text.
function inline(source, lines) {
  const items = [], openers = [], count = {};
  const push = (from, to) => {
    const last = items.at(-1);
    if (last && last.to === from && !last.tag && !last.mark) last.to = to;
    else if (to > from) items.push({ from, to });
  };
  const drop = length => { while (openers.length > length) count[openers.pop().mark]-- };
  const depth = kids => kids.reduce((most, kid) => Math.max(most, kid.depth ?? 0), 0) + 1;
  const wrap = (tag, kids, more) => ({ ...node(tag, kids.map(({ from, to, mark, ...kid }) => kid.tag ? kid : { from, to }), more), depth: depth(kids) });

  for (const { from, to } of ranges(source, lines)) {
    // Offsets of code span delimiters by length, computed once per line, so that unclosed ones take no time.
    const ticks = {};
    for (const match of source.slice(from, to).matchAll(/`+/g)) (ticks[match[0].length] ??= []).push(from + match.index);
    for (let at = from; at < to;) {
      const char = source[at];
      if (char === "\\" && at + 1 < to && (source[at + 1] === "\n" || PUNCTUATION.test(source[at + 1]))) {
        push(at + 1, at + 2);
        at += 2;
      } else if (char === "`") {
        let end = at;
        while (end < to && source[end] === "`") end++;
        const same = ticks[end - at];
        while (same?.length && same[0] < end) same.shift();
        if (same?.length) {
          const body = { from: end, to: same[0] };
          const padded = source[body.from] === " " && source[body.to - 1] === " " && source.slice(body.from, body.to).trim();
          items.push(node("code", [{ from: body.from + !!padded, to: body.to - !!padded }]));
          at = same[0] + (end - at);
        } else { push(at, end); at = end }
      } else if (char === "*" || char === "_" || char === "~") {
        let end = at;
        while (end < to && source[end] === char) end++;
        at = delimiter(at, end, from, to);
      } else if (char === "[") {
        items.push({ from: at, to: at + 1, mark: "[" });
        openers.push({ mark: "[", index: items.length - 1 });
        count["["] = (count["["] ?? 0) + 1;
        at++;
      } else if (char === "]") {
        at = link(at, to);
      } else if (char === "<" || (char === "h" && !LETTER.test(source[at - 1] ?? " "))) {
        at = address(at, to);
      } else {
        let end = at + 1;
        while (end < to && !"\\`*_~[]<h".includes(source[end])) end++;
        push(at, end);
        at = end;
      }
    }
  }
  return wrap("", items).kids;

  function delimiter(at, end, from, to) {
    const char = source[at], before = at > from ? source[at - 1] : " ", after = end < to ? source[end] : " ";
    const within = char === "_" && LETTER.test(before) && LETTER.test(after); // snake_case
    const opens = !/\s/.test(after) && !within && !(PUNCTUATION.test(after) && !/\s/.test(before) && !PUNCTUATION.test(before));
    const closes = !/\s/.test(before) && !within && !(PUNCTUATION.test(before) && !/\s/.test(after) && !PUNCTUATION.test(after));
    if (char === "~" && end - at !== 2) { push(at, end); return end }
    while (closes && at < end && count[char]) {
      let place = openers.length - 1;
      while (openers[place].mark !== char) place--;
      const { index } = openers[place], opener = items[index], size = opener.to - opener.from;
      const used = char === "~" || (size >= 2 && end - at >= 2) ? 2 : 1;
      const kids = items.slice(index + 1);
      drop(place + (size > used));
      if (depth(kids) > DEPTH) { drop(0); break }
      items.length = index + (size > used);
      opener.to -= used;
      items.push(wrap(char === "~" ? "del" : used === 2 ? "strong" : "em", kids));
      at += used;
    }
    if (at === end) return end;
    if (opens) {
      items.push({ from: at, to: end, mark: char });
      openers.push({ mark: char, index: items.length - 1 });
      count[char] = (count[char] ?? 0) + 1;
    } else push(at, end);
    return end;
  }

  function link(at, to) {
    if (!count["["]) { push(at, at + 1); return at + 1 }
    let place = openers.length - 1;
    while (openers[place].mark !== "[") place--;
    const { index } = openers[place];
    drop(place);
    const target = source[at + 1] === "(" && TARGET.exec(source.slice(at + 1, Math.min(to, at + 2000)));
    const kids = target && safe(target[1]) ? items.slice(index + 1) : [];
    if (!kids.length || depth(kids) > DEPTH) { push(at, at + 1); return at + 1 }
    items.length = index;
    const before = items.at(-1);
    if (before && !before.tag && source[before.to - 1] === "!") before.to--; // an image: show only its description
    items.push(wrap("a", kids.flatMap(kid => kid.tag === "a" ? kid.kids : [kid]), { href: target[1] }));
    return at + 1 + target[0].length;
  }

  function address(at, to) {
    const bracket = source[at] === "<", from = at + bracket;
    const match = /^https?:\/\/[^\s<>"`|]+/i.exec(source.slice(from, Math.min(to, from + 2000)));
    if (!match || (bracket && source[from + match[0].length] !== ">")) { push(at, at + 1); return at + 1 }
    let href = match[0];
    if (!bracket) {
      const round = href.split("(").length - href.split(")").length;
      for (let spare = -round; href && (".,;:!?'*_~]".includes(href.at(-1)) || (href.endsWith(")") && spare-- > 0));) href = href.slice(0, -1);
    }
    if (!safe(href)) { push(at, at + 1); return at + 1 }
    items.push(node("a", [{ from, to: from + href.length }], { href }));
    return from + href.length + bracket;
  }
}

function safe(href) {
  if (!/^https?:\/\//i.test(href)) return false;
  try { return Boolean(new URL(href).hostname) } catch { return false }
}
