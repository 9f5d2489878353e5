// Model F, G (heirs): a promoted replica that serves at once, because a client knows that it has every grant.
// Discrete time and one voice of the watchers, as in failover.hpp.
//
//  * The data of a primary list names of replicas: members, and those that leave.  A grant or an extension
//    counts once the primary has seen each listed replica acknowledge it.  Names are added or begin to leave
//    at any time; those that leave are dropped once the list has been the same for `apart` ticks.
//  * A client looks at the list at any time.  A look proves the members that have acknowledged everything up
//    to an earlier look, if the list was the same in between.
//  * A client believes an heir if a look at the term right before is recent enough, and proves the heir, whose
//    process ran at the earlier look already.  Then only confirmations have to run out.  For any other client
//    the heir waits, as in failover.hpp.
//  * A term begins with an empty list.
//  * The primary's record of what a replica has acknowledged may outlive the replica's process.
//  * A client that asks for fewer acknowledgements closes the list for the term, and waits for `apart` ticks.
//  * A client confirms the present primary all the time, which permits the most; after that its confirmation ages.
#pragma once
#include "engine.hpp"

struct HeirCfg {
  int belief = 3;             // ticks a lease lasts after it was asked for; keys live as long at least
  int conf = 1;               // ticks a confirmation counts
  int quar = 4;               // belief + conf
  int apart = 3;              // ticks for which a list without the dropped names was seen
  int recent = 2;             // ticks for which a look counts, the confirmations of others included
  int failovers = 1;
  int restarts = 0;           // replicas that restart with data from before the lock, at any time
  int lookers = 2;            // the clients that look, as a mask
  int first = 6;              // the members at the start, as a mask
  bool moves = true;          // off, for fewer states: the list stays as it is
  bool extends = false;
  bool fewer = false;         // the first client asks for no acknowledgements
  bool leaving = true;        // naive off: a name that leaves need not acknowledge any more
  bool named = true;          // naive off: any replicas acknowledge, as many as are listed
  bool same_process = true;   // naive off: the heir may have restarted
  bool looked_since = true;   // naive off: a look proves all members that the primary lists
  bool voting = true;         // naive off: a look counts at a primary that does not vote yet
  bool own_look = true;       // naive off: the list in the heir's own data is believed
  bool next_term = true;      // naive off: the look may be at any earlier term
  bool closers = false;       // clients with fewer acknowledgements close lists at any time, and do nothing else
  bool closing_lists = true;  // naive off: a closed list names nobody
  bool ext_acks = true;       // naive off: extensions count without acknowledgements
  bool closes = true;         // naive off: a client with fewer acknowledgements leaves the list as it is
  bool closing_waits = true;  // naive off: ... and grants at once
  bool unchanged = true;      // naive off: the list may have changed between the two looks
  bool lag = true;            // naive off: a believed heir votes before confirmations have run out
};

template <int N, int K> struct HeirModel : Model {
  enum : uint8_t { IDLE, RUN, HELD, OVER };
  struct Srv { uint8_t owner, age, term, in, out, closed, same, quar, fresh, follows; };
  struct Cli { uint8_t st, e, srv, term, conf, exe, need, rec, ext, e2, saw, ran, looked, lage, lterm, proved, lran, bel, wait; };
  struct S { Srv s[N]; Cli c[K]; uint8_t named, terms, restarts; };
  HeirCfg cfg;
  explicit HeirModel(HeirCfg c) : cfg(c) {}
  static constexpr uint8_t ALL = (1 << N) - 1, NEVER = 128;
  S init() const {
    S s; memset(&s, 0, sizeof s);
    for (Srv& v : s.s) { v.term = 1; v.in = cfg.first; }       // the first primary has been known for long
    if (cfg.fewer) { s.c[0].term = 255; s.c[0].conf = cfg.conf + 1; }  // connects later
    return s;
  }
  bool fewer(int a) const { return cfg.fewer && a == 0; }
  static void swap(uint8_t& x, bool mask) { if (mask) x = (x & 1) | (x & 2) << 1 | (x & 4) >> 1; else if (x) x = 3 - x; }
  void tidy(S& s) const {                                      // forgets what can make no difference any more
    for (int a = 0; a < K; a++) {
      Cli& c = s.c[a];
      if (c.st == HELD) { c.exe = 0; if (c.e >= cfg.belief) c.st = OVER; }
      if (c.st == OVER) { const uint8_t term = c.term, srv = c.srv; memset(&c, 0, sizeof c); c.st = OVER; c.term = term; c.srv = srv; }
      if (!c.ext) c.e2 = 0;
      if (!c.exe && c.ext < 2) c.need = c.rec = 0;
      if (c.st != IDLE) c.saw = c.lage = c.lterm = c.proved = c.lran = c.bel = c.wait = 0;   // it acquires once, and needs no looks any more
      if (!c.proved || c.lage > cfg.recent) c.lage = c.lterm = c.proved = c.lran = 0;
      if (!c.saw) c.ran = c.looked = 0;
      else if (cfg.unchanged) c.looked &= s.s[c.srv].in;
      c.rec &= cfg.named ? c.need : ALL;
      if (c.st == OVER) c.term = c.srv = 0;
    }
    for (int j = 0; j < N; j++) {
      Srv& v = s.s[j];
      if (cfg.own_look && v.follows != j) v.in = v.out = v.closed = 0;   // nobody reads a copy of the list
      if (v.follows != j || !v.out) v.same = 0;
    }
  }
  void canon(S& s) const {                                     // servers 2 and 3 are alike
    if (N < 3) return;
    S t = s;
    t.s[1] = s.s[N - 1]; t.s[N - 1] = s.s[1];
    for (Srv& v : t.s) { swap(v.in, true); swap(v.out, true); swap(v.follows, false); }
    for (Cli& c : t.c) { swap(c.srv, false); if (c.need != NEVER) swap(c.need, true); for (uint8_t* m : {&c.rec, &c.ran, &c.looked, &c.proved, &c.lran}) swap(*m, true); }
    swap(t.named, false);
    if (memcmp(&t, &s, sizeof s) < 0) s = t;
  }
  bool believes(const Cli& c) const { return c.st == HELD && c.e < cfg.belief; }
  bool confirmed(const Cli& c) const { return c.conf <= cfg.conf; }
  bool enough(const Cli& c) const {
    return cfg.named ? (c.rec & c.need) == c.need : __builtin_popcount(c.rec) >= __builtin_popcount(c.need);
  }
  bool trusts(const Cli& c, const Srv& h, int j, uint8_t terms) const {
    if (!cfg.own_look) return h.term == terms && h.in >> j & 1;
    if (!(c.proved >> j & 1) || (cfg.next_term && c.lterm != terms) || c.lage + cfg.conf > cfg.recent) return false;
    return !cfg.same_process || c.lran >> j & 1;
  }
  enum : uint32_t { TICK, ASK, NAME, COPY, FOLLOW, START, ACQ, DECIDE, EXT, EXTX, EXTN, EXPIRE, OLDER, LOOK, PROVE, ADD, LEAVE, DROP, CLOSE };
  static void up(uint8_t& x, int most) { if (x < most) x++; }
  void close(S& s, int j) const {
    Srv& v = s.s[j];
    v.closed = 1; v.out = cfg.closing_lists ? v.in | v.out : 0; v.in = 0; changed(s, j);
  }
  void changed(S& s, int j) const {
    s.s[j].same = 0;
    for (Cli& c : s.c) if (c.srv == j && cfg.unchanged) c.saw = 0;
  }

  template <class F> void next(const S& s, F each) const {
    auto emit = [&](S t, uint32_t action) { tidy(t); each(t, action); };
    {
      S t = s;
      for (Srv& v : t.s) { if (v.owner) up(v.age, cfg.belief); if (v.quar) v.quar--; if (v.fresh) v.fresh--; up(v.same, cfg.apart); }
      for (Cli& c : t.c) {
        if (c.st == RUN || c.st == HELD) up(c.e, cfg.belief);
        if (c.ext) up(c.e2, cfg.belief);
        if (c.term != s.terms) up(c.conf, cfg.conf + 1);
        if (c.proved) up(c.lage, cfg.recent + 1);
        if (c.wait) c.wait--;
      }
      emit(t, act(TICK, 0, 0));
    }
    for (int a = 0; a < K; a++) {
      const Cli& c = s.c[a];
      if (c.st == OVER) continue;
      const Srv& v = s.s[c.srv];
      const bool primary = v.follows == c.srv;
      if (c.srv != s.named || c.term != s.terms || c.conf) {   // asks the watchers, and connects
        S t = s; Cli& d = t.c[a]; Srv& h = t.s[s.named];
        d.bel = !fewer(a) && s.terms && trusts(c, h, s.named, s.terms);
        d.srv = s.named; d.term = s.terms; d.conf = d.ext = d.saw = 0; if (c.st == RUN) d.st = OVER;
        if (h.term != s.terms + 1) {
          h.term = s.terms + 1; h.quar = cfg.quar; h.fresh = cfg.conf + 1; h.in = h.out = 0; h.closed = fewer(a) && cfg.closes;
          changed(t, s.named);
        } else if (fewer(a) && !h.closed) {
          if (cfg.closes) close(t, s.named);
          if (cfg.closing_waits) d.wait = cfg.apart;
        }
        emit(t, act(ASK, a, s.named));
      }
      const bool votes = !v.quar || (c.bel && !(cfg.lag && v.fresh));
      if (c.st == IDLE && confirmed(c) && !c.wait && votes) { S t = s; t.c[a].st = RUN; t.c[a].e = 0; emit(t, act(START, a, c.srv)); }
      const uint8_t list = cfg.leaving ? v.in | v.out : v.in, need = fewer(a) ? 0 : v.term == c.term + 1 ? list : NEVER;
      if (c.st == RUN && !c.exe && !v.owner && primary) { S t = s; Cli& d = t.c[a]; d.exe = 1; d.need = need; d.rec = 0; t.s[c.srv].owner = a + 1; t.s[c.srv].age = 0; emit(t, act(ACQ, a, c.srv)); }
      if (c.st == RUN && c.exe && confirmed(c) && enough(c)) { S t = s; t.c[a].st = HELD; emit(t, act(DECIDE, a, c.srv)); }
      if (cfg.extends && c.st == HELD && !c.ext && confirmed(c) && !v.fresh) { S t = s; t.c[a].ext = 1; t.c[a].e2 = 0; emit(t, act(EXT, a, c.srv)); }
      if (c.st == HELD && c.ext == 1 && v.owner == a + 1 && primary) { S t = s; Cli& d = t.c[a]; d.ext = 2; d.need = need; d.rec = 0; t.s[c.srv].age = 0; emit(t, act(EXTX, a, c.srv)); }
      if (c.st == HELD && c.ext == 2 && confirmed(c) && c.e2 < cfg.belief && (!cfg.ext_acks || enough(c))) { S t = s; Cli& d = t.c[a]; d.e = c.e2; d.ext = d.e2 = 0; emit(t, act(EXTN, a, c.srv)); }
      if (c.st != IDLE || !(cfg.lookers >> a & 1) || !primary || v.term != c.term + 1 || !confirmed(c) || v.closed) continue;
      { S t = s; Cli& d = t.c[a]; d.saw = 1; d.ran = ALL; d.looked = 0; emit(t, act(LOOK, a, c.srv)); }
      const uint8_t proved = cfg.looked_since ? v.in & c.looked : v.in;
      if (c.saw && proved && (votes || !cfg.voting)) { S t = s; Cli& d = t.c[a]; d.proved = proved; d.lterm = c.term + 1; d.lage = 0; d.lran = c.ran; emit(t, act(PROVE, a, c.srv)); }
    }
    for (int j = 0; j < N; j++) {
      const Srv& v = s.s[j];
      if (v.owner && v.age >= cfg.belief) { S t = s; t.s[j].owner = t.s[j].age = 0; emit(t, act(EXPIRE, 0, j)); }
      if (cfg.closers && v.follows == j && !v.closed) { S t = s; close(t, j); emit(t, act(CLOSE, j, 0)); }
      if (cfg.moves && v.follows == j) {                       // any client changes the list
        for (int i = 0; i < N; i++) {
          if (!v.closed && s.s[i].follows == j && i != j && !(v.in >> i & 1)) { S t = s; Srv& p = t.s[j]; p.in |= 1 << i; p.out &= ~(1 << i); changed(t, j); emit(t, act(ADD, j, i)); }
          if (v.in >> i & 1) { S t = s; Srv& p = t.s[j]; p.in &= ~(1 << i); p.out |= 1 << i; changed(t, j); emit(t, act(LEAVE, j, i)); }
        }
        if (v.out && v.same >= cfg.apart) { S t = s; t.s[j].out = 0; changed(t, j); emit(t, act(DROP, j, 0)); }
      }
      if (v.follows != j) {
        const Srv& p = s.s[v.follows];
        S t = s; Srv& d = t.s[j];
        d.owner = p.owner; d.age = p.age; d.term = p.term; d.in = p.in; d.out = p.out; d.closed = p.closed;
        for (Cli& c : t.c) if (c.srv == v.follows) { if (c.exe || c.ext == 2) c.rec |= 1 << j; if (c.saw) c.looked |= 1 << j; }
        if (memcmp(&t, &s, sizeof s)) emit(t, act(COPY, 0, j));
      }
      if (s.restarts < cfg.restarts && v.follows != j && j != s.named) {
        S t = s; Srv& d = t.s[j]; t.restarts++; d.owner = d.age = 0;
        for (Cli& c : t.c) { c.ran &= ~(1 << j); c.lran &= ~(1 << j); }
        emit(t, act(OLDER, 0, j));
      }
      if (s.terms < cfg.failovers && j != s.named) {           // a replica, or a former primary that nobody has told
        S t = s; t.named = j; t.terms++; t.s[j].follows = j; emit(t, act(NAME, 0, j));
      }
      if (j != s.named && v.follows != s.named) {
        S t = s; t.s[j].follows = s.named;
        for (Cli& d : t.c)                                     // demoting a primary closes its connections
          if (v.follows == j && d.srv == j) { if (d.st == RUN) d.st = OVER; d.ext = 0; d.conf = cfg.conf + 1; }
        emit(t, act(FOLLOW, 0, j));
      }
    }
  }
  const char* bad(const S& s) const { return alone(K, [&](int a) { return believes(s.c[a]); }); }
  std::string show(uint32_t x, const S&, const S& t) const {
    const auto [kind, a, j, v, A, n] = Step(x);
    switch (kind) {
      case TICK: return "-- tick";
      case ASK: return text("%c asks the watchers: server %c is the primary%s%s", A, n, t.s[j].quar ? " (quarantined)" : "", t.c[a].bel ? ", and believed" : "");
      case NAME: return text("the watchers name server %c", n);
      case COPY: return text("server %c copies its primary", n);
      case FOLLOW: return text("server %c follows the named primary", n);
      case START: return text("%c sends acquire to server %c", A, n);
      case ACQ: return text("server %c executes %c's acquire", n, A);
      case DECIDE: return text("%c HOLDS", A);
      case EXT: return text("%c sends extend to server %c", A, n);
      case EXTX: return text("server %c executes %c's extend, which is not acknowledged yet", n, A);
      case EXTN: return text("%c's extend at server %c is acknowledged", A, n);
      case OLDER: return text("server %c restarts with data from before the lock", n);
      case LOOK: return text("%c looks at server %c", A, n);
      case PROVE: return text("%c looks at server %c again, which proves%s%s%s", A, n, t.c[a].proved & 1 ? " 1" : "", t.c[a].proved & 2 ? " 2" : "", t.c[a].proved & 4 ? " 3" : "");
      case ADD: return text("server %c lists server %c", '1' + a, n);
      case LEAVE: return text("server %c begins to leave server %c's list", n, '1' + a);
      case DROP: return text("server %c drops the names that leave its list", '1' + a);
      case CLOSE: return text("somebody who asks for fewer acknowledgements closes the list of server %c", '1' + a);
      case EXPIRE: return text("lock key expires on server %c", n);
      default: return "?";
    }
  }
  std::string dump(const S& s) const {
    std::string o = "servers:";
    for (int j = 0; j < N; j++) {
      const Srv& v = s.s[j];
      o += text(" [lock=%c age=%d term=%d in=%d out=%d%s%s]", v.owner ? 'A' + v.owner - 1 : '-', v.age, v.term, v.in, v.out, v.quar ? " quar" : "", s.named == j ? " named" : "");
    }
    o += "  holders:";
    for (int a = 0; a < K; a++) if (believes(s.c[a])) o += text(" %c(%d since start)", 'A' + a, s.c[a].e);
    return o;
  }
};
