"use strict";
// Everything that comes from the server is text from strangers: it gets into the page through
// textContent and text nodes alone. The policy of the page (trusted types) forbids every other way.

const byId = (id) => document.getElementById(id);
const RETRY = 2000;
const PAGE = 100;
const SILENCE = 6000;
const COLUMNS = ["name", "holder", "remaining", "fence", "nodes", "note"];
const KEPT = "asynclock token for " + location.pathname;
const query = { search: "", sort: "name", reverse: false, offset: 0 };
// Kept for this tab only, so that reloading the page asks nobody for the token again.
let token = new URLSearchParams(location.hash.slice(1)).get("token") || kept();
let asking = new AbortController();
let seenAt = 0;
let heardAt = 0;
if (location.hash) history.replaceState(null, "", location.pathname);

function kept() {
  try { return sessionStorage.getItem(KEPT) || ""; } catch { return ""; }
}

function keep(value) {
  try {
    if (value) sessionStorage.setItem(KEPT, value); else sessionStorage.removeItem(KEPT);
  } catch { /* storage is switched off: the token is asked for again */ }
}

function status(text, kind) {
  byId("status").textContent = text;
  byId("status").className = kind;
}

// Control and bidirectional characters could make a name look like another one.
function shown(value) {
  return String(value).replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu,
    (one) => "\\u{" + one.codePointAt(0).toString(16) + "}");
}

// Names and addresses break behind the marks that separate their parts, not within a word.
function write(cell, text) {
  const whole = document.createElement("span");
  cell.append(whole);
  if (!cell.classList.contains("name")) whole.textContent = shown(text);
  else shown(text).split(/(?<=[.:\-/_@,])/u).forEach((part, number) => {
    if (number) whole.append(document.createElement("wbr"));
    whole.append(part);
  });
}

function seconds(value) {
  if (value === null || value === undefined) return "";
  return value < 0.1 ? (value * 1000).toFixed(1) + " ms" : value.toFixed(1) + " s";
}

function clock(at) {
  return new Date(at).toLocaleTimeString([], { hour12: false });
}

function fill(id, rows) {
  const table = byId(id);
  const titles = [...table.tHead.rows[0].cells].map((cell) => cell.textContent.trim());
  table.classList.toggle("none", !rows.length);
  table.tBodies[0].replaceChildren(...rows.map((cells) => {
    const row = document.createElement("tr");
    row.setAttribute("role", "row");
    cells.forEach(([text, kind], number) => {
      const cell = document.createElement(number ? "td" : "th");
      if (!number) cell.scope = "row";
      cell.setAttribute("role", number ? "cell" : "rowheader");
      cell.dataset.title = titles[number];
      cell.className = kind || "";
      write(cell, text ?? "");
      if (text === "" || text === null || text === undefined) cell.classList.add("nothing");
      row.append(cell);
    });
    return row;
  }));
}

function lock(one) {
  const notes = [one.note, one.ours ? "held by this process" : ""].filter(Boolean);
  const name = one.part ? one.name + " [" + one.part + "]" : one.name;
  return [[name, "name"], [one.holder, "name"], [seconds(one.remaining), "figure"],
    [one.fence || "", "figure"], [one.nodes, "figure"], [notes.join(", "), one.note ? "bad" : ""]];
}

function queue(one) {
  const places = one.queue.map((w) => (w.label ?? "") + (w.woken ? " (woken)" : ""));
  return places.join(", ") + (one.count > places.length && places.length ? ", …" : "");
}

function counters(picture) {
  const groups = [["All clients, as seen by this page since " + clock(picture.seen.since * 1000),
    { acquired: picture.seen.acquired, released: picture.seen.released, "ran out": picture.seen.ran_out }]];
  if (picture.own) groups.push(["This process", picture.own]);
  byId("counters").replaceChildren(...groups.flatMap(([whose, figures]) => {
    const title = document.createElement("dt");
    title.textContent = whose;
    return [title, ...Object.entries(figures).map(([name, value]) => {
      const item = document.createElement("dd");
      const figure = document.createElement("b");
      figure.textContent = value;
      item.append(figure, " " + name);
      return item;
    })];
  }));
}

function trouble(found) {
  byId("trouble").hidden = !found;
  byId("trouble").className = found ? found.level : "";
  // Written only when it changes: a screen reader reads it out each time.
  if (found && byId("trouble").textContent !== found.text) byId("trouble").textContent = found.text;
}

function paint(picture) {
  trouble(picture.trouble);
  fill("nodes", picture.nodes.map((n) => [[n.node, "name"], [n.state, n.state === "up" ? "good" : "bad"],
    [n.votes_in ? seconds(n.votes_in) : "", "figure"], [seconds(n.round_trip), "figure"],
    [n.version, "figure"], [n.cause]]));
  counters(picture);
  byId("held").textContent = "Held (" + picture.held.toLocaleString() + ")";
  const last = picture.offset + picture.locks.length;
  const filtered = picture.found === picture.held ? "" : " found";
  byId("place").textContent = picture.found
    ? (last ? picture.offset + 1 : 0).toLocaleString() + "–" + last.toLocaleString() + " of "
      + picture.found.toLocaleString() + filtered
    : "0" + filtered;
  byId("previous").disabled = picture.offset === 0;
  byId("next").disabled = last >= picture.found;
  if (picture.offset && picture.offset >= picture.found) turn(0);
  fill("locks", picture.locks.map(lock));
  fill("waiters", picture.waiters.map((w) => [[w.name, "name"], [w.count + (w.more ? " or more" : ""), "figure"], [queue(w), "name"]]));
  const more = picture.waited_for > picture.waiters.length;
  byId("waited").textContent = more ? "(the first " + picture.waiters.length + " of " + picture.waited_for + " names)" : "";
  fill("losses", picture.losses.map((l) => [[clock(l.at * 1000)],
    [l.name, "name"], [l.fence, "figure"], [seconds(l.held), "figure"], [l.reason, "bad"]]));
  byId("main").hidden = false;
  seenAt = Date.now();
  fresh(true);
  status("live, " + clock(picture.at * 1000), "live");
}

function fresh(yes) {
  document.body.classList.toggle("gone", !yes);
}

function gone(why) {
  fresh(false);
  if (!seenAt) return status(why, "down");
  const age = Math.round((Date.now() - seenAt) / 1000);
  status("no picture since " + clock(seenAt) + " (" + age + " s): " + why, "down");
}

function take(block) {
  const lines = block.split("\n");
  const data = lines.filter((l) => l.startsWith("data: ")).map((l) => l.slice(6)).join("\n");
  if (lines.includes("event: picture")) paint(JSON.parse(data));
  else if (lines.includes("event: failed")) gone("the nodes can't be asked: " + shown(data));
}

function ask() {
  byId("login").hidden = false;
  byId("main").hidden = true;
  byId("trouble").hidden = true;
  byId("token").focus();
}

function address() {
  const asked = { search: query.search, sort: query.sort, offset: query.offset, limit: PAGE };
  return "events?" + new URLSearchParams(query.reverse ? { ...asked, reverse: 1 } : asked);
}

// Not EventSource: it can't send the token in a header.
async function watch() {
  const mine = asking = new AbortController();
  while (mine === asking) {
    try {
      const headers = { Authorization: "Bearer " + token };
      const answer = await fetch(address(), { headers, signal: mine.signal });
      if (answer.status === 401) {
        keep("");
        status("this token is not the one", "down");
        return ask();
      }
      if (!answer.ok) throw new Error("status " + answer.status);
      keep(token);
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (let part = await reader.read(); !part.done; part = await reader.read()) {
        heardAt = Date.now();
        const blocks = (text + part.value).split("\n\n");
        text = blocks.pop();
        blocks.forEach(take);
      }
    } catch (error) {
      if (mine.signal.aborted) return;
      gone("the server does not answer");
      await new Promise((resolve) => setTimeout(resolve, RETRY));
    }
  }
}

function turn(offset) {
  query.offset = Math.max(0, offset);
  asking.abort();
  watch();
}

byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  token = byId("token").value;
  byId("login").hidden = true;
  watch();
});
byId("find").addEventListener("submit", (event) => event.preventDefault());
let typed = 0;
byId("search").addEventListener("input", () => {
  clearTimeout(typed);
  typed = setTimeout(() => { query.search = byId("search").value; turn(0); }, 250);
});
byId("sort").append(...COLUMNS.map((name) => new Option(name)));
byId("sort").addEventListener("change", () => { query.sort = byId("sort").value; turn(0); });
byId("reverse").addEventListener("click", () => {
  query.reverse = !query.reverse;
  byId("reverse").textContent = query.reverse ? "descending" : "ascending";
  byId("reverse").setAttribute("aria-pressed", String(query.reverse));
  turn(0);
});
byId("previous").addEventListener("click", () => turn(query.offset - PAGE));
byId("next").addEventListener("click", () => turn(query.offset + PAGE));
// A server that hangs keeps its connections open, but one that works says so every second.
setInterval(() => {
  if (seenAt && Date.now() - heardAt > SILENCE) gone("the server does not answer");
}, 1000);

if (token) watch(); else ask();
