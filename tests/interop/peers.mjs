// Locks of other libraries, one command per line of stdin:
//   {"library": "redlock" | "redis-semaphore", "op": "acquire" | "release", "key": "…", "ttl": ms}
// Answers one line each: {"ok": true | false, "error": "…"}. The port of the server is the argument.
import readline from "node:readline";
import { createRequire } from "node:module";

const require = createRequire(process.argv[3] + "/");
const Redis = require("ioredis");
const { default: Redlock } = require("redlock");
const { Mutex } = require("redis-semaphore");

const client = new Redis(Number(process.argv[2]), "127.0.0.1");
const redlock = new Redlock([client], { retryCount: 0, automaticExtensionThreshold: 1 });
const held = new Map();

async function run({ library, op, key, ttl }) {
  if (op === "release") {
    await held.get(key).release();
    held.delete(key);
    return true;
  }
  if (library === "redlock") {
    held.set(key, await redlock.acquire([key], ttl));
    return true;
  }
  // It puts a prefix of its own before keys.
  const mutex = new Mutex(client, key.replace(/^mutex:/, ""), {
    lockTimeout: ttl,
    refreshInterval: 0,
    acquireAttemptsLimit: 1,
  });
  const acquired = await mutex.tryAcquire();
  if (acquired) held.set(key, mutex);
  return acquired;
}

for await (const line of readline.createInterface({ input: process.stdin })) {
  let answer;
  try {
    answer = { ok: await run(JSON.parse(line)) };
  } catch (error) {
    answer = { ok: false, error: String(error) };
  }
  process.stdout.write(JSON.stringify(answer) + "\n");
}
client.disconnect();
