// Model M: mutual exclusion under bounded timing.  Discrete time; one tick = the resolution.
//
//  * A lock key written at tick x may expire from tick x+TTL_LO on (TTL_LO = shortest true life of a
//    key: the TTL as counted by the fastest node clock), or live for ever (slow clock, long TTL).
//  * A client believes in its lock while fewer than BELIEF true ticks passed since it STARTED the
//    attempt (BELIEF = longest true time that its validity can last on the slowest client clock).
//    The drift margin is what makes BELIEF <= TTL_LO.
//  * Requests are delivered at any later time or never, in any order (zombie acquires included).
//  * It returns as soon as Q counting grants have come (early quorum), stragglers are left behind.
#pragma once
#include <algorithm>
#include "engine.hpp"

struct TimeCfg {
  int ttl_lo = 3, belief = 3;
  bool from_end = false;      // naive: validity counted from the end of the acquisition
  bool check_belief = true;   // naive off: does not compare elapsed time with validity on decision
  int crashes = 0, jumps = 0; // amnesia restarts / forward clock jumps
  int quar = 0;               // ticks a restarted (jumped) node does not vote; 0 = no guard
  bool ext = false;           // holders may extend, any number of times
  enum Repair { NONE, UNCOUNTED, COUNTED } repair = NONE;  // extend re-creates a missing key
  // Whether the extend of a quarantined node counts: never; where its grant counted, so that it has
  // not forgotten this key since; or always (naive: an acquire that came late may have set the key).
  enum QuarExt { NEVER, WHERE_GRANTED, ALWAYS } quar_ext = NEVER;
  // A holder asks a node that has lost its key and may vote to take it back, at most this many times. From
  // the counted answer on the node counts again as one that granted it, also while it is quarantined,
  // if it counted so before; else an earlier request may still be on its way to it.
  int restores = 0;
  bool no_vote = false;       // a node in quarantine is not sent the acquire, and only such nodes, or those
                              // in quarantine when the lease was won, are asked to take the key
  bool begun = false;         // the search begins where A has asked all nodes and one has just restarted
  bool restore_quar = false;  // naive: also a node in quarantine, and its answer counts
  bool restore_any = false;   // naive: over somebody else's key
  bool restore_fresh = false; // naive: validity of the round under way counts from the restored key's answer
  bool restore_doubt = true;  // naive off: counts although an earlier request may still be on its way
  bool late_ext = false;      // naive: accepts an extension that completes after validity ended
  bool ext_any = false;       // naive: extend ack not checked for ownership (plain PEXPIRE)
  bool del_any = false;       // naive: release deletes without comparing the owner
  // zombie grants (a liveness matter): what orders a late acquire after its own release?
  bool zcheck = false;        // property Z: after its (last) release ran on a node, an attempt owns nothing there
  bool fifo = false;          // both travel on one connection
  int deadline = 0;           // acquire carries a deadline in ticks since the start of the attempt; the
                              // release that counts is the one sent after that deadline
};

template <int N, int K> struct TimedModel : Model {
  enum : uint8_t { IDLE, RUN, HELD, OVER };
  static constexpr int Q = N / 2 + 1;
  // per node: owner, age of the key (capped), quarantine left; per attempt bits: acq executed+counted,
  // acq executed, release executed, ext ack (counted), ext executed
  // res: a restore is on its way; dbt: it is not the first request there; two: several are on their way;
  // out: it had no vote in the attempt
  struct Col { uint8_t owner, age, quar, grant, exe, rel, eack, eexe, res, dbt, two, out; };
  struct S { Col c[N]; uint8_t st[K], e[K], ext[K], e2[K]; uint8_t crash, jump, res; };
  TimeCfg cfg;
  explicit TimedModel(TimeCfg c) : cfg(c) {}
  S init() const {
    S s; memset(&s, 0, sizeof s); s.crash = cfg.crashes; s.jump = cfg.jumps; s.res = cfg.restores;
    if (cfg.begun) s.st[0] = RUN, s.c[0].quar = cfg.quar;
    return s;
  }
  void canon(S& s) const {
    for (int a = 0; a < K; a++) {            // forget what can no longer matter
      uint8_t off = ~(1 << a);
      if (s.st[a] == OVER) for (int j = 0; j < N; j++) s.c[j].dbt &= off;
      if (s.st[a] == OVER || !s.res) for (int j = 0; j < N; j++) s.c[j].out &= off;
      if (s.st[a] == OVER) { s.ext[a] = s.e2[a] = 0; if (!cfg.deadline) s.e[a] = 0; for (int j = 0; j < N; j++) s.c[j].grant &= off, s.c[j].eack &= off, s.c[j].eexe &= off; }
      if (s.st[a] == HELD && cfg.quar_ext != TimeCfg::WHERE_GRANTED) for (int j = 0; j < N; j++) s.c[j].grant &= off;
    }
    std::sort(s.c, s.c + N, [](const Col& a, const Col& b) { return memcmp(&a, &b, sizeof a) < 0; });
  }
  bool counts(const Col& c, int a) const {
    return !c.quar || cfg.quar_ext == TimeCfg::ALWAYS || (cfg.quar_ext == TimeCfg::WHERE_GRANTED && (c.grant >> a & 1));
  }
  bool believes(const S& s, int a) const { return s.st[a] == HELD && s.e[a] < cfg.belief; }
  enum : uint32_t { START, ACQ, EXPIRE, DECIDE, TICK, STOP, REL, EXT, EXTN, EXTOK, CRASH, JUMP, ASK, BACK };

  template <class F> void next(const S& s, F emit) const {
    { // --- one tick passes everywhere
      S t = s;
      for (int j = 0; j < N; j++) {
        Col& c = t.c[j];
        if (c.owner && c.age < cfg.ttl_lo) c.age++;
        if (c.quar) c.quar--;
      }
      for (int a = 0; a < K; a++) {
        if ((t.st[a] == RUN || t.st[a] == HELD || (cfg.deadline && t.st[a] == OVER)) && t.e[a] < std::max(cfg.belief, cfg.deadline) + 1) t.e[a]++;
        if (t.ext[a] && t.e2[a] < cfg.belief + 1) t.e2[a]++;
        if (cfg.check_belief && t.st[a] == RUN && t.e[a] >= cfg.belief) t.st[a] = OVER;       // cannot succeed any more
        if (!cfg.late_ext && t.st[a] == HELD && t.e[a] >= cfg.belief) t.st[a] = OVER;         // lock lost, client knows
        if (cfg.late_ext && t.st[a] == HELD && t.e[a] >= cfg.belief && !(t.ext[a] && t.e2[a] < cfg.belief)) t.st[a] = OVER;
        if (t.st[a] == OVER) t.ext[a] = 0;
      }
      emit(t, act(TICK, 0, 0));
    }
    for (int a = 0; a < K; a++) {
      uint8_t bit = 1 << a;
      if (s.st[a] == IDLE) {
        if (a && s.st[a - 1] == IDLE) continue;
        S t = s; t.st[a] = RUN; t.e[a] = 0;
        for (int j = 0; j < N && cfg.no_vote; j++) if (s.c[j].quar) t.c[j].out |= bit, t.c[j].exe |= bit;
        emit(t, act(START, a, 0));
        continue;
      }
      int grants = 0, eacks = 0;
      for (int j = 0; j < N; j++) {
        const Col& c = s.c[j];
        grants += c.grant >> a & 1; eacks += c.eack >> a & 1;
        if (!(c.exe & bit) && !c.owner && !(cfg.fifo && (c.rel & bit)) && !(cfg.deadline && s.e[a] > cfg.deadline)) {  // acquire executed (maybe as a zombie)
          S t = s; Col& d = t.c[j];
          d.owner = a + 1; d.age = 0; d.exe |= bit;
          if (!c.quar && !(cfg.restores && s.st[a] == HELD)) d.grant |= bit;  // too late to be counted on
          emit(t, act(ACQ, a, j, c.quar != 0));
        }
        if (s.st[a] == OVER && !(c.rel & bit) && (!cfg.deadline || s.e[a] > cfg.deadline)) {   // release executed
          S t = s; t.c[j].rel |= bit;
          if (c.owner == a + 1 || (cfg.del_any && c.owner)) { t.c[j].owner = 0; t.c[j].age = 0; }
          emit(t, act(REL, a, j));
        }
        if (s.res && believes(s, a) && c.owner != a + 1 && (!c.quar || cfg.restore_quar) && (!cfg.no_vote || (c.out & bit))) {
          S t = s; Col& d = t.c[j]; t.res--;                    // restore asked for
          if (!(d.grant & bit)) d.dbt |= bit;
          if (d.res & bit) d.two |= bit;
          d.res |= bit; d.grant &= ~bit;
          emit(t, act(ASK, a, j));
        }
        if ((c.res & bit) && (!c.owner || c.owner == a + 1 || cfg.restore_any) && !(cfg.fifo && (c.rel & bit))) {
          for (int counted = 0; counted < 2; counted++) {       // ... and executed; its answer counts, or is lost
            bool may = s.st[a] == HELD && (!c.quar || cfg.restore_quar) && (!cfg.restore_doubt || !(c.dbt & bit));
            if (counted && !may) continue;
            S t = s; Col& d = t.c[j]; d.owner = a + 1; d.age = 0;
            if (!(c.two & bit)) d.res &= ~bit;
            if (counted) {
              d.grant |= bit;
              if (cfg.restore_fresh && t.ext[a]) t.e2[a] = 0, d.eack |= bit;
            }
            emit(t, act(BACK, a, j, counted));
          }
        }
        if (s.ext[a] && !(c.eexe & bit)) {                      // extend executed
          if (c.owner == a + 1 || (cfg.ext_any && c.owner)) {
            S t = s; Col& d = t.c[j]; d.age = 0; d.eexe |= bit; if (counts(c, a)) d.eack |= bit;
            emit(t, act(EXTN, a, j, 0));
          } else if (!c.owner && cfg.repair != TimeCfg::NONE) {
            S t = s; Col& d = t.c[j]; d.owner = a + 1; d.age = 0; d.eexe |= bit;
            if (cfg.repair == TimeCfg::COUNTED && !c.quar) d.eack |= bit;
            emit(t, act(EXTN, a, j, 1));
          }
        }
      }
      if (s.st[a] == RUN && grants >= Q && (!cfg.check_belief || s.e[a] < cfg.belief)) {
        S t = s; t.st[a] = HELD; if (cfg.from_end) t.e[a] = 0;
        for (int j = 0; j < N && cfg.no_vote; j++) if (s.c[j].quar) t.c[j].out |= bit;
        if (t.e[a] >= cfg.belief) t.e[a] = cfg.belief - 1;      // (check_belief off: believes it for one tick at least)
        emit(t, act(DECIDE, a, 0));
      }
      if (s.st[a] == RUN || s.st[a] == HELD) { S t = s; t.st[a] = OVER; t.ext[a] = 0; emit(t, act(STOP, a, 0)); }
      if (cfg.ext && s.st[a] == HELD && !s.ext[a] && s.e[a] < cfg.belief) {
        S t = s; t.ext[a] = 1; t.e2[a] = 0;
        for (int j = 0; j < N; j++) t.c[j].eack &= ~bit, t.c[j].eexe &= ~bit;
        emit(t, act(EXT, a, 0));
      }
      if (s.ext[a] && eacks >= Q && s.e2[a] < cfg.belief) {
        S t = s; t.ext[a] = 0; t.e[a] = s.e2[a]; t.e2[a] = 0;
        for (int j = 0; j < N; j++) t.c[j].eack &= ~bit, t.c[j].eexe &= ~bit;
        emit(t, act(EXTOK, a, 0));
      }
    }
    for (int j = 0; j < N; j++) {
      const Col& c = s.c[j];
      if (c.owner && c.age >= cfg.ttl_lo) { S t = s; t.c[j].owner = 0; t.c[j].age = 0; emit(t, act(EXPIRE, 0, j)); }
      if (s.crash) { S t = s; t.crash--; t.c[j].owner = 0; t.c[j].age = 0; t.c[j].quar = cfg.quar; emit(t, act(CRASH, 0, j)); }
      if (s.jump) { S t = s; t.jump--; t.c[j].owner = 0; t.c[j].age = 0; t.c[j].quar = cfg.quar; emit(t, act(JUMP, 0, j)); }
    }
  }
  const char* bad(const S& s) const {
    if (cfg.zcheck)
      for (int j = 0; j < N; j++) for (int a = 0; a < K; a++)
        if ((s.c[j].rel >> a & 1) && s.c[j].owner == a + 1) return "Z: a dead attempt owns a node after its release ran there";
    return alone(K, [&](int a) { return believes(s, a); });
  }
  std::string show(uint32_t x, const S&, const S&) const {
    const auto [kind, a, j, v, A, n] = Step(x);
    switch (kind) {
      case START: return text("%c starts, sends acquire to all nodes%s", A, cfg.no_vote ? " that vote" : "");
      case ACQ: return text("node %c executes %c's acquire: granted%s", n, A, v ? " (quarantined: not counted)" : "");
      case EXPIRE: return text("lock key expires on node %c", n);
      case DECIDE: return text("%c HOLDS (a quorum answered)", A);
      case TICK: return "-- tick";
      case STOP: return text("%c gives up / finishes; sends release", A);
      case REL: return text("node %c executes %c's release", n, A);
      case EXT: return text("%c sends extend", A);
      case EXTN: return text("node %c executes %c's extend%s", n, A, v ? " (re-creates the key)" : "");
      case EXTOK: return text("%c has extended", A);
      case ASK: return text("%c asks node %c to take its key%s", A, n, cfg.no_vote ? "" : " back");
      case BACK: return text("node %c takes %c's key%s%s", n, A, cfg.no_vote ? "" : " back", v ? " (counted)" : "");
      case CRASH: return text("node %c restarts with empty memory", n);
      case JUMP: return text("clock of node %c jumps forward, its key expires", n);
      default: return "?";
    }
  }
  std::string dump(const S& s) const {
    std::string o = "nodes:";
    for (int j = 0; j < N; j++) o += text(" [lock=%c age=%d%s]", s.c[j].owner ? 'A' + s.c[j].owner - 1 : '-', s.c[j].age, s.c[j].quar ? " quar" : "");
    o += "  holders:";
    for (int a = 0; a < K; a++) if (believes(s, a)) o += text(" %c(%d since start)", 'A' + a, s.e[a]);
    return o;
  }
};

// Model H: fences when nodes DO lose memory, with time-seeded floors and the restart guard.
// Lock keys vanish at any moment (no TTL assumption).  What is assumed: an attempt decides within ATT
// ticks of its start, floors are wall time +-SKEW, and a restarted node does not vote for QUAR ticks.
struct HybCfg {
  int T = 8, att = 2, skew = 0, quar = 0, crashes = 1, V = 28;
  bool floors = true, rollback = false;
};
template <int N, int K> struct HybridModel : Model {
  enum : uint8_t { IDLE, RUN, PH2, HELD, OVER };
  static constexpr int Q = N / 2 + 1;
  static constexpr uint8_t NC = 255;
  struct Col { uint8_t owner, ctr, quar, v[K], rz; };
  struct S { Col c[N]; uint8_t st[K], e[K], m[K], fence[K], before[K], fl[K]; uint8_t now, crash, flag; };
  HybCfg cfg;
  explicit HybridModel(HybCfg c) : cfg(c) {}
  S init() const { S s; memset(&s, 0, sizeof s); s.now = 1 + cfg.skew; s.crash = cfg.crashes; return s; }
  void canon(S& s) const {
    for (int a = 0; a < K; a++) {
      bool pend = false;
      for (int j = 0; j < N; j++) pend |= !s.c[j].v[a];
      if (!pend) s.fl[a] = 0;
      if (s.st[a] != HELD && s.st[a] != OVER) continue;
      s.before[a] = s.e[a] = 0;
      for (int j = 0; j < N; j++) { if (s.c[j].v[a]) s.c[j].v[a] = 1; s.c[j].rz &= ~(1 << a); }
    }
    std::sort(s.c, s.c + N, [](const Col& a, const Col& b) { return memcmp(&a, &b, sizeof a) < 0; });
  }
  static bool granted(const S& s, int a, int j) { return s.c[j].v[a] && s.c[j].v[a] != NC; }
  enum : uint32_t { START, ACQ, GONE, P2, RAISE, DECIDE, CRASH, TICK };
  template <class F> void next(const S& s, F emit) const {
    if (s.now < cfg.T) {
      S t = s; t.now++;
      for (int j = 0; j < N; j++) if (t.c[j].quar) t.c[j].quar--;
      for (int a = 0; a < K; a++) if (t.st[a] == RUN || t.st[a] == PH2) { if (++t.e[a] > cfg.att) { t.st[a] = OVER; t.e[a] = 0; } }
      emit(t, act(TICK, 0, 0));
    }
    for (int a = 0; a < K; a++) {
      if (s.st[a] == IDLE) {
        if (a && s.st[a - 1] == IDLE) continue;
        int lo = cfg.floors ? s.now - cfg.skew : 0, hi = cfg.floors ? s.now + cfg.skew : 0;
        for (int f = lo; f <= hi; f++) {
          S t = s; t.st[a] = RUN; t.fl[a] = f; t.e[a] = 0;
          for (int b = 0; b < K; b++) if (s.fence[b]) t.before[a] |= 1 << b;
          emit(t, act(START, a, 0, f));
        }
        continue;
      }
      for (int j = 0; j < N; j++) {
        const Col& c = s.c[j];
        if (!c.v[a] && !c.owner) {
          int v = std::max<int>(c.ctr + 1, s.fl[a]);
          if (v > cfg.V) truncated = true;
          else { S t = s; t.c[j].owner = a + 1; t.c[j].ctr = v; t.c[j].v[a] = c.quar ? NC : v; emit(t, act(ACQ, a, j, v)); }
        }
        if (s.m[a] && c.owner == a + 1 && c.ctr < s.m[a] && !c.quar) {
          S t = s; t.c[j].ctr = s.m[a]; t.c[j].rz |= 1 << a; emit(t, act(RAISE, a, j, s.m[a]));
        }
      }
      rounds<HybridModel>(s, a, [&](int j) { return granted(s, a, j) ? s.c[j].v[a] : 0; }, emit);
    }
    for (int j = 0; j < N; j++) {
      const Col& c = s.c[j];
      if (c.owner) { S t = s; t.c[j].owner = 0; emit(t, act(GONE, 0, j)); }
      if (s.crash)
        for (int nc = cfg.rollback ? c.ctr : 0; nc >= 0; nc--) {
          S t = s; t.crash--; t.c[j].owner = 0; t.c[j].ctr = nc; t.c[j].quar = cfg.quar; emit(t, act(CRASH, 0, j, nc));
        }
    }
  }
  const char* bad(const S& s) const { return fences(s.flag); }
  std::string show(uint32_t x, const S&, const S& t) const {
    const auto [kind, a, j, v, A, n] = Step(x);
    switch (kind) {
      case START: return text("%c starts (floor %d), sends acquire to all nodes", A, v);
      case ACQ: return text("node %c executes %c's acquire: value %d%s", n, A, v, t.c[j].v[a] == NC ? " (quarantined: not counted)" : "");
      case GONE: return text("lock key vanishes on node %c", n);
      case P2: return text("%c sends raise(%d)", A, v);
      case RAISE: return text("node %c executes %c's raise(%d): ack", n, A, v);
      case DECIDE: return text("%c HOLDS with fence %d", A, v);
      case CRASH: return text("node %c restarts, counter comes back as %d", n, v);
      default: return text("-- tick, time %d", t.now);
    }
  }
  std::string dump(const S& s) const {
    std::string o = "nodes:";
    for (int j = 0; j < N; j++) o += text(" [lock=%c ctr=%d%s]", s.c[j].owner ? 'A' + s.c[j].owner - 1 : '-', s.c[j].ctr, s.c[j].quar ? " quar" : "");
    o += "  fences:";
    for (int a = 0; a < K; a++) o += text(" %c=%d", 'A' + a, s.fence[a]);
    return o;
  }
};
