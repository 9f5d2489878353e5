// The same worker for systems on Node: see worker.py for the contract.
// node worker.mjs SYSTEM MODULES   (MODULES: the folder whose node_modules to use)
import { createRequire } from "node:module";
import { readFileSync, writeFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { performance } from "node:perf_hooks";

const [system, modules] = process.argv.slice(2);
const require = createRequire(`${modules}/`);
const POINTS = 2000, BURST = 200; // as in worker.py
const GRACE = 5; // as in looping.py
const PERMITS = 2; // as in adapters/__init__.py
const now = () => performance.now() / 1000;
const monotonic = () => Number(process.hrtime.bigint()) / 1e9; // the clock of time.monotonic()
const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));
const orAfter = (promise, seconds) => {
  let timer;
  const over = new Promise((resolve) => { timer = setTimeout(resolve, seconds * 1000); });
  return Promise.race([promise, over]).finally(() => clearTimeout(timer));
};
const cpu = () => { const u = process.cpuUsage(); return (u.user + u.system) / 1e6; };
const connect = (urls) => {
  const Redis = require("ioredis");
  return urls.map((url) => new Redis(url));
};

// Both keep their defaults; redlock gives up after 10 tries by default, here it goes on.
const ADAPTERS = {
  redlock(urls, ttl) {
    const { default: Redlock } = require("redlock");
    const clients = connect(urls);
    const redlock = new Redlock(clients, { retryCount: -1 });
    redlock.on("error", () => {}); // a refused try is an error event there
    return {
      acquire: (name) => redlock.acquire([name], ttl * 1000),
      tryAcquire: (name) => redlock.acquire([name], ttl * 1000, { retryCount: 0 }).catch(() => null),
      release: (lease) => lease.release(),
      close: () => clients.forEach((client) => client.disconnect()),
    };
  },
  semaphore(urls, ttl, kind) {
    const { Mutex, RedlockMutex, Semaphore, RedlockSemaphore } = require("redis-semaphore");
    const clients = connect(urls);
    const options = { lockTimeout: ttl * 1000, acquireTimeout: Number.POSITIVE_INFINITY, onLockLost() {} };
    return {
      async acquire(name) {
        const [settings, Single, Quorum] = kind === "semaphore"
          ? [[PERMITS, options], Semaphore, RedlockSemaphore] : [[options], Mutex, RedlockMutex];
        const lock = clients.length > 1
          ? new Quorum(clients, name, ...settings)
          : new Single(clients[0], name, ...settings);
        await lock.acquire();
        return lock;
      },
      release: (lease) => lease.release(),
      held: (lease) => lease.isAcquired,
      close: () => clients.forEach((client) => client.disconnect()),
    };
  },
};

// Behind one local lock per name, as adapters/wrappers.py does it with asyncio.Lock.
function queued(inner) {
  const last = new Map();
  return {
    ...inner,
    async acquire(name) {
      const before = last.get(name);
      let done;
      last.set(name, new Promise((resolve) => { done = resolve; }));
      await before;
      try {
        return { held: await inner.acquire(name), done };
      } catch (error) {
        done();
        throw error;
      }
    },
    release: ({ held, done }) => inner.release(held).finally(done),
  };
}

function thin(values) {
  const ordered = Float64Array.from(values).sort();
  if (ordered.length <= POINTS) return Array.from(ordered);
  const step = (ordered.length - 1) / (POINTS - 1);
  return Array.from({ length: POINTS }, (_, i) => ordered[Math.round(i * step)]);
}

const PACKAGE = { redlock: "redlock", semaphore: "redis-semaphore" };
const leases = [];
let adapter, lease;
const OPERATIONS = {
  async open({ urls, ttl, options }) {
    const begin = now();
    require("ioredis");
    require(PACKAGE[system]);
    const imported = now();
    adapter = ADAPTERS[system](urls, ttl, options.kind);
    if (options.queued) adapter = queued(adapter);
    return { import: imported - begin, connect: now() - imported };
  },
  async load({ names, seconds, ever_new: everNew }) {
    let count = 0;
    const contended = new Set(names).size < names.length;
    const inside = new Map(), waits = [], cycles = [], errors = {};
    let gap = 0, overlaps = 0, running = names.length;
    const begin = now(), used = cpu(), until = begin + seconds;
    let last = begin;
    const one = async (name) => {
      for (let started = now(); started < until; started = now()) {
        let entered;
        try {
          const held = await adapter.acquire(everNew ? `${name}:${count++}` : name);
          entered = now();
          if (contended) {
            inside.set(name, (inside.get(name) ?? 0) + 1);
            if (inside.get(name) > 1) overlaps += 1;
            await new Promise(setImmediate);
            inside.set(name, inside.get(name) - 1);
          }
          await adapter.release(held);
        } catch (error) {
          errors[error.name] = (errors[error.name] ?? 0) + 1;
          await sleep(0.001);
          continue;
        }
        const ended = now();
        waits.push(entered - started);
        cycles.push(ended - started);
        gap = Math.max(gap, ended - last);
        last = ended;
      }
      running -= 1;
    };
    const tasks = Promise.all(names.map(one));
    await orAfter(tasks, seconds);
    const answer = { count: cycles.length, seconds: now() - begin, cpu: cpu() - used };
    gap = Math.max(gap, now() - last);
    await orAfter(tasks, 2);
    return {
      ...answer, finished: cycles.length, waits: thin(waits), cycles: thin(cycles), gap, overlaps,
      unfinished: running, errors,
    };
  },
  async warm({ name }) {
    await adapter.release(await adapter.acquire(name));
    return {};
  },
  // One looping worker, as in looping.py.
  async loop({ terms, record }) {
    const { start, seconds, body, pause, names } = terms;
    const end = start + seconds, bodies = [], errors = {};
    let lastWait = 0, unfinished = 1;
    const used = cpu();
    await sleep(start - monotonic());
    const looping = (async () => {
      for (let asked = monotonic(); asked < end; asked = monotonic()) {
        try {
          lastWait = end - asked;
          const held = await adapter.acquire(names[Math.floor(Math.random() * names.length)]);
          const began = monotonic();
          if (began < end) {
            lastWait = 0;
            if (body) await sleep(body);
            bodies.push([asked, began, monotonic(), 0]);
          }
          await adapter.release(held);
        } catch (error) {
          errors[error.name] = (errors[error.name] ?? 0) + 1;
          await sleep(0.001);
        }
        if (pause[1]) await sleep(pause[0] + Math.random() * (pause[1] - pause[0]));
      }
      unfinished = 0;
    })();
    await orAfter(looping, end + GRACE - monotonic());
    writeFileSync(record, Buffer.from(Float64Array.from(bodies.flat()).buffer));
    const waits = bodies.map(([asked, began]) => began - asked);
    if (lastWait) waits.push(lastWait);
    return { counts: [bodies.length], waits: thin(waits), unfinished, errors, cpu: cpu() - used };
  },
  async race({ name, moments, kept }) {
    const won = [], held = [];
    let late = 0;
    for (const [turn, moment] of moments.entries()) {
      while (held.length && held[0][0] <= turn - kept) await held.shift()[1].release().catch(() => {});
      await sleep(moment - monotonic());
      if (monotonic() > (moments[turn + Math.floor(kept / 2)] ?? Infinity)) {
        late += 1;
        won.push(false);
        continue;
      }
      const lease = await adapter.tryAcquire(`${name}:${turn}`);
      won.push(lease !== null);
      if (lease !== null) held.push([turn, lease]);
    }
    leases.push(...held.map(([, lease]) => lease));
    return { won, late };
  },
  async take({ name }) {
    const begin = monotonic();
    lease = await adapter.acquire(name);
    const held = monotonic();
    return { at: held, took: held - begin };
  },
  async drop() {
    const at = monotonic();
    await adapter.release(lease);
    return { at, took: monotonic() - at };
  },
  async wait({ name, count }) {
    for (let i = 0; i < count; i += 1) adapter.acquire(name).catch(() => {});
    return {};
  },
  async hold({ prefix, count }) {
    await adapter.release(await adapter.acquire(`${prefix}warm`));
    const before = process.memoryUsage.rss();
    for (let first = 0; first < count; first += BURST) {
      const size = Math.min(BURST, count - first);
      const batch = Array.from({ length: size }, (_, i) => adapter.acquire(`${prefix}${first + i}`));
      leases.push(...(await Promise.all(batch)));
    }
    return { bytes: process.memoryUsage.rss() - before };
  },
  async watch({ seconds }) {
    const used = cpu(), begin = now();
    await sleep(seconds);
    const lost = leases.filter((held) => !adapter.held(held)).length;
    return { cpu: cpu() - used, seconds: now() - begin, lost };
  },
  async free() {
    while (leases.length) {
      await Promise.allSettled(leases.splice(0, BURST).map((held) => adapter.release(held)));
    }
    return {};
  },
  async close() {
    await adapter.close();
    return {};
  },
};

const say = (answer) => process.stdout.write(`${JSON.stringify(answer)}\n`);
process.on("unhandledRejection", () => {}); // a peer's lost refresh must not end the measurement
const versions = { node: process.version };
for (const library of ["ioredis", "redlock", "redis-semaphore"]) {
  const manifest = readFileSync(`${modules}/node_modules/${library}/package.json`, "utf8");
  versions[library] = JSON.parse(manifest).version;
}
say({ versions, loop: "node" });
for await (const line of createInterface({ input: process.stdin })) {
  const { op, ...request } = JSON.parse(line);
  try {
    say(await OPERATIONS[op](request));
  } catch (error) {
    say({ failed: `${error.name}: ${error.message}` });
  }
}
process.exit(0);
