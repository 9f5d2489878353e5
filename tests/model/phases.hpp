// Model I: the queue of a read-write lock over N nodes.  Do readers and writers take turns?
//
//  * Writers wait in the order of their numbers, as in queue.hpp.  Readers have no numbers: a reader's
//    ticket is READY (it waited while a writer had its turn, so it goes before the next one) or not.
//  * A node grants to a writer if nobody has the name, no READY reader waits, and no writer's ticket
//    is before it; to a reader if there is no writer, and it is READY or no writer waits.
//  * The release of a writer that held makes all readers READY that wait at that node, and wakes them,
//    or else the first writer.  The last reader's release wakes the first writer.
//  * A writer whose process may write again releases in two steps: the first one makes readers READY,
//    and the second one wakes.  In between others ask, and so may its process, ahead of them (a turn).
//  * A failed attempt puts its ticket back: that ends no turn, and a reader is no longer READY there.
//  * Requests travel in order on each client's link to each node.  Each client gets the lock once.
//
// Checked: M  a writer holds and somebody else does;
//          P  a writer holds before a reader whose ticket was on a quorum of the nodes that the writer
//             before it had, and of whom no request reached any of them ahead of that writer's release;
//          F  a reader holds before a writer whose ticket was on a quorum when the reader asked, and no
//             writer had its turn in between;
//          S  a waiter asks again and again while nothing changes;
//          L  (progress) a state from which somebody can't get the lock any more.
#pragma once
#include <algorithm>
#include "engine.hpp"

struct PhaseCfg {
  uint8_t writers = 1;     // set of clients that write; the others read
  bool timers = false;     // waiters also ask when nothing has woken them
  bool expiry = false;     // what dead clients have left expires
  int deaths = 0, down = 0, lapses = 0, impatient = 0;
  // Naive variants.
  bool beside = false;     // a writer doesn't look at readers
  bool barge = false;      // a reader doesn't look at waiting writers
  bool ready = true;       // off: a writer's release makes no reader READY
  bool respect = true;     // off: a writer doesn't wait for READY readers
  bool back_turn = false;  // a failed attempt ends a turn
  bool skip = true;        // off: dead tickets are not skipped
  bool last = true;        // off: the last reader wakes nobody
  bool keeps = false;      // writers release in two steps
  bool late_turn = false;  // the second step ends the turn, unless somebody has the name by then
  bool cross = false;      // P also for a reader whose request is ahead of the release somewhere
};

template <int N, int C> struct PhaseModel : Model {
  enum : uint8_t { IDLE, ASK, WAIT, HOLD, DONE, DEAD };
  enum : uint8_t { NEW = 1, AGAIN, BACK, RELEASE, LEAVE, KEEP, PASS };        // requests
  enum : uint8_t { NOTHING, GRANTED, REFUSED, UNKNOWN };                      // answers
  enum : uint8_t { REGISTER = 1, UNEVEN = 2 };                                // flags of a client
  enum : uint8_t { GONE, WAITING, GO };                                       // a ticket's key
  static constexpr int Q = N / 2 + 1, LINK = 3;
  // ticket: number * 4 + key (a reader's number is 1); ready, readers, said: sets of clients
  struct Col { uint8_t lock, readers, ready, ticket[C], link[C][LINK], got[C], said, down; };
  struct Client { uint8_t ph, num, told, flags, before, spin; };
  struct S { Col n[N]; Client c[C]; uint8_t owed, wrong, deaths, down, lapses, impatient; };
  PhaseCfg cfg;
  explicit PhaseModel(PhaseCfg c) : cfg(c) {}
  S init() const {
    S s; memset(&s, 0, sizeof s);
    s.deaths = cfg.deaths; s.down = cfg.down; s.lapses = cfg.lapses; s.impatient = cfg.impatient;
    return s;
  }
  bool writes(int c) const { return cfg.writers >> c & 1; }
  static bool waits(const Client& k) { return k.ph == ASK || k.ph == WAIT; }
  bool on_quorum(const S& s, int a) const {
    int n = 0;
    for (const Col& d : s.n) n += !d.down && (d.ticket[a] & 3 || d.lock == a + 1 || d.readers >> a & 1);
    return n >= Q;
  }
  void canon(S& s) const {
    tidy(s);
    std::sort(s.n, s.n + N, [](const Col& a, const Col& b) { return memcmp(&a, &b, sizeof a) < 0; });
  }
  void tidy(S& s) const {
    for (int c = 0; c < C; c++) {
      Client& k = s.c[c];
      if (!waits(k)) k.told = k.spin = k.before = 0;
      if (!waits(k) || !on_quorum(s, c)) {  // ghosts: promises that have ended
        s.owed &= ~(1 << c);
        for (Client& o : s.c) o.before &= ~(1 << c);
      }
      if (k.ph >= DONE) k = {k.ph, 0, 0, 0, 0, 0};
      for (Col& d : s.n) {
        if (k.ph != ASK) d.got[c] = 0;
        if (k.num || !waits(k)) d.said &= ~(1 << c);
      }
    }
  }

  // ---- on a node ---------------------------------------------------------------------------------
  int rank(const Col& d, int c) const { return writes(c) ? 1 + (d.ticket[c] >> 2) : d.ready >> c & 1 ? 0 : 100; }
  int first(Col& d) const {  // drops dead tickets on the way
    for (;;) {
      int best = -1;
      for (int c = 0; c < C; c++)
        if (d.ticket[c] >> 2 && (best < 0 || rank(d, c) < rank(d, best))) best = c;
      if (best < 0 || d.ticket[best] & 3 || !cfg.skip) return best;
      drop(d, best);
    }
  }
  int writer(const Col& d) const {
    int best = -1;
    for (int c = 0; c < C; c++)
      if (writes(c) && d.ticket[c] >> 2 && (d.ticket[c] & 3 || !cfg.skip) && (best < 0 || rank(d, c) < rank(d, best))) best = c;
    return best;
  }
  static void drop(Col& d, int c) { d.ticket[c] = 0; d.ready &= ~(1 << c); }
  static void woken(Col& d, int c) { d.ticket[c] = (d.ticket[c] & ~3) | GO; }
  void wake(Col& d) const {
    int head = first(d), w = writer(d);
    if (head < 0 || d.lock) return;
    if (head == w) { if (!d.readers) woken(d, w); return; }
    for (int c = 0; c < C; c++)
      if (!writes(c) && d.ticket[c] & 3 && (w < 0 || d.ready >> c & 1)) woken(d, c);
  }
  void end_turn(Col& d) const {
    for (int c = 0; c < C; c++) if (cfg.ready && !writes(c) && d.ticket[c] >> 2) d.ready |= 1 << c;
  }
  void enqueue(Col& d, int c, int num) const {
    if (!num) num = d.ticket[c] >> 2;
    if (!num) for (int a = num++; a < C; a++) if (writes(a)) num = std::max(num, 1 + (d.ticket[a] >> 2));
    if (!writes(c)) num = 1;
    if (num > 15) truncated = true, num = 15;
    d.ticket[c] = num << 2 | WAITING;
  }
  bool acquire(Col& d, int c, int num) const {
    bool grant;
    if (writes(c)) {
      if (num && first(d) >= 0 && d.ticket[c] >> 2 != num) enqueue(d, c, num);
      int head = cfg.respect ? first(d) : writer(d);
      bool ours = head < 0 || head == c || (!writes(head) && !(d.ready >> head & 1));
      grant = ours && (!d.lock || d.lock == c + 1) && (!d.readers || cfg.beside);
      if (grant) d.lock = c + 1;
    } else {
      first(d);
      grant = (!d.lock || cfg.beside) && (d.ready >> c & 1 || writer(d) < 0 || cfg.barge);
      if (grant) d.readers |= 1 << c;
    }
    if (grant) return drop(d, c), true;
    enqueue(d, c, num);
    wake(d);
    return false;
  }
  void execute(S& s, int j, int c, uint8_t m) const {
    Col& d = s.n[j]; Client& k = s.c[c];
    int op = m >> 4, num = m & 15;
    if (op <= AGAIN) {
      if (d.lock && s.c[d.lock - 1].ph == DONE && !cfg.cross) s.owed &= ~(1 << c);  // ahead of a release
      bool current = k.ph == ASK && !d.link[c][0], granted = acquire(d, c, op == AGAIN ? num : 0);
      if (!current && !granted && (k.ph == HOLD || k.ph == DONE)) send(d, c, LEAVE);  // else the winner's ticket would stay
      if (!current) return;
      d.got[c] = granted ? GRANTED : REFUSED;
      if (!writes(c) || k.num) return;
      int told = d.ticket[c] >> 2;
      if ((k.told || granted) && told != k.told) k.flags |= UNEVEN;
      k.told = std::max<int>(k.told, told);
      d.said |= 1 << c;
      return;
    }
    change(s, c);
    if (op == PASS) {
      if (cfg.late_turn && !d.lock) end_turn(d);
      return wake(d);
    }
    bool mine = writes(c) ? d.lock == c + 1 : d.readers >> c & 1;
    if (op == LEAVE) drop(d, c);
    else if (!mine) return;
    else if (writes(c)) d.lock = 0;
    else d.readers &= ~(1 << c);
    if (op == BACK) enqueue(d, c, num);
    if (mine && writes(c) && (op == RELEASE || (op == KEEP && !cfg.late_turn) || (op == BACK && cfg.back_turn))) end_turn(d);
    if (op == KEEP) return;
    if (writes(c) || cfg.last || op == LEAVE) wake(d);
  }

  // ---- clients -----------------------------------------------------------------------------------
  static void change(S& s, int c) { for (int a = 0; a < C; a++) if (a != c) s.c[a].spin = 0; }
  static bool room(const S& s, int c, int need) {
    for (const Col& d : s.n) if (d.link[c][LINK - need]) return false;
    return true;
  }
  static void send(Col& d, int c, int op, int num = 0) {
    if (d.down) return;
    for (uint8_t& m : d.link[c]) if (!m) { m = op << 4 | num; return; }
  }
  static void all(S& s, int c, int op, int num = 0) { for (Col& d : s.n) send(d, c, op, num); }
  void ask(S& s, int c) const {
    s.c[c].ph = ASK;
    for (Col& d : s.n) d.got[c] = d.down ? UNKNOWN : NOTHING;
    all(s, c, s.c[c].num ? AGAIN : NEW, s.c[c].num);
  }
  void lose(S& s, int c) const {
    Client& k = s.c[c];
    int said = 0;
    for (const Col& d : s.n) said += d.said >> c & 1;
    if (k.num || !writes(c)) k.flags &= ~REGISTER;
    else {
      if (said >= Q) k.num = std::max<int>(k.told, 1);
      bool everywhere = k.num && !(k.flags & UNEVEN) && said == N;
      k.flags = everywhere ? k.flags & ~REGISTER : k.flags | REGISTER;
    }
    for (Col& d : s.n) if (d.got[c] != REFUSED) send(d, c, BACK, k.num);
    k.ph = WAIT; k.flags &= ~UNEVEN;
  }
  void promise(S& s, int c) const {  // a reader asks for the first time
    for (const Col& d : s.n) for (int a = 0; a < C; a++)
      if (writes(a) && s.c[a].ph >= DONE)  // a turn is not over everywhere
        for (uint8_t m : d.link[a]) if (m || d.lock == a + 1) return;
    for (int a = 0; a < C; a++)
      if (writes(a) && waits(s.c[a]) && s.c[a].num && on_quorum(s, a)) s.c[c].before |= 1 << a;
  }
  void free_writer(S& s, int c) const {  // its turn is over: who goes before the next writer?
    for (Client& o : s.c) o.before = 0;
    s.owed = 0;
    if (cfg.impatient || cfg.expiry) return;  // P speaks of writers that release, and of readers that wait
    for (int a = 0; a < C; a++) {
      int told = 0, under_way = 0;  // nodes where the reader waits, and requests of its own
      for (const Col& d : s.n) {
        told += !d.down && d.lock == c + 1 && d.ticket[a] & 3;
        for (uint8_t m : d.link[a]) under_way += m && !d.down;
      }
      if (!writes(a) && s.c[a].ph == WAIT && told >= Q && !under_way) s.owed |= 1 << a;
    }
  }
  enum : uint32_t { START, EXEC, WIN, LOSE, AGAIN_REG, AGAIN_GO, AGAIN_TIMER, FREE, DIE, GO_DOWN, LAPSE, EXPIRE };

  template <class F> void next(const S& s, F out) const {
    auto emit = [&](S t, uint32_t a) { tidy(t); out(t, a); };  // so that traces replay
    for (int c = 0; c < C; c++) {
      const Client& k = s.c[c];
      int grants = 0, refused = 0, unknown = 0, go = 0;
      for (const Col& d : s.n) {
        grants += d.got[c] == GRANTED; refused += d.got[c] == REFUSED; unknown += d.got[c] == UNKNOWN;
        go += (d.ticket[c] & 3) == GO && !d.down;
      }
      if (k.ph == IDLE) { S t = s; if (!writes(c)) promise(t, c); ask(t, c); emit(t, act(START, c)); }
      else if (k.ph == ASK && room(s, c, 1)) {
        if (grants >= Q) {
          S t = s; t.c[c].ph = HOLD;
          if (writes(c) && s.owed) t.wrong = 1;
          if (!writes(c) && k.before) t.wrong = 2;
          for (Col& d : t.n) if (d.got[c] == REFUSED) send(d, c, LEAVE);
          emit(t, act(WIN, c));
        } else if (refused + unknown > N - Q) { S t = s; lose(t, c); emit(t, act(LOSE, c)); }
        else if (s.impatient) { S t = s; t.impatient--; lose(t, c); t.c[c].spin = 0; emit(t, act(LOSE, c, 0, 1)); }
      } else if (k.ph == WAIT && room(s, c, 2)) {
        uint32_t why = k.flags & REGISTER ? AGAIN_REG : go >= Q ? AGAIN_GO : AGAIN_TIMER;
        if (why != AGAIN_TIMER || cfg.timers) { S t = s; t.c[c].spin += why == AGAIN_GO; ask(t, c); emit(t, act(why, c)); }
      } else if (k.ph == HOLD && room(s, c, writes(c) && cfg.keeps ? 2 : 1)) {
        S t = s; if (writes(c)) free_writer(t, c);
        bool keeps = writes(c) && cfg.keeps;
        all(t, c, keeps ? KEEP : RELEASE);
        if (keeps) all(t, c, PASS);
        t.c[c].ph = DONE; emit(t, act(FREE, c));
      }
      if (s.deaths && k.ph != IDLE && k.ph < DONE) { S t = s; t.deaths--; t.c[c].ph = DEAD; emit(t, act(DIE, c)); }
      for (int j = 0; j < N; j++) {
        const Col& d = s.n[j];
        if (uint8_t m = d.link[c][0]) {
          S t = s; Col& e = t.n[j];
          for (int i = 0; i < LINK; i++) e.link[c][i] = i + 1 < LINK ? e.link[c][i + 1] : 0;
          execute(t, j, c, m); emit(t, act(EXEC, c, j, m));
        }
        bool gone = k.ph >= DONE;
        if (d.ticket[c] & 3 && (gone ? cfg.expiry : s.lapses && waits(k))) {
          S t = s; t.n[j].ticket[c] &= ~3; if (!gone) t.lapses--; change(t, C); emit(t, act(gone ? EXPIRE : LAPSE, c, j));
        }
        if (gone && cfg.expiry && (d.lock == c + 1 || d.readers >> c & 1)) {
          S t = s; Col& e = t.n[j]; e.readers &= ~(1 << c); if (e.lock == c + 1) e.lock = 0;
          change(t, C); emit(t, act(EXPIRE, c, j));
        }
      }
    }
    for (int j = 0; j < N; j++) if (s.down && !s.n[j].down) {
      S t = s; Col& e = t.n[j]; t.down--; e.down = 1; memset(e.link, 0, sizeof e.link);
      for (int c = 0; c < C; c++) if (t.c[c].ph == ASK && !e.got[c]) e.got[c] = UNKNOWN;
      emit(t, act(GO_DOWN, 0, j));
    }
  }
  const char* bad(const S& s) const {
    int hold = 0, write = 0;
    for (int c = 0; c < C; c++) {
      hold += s.c[c].ph == HOLD; write += s.c[c].ph == HOLD && writes(c);
      if (s.c[c].spin > 3) return "S: a waiter asks again and again although nothing changes";
    }
    if (write && hold > 1) return "M: a writer holds, and somebody else";
    if (s.wrong == 1) return "P: a writer holds before a reader that waited for the writer before it";
    return s.wrong ? "F: a reader holds before a writer that waited when it asked" : nullptr;
  }
  int goal(const S& s) const { for (const Client& k : s.c) if (k.ph < DONE) return 0; return 1; }
  bool fair(uint32_t x) const { int a = x & 255; return !(a == LOSE && x >> 24) && a != DIE && a != GO_DOWN && a != LAPSE; }
  std::string show(uint32_t x, const S&, const S& after) const {
    static const char* acts[] = {"asks for the first time", "", "HOLDS (a quorum has granted)", "has lost this attempt", "asks again, to put its ticket everywhere",
                                 "was woken, asks again", "asks again (timer)", "releases", "dies", "(a node dies)", "has a ticket that expires", "is dead, and what it left expires"};
    static const char* ops[] = {"", "ask", "ask", "release that puts the ticket back", "release", "leave", "release that wakes nobody", "pass"};
    int c = x >> 8 & 255, j = x >> 16 & 255, op = x >> 28;
    std::string o = std::string(writes(c) ? "writer " : "reader ") + (char)('A' + c) + " ", node = " on node " + std::to_string(j + 1);
    if ((x & 255) != EXEC) return o + acts[x & 255] + ((x & 255) >= GO_DOWN ? node : "");
    int g = after.n[j].got[c];
    return "node " + std::to_string(j + 1) + " executes " + (char)('A' + c) + "'s " + ops[op] + (op > AGAIN ? "" : g == GRANTED ? ": granted" : g == REFUSED ? ": refused" : ": late");
  }
  std::string dump(const S& s) const {
    std::string o;
    for (const Col& d : s.n) {
      o += std::string("[") + (d.down ? "dead " : "") + (d.lock ? (char)('A' + d.lock - 1) : '-');
      for (int c = 0; c < C; c++) {
        if (d.readers >> c & 1) o += std::string(" ") + (char)('A' + c);
        if (d.ticket[c]) o += std::string(" ") + (char)('A' + c) + "=" + (writes(c) ? std::to_string(d.ticket[c] >> 2) : d.ready >> c & 1 ? "ready" : "later") + ((d.ticket[c] & 3) == GO ? "!" : d.ticket[c] & 3 ? "" : "?");
      }
      o += "] ";
    }
    static const char* ph[] = {"idle", "asks", "waits", "holds", "done", "dead"};
    for (int c = 0; c < C; c++) o += std::string(" ") + (char)('A' + c) + ":" + ph[s.c[c].ph];
    return o;
  }
};
