// Model T: fencing fences, with NO timing assumption at all.
//
// Every request is delivered at an arbitrary later time or never (loss, reordering, delay, slow
// node, 'zombie' requests executed long after the sender gave up).  A reply that was produced but
// not yet taken is in flight; a reply never taken is lost.  So the client steps below may use any
// subset of the grants executed so far: exactly those replies have arrived.  A lock key may vanish
// at any moment (TTL, clock jump, arbitrary pause, release, eviction).  A client that stops taking
// steps has crashed.  Attempts are unordered free processes: K attempts cover every assignment of
// K acquisitions to clients.
#pragma once
#include <algorithm>
#include "engine.hpp"

struct FenceCfg {
  enum Decide { OURS, MAXGRANT } decide = OURS;
  enum Raise { OWNED, ANY_LT, ANY_LE } raise = OWNED;
  enum Guard { NONE, QUAR, QUAR_SYNC, SYNC_ONLY } guard = NONE;
  bool heal = false;        // release / give-up raises unlocked nodes to the highest value seen
  bool heal_giveup = true;  // ... also on giving up (with the highest granted value), not only on release
  bool heal_locked = false; // ... even nodes locked by somebody else
  int active = 0;           // at most this many attempts under way or held at once (= number of clients)
  bool zombies = true;      // acquires of finished attempts may still be executed
  int floors = 0;           // each attempt carries an arbitrary floor 0..floors
  bool store = false;       // a checking store that holders write to
  int crashes = 0;          // node restarts that lose memory (lock and counter)
  bool rollback = false;    // ... or come back with any older counter value
  int vanish = 0;           // counter keys lost while unlocked (expired / evicted / FLUSHALL)
  bool lossless = false;    // no expiry, attempts one after the other (fast path check)
  bool live = false;        // no expiry of a live attempt's locks (progress check)
  int V = 12;
};

// Fields only some configurations need; the lean form keeps the big state spaces small.
template <bool FULL> struct ColExtra { uint8_t quar, uns, sm, sx; };
template <> struct ColExtra<false> { static constexpr uint8_t quar = 0, uns = 0, sm = 0, sx = 0; };
template <bool FULL, int K> struct SExtra { uint8_t fl[K], rfence, ratt, budget; };
template <int K> struct SExtra<false, K> { static constexpr uint8_t fl[K] = {}, rfence = 0, ratt = 0, budget = 0; };

template <int N, int K, bool FULL = true> struct FenceModel : Model {
  enum : uint8_t { IDLE, RUN, PH2, HELD, OVER };
  static constexpr int Q = N / 2 + 1;
  static constexpr uint8_t NC = 255;  // executed, but the vote does not count (quarantine)
  struct Col : ColExtra<FULL> { uint8_t owner, ctr, v[K], rz; };
  struct S : SExtra<FULL, K> { Col c[N]; uint8_t st[K], m[K], fence[K], before[K], flag; };

  FenceCfg cfg;
  explicit FenceModel(FenceCfg c) : cfg(c) {}

  S init() const {
    S s; memset(&s, 0, sizeof s);
    if constexpr (FULL) s.budget = (uint8_t)(cfg.crashes + cfg.vanish);
    return s;
  }
  void canon(S& s) const {
    for (int a = 0; a < K; a++) {        // forget what can no longer matter
      bool decided = s.st[a] == HELD || s.st[a] == OVER;
      if (!decided) continue;
      if (!cfg.store) s.before[a] = 0;
      for (int j = 0; j < N; j++) {
        if (s.st[a] == OVER && !cfg.zombies) s.c[j].v[a] = s.fence[a] || !cfg.heal || !cfg.heal_giveup ? 1 : s.c[j].v[a];
        if (s.c[j].v[a] && (s.fence[a] || !cfg.heal || !cfg.heal_giveup)) s.c[j].v[a] = 1;   // executed; the value is history
        if (cfg.raise != FenceCfg::ANY_LE) s.c[j].rz &= ~(1 << a);
      }
    }
    if constexpr (FULL) if (cfg.guard != FenceCfg::NONE)       // a quarantine mask only counts attempts that are not over
      for (int j = 0; j < N; j++) for (int a = 0; a < K; a++) if (s.st[a] == OVER) s.c[j].quar &= ~(1 << a);
    auto less = [](const Col& a, const Col& b) { return memcmp(&a, &b, sizeof a) < 0; };
    if (cfg.guard != FenceCfg::QUAR_SYNC && cfg.guard != FenceCfg::SYNC_ONLY) { std::sort(s.c, s.c + N, less); return; }
    if constexpr (FULL) {
    // sm names nodes: take the smallest of all permutations, renaming them
    S best = s; int p[N]; for (int i = 0; i < N; i++) p[i] = i;
    while (std::next_permutation(p, p + N)) {          // node p[i] becomes node i
      S t = s;
      for (int i = 0; i < N; i++) {
        t.c[i] = s.c[p[i]];
        t.c[i].sm = 0;
        for (int k = 0; k < N; k++) if (s.c[p[i]].sm >> p[k] & 1) t.c[i].sm |= 1 << k;
      }
      if (memcmp(&t, &best, sizeof t) < 0) best = t;
    }
    s = best;
    }
  }
  bool quarantined(const S& s, int j) const {
    for (int a = 0; a < K; a++)
      if ((s.c[j].quar >> a & 1) && s.st[a] != OVER) return true;
    return false;
  }
  bool votes(const S& s, int j) const {
    switch (cfg.guard) {
      case FenceCfg::NONE: return true;
      case FenceCfg::QUAR: return !quarantined(s, j);
      case FenceCfg::QUAR_SYNC: return !quarantined(s, j) && !s.c[j].uns;
      case FenceCfg::SYNC_ONLY: return !s.c[j].uns;
    }
    return true;
  }
  static bool granted(const S& s, int a, int j) { return s.c[j].v[a] && s.c[j].v[a] != NC; }
  static bool claimed_m(const S& s, int a, int j) {
    return s.m[a] && ((granted(s, a, j) && s.c[j].v[a] == s.m[a]) || (s.c[j].rz >> a & 1));
  }
  enum : uint32_t { START, ACQ, GONE, P2, RAISE, DECIDE, HEAL, WRITE, CRASH, VANISH, END, SYNC, RELEASE };

  template <class F> void next(const S& s, F emit) const {
    for (int a = 0; a < K; a++) {
      if (s.st[a] == IDLE) {
        if (a && s.st[a - 1] == IDLE) continue;                   // attempts are interchangeable
        if (cfg.lossless && a && s.st[a - 1] != OVER) continue;   // strictly one after the other
        if (cfg.active) {
          int n = 0;
          for (int b = 0; b < K; b++) n += s.st[b] == RUN || s.st[b] == PH2 || s.st[b] == HELD;
          if (n >= cfg.active) continue;
        }
        for (int f = 0; f <= cfg.floors; f++) {
          S t = s; t.st[a] = RUN;
          if constexpr (FULL) t.fl[a] = (uint8_t)f;
          for (int b = 0; b < K; b++) if (s.fence[b]) t.before[a] |= 1 << b;   // completed before a starts
          emit(t, act(START, a, 0, f));
        }
        continue;
      }
      bool zombie = s.st[a] == OVER;
      for (int j = 0; j < N; j++) {
        const Col& c = s.c[j];
        // --- acquire request executed at node j
        if (!c.v[a] && !c.owner && !(zombie && (cfg.lossless || !cfg.zombies))) {
          int v = std::max<int>(c.ctr + 1, s.fl[a]);
          if (v > cfg.V) truncated = true;
          else {
            S t = s; t.c[j].owner = a + 1; t.c[j].ctr = v; t.c[j].v[a] = votes(s, j) ? v : NC;
            emit(t, act(ACQ, a, j, v));
          }
        }
        // --- phase-2 raise request executed at node j
        if (s.m[a]) {
          bool ok = false;
          if (cfg.raise == FenceCfg::OWNED) ok = c.owner == a + 1 && c.ctr < s.m[a];
          if (cfg.raise == FenceCfg::ANY_LT) ok = c.ctr < s.m[a];
          if (cfg.raise == FenceCfg::ANY_LE) ok = c.ctr <= s.m[a] && !(c.rz >> a & 1);
          if (ok && votes(s, j)) {
            S t = s; t.c[j].ctr = s.m[a]; t.c[j].rz |= 1 << a;
            emit(t, act(RAISE, a, j, s.m[a]));
          }
        }
        // --- release / give-up message: raises the counter of an unlocked node (healing)
        if (cfg.heal) {
          int h = s.fence[a];
          for (int i = 0; i < N && !s.fence[a] && cfg.heal_giveup; i++) if (granted(s, a, i)) h = std::max<int>(h, s.c[i].v[a]);
          if (c.ctr < h && (!c.owner || cfg.heal_locked)) {
            S t = s; t.c[j].ctr = h;
            emit(t, act(HEAL, a, j, h));
          }
        }
      }
      if (s.st[a] == RUN || s.st[a] == PH2) {
        // --- decide: some value claimed at a majority
        each_value(N, [&](int j) { return granted(s, a, j) ? s.c[j].v[a] : 0; }, [&](int v, int n, int le) {
          if (cfg.decide == FenceCfg::OURS ? n >= Q : le >= Q) {
            emit(decided(s, a, v, HELD), act(DECIDE, a, 0, v));
          } else if (cfg.decide == FenceCfg::OURS && le >= Q && s.st[a] == RUN) {
            // --- no agreement among some majority of replies: phase 2 with its maximum
            S t = s; t.st[a] = PH2; t.m[a] = v;
            emit(t, act(P2, a, 0, v));
          }
        });
        if (s.m[a]) {
          int n = 0;
          for (int j = 0; j < N; j++) n += claimed_m(s, a, j);
          if (n >= Q) {
            emit(decided(s, a, s.m[a], HELD), act(DECIDE, a, 1, s.m[a]));
          }
        }
      }
      if ((cfg.guard != FenceCfg::NONE || cfg.lossless || cfg.active) && s.st[a] != OVER && (!cfg.lossless || s.st[a] == HELD)) {
        S t = s; t.st[a] = OVER;            // released, given up, or its lease ran out
        if (cfg.lossless) for (int j = 0; j < N; j++) {
          if (t.c[j].owner == a + 1) t.c[j].owner = 0;
          if (!t.c[j].owner && t.c[j].ctr < t.fence[a]) t.c[j].ctr = t.fence[a];
        }
        emit(t, act(END, a, 0));
      }
      if (cfg.live && s.st[a] == HELD) {
        S t = s; t.st[a] = OVER;
        for (int j = 0; j < N; j++) if (t.c[j].owner == a + 1) t.c[j].owner = 0;
        emit(t, act(RELEASE, a, 0));
      }
      // --- the holder (however stale) writes to the checking store
      if constexpr (FULL) if (cfg.store && s.fence[a] && s.fence[a] >= s.rfence && !(s.rfence == s.fence[a] && s.ratt == a + 1)) {
        S t = s;
        if (s.ratt && (s.before[s.ratt - 1] >> a & 1)) t.flag = 1;  // a completed before the last writer started
        t.rfence = s.fence[a]; t.ratt = a + 1;
        emit(t, act(WRITE, a, 0, s.fence[a]));
      }
    }
    for (int j = 0; j < N; j++) {
      const Col& c = s.c[j];
      if (c.owner && !cfg.lossless && !(cfg.live && s.st[c.owner - 1] != OVER)) {
        S t = s; t.c[j].owner = 0; emit(t, act(GONE, 0, j));
      }
      if constexpr (FULL) {
      if (cfg.crashes && s.budget) {
        for (int nc = cfg.rollback ? c.ctr : 0; nc >= 0; nc--) {
          S t = s; t.budget--; Col& d = t.c[j];
          d.owner = 0; d.ctr = nc; d.quar = 0; d.uns = 1; d.sm = 0; d.sx = 0;
          for (int a = 0; a < K; a++) if (s.st[a] == RUN || s.st[a] == PH2 || s.st[a] == HELD) d.quar |= 1 << a;
          if (cfg.guard == FenceCfg::NONE) d.quar = d.uns = 0;
          emit(t, act(CRASH, 0, j, nc));
        }
      }
      if (cfg.vanish && s.budget && !c.owner && c.ctr) {
        S t = s; t.budget--; t.c[j].ctr = 0; emit(t, act(VANISH, 0, j));
      }
      if ((cfg.guard == FenceCfg::QUAR_SYNC || cfg.guard == FenceCfg::SYNC_ONLY) && c.uns &&
          (cfg.guard == FenceCfg::SYNC_ONLY || !quarantined(s, j)))
        for (int i = 0; i < N; i++) {
          if (i == j || s.c[i].uns || (c.sm >> i & 1)) continue;
          S t = s; Col& d = t.c[j];
          d.sm |= 1 << i; d.sx = std::max(d.sx, s.c[i].ctr);
          if (__builtin_popcount(d.sm) >= Q) { d.ctr = std::max(d.ctr, d.sx); d.uns = d.sm = d.sx = 0; }
          emit(t, act(SYNC, i, j));
        }
      }
    }
  }

  const char* bad(const S& s) const {
    if (s.flag == 1) return "F: stale write accepted after a newer holder's write";
    if (s.flag) return fences(s.flag);
    if (cfg.lossless)
      for (int a = 0; a < K; a++) if (s.st[a] == PH2) {
        // only allowed when the counters were made to differ (floors cannot, lossless healing does not)
        return "P: phase 2 needed although nothing failed and nobody contended";
      }
    return nullptr;
  }
  // progress: an attempt that owns a majority and loses nothing can always still get its fence
  int goal(const S& s) const {
    bool wait = false;
    for (int a = 0; a < K; a++) {
      if (s.st[a] != RUN && s.st[a] != PH2) continue;
      int own = 0;
      for (int j = 0; j < N; j++) own += s.c[j].owner == a + 1 && granted(s, a, j);
      if (own >= Q) wait = true;
    }
    return wait ? 0 : 1;
  }
  bool fair(uint32_t x) const { uint32_t t = x & 255; return t == ACQ || t == P2 || t == RAISE || t == DECIDE; }

  std::string show(uint32_t x, const S&, const S& t) const {
    const auto [kind, a, j, v, A, n] = Step(x);
    switch (kind) {
      case START: return text("%c starts, sends acquire to all nodes%s", A, v ? (std::string(" (floor ") + std::to_string(v) + ")").c_str() : "");
      case ACQ: return text("node %c executes %c's acquire: granted, counter value %d%s", n, A, v, t.c[j].v[a] == NC ? " (vote does not count)" : "");
      case GONE: return text("lock key vanishes on node %c (expiry / clock jump / release)", n);
      case P2: return text("%c sees a majority that disagrees, sends raise(%d)", A, v);
      case RAISE: return text("node %c executes %c's raise(%d): ack", n, A, v);
      case DECIDE: return text("%c HOLDS with fence %d%s", A, v, j ? " (after phase 2)" : "");
      case HEAL: return text("node %c executes %c's release: counter raised to %d", n, A, v);
      case WRITE: return text("the store accepts %c's write with fence %d", A, v);
      case CRASH: return text("node %c restarts, memory lost, counter comes back as %d", n, v);
      case VANISH: return text("node %c loses the counter key (expired / evicted)", n);
      case END: return text("%c is over (released, gave up, or lease time passed)", A);
      case SYNC: return text("rejoin of node %c reads the counter of node %c", n, '1' + a);
      case RELEASE: return text("%c releases everywhere", A);
      default: return "?";
    }
  }
  std::string dump(const S& s) const {
    std::string o = "nodes:";
    for (int j = 0; j < N; j++) o += text(" [lock=%c ctr=%d%s]", s.c[j].owner ? 'A' + s.c[j].owner - 1 : '-', s.c[j].ctr, votes(s, j) ? "" : " no-vote");
    o += "  fences:";
    for (int a = 0; a < K; a++) o += text(" %c=%d", 'A' + a, s.fence[a]);
    return o;
  }
};

// Model A: the most general fence protocol that the proof covers.  While an attempt owns a node's
// lock it may claim ANY higher value there (acquire with any floor, any number of phase-2 rounds, in
// any order, re-acquire / repair after loss); an unlocked node may be raised to ANY value by anybody
// (healing, failed attempts, foreign floors).  A fence is any value claimed at a majority.
// shared: the counter also serves other resources (one counter per node or per bucket), so anybody may
// raise it at any moment, locked or not, and an owner may claim the value that is there already.
template <int N, int K> struct AbstractModel : Model {
  enum : uint8_t { IDLE, RUN, HELD };
  static constexpr int Q = N / 2 + 1;
  struct Col { uint8_t owner, ctr, cl[K]; };   // cl: bit (v-1) = value v claimed by this attempt here
  struct S { Col c[N]; uint8_t st[K], fence[K], before[K]; };
  int V;
  bool shared;
  explicit AbstractModel(int v, bool sh = false) : V(v), shared(sh) {}
  S init() const { S s; memset(&s, 0, sizeof s); return s; }
  void canon(S& s) const {
    std::sort(s.c, s.c + N, [](const Col& a, const Col& b) { return memcmp(&a, &b, sizeof a) < 0; });
  }
  template <class F> void next(const S& s, F emit) const {
    for (int a = 0; a < K; a++) {
      if (s.st[a] == IDLE) {
        if (a && s.st[a - 1] == IDLE) continue;
        S t = s; t.st[a] = RUN;
        for (int b = 0; b < K; b++) if (s.fence[b]) t.before[a] |= 1 << b;
        emit(t, 0u | a << 8);
        continue;
      }
      for (int j = 0; j < N; j++)
        if (!s.c[j].owner || s.c[j].owner == a + 1)
          for (int v = std::max(1, s.c[j].ctr + !(shared && s.c[j].owner)); v <= V; v++) {
            S t = s; t.c[j].owner = a + 1; t.c[j].ctr = v; t.c[j].cl[a] |= 1 << (v - 1);
            emit(t, 1u | a << 8 | j << 16 | v << 24);
          }
      if (s.st[a] == RUN)
        for (int v = 1; v <= V; v++) {
          int n = 0;
          for (int j = 0; j < N; j++) n += s.c[j].cl[a] >> (v - 1) & 1;
          if (n >= Q) { S t = s; t.st[a] = HELD; t.fence[a] = v; emit(t, 2u | a << 8 | v << 24); }
        }
    }
    for (int j = 0; j < N; j++) {
      if (s.c[j].owner) { S t = s; t.c[j].owner = 0; emit(t, 3u | j << 16); }
      if (!s.c[j].owner || shared) for (int v = s.c[j].ctr + 1; v <= V; v++) { S t = s; t.c[j].ctr = v; emit(t, 4u | j << 16 | v << 24); }
    }
  }
  const char* bad(const S& s) const {
    for (int a = 0; a < K; a++) {
      if (!s.fence[a]) continue;
      for (int b = 0; b < a; b++) if (s.fence[b] == s.fence[a]) return "U: two acquisitions got the same fence";
      for (int b = 0; b < K; b++) if ((s.before[a] >> b & 1) && s.fence[b] >= s.fence[a]) return "R: not monotonic";
    }
    return nullptr;
  }
  std::string show(uint32_t x, const S&, const S&) const {
    char b[100];
    const char* n[] = {"start", "claim", "decide", "lock gone", "raise unlocked"};
    snprintf(b, 100, "%s att=%c node=%d v=%d", n[x & 255], 'A' + (x >> 8 & 255), 1 + (x >> 16 & 255), x >> 24 & 255);
    return b;
  }
  std::string dump(const S&) const { return ""; }
};
