// Conversations in the browser's storage. A conversation is a tree: edited messages and regenerated replies have
// siblings. Each conversation has a separate key, so that tabs do not overwrite each other's conversations. Stored data
// is validated when it is read, because other programs and older versions of this page may have written it.

const PREFIX = "minhub.chat.";
// Sampling settings of the OpenAI API, with the values that have no effect.
export const SAMPLING = { temperature: 1, top_p: 1, top_k: 0, min_p: 0, repetition_penalty: 1, presence_penalty: 0, frequency_penalty: 0 };
const DEFAULTS = { system: "", schema: "", ...Object.fromEntries(Object.keys(SAMPLING).map(name => [name, ""])), max_tokens: 512,
  seed: "", theme: "", shade: false, markdown: true, model: "" };
export const NUMBERS = [...Object.keys(SAMPLING), "max_tokens", "seed"];
const VERSION = 2; // of the settings. Version 1 stored default values, so its sampling settings are dropped

export const read = (storage, key) => { try { return JSON.parse(storage.getItem(key)) } catch { return null } };

export function readSettings() {
  const stored = read(localStorage, "minhub.settings"), result = { ...DEFAULTS };
  for (const [name, initial] of Object.entries(DEFAULTS)) {
    const value = stored?.[name], number = ["string", "number"].includes(typeof value) && Number.isFinite(Number(value));
    if (stored?.version !== VERSION && name in SAMPLING) continue;
    if (NUMBERS.includes(name) ? number : typeof value === typeof initial) result[name] = value;
  }
  return result;
}
export function writeSettings(settings) {
  try { localStorage.setItem("minhub.settings", JSON.stringify({ ...settings, version: VERSION })) }
  catch { /* full: the settings apply until the page is closed */ }
}

export const fresh = () => ({ id: `${Date.now()}-${Math.random().toString(36).slice(2)}`, nodes: {}, leaf: null, count: 0 });

// A stored conversation with its valid messages; null if it has none. Messages with missing or circular parents are
// dropped.
function checked(id, stored) {
  if (typeof stored?.nodes !== "object" || !stored.nodes) return null;
  const text = value => typeof value === "string", number = value => Number.isFinite(value), below = new Map(), nodes = {};
  for (const [key, node] of Object.entries(stored.nodes)) {
    if (!/^n\d{1,9}$/.test(key) || !["user", "assistant"].includes(node?.role) || !text(node.text)) continue;
    const parent = text(node.parent) ? node.parent : "";
    if (!below.get(parent)?.push(key)) below.set(parent, [key]);
  }
  const pair = value => Array.isArray(value) && text(value[0]) && number(value[1]);
  const word = value => text(value?.t) && Array.isArray(value.k)
    && value.k.every(token => pair(token) && Array.isArray(token[2]) && token[2].every(pair));
  const queue = [...(below.get("") ?? [])];
  for (let key; (key = queue.shift());) {
    const { role, text: content, parent, words, model, end, tokens, timed, seconds, reasoning, calls } = stored.nodes[key];
    const sound = Array.isArray(words) && words.every(word) && words.map(each => each.t).join("") === content;
    nodes[key] = { role, text: content, parent: text(parent) ? parent : null, words: sound ? words : content ? [{ t: content, k: [] }] : [] };
    if (text(model)) nodes[key].model = model;
    if (text(end)) nodes[key].end = end;
    if (text(reasoning)) nodes[key].reasoning = reasoning;
    if (Array.isArray(calls) && calls.every(call => text(call?.name) && text(call.arguments))) nodes[key].calls = calls;
    if ([tokens, timed, seconds].every(number)) Object.assign(nodes[key], { tokens, timed, seconds });
    queue.push(...(below.get(key) ?? []));
  }
  // Ordered by number, because the last sibling is the newest.
  const keys = Object.keys(nodes).sort((a, b) => a.slice(1) - b.slice(1));
  if (!keys.length) return null;
  const ordered = Object.fromEntries(keys.map(key => [key, nodes[key]]));
  const count = Math.max(Number.isSafeInteger(stored.count) ? stored.count : 0, Number(keys.at(-1).slice(1)));
  const leaf = Object.hasOwn(ordered, stored.leaf) ? stored.leaf : keys.at(-1);
  return { id, nodes: ordered, leaf, count, time: number(stored.time) ? stored.time : 0 };
}

export const load = id => checked(id, read(localStorage, PREFIX + id));
export const remove = id => localStorage.removeItem(PREFIX + id);
export const isKey = key => key === null || key.startsWith(PREFIX);
export const title = chat => Object.values(chat.nodes)[0]?.text.trim().slice(0, 80) || "New conversation";

// All stored conversations, the newest first. Parsed ones are reused while their text in storage is the same.
const parsed = new Map();
export function all() {
  const result = [];
  for (const key of Object.keys(localStorage).filter(key => key.startsWith(PREFIX))) {
    const text = localStorage.getItem(key);
    if (parsed.get(key)?.text !== text) parsed.set(key, { text, chat: load(key.slice(PREFIX.length)) });
    if (parsed.get(key).chat) result.push(parsed.get(key).chat);
  }
  return result.sort((a, b) => b.time - a.time);
}

// Store a conversation. If the storage is full, remove the oldest ones. Returns false if that is not sufficient.
export function store(chat) {
  const write = () => localStorage.setItem(PREFIX + chat.id, JSON.stringify(chat));
  try { write(); return true } catch { /* full */ }
  for (const old of all().reverse().filter(each => each.id !== chat.id)) {
    remove(old.id);
    try { write(); return true } catch { /* still full */ }
  }
  return false;
}

export function add(chat, role, parent, text = "") {
  const id = `n${++chat.count}`;
  chat.nodes[id] = { role, parent, text, words: [] };
  chat.leaf = id;
  return id;
}
export function path(chat, leaf = chat.leaf) { // from the first message to the leaf
  const result = [];
  for (let id = leaf; id; id = chat.nodes[id].parent) result.unshift(id);
  return result;
}
export const siblings = (chat, id) => Object.keys(chat.nodes).filter(each => chat.nodes[each].parent === chat.nodes[id].parent
  && chat.nodes[each].role === chat.nodes[id].role);
export function last(chat, id) { // the newest descendant
  for (;;) {
    const below = Object.keys(chat.nodes).filter(each => chat.nodes[each].parent === id);
    if (!below.length) return id;
    id = below.at(-1);
  }
}
