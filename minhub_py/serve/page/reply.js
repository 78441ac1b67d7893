// A reply on the page: Markdown or plain text, with a span for each delta from the server. While a reply grows, only its
// last blocks are parsed again and only changed nodes are replaced, so that selections in the text remain.
import { parse } from "./markdown.js";

export function element(tag, properties = {}, ...kids) {
  const result = Object.assign(document.createElement(tag), properties);
  result.append(...kids);
  return result;
}

export class Reply {
  // words: text deltas `{t, k}`; k contains their tokens: [text, logprob, [[text, logprob] of most likely tokens]].
  constructor(words, markdown) {
    Object.assign(this, { words, markdown, text: "", starts: [], blocks: [] });
    this.dom = element("div", { className: markdown ? "text markdown" : "text", tabIndex: 0 });
    this.dom.setAttribute("aria-label", "Reply; the arrow keys show token probabilities");
    this.update();
  }

  // Show the words that were added since the last call.
  update() {
    // The first two lines of a block determine its start: until both are complete, it may merge with the previous block.
    const started = block => this.text.slice(block.from).split("\n", 3).length === 3;
    let last = this.markdown ? Math.max(0, this.blocks.length - 1) : 0;
    while (last > 0 && !started(this.blocks[last])) last--;
    for (const word of this.words.slice(this.starts.length)) {
      this.starts.push(this.text.length);
      this.text += word.t;
    }
    const from = this.blocks[last]?.from ?? 0;
    const end = this.markdown ? parse(this.text, from) : [{ tag: "plain", kids: [{ from: 0, to: this.text.length }], from: 0 }];
    const blocks = [...this.blocks.slice(0, last), ...end.map(block => this.#split(block))];
    patch(this.dom, this.blocks, blocks, leaf => this.#span(leaf));
    this.blocks = blocks;
  }

  // A tree with one leaf per word.
  #split(item) {
    if (item.tag) return { ...item, kids: item.kids.flatMap(kid => this.#split(kid)) };
    const result = [];
    for (let { from, to } = item, word = this.#at(from); from < to; word++) {
      const end = Math.min(to, this.starts[word + 1] ?? this.text.length);
      if (end > from) result.push({ from, to: end, word });
      from = end;
    }
    return result;
  }

  // The index of the word at an offset.
  #at(offset) {
    let low = 0, high = this.starts.length;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (this.starts[middle] <= offset) low = middle; else high = middle;
    }
    return low;
  }

  #span({ from, to, word }) {
    const span = element("span", { className: "word", textContent: this.text.slice(from, to) }), tokens = this.words[word].k;
    span.dataset.word = word;
    span.tokens = tokens;
    if (tokens.length) span.style.setProperty("--p", Math.exp(Math.min(...tokens.map(token => token[1]))));
    return span;
  }
}

const same = (a, b) => a.tag === b.tag && (a.tag
  ? ["href", "language", "start", "align"].every(name => a[name] === b[name])
  : a.from === b.from && a.to === b.to && a.word === b.word);

// Update the children of `parent` from one list of items to another.
function patch(parent, before, after, span) {
  after.forEach((item, i) => {
    const old = before[i], dom = parent.childNodes[i];
    if (old === item) return;
    if (old && same(old, item)) { if (item.tag) patch(dom.inner ?? dom, old.kids, item.kids, span) }
    else if (dom) dom.replaceWith(build(item, span));
    else parent.append(build(item, span));
  });
  while (parent.childNodes.length > after.length) parent.lastChild.remove();
}

function build(item, span) {
  if (!item.tag) return span(item);
  const kids = item.kids.map(kid => build(kid, span));
  switch (item.tag) {
    case "a": return element("a", { href: item.href, title: item.href, target: "_blank", rel: "noopener noreferrer" }, ...kids);
    case "ol": return element("ol", { start: item.start }, ...kids);
    case "th": case "td": return element(item.tag, { className: item.align }, ...kids);
    case "plain": return element("div", { className: "plain" }, ...kids);
    case "table": {
      const inner = element("table", {}, ...kids);
      return Object.assign(element("div", { className: "table" }, inner), { inner });
    }
    case "code-block": {
      const inner = element("code", {}, ...kids), copy = element("button", { type: "button", className: "copy", textContent: "Copy" });
      copy.setAttribute("aria-label", "Copy this code");
      copy.source = inner;
      const bar = element("div", { className: "bar" }, element("span", { textContent: item.language }), copy);
      return Object.assign(element("div", { className: "code" }, bar, element("pre", {}, inner)), { inner });
    }
    default: return element(item.tag, {}, ...kids);
  }
}
