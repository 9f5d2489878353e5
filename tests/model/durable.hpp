// Model D: nodes that restart with and without a disk.  Who may let the new process vote at once?
//
//  * A durable process writes every grant to disk before it answers; another one writes nothing.  A
//    new process starts with what the disk has, or with an empty one.
//  * Clients meet a process when they connect, and leave its name in its data (the mark).  They ask
//    only a process that they have met.
//  * All clients have met the first processes, which are old.  A client that can't tell that a later
//    process has kept everything does not count its votes before it has run for QUAR ticks.
//  * Nobody releases or extends: each key goes by its TTL.
//  * Or the operator promises that the disks are kept (`promised`), and clients believe that.
//  * The rule otherwise: everything was kept if the process that this client met last was durable, this one is,
//    the mark in its data names that process, and that process was there less than QUAR ticks ago.
#pragma once
#include <algorithm>
#include "engine.hpp"

struct DurableCfg {
  int ttl = 2, quar = 2, crashes = 2;
  bool before = true;   // naive off: does not ask whether the process before was durable
  bool mark = true;     // naive off: does not compare the mark
  bool silence = true;  // naive off: a process in between may have had the time to grant
  bool wait = true;     // naive off: a quarantine that was under way ends with the process
  // The operator promises that no disk is lost, and that no process runs without its disk: a client lets
  // every durable process vote at once, also one that it meets first.  No client has met a process yet.
  bool promised = false;
  bool empty = true;    // a restart may find an empty disk (off: that much of the promise is kept)
  bool change = true;   // a node may be durable in one process and not in the next (off: the same)
};

template <int N, int K> struct DurableModel : Model {
  enum : uint8_t { IDLE, RUN, HELD, OVER };
  static constexpr int Q = N / 2 + 1;
  // memory: owner, age of its key, mark (the process that clients left there, and the one before);
  // disk: the same; up: ticks that the process has run
  // proc: number of the process, from 1; dur: bit per process; per client: process met, ticks since
  // it was there, ticks without a vote
  struct Col { uint8_t owner, age, mark, prev, d_owner, d_age, d_mark, d_prev, up, proc, dur, grant, exe, met[K], silent[K], wait[K]; };
  struct S { Col c[N]; uint8_t st[K], e[K], crash, begun; };
  DurableCfg cfg;
  explicit DurableModel(DurableCfg c) : cfg(c) {}
  S init() const {
    S s; memset(&s, 0, sizeof s); s.crash = cfg.crashes;
    for (int j = 0; j < N; j++) {
      Col& c = s.c[j]; c.proc = c.mark = c.d_mark = 1; c.up = cfg.quar;
      for (int a = 0; a < K; a++) c.met[a] = cfg.promised ? STRANGER : 1;
    }
    return s;
  }
  void canon(S& s) const {
    for (int a = 0; a < K; a++)
      for (int j = 0; j < N; j++) {
        Col& c = s.c[j];
        bool done = s.st[a] == HELD || s.st[a] == OVER;  // it asks for nothing any more
        if (done) c.grant &= ~(1 << a), c.exe &= ~(1 << a);
        if (done || c.exe >> a & 1) c.met[a] = c.silent[a] = c.wait[a] = 0;
      }
    std::sort(s.c, s.c + N, [](const Col& a, const Col& b) { return memcmp(&a, &b, sizeof a) < 0; });
  }
  static constexpr int STRANGER = 7;  // no process: the client has met none
  static bool durable(const Col& c, int process) { return c.dur >> process & 1; }
  static void write(Col& c) { if (durable(c, c.proc)) c.d_owner = c.owner, c.d_age = c.age, c.d_mark = c.mark, c.d_prev = c.prev; }
  bool kept(const Col& c, int a) const {
    if (cfg.promised) return durable(c, c.proc);
    int known = c.met[a], after = c.mark == c.proc ? c.prev : c.mark;
    return durable(c, c.proc) && (!cfg.before || durable(c, known)) &&
           (!cfg.mark || !cfg.before || after == known) && (!cfg.silence || c.silent[a] < cfg.quar);
  }
  bool believes(const S& s, int a) const { return s.st[a] == HELD && s.e[a] < cfg.ttl; }
  enum : uint32_t { DISK, START, MEET, ACQ, DECIDE, TICK, CRASH };

  template <class F> void next(const S& s, F emit) const {
    if (!s.begun)
      for (int j = 0; j < N; j++)
        if (!s.c[j].dur) { S t = s; t.c[j].dur = 2; emit(t, act(DISK, 0, j)); }
    {
      S t = s; t.begun = 1;
      for (int j = 0; j < N; j++) {
        Col& c = t.c[j];
        if (c.owner && ++c.age >= cfg.ttl) c.owner = c.age = 0;
        if (c.d_owner && ++c.d_age >= cfg.ttl) c.d_owner = c.d_age = 0;
        if (c.up < cfg.quar) c.up++;
        for (int a = 0; a < K; a++) {
          if (c.wait[a]) c.wait[a]--;
          if (c.met[a] && c.met[a] != c.proc && c.silent[a] < cfg.quar) c.silent[a]++;
        }
      }
      for (int a = 0; a < K; a++)
        if ((t.st[a] == RUN || t.st[a] == HELD) && ++t.e[a] >= cfg.ttl) t.st[a] = OVER, t.e[a] = 0;
      emit(t, act(TICK, 0, 0));
    }
    for (int a = 0; a < K; a++) {
      uint8_t bit = 1 << a;
      if (s.st[a] == IDLE) { S t = s; t.begun = 1; t.st[a] = RUN; emit(t, act(START, a, 0)); }
      int grants = 0;
      for (int j = 0; j < N; j++) {
        const Col& c = s.c[j];
        grants += c.grant >> a & 1;
        if (!c.met[a]) continue;
        if (c.met[a] != c.proc) {
          S t = s; Col& d = t.c[j];
          bool all = kept(c, a);
          if (!all) d.wait[a] = std::max<int>(d.wait[a], cfg.quar - c.up);
          else if (!cfg.wait) d.wait[a] = 0;
          d.met[a] = c.proc; d.silent[a] = 0;
          if (c.mark != c.proc) { d.prev = c.mark; d.mark = c.proc; write(d); }
          emit(t, act(MEET, a, j, all));
        } else if (s.st[a] == RUN && !c.owner) {
          S t = s; Col& d = t.c[j]; d.owner = a + 1; d.age = 0; d.exe |= bit; write(d);
          if (!c.wait[a]) d.grant |= bit;
          emit(t, act(ACQ, a, j, c.wait[a] != 0));
        }
      }
      if (s.st[a] == RUN && grants >= Q) { S t = s; t.st[a] = HELD; emit(t, act(DECIDE, a, 0)); }
    }
    if (s.crash && s.begun)
      for (int j = 0; j < N; j++)
        for (int x = 0; x < 4; x++) {  // bit 0: the new process is durable; bit 1: its disk is empty
          if (((x & 2) && !cfg.empty) || (!cfg.change && (x & 1) != durable(s.c[j], s.c[j].proc))) continue;
          S t = s; Col& d = t.c[j]; t.crash--;
          d.proc++; d.up = 0;
          if (x & 1) d.dur |= 1 << d.proc;
          if (x & 2) d.d_owner = d.d_age = d.d_mark = d.d_prev = 0;
          d.owner = d.d_owner; d.age = d.d_age; d.mark = d.d_mark; d.prev = d.d_prev;
          emit(t, act(CRASH, 0, j, x));
        }
  }
  const char* bad(const S& s) const { return alone(K, [&](int a) { return believes(s, a); }); }
  std::string show(uint32_t x, const S&, const S&) const {
    const auto [kind, a, j, v, A, n] = Step(x);
    switch (kind) {
      case DISK: return text("node %c is durable from the start", n);
      case START: return text("%c starts", A);
      case MEET: return text("%c meets node %c%s", A, n, v ? ", which has kept everything" : "");
      case ACQ: return text("node %c executes %c's acquire: granted%s", n, A, v ? " (quarantined: not counted)" : "");
      case DECIDE: return text("%c HOLDS (a quorum answered)", A);
      case TICK: return "-- tick";
      case CRASH: return text("node %c restarts%s, %s", n, v & 2 ? " with an empty disk" : "", v & 1 ? "durable" : "without a disk");
      default: return "?";
    }
  }
  std::string dump(const S& s) const {
    std::string o = "nodes:";
    for (int j = 0; j < N; j++) o += text(" [lock=%c process %d%s]", s.c[j].owner ? 'A' + s.c[j].owner - 1 : '-', s.c[j].proc, durable(s.c[j], s.c[j].proc) ? " durable" : "");
    return o;
  }
};
