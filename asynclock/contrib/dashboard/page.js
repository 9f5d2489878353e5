"use strict";
// Everything that comes from the server is text from strangers: it gets into the page through
// text nodes and attributes alone. The policy of the page (trusted types) forbids every other way.

const byId = (id) => document.getElementById(id);
const RETRY = 2000;
const PAGE = 100;
const SILENCE = 6000;
const WINDOW = 600;
const SVG = "http://www.w3.org/2000/svg";
const COLUMNS = { name: "name", waiting: "waiting", held: "held for", holder: "holder",
  remaining: "remaining", fence: "fence", nodes: "nodes" };
const DESCENDING = ["waiting", "held", "fence"];
const FIRST = "attention";
const ANSWERING = ["up", "quarantined", "rejected"];
const KEPT = "asynclock token for " + location.pathname;
const query = {};
// Kept for this tab only, so that reloading the page asks nobody for the token again.
let token = kept();
let asking = new AbortController();
let seenAt = 0;
let heardAt = 0;
let opened = null;
let pace = 1;
let size = 0;
let blind = ""; // what is said where too few nodes answer to know who waits

function kept() {
  try { return sessionStorage.getItem(KEPT) || ""; } catch { return ""; }
}

function keep(value) {
  try {
    if (value) sessionStorage.setItem(KEPT, value); else sessionStorage.removeItem(KEPT);
  } catch { /* storage is switched off: the token is asked for again */ }
}

// ---- texts

// Control and bidirectional characters could make a name look like another one.
function shown(value) {
  return String(value).replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu,
    (one) => "\\u{" + one.codePointAt(0).toString(16) + "}");
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  const two = (value) => String(Math.floor(value)).padStart(2, "0");
  if (seconds < 1) return (seconds * 1000).toFixed(seconds < 0.1 ? 1 : 0) + " ms";
  if (seconds < 10) return seconds.toFixed(1) + " s";
  if (seconds < 60) return Math.floor(seconds) + " s";
  if (seconds < 3600) return Math.floor(seconds / 60) + "m " + two(seconds % 60) + "s";
  if (seconds < 86400) return Math.floor(seconds / 3600) + "h " + two(seconds % 3600 / 60) + "m";
  return Math.floor(seconds / 86400) + "d " + Math.floor(seconds % 86400 / 3600) + "h";
}

// A time of day, with its day unless that is clear.
function clock(at) {
  const moment = new Date(at * 1000), time = moment.toLocaleTimeString([], { hour12: false });
  return Date.now() / 1000 - at < 43200 ? time : moment.toLocaleDateString() + " " + time;
}

function plural(count, one, many = one + "s") {
  return count.toLocaleString() + " " + (count === 1 ? one : many);
}

// ---- elements

function fill(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value);
  }
  made.append(...children.flat(Infinity).filter((one) => one !== null && one !== "" && one !== undefined));
  return made;
}

const make = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const draw = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

// Names and addresses break behind the marks that separate their parts, not within a word.
function name(text) {
  const parts = shown(text).split(/(?<=[.:\-/_@,])/u);
  return make("span", { class: "name" },
    parts.map((part, at) => at ? [document.createElement("wbr"), part] : part));
}

// A time that goes on between two pictures.
function going(seconds) {
  if (seconds === null || seconds === undefined) return "";
  return make("span", { class: "figure", "data-from": Math.round(Date.now() - seconds * 1000) }, duration(seconds));
}

// Changes `now` into `next` where they differ, so that nothing flickers and the focus stays.
function morph(now, next) {
  for (const { name: attribute } of [...now.attributes]) {
    if (!next.hasAttribute(attribute)) now.removeAttribute(attribute);
  }
  for (const { name: attribute, value } of next.attributes) {
    if (now.getAttribute(attribute) !== value) now.setAttribute(attribute, value);
  }
  const keyed = new Map([...now.children].map((one) => [one.dataset.key, one]));
  let at = now.firstChild;
  for (const child of [...next.childNodes]) {
    const key = child.dataset?.key;
    const same = key === undefined ? at?.nodeName === child.nodeName && !at.dataset?.key && at : keyed.get(key);
    if (!same) {
      now.insertBefore(child, at);
      continue;
    }
    if (same === at) at = at.nextSibling; else now.insertBefore(same, at);
    if (child.nodeType === Node.ELEMENT_NODE) morph(same, child);
    else if (same.data !== child.data) same.data = child.data;
  }
  while (at) {
    const after = at.nextSibling;
    at.remove();
    at = after;
  }
}

const show = (id, children) => replace(byId(id), children);

function replace(place, children) {
  const focused = document.activeElement;
  morph(place, fill(place.cloneNode(false), {}, children));
  if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
}

function rows(id, made) {
  const table = byId(id);
  const titles = [...table.tHead.rows[0].cells].map((cell) => cell.textContent.trim());
  table.classList.toggle("none", !made.length);
  const bodies = made.map(({ cells, ...attributes }) => make("tr", { role: "row", ...attributes },
    cells.map((children, at) => {
      const all = [children].flat().filter((one) => one !== "" && one !== null);
      const about = { role: at ? "cell" : "rowheader", scope: at ? null : "row", "data-title": titles[at] };
      return make(at ? "td" : "th", { ...about, class: all.length ? null : "nothing" }, all);
    })));
  replace(table.tBodies[0], bodies);
}

function status(text, kind) {
  if (byId("status").textContent !== text) byId("status").textContent = text;
  byId("status").className = kind;
}

// ---- the overview

function node(one) {
  const up = one.state === "up";
  const facts = [duration(one.round_trip), one.version, one.cause && shown(one.cause)];
  return make("li", { class: up ? "up" : "away", "data-key": one.node },
    make("b", {}, one.state), name(one.node),
    make("span", { class: "about" }, up ? facts.filter(Boolean).join(" · ") : [
      one.exact ? "since " : "since before ", clock(one.since), " (", going(Date.now() / 1000 - one.since), ")",
      one.votes_in ? ", votes in " + duration(one.votes_in) : "", one.cause ? ": " + shown(one.cause) : ""]));
}

function chart(title, figure, about, points, lines, unit) {
  const now = points.length ? points[points.length - 1].at : 0;
  const most = Math.max(0, ...lines.flatMap((line) => points.map((point) => point[line] ?? 0)));
  const scale = most || 1;
  const paths = lines.map((line, at) => {
    let path = "", before = -Infinity;
    for (const point of points) {
      if (point[line] === null) continue;
      const gap = point.at - before > Math.max(15, 3 * pace);
      const x = 120 - (now - point.at) / 5, y = 31 - 29 * point[line] / scale;
      path += (gap ? `M${x.toFixed(1)} ${y.toFixed(1)}h.01` : `L${x.toFixed(1)} ${y.toFixed(1)}`);
      before = point.at;
    }
    return draw("path", { d: path || "M0 31", class: "line" + at });
  });
  const label = `${title} in the last ten minutes, at most ${unit(most)}`;
  return make("li", { "data-key": title }, make("h3", {}, title), make("b", { class: "figure" }, figure),
    draw("svg", { viewBox: "0 0 120 32", preserveAspectRatio: "none", role: "img", "aria-label": label },
      draw("path", { d: "M0 31H120", class: "base" }), paths),
    make("p", {}, about));
}

function charts(picture) {
  const points = picture.history;
  const each = (value) => value >= 10 ? Math.round(value).toLocaleString() : value.toFixed(1);
  const per = (value) => each(value) + " /s";
  const since = "since " + clock(picture.seen.since).replace(/:\d\d$/, "");
  // The last step is not over: its rate would jump.
  const rates = points.length > 1 ? points.slice(0, -1) : points;
  const latest = rates.slice(-3).map((point) => point.acquired).filter((rate) => rate !== null);
  const rate = latest.length ? latest.reduce((sum, one) => sum + one, 0) / latest.length : null;
  const total = (line) => points.reduce((sum, point) => sum + point[line], 0).toLocaleString();
  const window = picture.at - picture.seen.since > WINDOW ? "in ten minutes" : since;
  const made = [
    chart("Waiting", picture.waiting.toLocaleString(),
      blind || (picture.waited_for ? "for " + plural(picture.waited_for, "name") : "nobody waits"), points, ["waiting"], String),
    chart("Longest wait", picture.waiting ? duration(picture.longest) || "0 s" : "–",
      picture.wrong ? make("span", { class: "warn" }, plural(picture.wrong, "name") + " in trouble") : blind || "no name in trouble", points, ["longest"], duration),
    chart("Acquired", rate === null ? "–" : per(rate), picture.seen.acquired.toLocaleString() + " seen " + since, rates, ["acquired"], per),
    chart("Ran out", total("ran_out"), window + ", not renewed", points, ["ran_out"], String),
  ];
  if (picture.own) {
    const known = points.filter((point) => point.p99 !== null).pop();
    made.push(chart("Waits here (p99)", known ? duration(known.p99) : "–",
      (known ? "p50 " + duration(known.p50) + ", " : "") + plural(picture.own.acquired, "lease"), points, ["p50", "p99"], duration),
    chart("Lost here", picture.own.lost.toLocaleString(), "by this process", points, ["lost"], String));
  }
  show("charts", made);
}

function address(changes) {
  const all = { ...query, ...changes };
  const known = Object.entries(all).filter(([key, value]) => value && !(key === "sort" && value === FIRST));
  return "#" + new URLSearchParams(known.map(([key, value]) => [key, value === true ? 1 : value]));
}

function waiting(one) {
  if (!one.waiting) return "";
  return [make("b", { class: "figure" }, one.waiting.toLocaleString() + (one.more ? "+" : "")),
    one.waited === null ? "" : [" ", make("span", { class: "about" }, one.waiting > 1 ? "longest " : "for ", going(one.waited))]];
}

// What doesn't say since when it is held was held before it was seen.
function held(one) {
  return [one.exact ? "" : make("span", { class: "about" }, "over "), going(one.held)];
}

function nodesOf(one) {
  if (!one.holders && !one.nodes) return "";
  return make("span", { class: "figure" + (one.nodes < size ? " about" : "") }, one.nodes + " of " + size);
}

function row(one) {
  const known = one.note.includes(one.why);
  const marks = [one.ours ? "held by this process" : "", known ? "" : one.why, one.note];
  const others = one.holders > 1 ? "and " + (one.holders - 1) + " more" : "";
  return { "data-key": one.kind + " " + one.name, class: one.level || (one.waiting ? "contended" : "quiet"), cells: [
    [make("a", { href: address({ lock: one.name, offset: query.offset }) }, name(one.title)),
      ...marks.filter(Boolean).map((mark) => make("span", { class: "mark" }, shown(mark)))],
    waiting(one), one.holders ? held(one) : "",
    one.holder === null || one.holder === undefined ? make("span", { class: "about" }, one.holders ? "" : "nobody")
      : [name(one.holder), others && [" ", make("span", { class: "about" }, others)]],
    one.remaining === null || one.remaining === undefined ? "" : make("span", { class: "figure" }, duration(one.remaining)),
    one.fence ? make("span", { class: "figure about" }, one.fence) : "", nodesOf(one)] };
}

function overview(picture) {
  charts(picture);
  show("held", ["Names ", make("small", {}, plural(picture.held, "lease") + (blind ? " seen; " + blind : " held"))]);
  const last = picture.offset + picture.locks.length;
  byId("place").textContent = (picture.found ? (last ? picture.offset + 1 : 0).toLocaleString() + "–"
    + last.toLocaleString() + " of " + picture.found.toLocaleString() : "0") + (query.search ? " found" : "");
  byId("pager").hidden = picture.found <= PAGE && !query.search && !picture.offset;
  byId("previous").disabled = picture.offset === 0;
  byId("next").disabled = last >= picture.found;
  if (picture.offset && picture.offset >= picture.found) go({ offset: 0 }, true);
  rows("locks", picture.locks.map(row));
  byId("lost").hidden = !picture.losses.length;
  rows("losses", picture.losses.map((one) => ({ cells: [name(one.name), clock(one.at), duration(one.held), String(one.fence), shown(one.reason)] })));
}

// ---- one lock

function facts(pairs) {
  return make("dl", {}, pairs.filter(([, value]) => value !== "" && value !== null).map(([title, value]) =>
    make("div", { class: ["message", "note"].includes(title) ? "line" : null }, make("dt", {}, title), make("dd", {}, value))));
}

function lease(one, at) {
  const views = one.note ? make("table", { class: "views" }, make("tbody", {}, one.views.map((view) => make("tr", {},
    make("th", { scope: "row" }, name(view.node)), make("td", {}, view.error ? shown(view.error) : view.holder === null ? "free" : name(view.holder)),
    make("td", { class: "figure" }, view.holder === null ? "" : duration(view.remaining)))))) : "";
  return make("li", { class: one.note ? "odd" : null }, make("h4", {}, one.holder ? name(one.holder) : "a holder without a label",
    one.ours ? make("span", { class: "mark" }, "this process") : ""),
  facts([["part", shown(one.part)], ["held for", held(one)],
    ["since", (one.exact ? "" : "before ") + clock(at - one.held)], ["remaining", duration(one.remaining)], ["fence", one.fence ? String(one.fence) : ""],
    ["nodes", one.nodes + " of " + size], ["message", one.message === null ? "" : make("span", { class: "message" }, shown(one.message))],
    ["note", one.note ? make("span", { class: "bad" }, one.note) : ""]]), views);
}

function queue(one) {
  if (!one.waiting) return make("p", { class: "about" }, blind || "nobody waits");
  const more = one.waiting - one.queue.length;
  const note = (waiter) => [waiter.shared ? "reads" : "", waiter.woken ? "woken" : ""].filter(Boolean).join(", ");
  const noted = one.queue.some(note);
  const list = one.queue.map((waiter, at) => make("tr", {}, make("td", { class: "figure" }, String(at + 1)),
    make("th", { scope: "row" }, name(waiter.host ?? waiter.label ?? "")),
    make("td", {}, name([waiter.pid, waiter.task].filter((one) => one !== null).join(":"))), make("td", {}, going(waiter.waited)),
    noted ? make("td", {}, note(waiter)) : ""));
  const titles = ["place", "host", "process", "waits for", ...(noted ? ["note"] : [])];
  return [one.queue.length ? make("div", { class: "wide" }, make("table", { class: "queue" }, make("caption", {}, "In order; the first goes next"),
    make("thead", {}, make("tr", {}, titles.map((title) => make("th", { scope: "col" }, title)))),
    make("tbody", {}, list))) : "",
  more > 0 ? make("p", { class: "about" }, one.queue.length ? `and ${plural(more, "more", "more")}` : `${plural(more, "task")} of this process, not yet in the queue`) : ""];
}

function before(past) {
  if (!past.length) return make("p", { class: "about" }, "none was seen to end");
  return make("div", { class: "wide" }, make("table", { class: "past" }, make("caption", {}, "The last one first"),
    make("thead", {}, make("tr", {}, ["holder", "held for", "until", "end"].map((title) => make("th", { scope: "col" }, title)))),
    make("tbody", {}, past.map((one) => make("tr", {}, make("th", { scope: "row" }, one.holder === null ? "" : name(one.holder)),
      make("td", { class: "figure" }, duration(one.until - one.since)), make("td", { class: "figure" }, clock(one.until)),
      make("td", { class: "figure" + (one.ended === "ran out" ? " bad" : "") }, one.ended))))));
}

function timeline(lock, kind, at) {
  const held = kind.leases.map((one) => ({ ...one, since: at - one.held, until: at, ended: "held" }));
  const all = [...lock.past.filter((one) => one.kind === kind.kind), ...held].filter((one) => one.until > at - WINDOW);
  // Readers hold the same part at the same time.
  const lane = (one) => one.part === "read" ? "read " + one.holder : one.part;
  const lanes = [...new Set(all.map(lane))].sort().slice(0, 12);
  const holders = [...new Set(all.map((one) => one.holder))];
  const x = (moment) => Math.max(0, 600 - (at - moment));
  const unseen = x(Math.max(lock.watched, at - WINDOW));
  const height = Math.max(1, lanes.length) * 18;
  const bars = all.filter((one) => lanes.includes(lane(one))).map((one) => {
    const from = x(one.since), width = Math.max(1.5, x(one.until) - from);
    const text = `${one.holder ?? ""}: ${clock(one.since)} – ${one.ended === "held" ? "now" : clock(one.until) + ", " + one.ended}, ${duration(one.until - one.since)}`;
    return draw("rect", { x: from.toFixed(1), y: lanes.indexOf(lane(one)) * 18 + 2, width: width.toFixed(1), height: 14,
      class: one.ended === "ran out" ? "out" : "bar" + holders.indexOf(one.holder) % 4 }, draw("title", {}, shown(text)));
  });
  const label = `The last ten minutes: ${plural(all.length, "hold")} by ${plural(holders.length, "holder")}`;
  return make("figure", {}, draw("svg", { viewBox: `0 0 600 ${height}`, preserveAspectRatio: "none", height: Math.min(11, height / 15 + .2) + "rem", role: "img", "aria-label": label },
    draw("rect", { x: 0, y: 0, width: unseen.toFixed(1), height, class: "unseen" }), bars),
  make("figcaption", {}, make("span", {}, "10 min ago"), make("span", {}, unseen > 1 ? "watched since " + clock(lock.watched) : label,
    all.some((one) => one.ended === "ran out") ? make("span", { class: "bad" }, " · red: ran out") : ""), make("span", {}, "now")));
}

function lock(found, at) {
  const past = (kind) => found.past.filter((one) => one.kind === kind.kind).slice(-8).reverse();
  const several = found.kinds.length > 1;
  byId("lock-title").replaceChildren(name(several || !found.kinds.length ? found.name : found.kinds[0].title));
  const kinds = found.kinds.map((kind) => make("section", { class: kind.level || null, "data-key": kind.kind },
    several ? make("h3", {}, kind.kind) : "",
    kind.why ? make("p", { class: "why" }, kind.why) : "",
    make("h3", {}, kind.leases.length ? "Held by" : "Held by nobody"),
    make("ul", { class: "leases" }, kind.leases.map((one) => lease(one, at))),
    kind.holders > kind.leases.length ? make("p", { class: "about" }, `and ${plural(kind.holders - kind.leases.length, "more", "more")}`) : "",
    make("h3", {}, "The last minutes"), timeline(found, kind, at),
    make("div", { class: "pair" },
      make("div", {}, make("h3", {}, "Waiting" + (kind.waiting ? ` (${kind.waiting}${kind.more ? "+" : ""})` : "")), queue(kind)),
      make("div", {}, make("h3", {}, "Holders before" + (kind.usual ? `; usually held for ${duration(kind.usual)}` : "")), before(past(kind))))));
  show("lock-body", kinds.length ? kinds : [make("p", { class: "about" }, blind || "Nobody holds this name, and nobody waits for it.")]);
}

// ---- a picture

function trouble(found) {
  byId("trouble").hidden = !found;
  byId("trouble").className = found ? found.level : "";
  // Written only when it changes: a screen reader reads it out each time.
  if (found && byId("trouble").textContent !== found.text) byId("trouble").textContent = shown(found.text);
}

function paint(picture) {
  const began = performance.now();
  size = picture.nodes.length;
  pace = picture.pace;
  trouble(picture.trouble);
  const answer = picture.nodes.filter((one) => ANSWERING.includes(one.state)).length;
  blind = answer < picture.quorum ? `unknown: ${answer} of ${size} nodes answer` : "";
  document.querySelector(".empty").textContent = blind || "nothing is held, and nobody waits";
  show("doubts", picture.doubts.map((one) => make("li", {}, shown(one))));
  const up = picture.nodes.filter((one) => one.state === "up").length;
  show("voting", ["Nodes ", make("small", { class: up < size ? "bad" : null }, up + " of " + size + (size === 1 ? " votes" : " vote"))]);
  show("nodes", picture.nodes.map(node));
  const one = picture.lock;
  byId("overview").hidden = !!one;
  byId("lock").hidden = !one;
  if (one) lock(one, picture.at); else overview(picture);
  byId("main").hidden = false;
  const open = one ? one.name : null;
  if (open !== opened) {
    if (open !== null) byId("lock-title").focus();
    else byId("locks").querySelector(`[data-key$="${CSS.escape(" " + opened)}"] a`)?.focus();
    opened = open;
  }
  document.body.classList.toggle("one", !!one);
  document.title = (picture.wrong ? `(${picture.wrong}) ` : "") + (open === null ? "" : shown(open) + " – ") + "asynclock";
  seenAt = Date.now();
  document.body.classList.remove("gone");
  status("live, " + clock(picture.at) + (pace > 2 ? ", every " + duration(pace) : ""), "live");
  performance.measure("paint", { start: began, end: performance.now() });
}

function gone(why) {
  document.body.classList.add("gone");
  if (!seenAt) return status(why, "down");
  const age = Math.round((Date.now() - seenAt) / 1000);
  status("no picture since " + clock(seenAt / 1000) + " (" + age + " s): " + why, "down");
}

// ---- the stream

function take(block) {
  const lines = block.split("\n");
  const data = lines.filter((l) => l.startsWith("data: ")).map((l) => l.slice(6)).join("\n");
  if (lines.includes("event: picture")) paint(JSON.parse(data));
  else if (lines.includes("event: failed")) {
    gone("the nodes can't be asked: " + shown(data));
    return true;
  }
  return false;
}

function ask() {
  byId("login").hidden = false;
  byId("main").hidden = true;
  byId("trouble").hidden = true;
  byId("token").focus();
}

// Not EventSource: it can't send the token in a header.
async function watch() {
  asking.abort();
  const mine = asking = new AbortController();
  while (mine === asking) {
    try {
      const headers = { Authorization: "Bearer " + token };
      const asked = Object.entries({ ...query, reverse: query.reverse ? 1 : "", limit: PAGE }).filter(([, value]) => value);
      const answer = await fetch("events?" + new URLSearchParams(asked), { headers, signal: mine.signal });
      if (answer.status === 401) {
        keep("");
        status("this token is not the one", "down");
        return ask();
      }
      if (!answer.ok) throw new Error("status " + answer.status);
      keep(token);
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "", failed = false;
      for (let part = await reader.read(); !part.done; part = await reader.read()) {
        heardAt = Date.now();
        const blocks = (text + part.value).split("\n\n");
        text = blocks.pop();
        for (const one of blocks) failed = take(one) || failed;
      }
      if (failed) await new Promise((resolve) => setTimeout(resolve, RETRY));
    } catch (error) {
      if (mine.signal.aborted) return;
      gone("the server does not answer");
      await new Promise((resolve) => setTimeout(resolve, RETRY));
    }
  }
}

// ---- the address: what is searched for, the order, the page and the open lock

function go(changes, quietly) {
  const to = location.pathname + location.search + (address(changes) === "#" ? "" : address(changes));
  history[quietly ? "replaceState" : "pushState"](null, "", to);
  read();
}

function read() {
  const given = new URLSearchParams(location.hash.slice(1));
  const sort = given.get("sort");
  query.search = given.get("search") || "";
  query.sort = sort in COLUMNS ? sort : FIRST;
  query.reverse = given.get("reverse") === "1";
  query.offset = Number(given.get("offset")) || 0;
  query.lock = given.get("lock");
  if (given.get("token")) {
    token = given.get("token");
    const rest = address({});
    history.replaceState(null, "", location.pathname + location.search + (rest === "#" ? "" : rest));
  }
  if (document.activeElement !== byId("search")) byId("search").value = query.search;
  byId("sort").value = query.sort;
  byId("reverse").textContent = query.reverse ? "descending" : "ascending";
  byId("reverse").setAttribute("aria-pressed", String(query.reverse));
  byId("back").href = address({ lock: "" });
  for (const title of byId("locks").tHead.rows[0].cells) {
    const chosen = title.dataset.sort === query.sort;
    if (chosen) title.ariaSort = query.reverse ? "descending" : "ascending"; else title.removeAttribute("aria-sort");
  }
  if (token) watch(); else ask();
}

byId("locks").tHead.rows[0].append(...Object.entries(COLUMNS).map(([column, title]) =>
  make("th", { scope: "col", "data-sort": column }, make("button", { type: "button" }, title))));
byId("locks").tHead.addEventListener("click", (event) => {
  const column = event.target.closest("th").dataset.sort;
  const first = DESCENDING.includes(column);
  if (query.sort !== column) go({ sort: column, reverse: first, offset: 0 });
  else if (query.reverse === first) go({ reverse: !first, offset: 0 });
  else go({ sort: FIRST, reverse: false, offset: 0 });
});
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
  typed = setTimeout(() => go({ search: byId("search").value, offset: 0 }, true), 250);
});
byId("sort").append(new Option("what is wrong", FIRST), ...Object.entries(COLUMNS).map(([column, title]) => new Option(title, column)));
byId("sort").addEventListener("change", () => go({ sort: byId("sort").value, offset: 0 }));
byId("reverse").addEventListener("click", () => go({ reverse: !query.reverse, offset: 0 }));
byId("previous").addEventListener("click", () => go({ offset: Math.max(0, query.offset - PAGE) }));
byId("next").addEventListener("click", () => go({ offset: query.offset + PAGE }));
addEventListener("hashchange", read);
document.addEventListener("keydown", (event) => {
  if (event.target.matches("input, select") || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/" && !query.lock) {
    event.preventDefault();
    byId("search").focus();
  } else if (event.key === "Escape" && query.lock) go({ lock: "" });
});
// A server that hangs keeps its connections open, but one that works says so every second.
setInterval(() => {
  if (seenAt && Date.now() - heardAt > SILENCE) return gone("the server does not answer");
  for (const one of document.querySelectorAll("[data-from]")) {
    const text = duration((Date.now() - one.dataset.from) / 1000);
    if (one.textContent !== text) one.textContent = text;
  }
}, 1000);

read();
