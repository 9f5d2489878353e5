// Model B: hand-over of a live lease inside a process, with NO timing assumption.
//
// An owner that holds with fence v raises nodes to m > v.  Each node answers with the counter it had
// before (only while the owner still owns the lock key there, and only if that counter is <= m).
//
//  BLOCK   With the answers of a quorum, the fences above the LARGEST of those previous counters, up to
//          m, are the owner's to give to the next local holders, one after the other, without the network.
//  STRICT  Each hand-over is one such raise; with the answers of a quorum the next holder's fence is m.
//
// As in the model of fences every request is executed at an arbitrary later time or never, a lock key
// may vanish at any moment, an acquire may reach a node long after its owner holds, and an owner that
// takes no more steps has crashed.  A local successor starts at the moment of its hand-over (BLOCK) or
// at the moment the raise is sent (STRICT): the latest start possible, so the order is tested hardest.
//
// Checked: U  no fence is given out twice, by one holder or by two;
//          R  a holder that starts after another was given its fence gets a larger one.
// R is demanded of acquisitions over the network always, of a block as a whole against everybody who
// was given a fence before its raise was sent, and of each local successor while the lease really holds.
// What that has to mean is Order below.
#pragma once
#include <algorithm>
#include "engine.hpp"

struct HandCfg {
  enum Mode { BLOCK, STRICT } mode = BLOCK;
  enum From { ABOVE_PREVIOUS, ABOVE_OWN } from = ABOVE_PREVIOUS;  // ABOVE_OWN: the naive block from v + 1
  // When does the successor from a block owe the order?
  //   KEPT      while a quorum of the nodes whose answers made the block still has the owner's key
  //   UNBROKEN  while the owner has owned some quorum without a gap (nodes may change: a late acquire
  //             adds one, then another loses its key).  Too much: caught.
  //   ALWAYS    even after an unnoticed loss.  Too much: caught.
  enum Order { KEPT, UNBROKEN, ALWAYS } order = KEPT;
  bool check_owner = true;   // naive off: a raise acks counter <= m, no matter who owns the node
  bool small_quorum = false; // naive: the raise is believed with one answer less than a quorum
  bool raise = true;         // naive off: the owner just goes on counting from its own fence
  int raises = 1;            // raises in all
  int size = 2;              // m is any of the next `size` numbers above the owner's newest fence
  int floors = 0;            // each attempt carries an arbitrary floor 0..floors
};

template <int N, int K> struct HandModel : Model {
  enum : uint8_t { IDLE, RUN, PH2, HELD };
  static constexpr int Q = N / 2 + 1;
  // per node: owner, counter; per owner: value of its acquire here (1 once it holds), phase 2 acked here
  // (bits), previous counter + 1 as answered to the raise under way (0: not executed here); this node's
  // answer is part of the owner's block (bits; an owner never gets a node twice, so while it owns the
  // node it has kept it)
  struct Col { uint8_t owner, ctr, v[K], rz, prev[K], block; };
  // per owner: state; floor of its acquire; target of phase 2, then of an older raise that may still be executed somewhere;
  // newest fence when its (next) holder started; newest fence it gave out; what is left of its block;
  // target of the raise under way.  Over all: fences given out (bits, two bytes), the newest, raises
  // left, owners whose quorum has once been broken (bits), violation.
  struct S { Col c[N]; uint8_t st[K], floor[K], m[K], seen[K], fence[K], next[K], last[K], r[K]; uint8_t used[2], newest, raises, broken, flag; };

  HandCfg cfg;
  explicit HandModel(HandCfg c) : cfg(c) {}

  S init() const { S s; memset(&s, 0, sizeof s); s.raises = (uint8_t)cfg.raises; return s; }

  static bool owns_quorum(const S& s, int a) {
    int n = 0;
    for (int j = 0; j < N; j++) n += s.c[j].owner == a + 1;
    return n >= Q;
  }
  static bool kept(const S& s, int a) {
    int n = 0;
    for (int j = 0; j < N; j++) n += s.c[j].owner == a + 1 && (s.c[j].block >> a & 1);
    return n >= Q;
  }
  void canon(S& s) const {
    uint8_t lowest = 255;
    for (int j = 0; j < N; j++) lowest = std::min(lowest, s.c[j].ctr);
    for (int a = 0; a < K; a++) {          // forget what can no longer matter
      if (s.st[a] != HELD) continue;
      if (s.m[a] <= lowest) s.m[a] = 0;
      if (s.floor[a] <= lowest + 1) s.floor[a] = 0;
      if (!s.r[a]) s.seen[a] = 0;
      if (cfg.order != HandCfg::UNBROKEN) s.broken &= ~(1 << a);
      for (int j = 0; j < N; j++) {
        if (s.c[j].v[a]) s.c[j].v[a] = 1;
        s.c[j].rz &= ~(1 << a);
        if (!s.r[a]) s.c[j].prev[a] = 0;
        if (!s.next[a] || s.c[j].owner != a + 1) s.c[j].block &= ~(1 << a);
      }
    }
    std::sort(s.c, s.c + N, [](const Col& x, const Col& y) { return memcmp(&x, &y, sizeof x) < 0; });
  }
  // A fence is given out: to the owner itself or to a local successor.
  S given(const S& s, int a, int v, bool in_order) const {
    S t = s;
    t.fence[a] = v;
    if (s.used[v >> 3] >> (v & 7) & 1) t.flag = 2;
    else if (in_order && s.seen[a] >= v) t.flag = 3;
    t.used[v >> 3] |= 1 << (v & 7);
    t.newest = std::max<uint8_t>(s.newest, v);
    return t;
  }
  enum : uint32_t { START, ACQ, GONE, P2, RAISE, HOLD, ASK, ANSWER, OLD, BLOCK, NEXT, PASS };

  template <class F> void next(const S& s, F emit_raw) const {
    auto emit = [&](S t, uint32_t x) {
      for (int a = 0; a < K; a++) if (t.st[a] == HELD && !owns_quorum(t, a)) t.broken |= 1 << a;
      emit_raw(t, x);
    };
    for (int a = 0; a < K; a++) {
      if (s.st[a] == IDLE) {
        if (a && s.st[a - 1] == IDLE) continue;
        for (int f = 0; f <= cfg.floors; f++) {
          S t = s; t.st[a] = RUN; t.floor[a] = f; t.seen[a] = s.newest;
          emit(t, act(START, a, 0, f));
        }
        continue;
      }
      for (int j = 0; j < N; j++) {
        const Col& c = s.c[j];
        if (!c.v[a] && !c.owner) {         // its acquire is executed at node j, at whatever time
          S t = s; t.c[j].owner = a + 1;
          t.c[j].ctr = t.c[j].v[a] = std::max<uint8_t>(c.ctr + 1, s.floor[a]);
          emit(t, act(ACQ, a, j, t.c[j].ctr));
        }
        if (s.m[a] && c.owner == a + 1 && c.ctr < s.m[a]) {   // phase 2, or the tail of an older raise
          S t = s; t.c[j].ctr = s.m[a]; t.c[j].rz |= 1 << a;
          emit(t, act(s.st[a] == HELD ? OLD : RAISE, a, j, s.m[a]));
        }
        if (s.r[a] && !c.prev[a] && (c.owner == a + 1 || !cfg.check_owner) && c.ctr <= s.r[a]) {
          S t = s; t.c[j].prev[a] = c.ctr + 1; t.c[j].ctr = s.r[a];
          emit(t, act(ANSWER, a, j, c.ctr));
        }
      }
      if (s.st[a] == HELD) hand_over(s, a, emit); else decide(s, a, emit);
    }
    for (int j = 0; j < N; j++)
      if (s.c[j].owner) { S t = s; t.c[j].owner = 0; emit(t, act(GONE, 0, j)); }
  }

  // The acquisition over the network, as in the model of fences.
  template <class F> void decide(const S& s, int a, F emit) const {
    auto hold = [&](int v, int phase2) {
      S t = given(s, a, v, true); t.st[a] = HELD;
      if (!cfg.raise) { t.next[a] = v + 1; t.last[a] = v + cfg.size; }
      emit(t, act(HOLD, a, phase2, v));
    };
    each_value(N, [&](int j) { return s.c[j].v[a]; }, [&](int v, int n, int le) {
      if (n >= Q) hold(v, 0);
      else if (le >= Q && s.st[a] == RUN) { S t = s; t.st[a] = PH2; t.m[a] = v; emit(t, act(P2, a, 0, v)); }
    });
    if (s.m[a]) {
      int n = 0;
      for (int j = 0; j < N; j++) n += s.c[j].v[a] == s.m[a] || (s.c[j].rz >> a & 1);
      if (n >= Q) hold(s.m[a], 1);
    }
  }

  template <class F> void hand_over(const S& s, int a, F emit) const {
    if (cfg.raise && !s.r[a] && !s.next[a] && s.raises)
      for (int m = s.fence[a] + 1; m <= s.fence[a] + cfg.size; m++) {
        S t = s; t.raises--; t.r[a] = m; t.seen[a] = s.newest;
        emit(t, act(ASK, a, 0, m));
      }
    if (s.r[a]) answered(s, a, emit);
    if (s.next[a]) {                       // BLOCK: the next local holder, without the network
      S t = s; t.seen[a] = s.newest;
      bool in_order = cfg.order == HandCfg::ALWAYS || (cfg.order == HandCfg::KEPT && kept(s, a)) ||
                      (cfg.order == HandCfg::UNBROKEN && !(s.broken >> a & 1));
      t = given(t, a, s.next[a], in_order);
      if (t.next[a]++ == t.last[a]) t.next[a] = t.last[a] = 0;
      emit(t, act(NEXT, a, 0, s.next[a]));
    }
  }

  // Any subset of the answers so far may have arrived: one step for each largest previous counter that a
  // sufficient subset can have.
  template <class F> void answered(const S& s, int a, F emit) const {
    const int enough = cfg.small_quorum ? Q - 1 : Q;
    uint32_t done = 0;
    for (int i = 0; i < N; i++) {
      int p = s.c[i].prev[a], le = 0;
      if (!p || (done >> p & 1)) continue;
      done |= 1u << p;
      for (int j = 0; j < N; j++) le += s.c[j].prev[a] && s.c[j].prev[a] <= p;
      if (le < enough) continue;
      S t = s; t.m[a] = s.r[a]; t.r[a] = 0;
      if (cfg.mode == HandCfg::STRICT) {
        emit(given(t, a, s.r[a], true), act(PASS, a, 0, s.r[a]));
        return;                            // the fence is m whichever quorum answered
      }
      int from = cfg.from == HandCfg::ABOVE_PREVIOUS ? p : s.fence[a] + 1;     // p is the counter + 1
      if (from <= s.r[a]) {
        t.next[a] = from; t.last[a] = s.r[a];
        for (int j = 0; j < N; j++) if (s.c[j].prev[a] && s.c[j].prev[a] <= p) t.c[j].block |= 1 << a;
        if (cfg.from == HandCfg::ABOVE_PREVIOUS && s.seen[a] >= from) t.flag = 4;
      }
      emit(t, act(BLOCK, a, from, s.r[a]));
    }
  }

  const char* bad(const S& s) const {
    if (s.flag == 2) return "U: the same fence was given out twice";
    if (s.flag == 3) return "R: a later holder got a fence that is not larger";
    if (s.flag == 4) return "R: a block begins below a fence given out before its raise was sent";
    return nullptr;
  }

  std::string show(uint32_t x, const S&, const S&) const {
    const auto [kind, a, j, v, A, n] = Step(x);
    switch (kind) {
      case START: return text("%c starts%s, sends acquire to all nodes", A, v ? (" (floor " + std::to_string(v) + ")").c_str() : "");
      case ACQ: return text("node %c executes %c's acquire: granted, counter value %d", n, A, v);
      case GONE: return text("lock key vanishes on node %c", n);
      case P2: return text("%c sees a majority that disagrees, sends raise(%d)", A, v);
      case RAISE: return text("node %c executes %c's raise(%d): ack", n, A, v);
      case HOLD: return text("%c HOLDS with fence %d%s", A, v, j ? " (after phase 2)" : "");
      case ASK: return text("%c sends raise(%d) for its local successors", A, v);
      case ANSWER: return text("node %c executes %c's raise, answers that its counter was %d", n, A, v);
      case OLD: return text("node %c executes an older raise(%d) of %c", n, v, A);
      case BLOCK: return text("%c takes the block %d..%d", A, j, v);
      case NEXT: return text("%c hands over locally: the next holder HOLDS with fence %d", A, v);
      case PASS: return text("%c's quorum has answered: the next holder HOLDS with fence %d", A, v);
      default: return "?";
    }
  }
  std::string dump(const S& s) const {
    std::string o = "nodes:";
    for (int j = 0; j < N; j++) o += text(" [lock=%c ctr=%d]", s.c[j].owner ? 'A' + s.c[j].owner - 1 : '-', s.c[j].ctr);
    o += "  newest fences:";
    for (int a = 0; a < K; a++) o += text(" %c=%d", 'A' + a, s.fence[a]);
    return o;
  }
};
