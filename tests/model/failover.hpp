// Model F: a primary that watchers (Sentinels, or the primaries of a Cluster) may replace.
// Discrete time, as in timing.hpp.
//
//  * The watchers are one voice here: two majorities share a member, and no member goes back to an older
//    answer.  A client that asks them either has its primary confirmed or moves to the new one.
//  * A client sends only while its last confirmation is at most CONF ticks old.  Asking may stop at any
//    time (a partition); the old primary lives on, and executes whatever reaches it, as late as it likes.
//  * A replica copies its primary's data at any time or never, and writes nothing else.  It may be away and
//    come back.
//  * A new primary extends a lease that was replicated to it, but not before CONF ticks have passed since it
//    was first met: until then the old one may grant the name to somebody else.
//  * The mark is part of the data.  Where it names another primary, or another term of the same one, the
//    server doesn't vote for QUAR ticks from the first client that meets it.
#pragma once
#include "engine.hpp"

struct FailCfg {
  int belief = 2;             // ticks a lease lasts after it was asked for; keys live as long at least
  int conf = 1;               // ticks a confirmation counts
  int quar = 3;               // belief + conf
  int failovers = 1;
  bool confirm = true;        // naive off: an open connection goes on for ever
  bool wait = true;           // naive off: a new primary's extend counts at once, where its key was replicated
  bool late = false;          // naive: an answer that comes after the confirmation counts
  bool term = true;           // naive off: the mark names the process alone
  bool acks_all = false;      // a grant counts once all attached replicas have it
  bool complete = false;      // naive: then a new primary whose mark says so votes at once
};

template <int N, int K> struct FailModel : Model {
  enum : uint8_t { IDLE, RUN, HELD, OVER };
  struct Srv { uint8_t owner, age, mark, quar, fresh, follows, away; };
  struct Cli { uint8_t st, e, srv, term, conf, exe, ext, e2; };
  struct S { Srv s[N]; Cli c[K]; uint8_t named, terms; };
  FailCfg cfg;
  explicit FailModel(FailCfg c) : cfg(c) {}
  uint8_t mark_of(const S& s) const { return cfg.term ? s.terms + 1 : s.named + 1; }
  S init() const {
    S s; memset(&s, 0, sizeof s);
    for (int j = 0; j < N; j++) s.s[j].mark = 1;   // the first primary has been known for long
    return s;
  }
  void canon(S& s) const {
    for (int a = 0; a < K; a++) {
      Cli& c = s.c[a];
      if (c.st == OVER) c.e = c.conf = c.srv = c.term = c.ext = c.e2 = 0;
      if (!c.ext) c.e2 = 0;
    }
  }
  bool believes(const Cli& c) const { return c.st == HELD && c.e < cfg.belief; }
  bool may_send(const Cli& c) const { return !cfg.confirm || c.conf <= cfg.conf; }
  bool may_count(const Cli& c) const { return cfg.late || may_send(c); }
  bool acknowledged(const S& s, int a) const {
    int p = s.c[a].srv;
    for (int j = 0; j < N; j++)
      if (j != p && s.s[j].follows == p && !s.s[j].away && s.s[j].owner != a + 1) return false;
    return true;
  }
  enum : uint32_t { TICK, ASK, NAME, COPY, AWAY, FOLLOW, START, ACQ, DECIDE, EXT, EXTN, STOP, EXPIRE };

  template <class F> void next(const S& s, F emit) const {
    {
      S t = s;
      for (int j = 0; j < N; j++) { Srv& v = t.s[j]; if (v.owner && v.age < cfg.belief) v.age++; if (v.quar) v.quar--; if (v.fresh) v.fresh--; }
      for (int a = 0; a < K; a++) {
        Cli& c = t.c[a];
        if (c.st != OVER && c.conf <= cfg.conf) c.conf++;
        if (c.st == RUN || c.st == HELD) { if (++c.e >= cfg.belief) c.st = OVER; }
        if (c.ext && c.e2 < cfg.belief) c.e2++;
      }
      emit(t, act(TICK, 0, 0));
    }
    for (int a = 0; a < K; a++) {
      const Cli& c = s.c[a];
      if (c.st != OVER) {   // asks the watchers
        S t = s; Cli& d = t.c[a];
        if (c.srv != s.named || (cfg.term && c.term != s.terms)) {   // a new connection
          d.srv = s.named; d.term = s.terms; d.ext = 0; if (c.st == RUN) d.st = OVER;
        }
        d.conf = 0;
        Srv& v = t.s[s.named];
        if (v.mark != mark_of(s)) { v.mark = mark_of(s); v.quar = cfg.complete ? 0 : cfg.quar; v.fresh = cfg.wait ? cfg.conf : 0; }
        emit(t, act(ASK, a, s.named));
      }
      if (c.st == IDLE && may_send(c) && !s.s[c.srv].quar) { S t = s; t.c[a].st = RUN; t.c[a].e = 0; emit(t, act(START, a, c.srv)); }
      const Srv& v = s.s[c.srv];
      if (c.st == RUN && !c.exe && !v.owner && v.follows == c.srv) { S t = s; t.c[a].exe = 1; t.s[c.srv].owner = a + 1; t.s[c.srv].age = 0; emit(t, act(ACQ, a, c.srv)); }
      if (c.st == RUN && c.exe && may_count(c) && (!cfg.acks_all || acknowledged(s, a))) { S t = s; t.c[a].st = HELD; emit(t, act(DECIDE, a, c.srv)); }
      if (c.st == HELD && !c.ext && may_send(c) && !v.fresh) { S t = s; t.c[a].ext = 1; t.c[a].e2 = 0; emit(t, act(EXT, a, c.srv)); }
      if (c.st == HELD && c.ext && v.owner == a + 1 && v.follows == c.srv && may_count(c) && c.e2 < cfg.belief) {
        S t = s; t.c[a].e = c.e2; t.c[a].ext = t.c[a].e2 = t.s[c.srv].age = 0; emit(t, act(EXTN, a, c.srv));
      }
      if (c.st == RUN || c.st == HELD) { S t = s; t.c[a].st = OVER; emit(t, act(STOP, a, 0)); }
    }
    for (int j = 0; j < N; j++) {
      const Srv& v = s.s[j];
      if (v.owner && v.age >= cfg.belief) { S t = s; t.s[j].owner = t.s[j].age = 0; emit(t, act(EXPIRE, 0, j)); }
      if (v.follows != j && !v.away) {
        const Srv& p = s.s[v.follows];
        if (p.owner != v.owner || p.age != v.age || p.mark != v.mark) {
          S t = s; Srv& d = t.s[j]; d.owner = p.owner; d.age = p.age; d.mark = p.mark; emit(t, act(COPY, 0, j));
        }
      }
      if (cfg.acks_all && v.follows != j) { S t = s; t.s[j].away ^= 1; emit(t, act(AWAY, 0, j)); }
      if (s.terms < cfg.failovers && j != s.named && !v.away) {   // a replica, or a former primary that nobody has told
        S t = s; t.named = j; t.terms++; t.s[j].follows = j; emit(t, act(NAME, 0, j));
      }
      if (j != s.named && v.follows != s.named) {
        S t = s; t.s[j].follows = s.named;
        for (int a = 0; a < K; a++)                  // demoting a primary closes its connections
          if (v.follows == j && s.c[a].srv == j) { Cli& d = t.c[a]; if (d.st == RUN) d.st = OVER; d.ext = 0; d.conf = cfg.conf + 1; }
        emit(t, act(FOLLOW, 0, j));
      }
    }
  }
  const char* bad(const S& s) const { return alone(K, [&](int a) { return believes(s.c[a]); }); }
  std::string show(uint32_t x, const S&, const S& t) const {
    const auto [kind, a, j, v, A, n] = Step(x);
    switch (kind) {
      case TICK: return "-- tick";
      case ASK: return text("%c asks the watchers: server %c is the primary%s", A, n, t.s[j].quar ? " (quarantined)" : "");
      case NAME: return text("the watchers name server %c", n);
      case COPY: return text("server %c copies its primary", n);
      case AWAY: return text("server %c %s", n, t.s[j].away ? "goes away" : "comes back");
      case FOLLOW: return text("server %c follows the named primary", n);
      case START: return text("%c sends acquire to server %c", A, n);
      case ACQ: return text("server %c executes %c's acquire", n, A);
      case DECIDE: return text("%c HOLDS", A);
      case EXT: return text("%c sends extend to server %c", A, n);
      case EXTN: return text("server %c executes %c's extend", n, A);
      case STOP: return text("%c finishes", A);
      case EXPIRE: return text("lock key expires on server %c", n);
      default: return "?";
    }
  }
  std::string dump(const S& s) const {
    std::string o = "servers:";
    for (int j = 0; j < N; j++) o += text(" [lock=%c age=%d mark=%d%s%s]", s.s[j].owner ? 'A' + s.s[j].owner - 1 : '-', s.s[j].age, s.s[j].mark, s.s[j].quar ? " quar" : "", s.named == j ? " named" : "");
    o += "  holders:";
    for (int a = 0; a < K; a++) if (believes(s.c[a])) o += text(" %c(%d since start)", 'A' + a, s.c[a].e);
    return o;
  }
};
