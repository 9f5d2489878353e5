// Model of the rest that may follow a lease: after it others get the name.  Requests are executed at any
// later time or never, in any order.
#pragma once
#include <algorithm>
#include "engine.hpp"

// A holder that releases before `rest` ticks have passed since it won leaves its key as held by nobody for
// what is left of them.  The release may be executed twice at a node, and late.
//  E  once a quorum has executed the release, nobody else wins before the rest is over
//  F  no node rests for longer
struct RestCfg {
  int ttl = 2, rest = 3;
  bool plain = false;     // naive: a release that is sent again deletes
  bool relative = false;  // naive: the rest begins where the release is executed, not when it is sent
};
template <int N, int K> struct RestModel : Model {
  enum : uint8_t { IDLE, RUN, HELD, OVER };
  static constexpr int Q = N / 2 + 1;
  // per node: owner, age of its key, ticks that it still rests (0: it doesn't), per attempt (bits): acquire
  // executed, rest executed, release sent again executed
  struct Col { uint8_t owner, age, rests, exe, done, again; };
  // per attempt: state, ticks since it asked, ticks since it won, what was left when it released
  struct S { Col c[N]; uint8_t st[K], e[K], w[K], left[K]; uint8_t flag; };
  RestCfg cfg;
  explicit RestModel(RestCfg c) : cfg(c) {}
  S init() const { S s; memset(&s, 0, sizeof s); return s; }
  void canon(S& s) const { std::sort(s.c, s.c + N, [](const Col& x, const Col& y) { return memcmp(&x, &y, sizeof x) < 0; }); }
  bool rested(const S& s, int a) const {
    int n = 0;
    for (int j = 0; j < N; j++) n += s.c[j].done >> a & 1;
    return n >= Q;
  }
  enum : uint32_t { TICK, START, ACQ, EXPIRE, HOLD, STOP, REST, AGAIN };
  template <class F> void next(const S& s, F emit) const {
    S n = s;
    for (int a = 0; a < K; a++) {
      if (n.st[a] == RUN || n.st[a] == HELD) if (++n.e[a] >= cfg.ttl) n.st[a] = OVER;
      if (n.w[a] && n.w[a] <= cfg.rest + 1) n.w[a]++;
    }
    for (Col& c : n.c) {
      if (c.rests) { if (!--c.rests) c.owner = 0; }
      else if (c.owner && c.age < cfg.ttl) c.age++;
      if (c.rests && n.w[c.owner - 1] > cfg.rest) n.flag = 2;
    }
    emit(n, act(TICK, 0, 0));
    for (int a = 0; a < K; a++) {
      uint8_t bit = 1 << a;
      if (s.st[a] == IDLE) {
        if (!a || s.st[a - 1] != IDLE) { S t = s; t.st[a] = RUN; emit(t, act(START, a, 0)); }
        continue;
      }
      int grants = 0;
      for (int j = 0; j < N; j++) {
        const Col& c = s.c[j];
        grants += c.exe >> a & 1;
        if (!(c.exe & bit) && !c.owner) { S t = s; t.c[j].owner = a + 1; t.c[j].age = 0; t.c[j].exe |= bit; emit(t, act(ACQ, a, j)); }
        if (c.owner && !c.rests && c.age >= cfg.ttl && c.owner == a + 1) { S t = s; t.c[j].owner = 0; emit(t, act(EXPIRE, a, j)); }
        if (!s.left[a]) continue;
        int left = cfg.relative ? s.left[a] : cfg.rest + 1 - s.w[a];
        bool ours = c.owner == a + 1;
        if (!(c.done & bit) && ours) {
          S t = s; Col& d = t.c[j]; d.done |= bit; d.age = 0;
          d.owner = left > 0 ? a + 1 : 0; d.rests = left > 0 ? left : 0;
          emit(t, act(REST, a, j));
        }
        if ((c.done & bit) && !(c.again & bit)) {
          S t = s; Col& d = t.c[j]; d.again |= bit;
          if (ours && cfg.plain) d.owner = d.rests = 0;
          emit(t, act(AGAIN, a, j));
        }
      }
      if (s.st[a] == RUN && grants >= Q) {
        S t = s; t.st[a] = HELD; t.w[a] = 1;
        for (int b = 0; b < K; b++) if (b != a && s.w[b] && s.w[b] <= cfg.rest && rested(s, b)) t.flag = 1;
        emit(t, act(HOLD, a, 0));
      }
      if (s.st[a] == HELD) { S t = s; t.st[a] = OVER; t.left[a] = std::max(0, cfg.rest + 1 - s.w[a]); emit(t, act(STOP, a, 0)); }
    }
  }
  const char* bad(const S& s) const {
    return s.flag == 1 ? "E: another wins before the rest is over" : s.flag == 2 ? "F: a node rests for too long" : nullptr;
  }
  std::string show(uint32_t x, const S&, const S&) const {
    static const char* what[] = {"-- tick", "starts, sends acquire", "gets node", "loses by expiry node", "HOLDS", "releases before its time", "rests on node", "releases again on node"};
    const uint32_t t = x & 255; char b[100];
    if (t == TICK) return what[TICK];
    snprintf(b, 100, t == ACQ || t == EXPIRE || t >= REST ? "%c %s %c" : "%c %s", 'A' + (x >> 8 & 255), what[t], '1' + (x >> 16 & 255));
    return b;
  }
  std::string dump(const S& s) const {
    std::string o = "nodes:";
    for (const Col& c : s.c) o += text(" [lock=%c age=%d rests=%d]", c.owner ? 'A' + c.owner - 1 : '-', c.age, c.rests);
    return o;
  }
};
