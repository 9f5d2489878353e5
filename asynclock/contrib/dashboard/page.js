"use strict";
// Everything that comes from the server is text from strangers: it gets into the page through
// textContent alone. The policy of the page (trusted types) forbids every other way.

const byId = (id) => document.getElementById(id);
const RETRY = 2000;
let token = new URLSearchParams(location.hash.slice(1)).get("token") || "";
if (location.hash) history.replaceState(null, "", location.pathname);

function status(text, kind) {
  byId("status").textContent = text;
  byId("status").className = kind;
}

// Control and bidirectional characters could make a name look like another one.
function shown(value) {
  return String(value).replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu,
    (one) => "\\u{" + one.codePointAt(0).toString(16) + "}");
}

function seconds(value) {
  if (value === null || value === undefined) return "";
  return value < 0.1 ? (value * 1000).toFixed(1) + " ms" : value.toFixed(1) + " s";
}

function fill(id, rows) {
  const table = byId(id);
  table.className = rows.length ? "" : "none";
  table.tBodies[0].replaceChildren(...rows.map((cells) => {
    const row = document.createElement("tr");
    for (const [text, kind] of cells) {
      const cell = document.createElement("td");
      cell.textContent = shown(text ?? "");
      cell.className = kind || "";
      row.append(cell);
    }
    return row;
  }));
}

function lock(one) {
  const notes = [];
  if (!one.agreed) notes.push("nodes disagree");
  if (one.remaining === null) notes.push("no quorum");
  if (one.ours) notes.push("held by this process");
  const name = one.part ? one.name + " [" + one.part + "]" : one.name;
  return [[name, "name"], [one.holder, "name"], [one.fence || ""], [seconds(one.remaining)],
    [one.nodes], [notes.join(", "), one.agreed ? "" : "bad"]];
}

function paint(picture) {
  const totals = { ...picture.totals, "nodes up": picture.nodes.filter((n) => n.state === "up").length
    + " of " + picture.nodes.length };
  byId("totals").replaceChildren(...Object.entries(totals).map(([name, value]) => {
    const item = document.createElement("li");
    const figure = document.createElement("b");
    figure.textContent = value;
    item.append(figure, name);
    return item;
  }));
  fill("nodes", picture.nodes.map((n) => [[n.node, "name"], [n.state, n.state === "up" ? "good" : "bad"],
    [n.votes_in ? seconds(n.votes_in) : ""], [seconds(n.round_trip)], [n.version], [n.cause]]));
  const more = picture.held > picture.locks.length ? ", the first " + picture.locks.length : "";
  byId("held").textContent = "(" + picture.held + more + ")";
  fill("locks", picture.locks.map(lock));
  fill("waiters", picture.waiters.map((w) => [[w.name, "name"], [w.count]]));
  fill("losses", picture.losses.map((l) => [[new Date(l.at * 1000).toLocaleTimeString()],
    [l.name, "name"], [l.fence], [seconds(l.held)], [l.reason, "bad"]]));
  byId("main").hidden = false;
  status("live, " + new Date(picture.at * 1000).toLocaleTimeString(), "live");
}

function take(block) {
  const lines = block.split("\n");
  const data = lines.filter((l) => l.startsWith("data: ")).map((l) => l.slice(6)).join("\n");
  if (lines.includes("event: picture")) paint(JSON.parse(data));
  else if (lines.includes("event: failed")) status("the nodes can't be asked: " + shown(data), "down");
}

function ask() {
  byId("login").hidden = false;
  byId("main").hidden = true;
  byId("token").focus();
}

// Not EventSource: it can't send the token in a header.
async function watch() {
  for (;;) {
    try {
      const answer = await fetch("events", { headers: { Authorization: "Bearer " + token } });
      if (answer.status === 401) {
        status("this token is not the one", "down");
        return ask();
      }
      if (!answer.ok) throw new Error("status " + answer.status);
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (let part = await reader.read(); !part.done; part = await reader.read()) {
        const blocks = (text + part.value).split("\n\n");
        text = blocks.pop();
        blocks.forEach(take);
      }
    } catch (error) {
      status("no answer: " + error.message, "down");
      await new Promise((resolve) => setTimeout(resolve, RETRY));
    }
  }
}

byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  token = byId("token").value;
  byId("login").hidden = true;
  watch();
});

if (token) watch(); else ask();
