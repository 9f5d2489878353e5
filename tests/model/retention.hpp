// Model C: counters that expire.  For how long must a node keep the counter of a name that nobody uses?
//
//  * Each node has a clock of its own, in ticks; the clocks need not agree.  A clock may be set back
//    once, by at most `back` ticks, at any moment.
//  * A client's floor may be anything.  A node believes a floor that is at most `near` ticks off its own
//    clock, and takes its own clock for any other.  So at each execution the floor is any such value.
//  * A counter with value v may expire once the node's clock shows v + keep, with any owner of the lock.
//  * Lock keys vanish at any moment; acquires and raises are executed at any later time or never.
//  * The sum: a node without a counter claims at least its clock - near.  Its clock showed v + keep when
//    the counter expired, and shows at least v + keep - back now.  So the claim is above v, as if the
//    counter were still there, if keep > near + back.
#pragma once
#include <algorithm>
#include "engine.hpp"

struct KeepCfg {
  int ticks = 5, near = 1, back = 1, keep = 3, skew = 1;
  bool own_clock = true;      // naive off: a floor that is far behind the node's clock is believed
  bool from_value = true;     // naive off: the counter expires `keep` ticks after it was written
};
template <int N, int K> struct KeepModel : Model {
  enum : uint8_t { IDLE, RUN, PH2, HELD };
  static constexpr int Q = N / 2 + 1;
  struct Col { uint8_t clk, moved, owner, ctr, until, rz, v[K]; };  // until: the clock at which the counter may expire
  struct S { Col c[N]; uint8_t st[K], m[K], fence[K], before[K]; uint8_t left, begun, flag; };
  KeepCfg cfg;
  explicit KeepModel(KeepCfg c) : cfg(c) {}
  S init() const {
    S s; memset(&s, 0, sizeof s); s.left = cfg.ticks;
    for (int j = 0; j < N; j++) s.c[j].clk = cfg.near + cfg.back + 1;
    return s;
  }
  void canon(S& s) const {
    for (int a = 0; a < K; a++) {
      if (s.st[a] != HELD) continue;
      s.before[a] = s.m[a] = 0;
      for (int j = 0; j < N; j++) { if (s.c[j].v[a]) s.c[j].v[a] = 1; s.c[j].rz &= ~(1 << a); }
    }
    std::sort(s.c, s.c + N, [](const Col& a, const Col& b) { return memcmp(&a, &b, sizeof a) < 0; });
  }
  void write(Col& c, int v) const { c.ctr = v; c.until = (cfg.from_value ? v : c.clk) + cfg.keep; }
  enum : uint32_t { AHEAD, TICK, BACK, EXPIRE, START, ACQ, GONE, P2, RAISE, DECIDE };
  template <class F> void next(const S& s, F emit) const {
    if (s.left) {
      S t = s; t.left--; t.begun = 1;
      for (int j = 0; j < N; j++) t.c[j].clk++;
      emit(t, act(TICK, 0, 0));
    }
    for (int a = 0; a < K; a++) {
      if (s.st[a] == IDLE) {
        if (a && s.st[a - 1] == IDLE) continue;
        S t = s; t.st[a] = RUN; t.begun = 1;
        for (int b = 0; b < K; b++) if (s.fence[b]) t.before[a] |= 1 << b;
        emit(t, act(START, a, 0));
        continue;
      }
      for (int j = 0; j < N; j++) {
        const Col& c = s.c[j];
        if (!c.v[a] && !c.owner)
          for (int f = cfg.own_clock ? c.clk - cfg.near : 1; f <= c.clk + cfg.near; f++) {
            int v = std::max<int>(c.ctr + 1, f);
            S t = s; t.c[j].owner = a + 1; write(t.c[j], v); t.c[j].v[a] = v;
            emit(t, act(ACQ, a, j, v));
          }
        if (s.m[a] && c.owner == a + 1 && c.ctr < s.m[a]) {
          S t = s; write(t.c[j], s.m[a]); t.c[j].rz |= 1 << a; emit(t, act(RAISE, a, j, s.m[a]));
        }
      }
      rounds<KeepModel>(s, a, [&](int j) { return s.c[j].v[a]; }, emit);
    }
    for (int j = 0; j < N; j++) {
      const Col& c = s.c[j];
      if (!s.begun && c.clk == s.c[N - 1].clk && cfg.skew)  // the clocks of some nodes are ahead from the start
        for (int x = 1; x <= cfg.skew; x++) { S t = s; t.c[j].clk += x; t.begun = 1; emit(t, act(AHEAD, 0, j, x)); }
      if (c.owner) { S t = s; t.c[j].owner = 0; emit(t, act(GONE, 0, j)); }
      if (c.ctr && c.clk >= c.until) { S t = s; t.c[j].ctr = t.c[j].until = 0; emit(t, act(EXPIRE, 0, j)); }
      for (int x = 1; x <= cfg.back && !c.moved; x++) { S t = s; t.begun = 1; t.c[j].clk -= x; t.c[j].moved = 1; emit(t, act(BACK, 0, j, x)); }
    }
  }
  const char* bad(const S& s) const { return fences(s.flag); }
  std::string show(uint32_t x, const S&, const S&) const {
    const auto [kind, a, j, v, A, n] = Step(x);
    switch (kind) {
      case AHEAD: return text("the clock of node %c is %d ahead", n, v);
      case BACK: return text("the clock of node %c is set back by %d", n, v);
      case EXPIRE: return text("the counter of node %c expires", n);
      case START: return text("%c starts, sends acquire to all nodes", A);
      case ACQ: return text("node %c executes %c's acquire: value %d", n, A, v);
      case GONE: return text("lock key vanishes on node %c", n);
      case P2: return text("%c sends raise(%d)", A, v);
      case RAISE: return text("node %c executes %c's raise(%d): ack", n, A, v);
      case DECIDE: return text("%c HOLDS with fence %d", A, v);
      default: return "-- tick";
    }
  }
  std::string dump(const S& s) const {
    std::string o = "nodes:";
    for (int j = 0; j < N; j++) o += text(" [clock=%d lock=%c ctr=%d]", s.c[j].clk, s.c[j].owner ? 'A' + s.c[j].owner - 1 : '-', s.c[j].ctr);
    o += "  fences:";
    for (int a = 0; a < K; a++) o += text(" %c=%d", 'A' + a, s.fence[a]);
    return o;
  }
};
