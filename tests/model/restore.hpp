// Model K: fences while a lease is held and nodes restart one after the other, plain counters.
//
//  * The lease is held until each node that restarted has its key back: its keys vanish by restarts
//    only. Acquires are delivered at any later time or never, those of attempts that have ended included.
//  * A node restarts, with nothing left, only while every node keeps the holder's key: who restarted
//    before has got it back. It does not vote until the attempts that it may have granted are over, nor
//    before it has the key back: in between, floors from the clock keep fences in order (H), not counters.
//  * To restore: where the node is free and votes, set the key and raise the counter.
#pragma once
#include <algorithm>
#include "engine.hpp"

struct RestoreCfg {
  int crashes = 2;
  bool raise = true;          // naive off: the counter stays as it is
  int V = 12;
};
template <int N, int K> struct RestoreModel : Model {
  enum : uint8_t { IDLE, RUN, PH2, HELD, OVER };
  static constexpr int Q = N / 2 + 1;
  static constexpr uint8_t NC = 255;
  struct Col { uint8_t owner, ctr, quar, rz, lost, v[K]; };  // lost: whose key a restart took
  struct S { Col c[N]; uint8_t st[K], m[K], fence[K], before[K]; uint8_t crash, flag; };
  RestoreCfg cfg;
  explicit RestoreModel(RestoreCfg c) : cfg(c) {}
  S init() const { S s; memset(&s, 0, sizeof s); s.crash = cfg.crashes; return s; }
  void canon(S& s) const {
    for (int a = 0; a < K; a++) {
      if (s.st[a] != HELD && s.st[a] != OVER) continue;
      s.before[a] = 0;
      for (int j = 0; j < N; j++) { if (s.c[j].v[a]) s.c[j].v[a] = 1; s.c[j].rz &= ~(1 << a); s.c[j].quar &= ~(1 << a); }
    }
    std::sort(s.c, s.c + N, [](const Col& a, const Col& b) { return memcmp(&a, &b, sizeof a) < 0; });
  }
  static bool granted(const S& s, int a, int j) { return s.c[j].v[a] && s.c[j].v[a] != NC; }
  int owned(const S& s, int a) const { int n = 0; for (int j = 0; j < N; j++) n += s.c[j].owner == a + 1; return n; }
  enum : uint32_t { START, ACQ, GONE, P2, RAISE, DECIDE, CRASH, BACK, STOP };
  template <class F> void next(const S& s, F emit) const {
    for (int a = 0; a < K; a++) {
      const uint8_t bit = 1 << a;
      if (s.st[a] == IDLE) {
        if (a && s.st[a - 1] == IDLE) continue;
        S t = s; t.st[a] = RUN;
        for (int b = 0; b < K; b++) if (s.fence[b]) t.before[a] |= 1 << b;
        emit(t, act(START, a, 0));
        continue;
      }
      for (int j = 0; j < N; j++) {
        const Col& c = s.c[j];
        if (!c.v[a] && !c.owner) {
          int v = c.ctr + 1;
          if (v > cfg.V) truncated = true;
          else { S t = s; t.c[j].owner = a + 1; t.c[j].ctr = v; t.c[j].v[a] = c.quar || c.lost ? NC : v; emit(t, act(ACQ, a, j, v)); }
        }
        if (s.m[a] && c.owner == a + 1 && c.ctr < s.m[a] && !c.quar && !c.lost) {
          S t = s; t.c[j].ctr = s.m[a]; t.c[j].rz |= bit; emit(t, act(RAISE, a, j, s.m[a]));
        }
        if ((c.lost & bit) && !c.owner && !c.quar) {
          S t = s; t.c[j].owner = a + 1; t.c[j].lost &= ~bit;
          if (cfg.raise) t.c[j].ctr = std::max<int>(c.ctr + 1, s.fence[a]);
          if (t.c[j].ctr > cfg.V) truncated = true; else emit(t, act(BACK, a, j, t.c[j].ctr));
        }
      }
      rounds<RestoreModel>(s, a, [&](int j) { return granted(s, a, j) ? s.c[j].v[a] : 0; }, emit);
      bool awaited = false;
      for (int j = 0; j < N; j++) awaited |= s.c[j].lost >> a & 1;
      if (s.st[a] != OVER && !awaited) {
        S t = s; t.st[a] = OVER;
        for (int j = 0; j < N; j++) t.c[j].quar &= ~bit;
        emit(t, act(STOP, a, 0));
      }
    }
    for (int j = 0; j < N; j++) {
      const Col& c = s.c[j];
      if (c.owner && s.st[c.owner - 1] != HELD) { S t = s; t.c[j].owner = 0; emit(t, act(GONE, 0, j)); }
      int holder = c.owner ? c.owner - 1 : 0;
      if (s.crash && c.owner && s.st[holder] == HELD && owned(s, holder) == N) {
        S t = s; t.crash--; t.c[j].owner = t.c[j].ctr = t.c[j].rz = 0; t.c[j].lost |= 1 << holder;
        for (int b = 0; b < K; b++) if (s.st[b] == RUN || s.st[b] == PH2) t.c[j].quar |= 1 << b;
        emit(t, act(CRASH, 0, j));
      }
    }
  }
  const char* bad(const S& s) const { return fences(s.flag); }
  std::string show(uint32_t x, const S&, const S& t) const {
    const auto [kind, a, j, v, A, n] = Step(x);
    switch (kind) {
      case START: return text("%c starts, sends acquire to all nodes", A);
      case ACQ: return text("node %c executes %c's acquire: granted, counter value %d", n, A, v);
      case GONE: return text("lock key vanishes on node %c", n);
      case P2: return text("%c sees a majority that disagrees, sends raise(%d)", A, v);
      case RAISE: return text("node %c executes %c's raise(%d): ack", n, A, v);
      case DECIDE: return text("%c HOLDS with fence %d", A, t.fence[a]);
      case CRASH: return text("node %c restarts with empty memory", n);
      case BACK: return text("node %c takes %c's key back, counter value %d", n, A, v);
      case STOP: return text("%c gives up / finishes", A);
      default: return "?";
    }
  }
  std::string dump(const S& s) const {
    std::string o = "nodes:";
    for (int j = 0; j < N; j++) o += text(" [lock=%c ctr=%d%s]", s.c[j].owner ? 'A' + s.c[j].owner - 1 : '-', s.c[j].ctr, s.c[j].quar ? " quar" : "");
    return o;
  }
};
