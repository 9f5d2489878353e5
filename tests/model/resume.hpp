// The model of a lease that one client detaches and another one resumes. Requests are executed at any later
// time or never, in any order.
#pragma once
#include <algorithm>
#include "engine.hpp"

// A lease was detached: its owner's key is on a quorum, and perhaps on the other nodes.  K clients have its
// ticket, others may lock the name as usual.  A resume is executed where the old owner's key is, which it
// replaces by its own, and counts as won with a quorum of these.  A client that gives up deletes its key.
//  M  no two clients believe that they hold      X  at most one client ever resumes
//  R  the fence of one that resumes is above all fences that were given out before
struct ResumeCfg {
  int tickets = 2;         // the first clients resume, the others acquire
  bool absent = false;     // naive: a resume is also executed where nobody has the key
  bool keep = false;       // naive: it only extends, and the owner stays the same
  bool count = true;       // naive off: the counter is not raised by the exchange
  bool back = false;       // naive: one that gives up puts the old owner's key back also after it has won
};
template <int N, int K> struct ResumeModel : Model {
  enum : uint8_t { IDLE, RUN, HELD, OVER };
  static constexpr int Q = N / 2 + 1;
  static constexpr uint8_t OLD = K + 1;
  struct Col { uint8_t owner, ctr, v[K]; };
  struct S { Col c[N]; uint8_t st[K], fence[K], seen[K], won, newest, flag; };
  ResumeCfg cfg;
  explicit ResumeModel(ResumeCfg c) : cfg(c) {}
  S init() const {
    S s; memset(&s, 0, sizeof s);
    s.newest = 2;                                        // the old owner's fence
    for (int j = 0; j < Q; j++) s.c[j].owner = OLD, s.c[j].ctr = 2;
    return s;
  }
  void canon(S& s) const { std::sort(s.c, s.c + N, [](const Col& x, const Col& y) { return memcmp(&x, &y, sizeof x) < 0; }); }
  enum : uint32_t { START, ACQ, GONE, LATE, HOLD, STOP, DEL };
  template <class F> void next(const S& s, F emit) const {
    for (int a = 0; a < K; a++) {
      const bool resumes = a < cfg.tickets;
      if (s.st[a] == IDLE) { S t = s; t.st[a] = RUN; t.seen[a] = s.newest; emit(t, act(START, a, 0)); continue; }
      for (int j = 0; j < N; j++) {
        const Col& c = s.c[j];
        bool may = resumes ? c.owner == OLD || (cfg.absent && !c.owner) : !c.owner;
        if (!c.v[a] && may) {
          S t = s; Col& d = t.c[j];
          if (!(cfg.keep && resumes)) d.owner = a + 1;
          if (cfg.count || !resumes) d.ctr++;
          d.v[a] = std::max<uint8_t>(d.ctr, 1);
          emit(t, act(ACQ, a, j));
        }
        if (s.st[a] == OVER && c.owner == a + 1) {
          S t = s; t.c[j].owner = cfg.back ? OLD : 0; emit(t, act(DEL, a, j));
        }
      }
      if (s.st[a] == RUN) decide(s, a, emit);
      if (s.st[a] == RUN || s.st[a] == HELD) { S t = s; t.st[a] = OVER; emit(t, act(STOP, a, 0)); }
    }
    for (int j = 0; j < N; j++) {                        // a key ends; the old owner's acquire comes late
      const Col& c = s.c[j];
      bool held = c.owner && c.owner != OLD && s.st[c.owner - 1] == HELD;
      if (c.owner && !held) { S t = s; t.c[j].owner = 0; emit(t, act(GONE, 0, j)); }
      if (!c.owner && c.ctr < 2) { S t = s; t.c[j].owner = OLD; t.c[j].ctr = 2; emit(t, act(LATE, 0, j)); }
    }
  }
  // With a quorum of equal numbers the fence is that; of different ones it is the highest, once it was
  // written to a quorum where the owner still has the key, here at one moment.
  template <class F> void decide(const S& s, int a, F emit) const {
    int n = 0, top = 0;
    for (const Col& c : s.c) if (c.v[a] && (c.owner == a + 1 || (cfg.keep && c.owner == OLD))) n++, top = std::max<int>(top, c.v[a]);
    if (n < Q) return;
    S t = s; t.st[a] = HELD; t.fence[a] = top;
    for (Col& c : t.c) if (c.v[a] && c.owner == a + 1) c.ctr = std::max<uint8_t>(c.ctr, top);
    if (s.seen[a] >= top) t.flag = 3;
    t.newest = std::max<uint8_t>(s.newest, top);
    if (a < cfg.tickets) { if (s.won) t.flag = 2; t.won = 1; }
    for (int b = 0; b < K; b++) if (b != a && s.st[b] == HELD) t.flag = 1;
    emit(t, act(HOLD, a, 0));
  }
  const char* bad(const S& s) const {
    return s.flag == 1 ? "M: two clients believe they hold the lock" : s.flag == 2 ? "X: a lease was resumed twice"
         : s.flag == 3 ? "R: a later holder got a fence that is not larger" : nullptr;
  }
  std::string show(uint32_t x, const S&, const S&) const {
    static const char* what[] = {"starts, asks all nodes", "gets node", "a key ends on node", "the old acquire comes late to node", "HOLDS", "gives up / finishes; sends release", "releases node"};
    const uint32_t t = x & 255; char b[100];
    if (t == GONE || t == LATE) snprintf(b, 100, "%s %c", what[t], '1' + (x >> 16 & 255));
    else snprintf(b, 100, t == ACQ || t == DEL ? "%c %s %c" : "%c %s", 'A' + (x >> 8 & 255), what[t], '1' + (x >> 16 & 255));
    return b;
  }
  std::string dump(const S& s) const {
    std::string o = "nodes:";
    for (const Col& c : s.c) o += text(" [lock=%c ctr=%d]", c.owner == OLD ? '*' : c.owner ? 'A' + c.owner - 1 : '-', c.ctr);
    return o;
  }
};
