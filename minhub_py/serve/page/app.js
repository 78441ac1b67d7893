// Web page of `minhub serve`: conversations with the server's models, and token probabilities of the replies.
import { add, all, fresh, isKey, last, load, NUMBERS, path, read, readSettings, remove, SAMPLING, siblings, store, title, writeSettings }
  from "./chats.js";
import { element, Reply } from "./reply.js";

const $ = id => document.getElementById(id);
const settings = readSettings();
let chat, busy = null, editing = null, error = "", models = {};

function save() {
  sessionStorage.setItem("minhub.chat", JSON.stringify(chat.id));
  if (!chat.count) return;
  chat.time = Date.now();
  if (!store(chat)) error = "This browser's storage is full: the conversation is not saved. Delete other conversations.";
}
function open(other) {
  chat = other;
  editing = null;
  error = "";
  save();
  render();
}

// Messages

function button(text, label, action, className = "") {
  const result = element("button", { type: "button", textContent: text, onclick: action, disabled: !!busy, className });
  if (label) result.setAttribute("aria-label", label);
  return result;
}
function message(id) {
  const node = chat.nodes[id], article = element("article", { className: node.role, id });
  article.append(element("h2", { className: "who", textContent: node.role === "user" ? "You" : node.model || "Model" }));
  if (editing === id) return editor(id, node, article);
  if (node.role === "user") article.append(element("div", { className: "text", textContent: node.text }));
  else {
    const view = new Reply(node.words, settings.markdown), thoughts = element("div", { className: "thought" });
    view.thoughts = element("details", { className: "reasoning" }, element("summary", { textContent: "Reasoning" }), thoughts);
    view.calls = element("div", { className: "calls" });
    article.append(view.thoughts, view.dom, view.calls);
    extras(view, node);
    if (busy?.id === id) busy.view = view;
    else if (!node.text && !node.calls?.length) view.dom.append(element("span", { className: "note", textContent: "(an empty reply)" }));
  }
  article.classList.toggle("busy", busy?.id === id);
  article.append(tools(id, node));
  return article;
}
// The reasoning before a reply, and its calls of tools.
function extras(view, node) {
  view.thoughts.hidden = !node.reasoning;
  view.thoughts.lastChild.textContent = node.reasoning ?? "";
  view.calls.replaceChildren(...(node.calls ?? []).map(call => element("code", { textContent: `${call.name}(${call.arguments})` })));
}
function tools(id, node) {
  const result = element("div", { className: "tools" }), versions = siblings(chat, id), at = versions.indexOf(id);
  const go = version => { chat.leaf = last(chat, version); save(); render() };
  if (busy?.id !== id) {
    if (versions.length > 1) result.append(button("‹", "Previous version", () => go(versions.at(at - 1))),
      element("span", { textContent: `${at + 1} of ${versions.length}` }),
      button("›", "Next version", () => go(versions[(at + 1) % versions.length])));
    if (node.end) result.append(element("span", { textContent: node.end }));
    if (node.end && id === chat.leaf) result.append(button("Continue", "Continue this reply", () => proceed(id), "main"));
    if (node.role === "user") result.append(button("Edit", "Edit this message", () => { editing = id; render() }, "act"));
    else result.append(button("Again", "Generate this reply again", () => reply(node.parent), "act"),
      element("button", { type: "button", className: "act copy", textContent: "Copy", source: node, ariaLabel: "Copy this reply" }));
  }
  if (node.role === "assistant") result.append(element("span", { className: "status", textContent: busy?.id === id && busy.note || speed(node) }));
  return result;
}
function speed(node) {
  if (!node.tokens) return "";
  const rate = node.timed / node.seconds;
  return `${node.tokens} token${node.tokens > 1 ? "s" : ""}`
    + (rate ? ` · ${rate < 100 ? rate.toPrecision(3) : Math.round(rate).toLocaleString("en")} tokens/s` : "");
}
function editor(id, node, article) {
  const area = element("textarea", { value: node.text, ariaLabel: "Edit the message" });
  const done = () => { editing = null; send(area.value, node.parent) }, cancel = () => { editing = null; render() };
  area.oninput = () => grow(area);
  area.onkeydown = event => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); done() }
    if (event.key === "Escape") { event.stopPropagation(); cancel() }
  };
  article.append(area, element("div", { className: "tools" },
    button("Send", "Send the edited message", done), button("Cancel", "Cancel the edit", cancel)));
  setTimeout(() => { grow(area); area.focus() });
  return article;
}
function render() {
  scrolled(() => {
    const log = $("log");
    log.setAttribute("aria-busy", !!busy);
    log.replaceChildren(...path(chat).map(message));
    if (!chat.count) {
      const note = models[settings.model]?.note;
      log.append(element("p", { className: "note", textContent: note ? `This model has ${note}.` : "Send a message to begin." }));
    }
    if (error) {
      const alert = element("p", { id: "error", role: "alert", textContent: error + " " });
      if (chat.nodes[chat.leaf]?.role === "user" && error !== TOO_LONG) alert.append(button("Try again", "", () => reply(chat.leaf)));
      log.append(alert);
    }
    log.classList.toggle("shade", settings.shade);
  });
  $("stop").hidden = !busy; $("send").hidden = !!busy; $("new").disabled = !!busy;
  list();
}
// Run `change`, and scroll to the end of the conversation if it was visible.
function scrolled(change) {
  const log = $("log"), low = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
  change();
  if (low) log.scrollTop = log.scrollHeight;
}
function grow(area) {
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight + area.offsetHeight - area.clientHeight}px`;
}

// The list of conversations

const narrow = matchMedia("(max-width: 64rem)");
function list() {
  $("chats").replaceChildren(...all().map(each => {
    const choose = button(title(each), "", () => { if (narrow.matches) drawer(false); open(load(each.id) ?? fresh()) }, "title");
    choose.title = title(each);
    if (each.id === chat.id) choose.setAttribute("aria-current", "true");
    return element("div", {}, choose, button("✕", `Delete “${title(each)}”`, () => discard(each), "remove"));
  }));
  if (!$("chats").childElementCount) $("chats").append(element("p", { className: "note", textContent: "No conversations yet." }));
}
function discard(old) {
  const shown = old.id === chat.id;
  remove(old.id);
  const undo = () => {
    store(old);
    toast();
    if (shown && !busy) open(load(old.id)); else list();
  };
  toast(`Deleted “${title(old)}”.`, button("Undo", "", undo), closer());
  if (shown) open(fresh()); else list();
}
function toast(text = "", ...buttons) {
  $("toast").hidden = !text;
  $("toast").replaceChildren(element("span", { textContent: text, title: text }), ...buttons);
}
const closer = () => button("✕", "Close", () => toast());
function drawer(shown) { $("chats").hidden = !shown; $("list").setAttribute("aria-expanded", shown) }

// Requests

const headers = () => ({ "Content-Type": "application/json", ...($("key").value ? { Authorization: `Bearer ${$("key").value}` } : {}) });
const TOO_LONG = "The conversation is longer than the model's context. Edit a message to shorten it, or begin a new conversation.";
async function errorOf(response) {
  const body = await response.json().catch(() => ({}));
  if (response.status === 401) { panel(true); $("key").focus() }
  if (body.error?.code === "context_length_exceeded") return new Error(TOO_LONG);
  return new Error(body.error?.message || `The server responded with status ${response.status}.`);
}
async function listModels() {
  try {
    const response = await fetch("v1/models", { headers: headers() });
    if (!response.ok) throw await errorOf(response);
    const list = await response.json(), data = list.data.filter(each => each.meta?.capabilities?.includes("completion"));
    $("pulling").hidden = !list.allow_pull;
    if (!data.length) throw new Error("The server has no model that chats.");
    models = Object.fromEntries(data.map(each => [each.id, { ...each.meta, state: each.status?.value }]));
    if (!(settings.model in models)) settings.model = data[0].id;
    $("model").replaceChildren(...data.map(each => new Option(label(each.id), each.id, false, each.id === settings.model)));
    error = "";
  } catch (problem) { error = problem instanceof TypeError ? "The server does not respond. Start it again and reload this page." : problem.message }
  showModel();
  render();
}
const isLoaded = name => (models[name]?.state ?? "loaded") === "loaded";
const label = name => name + (isLoaded(name) ? "" : models[name].state === "loading" ? " (loading)" : " (not loaded)");
// The chosen model's name, and its sampling defaults in the empty fields of the settings.
function showModel() {
  const sampling = models[settings.model]?.default_sampling ?? {};
  $("model-name").textContent = label(settings.model);
  for (const name in SAMPLING) $(name).placeholder = settings.model in models ? sampling[name] ?? SAMPLING[name] : "";
}
function send(text, parent) {
  if (busy || !text.trim()) return false;
  toast();
  reply(add(chat, "user", parent, text));
  return true;
}
function reply(parent) { return request(add(chat, "assistant", parent), path(chat, parent)) }
function proceed(id) { return request(id, path(chat, id), { continue_final_message: true }) }
async function request(id, ids, fields = {}) {
  const node = chat.nodes[id], control = new AbortController(), previous = node.text;
  const messages = ids.map(each => ({ role: chat.nodes[each].role, content: chat.nodes[each].text }));
  if (settings.system) messages.unshift({ role: "system", content: settings.system });
  const body = { model: settings.model, messages, stream: true, logprobs: true, top_logprobs: 5, ...fields };
  for (const name of NUMBERS) if (settings[name] !== "") body[name] = Number(settings[name]);
  if (settings.schema) body.response_format = { type: "json_schema", json_schema: { name: "reply", schema: JSON.parse(settings.schema) } };
  const end = node.end, loads = !isLoaded(settings.model);
  delete node.end;
  if (!fields.continue_final_message) { delete node.reasoning; delete node.calls }
  node.model = settings.model; error = ""; busy = { id, control, note: loads ? `Loading ${node.model} …` : "" }; save(); render();
  try {
    const response = await fetch("v1/chat/completions", { method: "POST", headers: headers(), body: JSON.stringify(body), signal: control.signal });
    if (!response.ok) throw await errorOf(response);
    await receive(response.body, node);
  } catch (problem) {
    node.end = control.signal.aborted ? "Stopped" : node.text === previous && end ? end : "Interrupted";
    if (!control.signal.aborted) error = problem instanceof TypeError ? "The connection to the server was lost." : problem.message;
  }
  busy = null;
  if (!node.text && (error || node.end === "Stopped")) { chat.leaf = node.parent; delete chat.nodes[id] }
  save(); render(); $("prompt").focus();
  if (loads && !error) listModels();
}
// Download a model to the server's cache, with its progress.
async function pull(name) {
  const show = text => { $("pulled").textContent = text }, start = "pulling ";
  $("download").disabled = true;
  show("Starting the download …");
  try {
    const response = await fetch("api/pull", { method: "POST", headers: headers(), body: JSON.stringify({ model: name }) });
    if (!response.ok) throw new Error((await response.json()).error);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let buffer = "", last = {};;) {
      const { value, done } = await reader.read(), lines = (buffer + (value ?? "")).split("\n");
      buffer = lines.pop();
      for (const line of lines) {
        last = JSON.parse(line);
        if (last.error) throw new Error(last.error);
        if (last.total) show(`${last.status.replace(start, "")}: ${Math.floor(100 * last.completed / last.total)} %`);
      }
      if (done && last.status !== "success") throw new TypeError("cut");
      if (done) break;
    }
    settings.model = name;
    await listModels();
    show(`${name} is ready.`);
  } catch (problem) { show(problem instanceof TypeError ? "The connection to the server was lost. Download again to continue." : problem.message) }
  $("download").disabled = false;
}
async function receive(stream, node) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader(), start = performance.now(), clock = {};
  const previous = { tokens: node.tokens ?? 0, timed: node.timed ?? 0, seconds: node.seconds ?? 0 };
  for (let buffer = "", ended = false; !ended;) {
    const { value, done } = await reader.read();
    const lines = (buffer + (value ?? "")).split("\n");
    buffer = lines.pop();
    for (const line of lines.filter(each => each.startsWith("data: "))) {
      if (line === "data: [DONE]") { ended = true; continue }
      const data = JSON.parse(line.slice(6));
      if (data.error) throw new Error(data.error.message);
      if (data.choices[0]) take(data.choices[0], node, clock);
    }
    // The speed excludes the time to the first delta, as in llama.cpp, unless the complete reply arrives at once.
    const seconds = (performance.now() - (clock.first ?? start)) / 1000, all = seconds < 0.001;
    if (clock.count) Object.assign(node, { tokens: previous.tokens + clock.count,
      timed: previous.timed + (all ? clock.count : clock.count - clock.initial),
      seconds: previous.seconds + (all ? Math.max(0.001, (performance.now() - start) / 1000) : seconds) });
    refresh(node);
    if (done && !ended) throw new TypeError("cut");
  }
}
function take(choice, node, clock) {
  const text = choice.delta.content, tokens = choice.logprobs?.content ?? [];
  clock.count = (clock.count ?? 0) + tokens.length;
  if (clock.count) { clock.first ??= performance.now(); clock.initial ??= clock.count }
  if (choice.finish_reason === "length") node.end = "Token limit reached";
  if (choice.delta.reasoning_content) node.reasoning = (node.reasoning ?? "") + choice.delta.reasoning_content;
  for (const call of choice.delta.tool_calls ?? []) {
    const shown = (node.calls ??= [])[call.index] ??= { name: "", arguments: "" };
    for (const name of ["name", "arguments"]) shown[name] += call.function?.[name] ?? "";
  }
  if (!text) return;
  node.text += text;
  node.words.push({ t: text, k: tokens.map(token => [token.token, token.logprob, token.top_logprobs.map(top => [top.token, top.logprob])]) });
}
// Show new words, at most once per frame.
function refresh(node) {
  if (busy.waits) return;
  const { view } = busy;
  busy.waits = true;
  requestAnimationFrame(() => {
    if (busy?.view !== view) return;
    busy.waits = false;
    scrolled(() => { view.update(); extras(view, node); view.calls.nextSibling.querySelector(".status").textContent = speed(node) });
  });
}

// Token probabilities

const percent = logprob => { const p = 100 * Math.exp(logprob); return p < 0.01 ? "< 0.01 %" : `${p.toPrecision(p > 99.95 ? 4 : 3)} %` };
const visible = text => text.replace(/\n/g, "⏎").replace(/^ | $/g, "␣") || "(nothing)";
function hint(word) {
  document.querySelectorAll(".word.at").forEach(each => each.classList.remove("at"));
  $("hint").hidden = !word?.tokens?.length;
  if ($("hint").hidden) return;
  for (const each of word.closest(".text").querySelectorAll(`[data-word="${word.dataset.word}"]`)) each.classList.add("at");
  $("hint").replaceChildren(...word.tokens.map(([token, logprob, top]) => {
    const rows = top.some(([text]) => text === token) ? top : [[token, logprob], ...top];
    return element("table", {}, ...rows.map(([text, value]) => element("tr", { className: text === token ? "it" : "" },
      element("td", { textContent: visible(text) }), element("td", { textContent: percent(value) }))));
  }));
  const at = word.getBoundingClientRect(), own = $("hint").getBoundingClientRect();
  $("hint").style.left = `${Math.max(4, Math.min(at.left, innerWidth - own.width - 4))}px`;
  $("hint").style.top = `${at.bottom + own.height + 8 < innerHeight ? at.bottom + 4 : Math.max(4, at.top - own.height - 4)}px`;
}
// The table opens when the mouse moves to a word and stays there, but not when text moves under a resting mouse.
let pointer = "", intent;
$("log").addEventListener("pointermove", event => {
  const position = `${event.screenX} ${event.screenY}`;
  if (event.pointerType !== "mouse" || event.buttons || position === pointer) return;
  pointer = position;
  clearTimeout(intent);
  const word = event.target.closest(".word");
  if (!word || !$("hint").hidden) hint(word);
  else intent = setTimeout(() => hint(word), 150);
});
$("log").addEventListener("click", event => { if (getSelection().isCollapsed) hint(event.target.closest(".word")) });
$("log").addEventListener("pointerleave", () => { clearTimeout(intent); hint(null) });
$("log").addEventListener("scroll", () => { clearTimeout(intent); hint(null) });
$("log").addEventListener("focusout", () => hint(null));
$("log").addEventListener("keydown", event => {
  if (!event.target.classList.contains("text") || !["ArrowLeft", "ArrowRight"].includes(event.key)) return;
  const words = [...event.target.querySelectorAll(".word")], step = event.key === "ArrowRight" ? 1 : -1;
  const at = words.map(each => each.classList.contains("at"));
  const next = step > 0 ? at.lastIndexOf(true) + 1 : at.includes(true) ? at.indexOf(true) - 1 : words.length - 1;
  event.preventDefault();
  if (words[next]) hint(words[next]);
});

// Copying

document.addEventListener("click", async event => {
  const button = event.target.closest(".copy");
  if (!button) return;
  const text = button.source.text ?? button.source.textContent;
  try { await navigator.clipboard.writeText(text) }
  catch { // no permission, or a page without HTTPS
    const area = element("textarea", { value: text, className: "hidden" });
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    if (!copied) return toast("The browser does not allow copying. Select the text instead.", closer());
  }
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy" }, 2000);
});

// Settings

const FIELDS = [...NUMBERS, "system", "schema", "theme", "shade", "markdown", "model"];
function panel(shown) { $("settings").hidden = !shown; $("more").setAttribute("aria-expanded", shown) }
function apply() {
  document.documentElement.dataset.theme = settings.theme;
  $("schema").setCustomValidity("");
  for (const name of FIELDS) $(name)[$(name).type === "checkbox" ? "checked" : "value"] = settings[name];
  showInvalid();
}
for (const name of FIELDS) $(name).oninput = () => {
  if (name === "schema") checkSchema();
  showInvalid();
  if (!$(name).checkValidity()) return;
  settings[name] = $(name)[$(name).type === "checkbox" ? "checked" : "value"];
  writeSettings(settings);
  document.documentElement.dataset.theme = settings.theme;
  if (name === "model") showModel();
  if (["shade", "markdown", "model"].includes(name)) render();
};
// The reason why a field's value does not apply.
function showInvalid() {
  const field = FIELDS.map($).find(each => !each.validity.valid);
  $("invalid").textContent = field ? `${field.labels[0].firstChild.textContent.trim()}: ${field.validationMessage} The last valid value applies.` : "";
}
function checkSchema() {
  let problem = "";
  try { if ($("schema").value && typeof JSON.parse($("schema").value) !== "object") problem = "A schema is a JSON object." }
  catch (error) { problem = `This is not JSON: ${error.message}.` }
  $("schema").setCustomValidity(problem);
  $("schema").title = problem;
}
// Download the visible messages, in the format of the OpenAI API.
function exportChat() {
  const messages = path(chat).map(id => chat.nodes[id]).map(({ role, text, reasoning, calls, model }) => ({ role, content: text,
    ...(model ? { model } : {}), ...(reasoning ? { reasoning_content: reasoning } : {}),
    ...(calls?.length ? { tool_calls: calls.map(call => ({ type: "function", function: call })) } : {}) }));
  if (settings.system) messages.unshift({ role: "system", content: settings.system });
  const url = URL.createObjectURL(new Blob([JSON.stringify({ messages }, null, 2)], { type: "application/json" }));
  element("a", { href: url, download: `${title(chat).slice(0, 40).replace(/[^\p{L}\p{N}]+/gu, "-") || "conversation"}.json` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60000);
}
$("export").onclick = exportChat;
$("reset").onclick = () => {
  for (const name in SAMPLING) settings[name] = "";
  writeSettings(settings);
  apply();
};
$("more").onclick = () => panel($("settings").hidden);
$("list").onclick = () => drawer($("chats").hidden);
$("column").onclick = () => { if (narrow.matches) drawer(false) };
$("key").value = read(sessionStorage, "minhub.key") ?? "";
$("key").onchange = () => { sessionStorage.setItem("minhub.key", JSON.stringify($("key").value)); listModels() };
$("download").onclick = () => { const name = $("pull").value.trim(); if (name) pull(name); else $("pull").focus() };
$("pull").onkeydown = event => { if (event.key === "Enter") { event.preventDefault(); $("download").click() } };
$("new").onclick = () => { open(fresh()); $("prompt").focus() };
$("stop").onclick = () => busy?.control.abort();
$("ask").onsubmit = event => {
  event.preventDefault();
  // A new message replaces a message without a reply.
  const node = chat.nodes[chat.leaf], parent = node?.role === "user" ? node.parent : chat.leaf;
  if (send($("prompt").value, parent)) { $("prompt").value = ""; grow($("prompt")) }
};
$("prompt").oninput = () => grow($("prompt"));
$("prompt").onkeydown = event => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); $("ask").requestSubmit() }
};
addEventListener("resize", () => document.querySelectorAll("#prompt, article textarea").forEach(grow));
document.addEventListener("keydown", event => {
  if (event.key !== "Escape") return;
  if (busy) busy.control.abort();
  else if (!$("hint").hidden) hint(null);
  else if (narrow.matches) drawer(false);
});
addEventListener("storage", event => { if (isKey(event.key)) list() });
addEventListener("pagehide", () => { if (busy) { chat.nodes[busy.id].end = "Interrupted by a reload"; save() } });

apply();
drawer(!narrow.matches);
open(load(read(sessionStorage, "minhub.chat")) ?? fresh());
listModels();
