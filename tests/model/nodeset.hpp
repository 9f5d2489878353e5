// Model B: a fleet whose set of nodes changes. Discrete time, as in timing.hpp.
//
//  * An operator leads the fleet from one set to the next. Each level of the record says which sets clients
//    may use: one while no step is open, two while one is. The record reaches the nodes one by one, or never.
//    A level is in force once a majority of a set that it (or the level before) allows keeps it.
//  * The next level follows at once, except after a step was closed: then not before WAIT ticks.
//  * A client may be configured with any of the sets at any time. Each answer tells it the level that the
//    node keeps when it executes the request: the record is compared on connect, and a change is pushed on the
//    same connection, ahead of the answer. The client counts a majority of its own set, if the highest level
//    that these answers told allows the set.
//  * A node may restart empty. It doesn't vote for QUAR ticks; by then a client has told it the record again.
#pragma once
#include <utility>
#include "engine.hpp"

struct SetCfg {
  int belief = 2;            // ticks a lease lasts after it was asked for; keys live as long at least
  int wait = 2;              // ticks between the end of a step and the next one
  int quar = 2;
  int crashes = 0;
  int first = 0;             // the level that all nodes keep at first
  bool extend = false;
  bool hop = false;          // naive: one step replaces a node
  bool compare = true;       // naive off: clients that know nothing of the record
  bool pushed = true;        // naive off: compared on connect only
  bool renewals = true;      // naive off: a renewal is counted whatever the answers tell
  bool majority = true;      // naive off: a level is in force once any node keeps it
  bool heal = true;          // naive off: a node that restarted is not told again
};

template <int K> struct SetModel : Model {
  enum : int { N = 4 };
  enum : uint8_t { IDLE, RUN, HELD, OVER };
  struct Srv { uint8_t owner, age, level, quar; };
  // ans, ans2: for each node, whether it executed the acquire (the extend), and 1 + the level that it told
  struct Cli { uint8_t st, set, e, from, ans[N], ext, e2, ans2[N]; };
  struct S { Srv s[N]; Cli c[K]; uint8_t level, wait, crashes; };
  SetCfg cfg;
  explicit SetModel(SetCfg c) : cfg(c) {}
  // {1 2 3} -> {1 2 3 4} -> {2 3 4}; levels: 0 first, 1 step open, 2 closed, 3 step open
  int mask(int set) const { static const int m[3] = {7, 15, 14}; return m[set]; }
  bool allows(int level, int set) const {
    if (!cfg.compare) return true;
    if (cfg.hop) return set != 1 && (level == 1 || set == (level ? 2 : 0));
    switch (level) { case 0: return set == 0; case 1: return set < 2; case 2: return set == 1; default: return set > 0; }
  }
  int last() const { return cfg.hop ? 1 : 3; }
  static int count(int m) { return __builtin_popcount(m); }
  bool quorum(int m, int set) const { return count(m & mask(set)) > count(mask(set)) / 2; }
  bool in_force(const S& s) const {
    int keep = 0;
    for (int j = 0; j < N; j++) keep |= (s.s[j].level >= s.level) << j;
    if (!cfg.majority) return keep;
    for (int set = 0; set < 3; set++)
      if ((allows(s.level, set) || (s.level && allows(s.level - 1, set))) && quorum(keep, set)) return true;
    return false;
  }
  S init() const {
    S s; memset(&s, 0, sizeof s); s.level = cfg.first;
    for (int j = 0; j < N; j++) s.s[j].level = cfg.first;
    return s;
  }
  void canon(S& s) const {
    for (int a = 0; a < K; a++) {                // forget what can no longer matter
      Cli& c = s.c[a];
      if (c.st == OVER) { memset(&c, 0, sizeof c); c.st = OVER; }
      for (int j = 0; j < N; j++) {
        if (c.st == HELD) c.ans[j] = !!c.ans[j];
        if (!c.ext) c.ans2[j] = 0;
      }
      if (!c.ext) c.e2 = 0;
    }
    S best = s;                                  // nodes 2 and 3 are in every set; clients are alike
    for (int flip = 1; flip < 4; flip++) {
      S t = s;
      if (flip & 1) swap_nodes(t);
      if (flip & 2) swap_clients(t);
      if (memcmp(&t, &best, sizeof t) < 0) best = t;
    }
    s = best;
  }
  void swap_nodes(S& s) const {
    std::swap(s.s[1], s.s[2]);
    for (int a = 0; a < K; a++) { std::swap(s.c[a].ans[1], s.c[a].ans[2]); std::swap(s.c[a].ans2[1], s.c[a].ans2[2]); }
  }
  void swap_clients(S& s) const {
    static_assert(K == 2, "two clients are swapped");
    std::swap(s.c[0], s.c[1]);
    for (int j = 0; j < N; j++) if (s.s[j].owner) s.s[j].owner ^= 3;
  }
  // some majority of the set answered, and the highest level that these answers told allows the set
  bool counts(const uint8_t* ans, int set, int from) const {
    for (int top = from; top <= last(); top++) {
      if (!allows(top, set)) continue;
      int m = 0; bool reached = top == from;
      for (int j = 0; j < N; j++) if (ans[j] && (!cfg.pushed || ans[j] - 1 <= top)) { m |= 1 << j; reached |= ans[j] - 1 == top; }
      if (quorum(m, set) && reached) return true;
      if (!cfg.pushed) return false;
    }
    return false;
  }
  bool believes(const Cli& c) const { return c.st == HELD && c.e < cfg.belief; }
  enum : uint32_t { TICK, NEXT, WRITE, CRASH, START, ACQ, DECIDE, EXT, EXTN, EXTENDED, STOP, EXPIRE };

  template <class F> void next(const S& s, F emit) const {
    {
      S t = s; bool on = in_force(s);
      if (on && t.wait) t.wait--;
      uint8_t known = 0;
      for (int j = 0; j < N; j++) if (s.s[j].level > known) known = s.s[j].level;
      for (int j = 0; j < N; j++) {
        Srv& v = t.s[j];
        if (v.owner && v.age < cfg.belief) v.age++;
        if (v.quar && !--v.quar && cfg.heal) v.level = known;
      }
      for (int a = 0; a < K; a++) {
        Cli& c = t.c[a];
        if (c.st == RUN || c.st == HELD) { if (++c.e >= cfg.belief) c.st = OVER; }
        if (c.ext && c.e2 < cfg.belief) c.e2++;
      }
      emit(t, act(TICK, 0, 0));
    }
    if (s.level < last() && in_force(s) && !s.wait) {
      S t = s; t.level++; t.wait = t.level == 2 ? cfg.wait : 0;
      emit(t, act(NEXT, 0, t.level));
    }
    for (int j = 0; j < N; j++) {
      const Srv& v = s.s[j];
      if (v.level < s.level) { S t = s; t.s[j].level = s.level; emit(t, act(WRITE, 0, j)); }
      if (v.owner && v.age >= cfg.belief) { S t = s; t.s[j].owner = t.s[j].age = 0; emit(t, act(EXPIRE, 0, j)); }
      if (s.crashes < cfg.crashes) {
        S t = s; t.crashes++; t.s[j] = Srv{0, 0, 0, (uint8_t)cfg.quar};
        emit(t, act(CRASH, 0, j));
      }
    }
    for (int a = 0; a < K; a++) {
      const Cli& c = s.c[a];
      if (c.st == IDLE) for (int set = 0; set < 3; set++) {
        if (cfg.hop && set == 1) continue;
        S t = s; Cli& d = t.c[a]; d.st = RUN; d.set = set; d.e = 0;
        // connected at any time before: the level of then, or none
        for (d.from = cfg.pushed ? 0 : set; d.from <= (cfg.pushed ? 0 : s.level); d.from++) emit(t, act(START, a, set));
      }
      if (c.st == IDLE || c.st == OVER) continue;  // what is executed after the end only keeps others out
      for (int j = 0; j < N; j++) {
        const Srv& v = s.s[j];
        if (!(mask(c.set) >> j & 1)) continue;
        if (!c.ans[j] && !v.owner) {
          S t = s; t.s[j].owner = a + 1; t.s[j].age = 0; t.c[a].ans[j] = v.quar ? 9 : v.level + 1;
          emit(t, act(ACQ, a, j));
        }
        if (c.ext && !c.ans2[j] && v.owner == a + 1 && c.e2 < cfg.belief) {
          S t = s; t.s[j].age = 0; t.c[a].ans2[j] = v.quar ? 9 : v.level + 1;
          emit(t, act(EXTN, a, j));
        }
      }
      if (c.st == RUN && counts(c.ans, c.set, c.from)) { S t = s; t.c[a].st = HELD; t.c[a].from = 0; emit(t, act(DECIDE, a, 0)); }
      if (cfg.extend && c.st == HELD && !c.ext) { S t = s; t.c[a].ext = 1; emit(t, act(EXT, a, 0)); }
      if (c.st == HELD && c.ext && (cfg.renewals ? counts(c.ans2, c.set, 0) : extended(c))) {
        S t = s; Cli& d = t.c[a]; d.e = d.e2; d.ext = 0; emit(t, act(EXTENDED, a, 0));
      }
      if (c.st == RUN || c.st == HELD) { S t = s; t.c[a].st = OVER; emit(t, act(STOP, a, 0)); }
    }
  }
  bool extended(const Cli& c) const {
    int m = 0;
    for (int j = 0; j < N; j++) m |= !!c.ans2[j] << j;
    return quorum(m, c.set);
  }
  const char* bad(const S& s) const { return alone(K, [&](int a) { return believes(s.c[a]); }); }
  std::string show(uint32_t x, const S&, const S&) const {
    const auto [kind, a, j, v, A, n] = Step(x);
    static const char* sets[] = {"1 2 3", "1 2 3 4", "2 3 4"};
    switch (kind) {
      case TICK: return "-- tick";
      case NEXT: return text("the operator begins level %d of the record", j);
      case WRITE: return text("node %c is told", n);
      case CRASH: return text("node %c restarts with empty memory", n);
      case START: return text("%c with nodes %s sends acquire", A, sets[j]);
      case ACQ: return text("node %c executes %c's acquire: granted", n, A);
      case DECIDE: return text("%c HOLDS (a quorum answered)", A);
      case EXT: return text("%c sends extend", A);
      case EXTN: return text("node %c executes %c's extend", n, A);
      case EXTENDED: return text("%c has extended", A);
      case STOP: return text("%c finishes", A);
      case EXPIRE: return text("lock key expires on node %c", n);
      default: return "?";
    }
  }
  std::string dump(const S& s) const {
    std::string o = "nodes:";
    for (int j = 0; j < N; j++) o += text(" [lock=%c age=%d level=%d]", s.s[j].owner ? 'A' + s.s[j].owner - 1 : '-', s.s[j].age, s.s[j].level);
    return o;
  }
};
