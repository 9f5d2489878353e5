// Model O: the queue of a name over N nodes.  Which waiter goes first, and does each get there?
//
//  * A waiter's ticket has a number.  Each node grants only to the smallest live ticket it knows
//    (number, then client) and refuses everybody else.  A ticket is live until its key expires.
//  * The first ask has no number: a node that refuses assigns the next one.  With the answers of a
//    quorum the client takes the highest it was told, for good, and registers it once more where
//    the answers differed.
//  * A failed attempt puts its ticket back as it releases.  A release wakes the first ticket.
//  * A waiter asks again when a quorum of nodes has woken it, or (timers) at any time.
//  * Requests travel in order on each client's link to each node, as late as they like.  A client is
//    at most LINK requests ahead of a node.
//  * Each client gets the lock once; `turns`: client A may take it again within its turn, before others.
//  * The end of a quarantine: no attempt from before the restart is valid any more, and every waiter
//    has put its ticket back.  Lock keys of live clients don't expire here (timing.hpp does that).
//
// Checked: M  two clients hold;
//          O  a client holds before another whose ticket was on a quorum when it first asked (and has
//             been since): not for a turn, nor for a client that knows no queue;
//          W  rivals without patience for a free name all give up, and nobody has got it;
//          S  a waiter asks again and again while nothing changes;
//          L  (progress) a state from which somebody can't get the lock any more.
#pragma once
#include <algorithm>
#include "engine.hpp"

struct QueueCfg {
  bool timers = false;      // waiters also ask when nothing has woken them
  bool expiry = false;      // tickets of dead clients, and their locks, expire
  int turns = 0, deaths = 0, down = 0, restarts = 0, lapses = 0, lost = 0, impatient = 0, leavers = 0;
  uint8_t tries = 0, old = 0;  // sets of clients: call try_acquire, know no queue
  // Variants.  Naive ones first.
  enum Number : uint8_t { QUORUM, ANY_ANSWER, NONE } number = QUORUM;
  bool barge = false;       // a newcomer may be granted although tickets wait
  enum Turn : uint8_t { SETTLES_NOTHING, NO_TICKET, SETTLES } turn = SETTLES_NOTHING;  // what a turn's request, which is lost, does
  bool forget = false;      // a grant removes the ticket's number
  bool raise = false;       // a node keeps the larger of the stored and the given number
  bool clocks = false;      // numbers begin at the time of the ask: later asks have larger ones anyway
  bool keep_go = false;     // a refusal leaves the ticket woken
  bool any_go = false;      // one node's wake-up is enough to ask again
  bool wake = true;         // off: a release wakes nobody, or every push is lost; naive without timers
  bool back = true;         // naive off: a failed attempt loses its ticket
  bool back_go = true;      // naive off: a ticket put back as the first counts as waiting
  bool skip = true;         // naive off: dead tickets are not skipped
  bool claims = false;      // naive on: a try that has no grant yet when it has lost gives up
  bool yield_head = false;  // naive on: a try gives up for a ticket that is first on a quorum
  bool pass = true;         // naive off: a turn that is not used is not passed on
  bool clean = true;        // naive off: a winner's ticket stays where it was refused
  bool wake_refused = true; // naive off: a refusal by a free node doesn't wake the first ticket
  bool wake_free = false;    // a release wakes the first ticket also where it had no lock
};

template <int N, int C> struct QueueModel : Model {
  enum : uint8_t { IDLE, ASK, WAIT, HOLD, TURN, DONE, BEATEN, DEAD };
  enum : uint8_t { NEW = 1, AGAIN, BARGE, TRY, OLD, BACK, RELEASE, KEEP, PASS, LEAVE };  // requests
  enum : uint8_t { NOTHING, GRANTED, UNKNOWN, BEHIND = 0x20, TAKEN = 0x40 };             // answers
  enum : uint8_t { REGISTER = 1, UNEVEN = 2, BARGING = 4, ODD = 8, SETTLING = 16, FRESH = 32 };      // flags of a client
  enum : uint8_t { GONE, WAITING, GO };                                                  // a ticket's key
  enum : uint8_t { DOWN = 1, QUAR = 2 };
  static constexpr int Q = N / 2 + 1, LINK = 3;
  // ticket: number * 4 + key; lock: client + 1 + 8 * parity of its attempt; said: clients that got a
  // number here; lost: tickets that the node has forgotten; pending: attempts from before the restart
  struct Col { uint8_t lock, ticket[C], link[C][LINK], got[C], said, state, lost, pending; };
  struct Client { uint8_t ph, num, told, flags, before, spin; };
  struct S { Col n[N]; Client c[C]; uint8_t turns, deaths, down, restarts, lapses, lost, impatient, leavers, clock; };
  QueueCfg cfg;
  explicit QueueModel(QueueCfg c) : cfg(c) {}
  S init() const {
    S s; memset(&s, 0, sizeof s);
    s.turns = cfg.turns; s.deaths = cfg.deaths; s.down = cfg.down; s.restarts = cfg.restarts;
    s.lapses = cfg.lapses; s.lost = cfg.lost; s.impatient = cfg.impatient; s.leavers = cfg.leavers;
    return s;
  }
  static bool waits(const Client& k) { return k.ph == ASK || k.ph == WAIT; }
  bool on_quorum(const S& s, int a) const {
    int n = 0;
    for (const Col& d : s.n) n += (d.ticket[a] >> 2 == s.c[a].num && (d.ticket[a] & 3 || (d.lock & 7) == a + 1)) || d.lost >> a & 1;
    return s.c[a].num && n >= Q;
  }
  void settle(S& s) const {  // ghosts: promises that have ended
    for (int a = 0; a < C; a++) {
      bool kept = waits(s.c[a]) && on_quorum(s, a);
      for (int c = 0; c < C && !kept; c++) s.c[c].before &= ~(1 << a);
      for (Col& d : s.n) if (!waits(s.c[a]) || d.ticket[a] & 3) d.lost &= ~(1 << a);
    }
  }
  void tidy(S& s) const {
    settle(s);
    for (int c = 0; c < C; c++) {
      Client& k = s.c[c];
      if (!waits(k)) k.told = k.spin = 0;
      if (k.ph >= DONE) k = {k.ph, 0, 0, 0, 0, 0};
      for (Col& d : s.n) {
        if (k.ph != ASK) d.got[c] = 0;
        if (k.num || !waits(k)) d.said &= ~(1 << c);
      }
    }
  }
  void canon(S& s) const {
    tidy(s);
    std::sort(s.n, s.n + N, [](const Col& a, const Col& b) { return memcmp(&a, &b, sizeof a) < 0; });
  }

  // ---- on a node ---------------------------------------------------------------------------------
  int first(Col& d) const {  // the smallest live ticket; drops dead ones on the way
    for (;;) {
      int best = -1;
      for (int c = 0; c < C; c++)
        if (d.ticket[c] >> 2 && (best < 0 || d.ticket[c] >> 2 < d.ticket[best] >> 2)) best = c;
      if (best < 0 || d.ticket[best] & 3 || !cfg.skip) return best;
      d.ticket[best] = 0;
    }
  }
  void wake(Col& d) const {
    if (d.lock || !cfg.wake) return;
    int c = first(d);
    if (c >= 0) d.ticket[c] = (d.ticket[c] & ~3) | GO;
  }
  int last(const Col& d) const {
    int n = 0;
    for (uint8_t t : d.ticket) n = std::max<int>(n, t >> 2);
    return n;
  }
  void enqueue(Col& d, int c, int num, int key, int floor = 0) const {
    int stored = d.ticket[c] >> 2, before = d.ticket[c] & 3;
    if (!num) num = stored ? stored : cfg.number == QueueCfg::NONE ? 1 : std::max(floor, last(d) + 1);
    else if (cfg.raise) num = std::max(num, stored);
    if (cfg.keep_go && before == GO) key = GO;
    if (num > 15) truncated = true, num = 15;
    d.ticket[c] = num << 2 | key;
  }
  static void change(S& s, int c) { for (int a = 0; a < C; a++) if (a != c) s.c[a].spin = 0; }
  uint8_t acquire(Col& d, int c, int op, int num, bool odd) const {
    bool mine = (d.lock & 7) == c + 1, free = !d.lock || mine, queued = op == NEW || op == AGAIN || (op == BARGE && cfg.turn != QueueCfg::NO_TICKET);
    uint8_t before = d.ticket[c];
    int floor = op == AGAIN ? 0 : num;
    if (op != AGAIN) num = 0;
    if (free) {
      if (queued && (before || num || first(d) >= 0)) enqueue(d, c, num, WAITING, floor);
      int head = first(d);
      bool newcomer = cfg.barge && !num;
      if (head < 0 || head == c || op == BARGE || op == OLD || newcomer) {
        d.lock = (c + 1) | (odd ? 8 : 0);
        if (cfg.forget && num && before >> 2 == num) d.lost |= 1 << c;
        d.ticket[c] = cfg.forget || !(before || num) ? 0 : d.ticket[c] & ~3;  // else the number stays until it is skipped
        return GRANTED;
      }
      if (cfg.wake_refused) wake(d);
      return BEHIND | head;
    }
    if (queued) enqueue(d, c, num, WAITING, floor);
    return TAKEN | d.lock;
  }
  void execute(S& s, int j, int c, uint8_t m) const {
    Col& d = s.n[j]; Client& k = s.c[c];
    int op = m >> 4, num = m & 15;
    if (op <= OLD) {
      bool current = k.ph == ASK && !d.link[c][0], odd = k.flags & ODD;
      uint8_t answer = acquire(d, c, op, num, current ? odd : !odd);
      if (!current) {  // a late refusal: the winner's ticket would stay
        if (std::count_if(d.link[c], d.link[c] + LINK, [](uint8_t r) { return r >> 4 == KEEP; })) d.ticket[c] = 0;  // it was another ticket
        else if (k.ph >= HOLD && k.ph < DEAD && d.ticket[c] & 3 && cfg.clean) send(d, c, LEAVE);
        return;
      }
      d.got[c] = answer;
      if (d.state & QUAR && answer == GRANTED) d.got[c] = UNKNOWN;
      if (op == TRY || op == OLD || (op == BARGE && cfg.turn != QueueCfg::SETTLES) || k.num) return;
      int told = d.ticket[c] >> 2;
      if ((k.told || answer == GRANTED) && told != k.told) k.flags |= UNEVEN;
      k.told = std::max<int>(k.told, told);
      if (!(d.state & QUAR)) d.said |= 1 << c;
      return;
    }
    bool mine = (d.lock & 7) == c + 1;
    change(s, c);
    if (op == BACK) {
      if (mine) {
        d.lock = 0;
        if (cfg.back) enqueue(d, c, num, WAITING, s.clock); else d.ticket[c] = 0;
        if (!cfg.back_go && first(d) == c) return;
        wake(d);
      }
      return;
    }
    if (mine && op != PASS && op != LEAVE) d.lock = 0;
    if (op == LEAVE) d.ticket[c] = 0;
    if (op != KEEP && (mine || cfg.wake_free || op == PASS || op == LEAVE)) wake(d);
  }

  // ---- clients -----------------------------------------------------------------------------------
  bool room(const S& s, int c, int need) const {
    for (const Col& d : s.n) {
      int used = 0;
      for (uint8_t m : d.link[c]) used += m != 0;
      if (used + need > LINK) return false;
    }
    return true;
  }
  static void send(Col& d, int c, int op, int num = 0) {
    if (d.state & DOWN) return;
    for (uint8_t& m : d.link[c]) if (!m) { m = op << 4 | num; return; }
  }
  static void all(S& s, int c, int op, int num = 0) { for (Col& d : s.n) send(d, c, op, num); }
  static void over(S& s, int c) { for (Col& d : s.n) d.pending &= ~(1 << c); }
  void ask(S& s, int c, int op) const {
    Client& k = s.c[c];
    k.ph = ASK; k.flags ^= ODD;
    for (Col& d : s.n) d.got[c] = d.state & DOWN ? UNKNOWN : NOTHING;
    all(s, c, op, op == OLD || op == TRY ? 0 : op == AGAIN ? k.num : s.clock);
  }
  void promise(S& s, int c) const {
    for (int a = 0; a < C; a++)
      if (a != c && waits(s.c[a]) && on_quorum(s, a) && !(cfg.old >> c & 1)) s.c[c].before |= 1 << a;
  }
  int named(const S& s, int c, int kind) const {  // how many nodes named the same, at most
    int most = 0;
    for (const Col& d : s.n) {
      int n = 0;
      for (const Col& e : s.n) n += (d.got[c] & kind) && e.got[c] == d.got[c];
      most = std::max(most, n);
    }
    return most;
  }
  void lose(S& s, int c) const {  // the attempt is lost
    Client& k = s.c[c];
    bool once = cfg.tries >> c & 1, knows = !(cfg.old >> c & 1), settling = k.flags & SETTLING;
    over(s, c);
    if (k.flags & BARGING && cfg.turn == QueueCfg::NO_TICKET) {
      for (Col& d : s.n) if (!(d.got[c] & (TAKEN | BEHIND))) send(d, c, RELEASE);
      k.ph = WAIT; k.flags = (k.flags & ODD) | REGISTER | FRESH;
      return;
    }
    int grants = 0;
    for (const Col& d : s.n) grants += d.got[c] == GRANTED;
    bool beaten = once && (named(s, c, TAKEN) >= Q || (cfg.claims && !grants && !settling) || ((!settling || cfg.yield_head) && named(s, c, BEHIND) >= Q));
    int said = 0;
    for (const Col& d : s.n) said += d.said >> c & 1;
    if (k.flags & BARGING && cfg.turn == QueueCfg::SETTLES_NOTHING) k.flags |= REGISTER;
    else if (knows && (!once || settling) && !k.num) {
      if (said >= (cfg.number == QueueCfg::QUORUM ? Q : 1)) k.num = std::max<int>(k.told, 1);
      bool everywhere = k.num && !(k.flags & UNEVEN) && said == N;
      k.flags = everywhere ? k.flags & ~REGISTER : k.flags | REGISTER;
    } else if (k.num) k.flags &= ~REGISTER;
    if (once && !settling) k.flags |= SETTLING | REGISTER;
    for (Col& d : s.n)
      if (d.got[c] & (TAKEN | BEHIND)) { if (beaten && settling) send(d, c, LEAVE); }
      else send(d, c, !knows ? KEEP : beaten ? RELEASE : BACK, !knows || beaten ? 0 : k.num);
    k.ph = beaten ? BEATEN : WAIT; k.flags &= ~(BARGING | UNEVEN);
  }
  enum : uint32_t { START, EXEC, EXEC_LOST, WIN, LOSE, AGAIN_REG, AGAIN_GO, AGAIN_TIMER, FREE, FREE_TURN, TAKE, PASSED, LEFT, DIE, GO_DOWN, RESTART, VOTES, LAPSE, EXPIRE, UNLOCK };

  template <class F> void next(const S& s, F out) const {
    auto emit = [&](S t, uint32_t a) { tidy(t); out(t, a); };  // so that traces replay
    for (int c = 0; c < C; c++) {
      const Client& k = s.c[c];
      bool once = cfg.tries >> c & 1, knows = !(cfg.old >> c & 1);
      int grants = 0, refused = 0, unknown = 0, woken = 0;
      for (const Col& d : s.n) {
        grants += d.got[c] == GRANTED; unknown += d.got[c] == UNKNOWN; refused += (d.got[c] & (TAKEN | BEHIND)) != 0;
        woken += (d.ticket[c] & 3) == GO && !d.state;
      }
      if (k.ph == IDLE) {
        S t = s; promise(t, c); if (cfg.clocks) t.clock += 3;
        ask(t, c, !knows ? OLD : once ? TRY : NEW); emit(t, act(START, c));
      } else if (k.ph == ASK) {
        if (grants >= Q && room(s, c, 1)) { S t = s; t.c[c].ph = HOLD; if (k.flags & BARGING) t.c[c].before = 0;
          if (cfg.clean) for (Col& d : t.n) if (d.got[c] & (TAKEN | BEHIND)) send(d, c, LEAVE);
          emit(t, act(WIN, c)); }
        else if (refused + unknown > N - Q) {
          if (room(s, c, 1)) { S t = s; lose(t, c); emit(t, act(LOSE, c)); }
        } else if (s.impatient && room(s, c, 1)) { S t = s; t.impatient--; lose(t, c); t.c[c].spin = 0; emit(t, act(LOSE, c, 0, 1)); }
      } else if (k.ph == WAIT && room(s, c, 2)) {
        uint32_t why = k.flags & REGISTER ? AGAIN_REG : woken >= (cfg.any_go ? 1 : Q) ? AGAIN_GO : AGAIN_TIMER;
        if (why != AGAIN_TIMER || cfg.timers) {
          S t = s;
          if (why == AGAIN_GO) t.c[c].spin++;
          if (k.flags & FRESH) t.c[c].flags &= ~FRESH, promise(t, c);  // as a waiter, it asks for the first time
          ask(t, c, !knows ? OLD : k.num ? AGAIN : NEW); emit(t, act(why, c));
        }
        if (s.leavers && knows) { S t = s; t.leavers--; all(t, c, LEAVE); t.c[c].ph = DONE; emit(t, act(LEFT, c)); }
      } else if (k.ph == HOLD && room(s, c, 1)) {
        S t = s; over(t, c); all(t, c, knows ? RELEASE : KEEP); t.c[c].ph = DONE; emit(t, act(FREE, c));
        if (s.turns && !c) { S u = s; u.turns--; over(u, c); all(u, c, KEEP); u.c[c] = {TURN, 0, 0, 0, 0, 0}; emit(u, act(FREE_TURN, c)); }
      } else if (k.ph == TURN && room(s, c, 1)) {
        S t = s; promise(t, c); if (cfg.clocks) t.clock += 3;
        t.c[c].flags = BARGING; ask(t, c, BARGE); emit(t, act(TAKE, c));
        S u = s; u.c[c].ph = DONE; if (cfg.pass) all(u, c, PASS); emit(u, act(PASSED, c));
      }
      if (s.deaths && k.ph != IDLE && k.ph < DONE) { S t = s; t.deaths--; over(t, c); t.c[c].ph = DEAD; emit(t, act(DIE, c)); }
      for (int j = 0; j < N; j++) {
        const Col& d = s.n[j];
        if (uint8_t m = d.link[c][0]) {
          S t = s; Col& e = t.n[j];
          for (int i = 0; i < LINK; i++) e.link[c][i] = i + 1 < LINK ? e.link[c][i + 1] : 0;
          execute(t, j, c, m); emit(t, act(EXEC, c, j, m));
          if (s.lost && m >> 4 <= OLD && k.ph == ASK && !e.link[c][0]) {
            t.lost--; change(t, C); t.n[j].got[c] = UNKNOWN; t.c[c].told = k.told; t.c[c].flags = k.flags; t.n[j].said = d.said; emit(t, act(EXEC_LOST, c, j, m));
          }
        }
        bool gone = k.ph >= DONE;
        if (d.ticket[c] & 3 && (gone ? cfg.expiry : s.lapses && waits(k))) {
          S t = s; t.n[j].ticket[c] &= ~3; if (!gone) t.lapses--; change(t, C); emit(t, act(gone ? EXPIRE : LAPSE, c, j));
        }
        if ((d.lock & 7) == c + 1 && gone && cfg.expiry) { S t = s; t.n[j].lock = 0; change(t, C); emit(t, act(UNLOCK, c, j)); }
      }
    }
    for (int j = 0; j < N; j++) {
      const Col& d = s.n[j];
      if (d.state & DOWN) continue;
      if (s.down) {
        S t = s; Col& e = t.n[j]; t.down--; e.state |= DOWN;
        memset(e.link, 0, sizeof e.link);
        for (int c = 0; c < C; c++) if (t.c[c].ph == ASK && !e.got[c]) e.got[c] = UNKNOWN;
        emit(t, act(GO_DOWN, 0, j));
      }
      bool other = false;
      for (const Col& e : s.n) other |= (e.state & QUAR) != 0;
      if (s.restarts && !other) {  // two at once are no quorum
        S t = s; Col& e = t.n[j]; t.restarts--; e.state |= QUAR; e.lock = e.lost = 0;
        for (int c = 0; c < C; c++) {
          const Client& k = t.c[c];
          if (k.ph == ASK || k.ph == HOLD) e.pending |= 1 << c;
          e.ticket[c] = 0;
        }
        emit(t, act(RESTART, 0, j));
      }
      if (d.state & QUAR && !d.pending) { S t = s; t.n[j].state &= ~QUAR; emit(t, act(VOTES, 0, j)); }
    }
  }
  const char* bad(const S& s) const {
    int hold = 0, beaten = 0;
    for (const Client& k : s.c) {
      hold += k.ph == HOLD; beaten += k.ph == BEATEN;
      if (k.ph == HOLD && k.before) return "O: a client holds before another whose ticket was on a quorum when it asked";
      if (k.spin > 3) return "S: a waiter asks again and again although nothing changes";
    }
    if (hold > 1) return "M: two clients hold";
    return beaten == C ? "W: everybody gave up and nobody has got it" : nullptr;
  }
  int goal(const S& s) const { for (const Client& k : s.c) if (k.ph < DONE) return 0; return 1; }
  bool fair(uint32_t x) const {
    int a = x & 255;
    return a != EXEC_LOST && !(a == LOSE && x >> 24) && a != LEFT && a != DIE && a != GO_DOWN && a != RESTART && a != LAPSE;
  }
  std::string show(uint32_t x, const S&, const S& after) const {
    const auto [kind, c, j, m, A, n] = Step(x);
    static const char* ops[] = {"", "ask", "ask", "ask in its turn", "try", "ask without a ticket", "release that puts the ticket back", "release", "release within a turn", "pass", "leave"};
    switch (kind) {
      case START: return text("%c asks for the first time", A);
      case EXEC: case EXEC_LOST: {
        uint8_t g = after.n[j].got[c]; int op = m >> 4;
        std::string r = op > OLD ? "" : g == GRANTED ? ": granted" : g & TAKEN ? std::string(": refused, taken by ") + (char)('A' + (g & 7) - 1)
                        : g & BEHIND ? std::string(": refused, first is ") + (char)('A' + (g & 7)) : ": not counted";
        if (kind == EXEC_LOST) r = ", its answer is lost";
        std::string num = m & 15 && op != NEW && op != BARGE ? " with number " + std::to_string(m & 15) : "";
        return text("node %c executes %c's %s%s%s", n, A, ops[op], num.c_str(), r.c_str());
      }
      case WIN: return text("%c HOLDS (a quorum has granted)", A);
      case LOSE: return text(after.c[c].ph == BEATEN ? "%c gives up" : "%c has lost this attempt%s; its number: %d", A, m ? " (it waited no longer)" : "", after.c[c].num);
      case AGAIN_REG: return text("%c asks again, to put its ticket everywhere", A);
      case AGAIN_GO: return text("%c was woken, asks again", A);
      case AGAIN_TIMER: return text("%c asks again (timer)", A);
      case FREE: return text("%c releases", A);
      case FREE_TURN: return text("%c releases within its turn", A);
      case TAKE: return text("%c asks within its turn", A);
      case PASSED: return text("%c passes its turn on", A);
      case LEFT: return text("%c stops waiting", A);
      case DIE: return text("%c dies", A);
      case GO_DOWN: return text("node %c dies", n);
      case RESTART: return text("node %c restarts with empty memory", n);
      case VOTES: return text("node %c votes again", n);
      case LAPSE: return text("%c's ticket expires on node %c while %c lives", A, n, A);
      case EXPIRE: return text("%c's ticket expires on node %c", A, n);
      case UNLOCK: return text("%c's lock expires on node %c", A, n);
      default: return "?";
    }
  }
  std::string dump(const S& s) const {
    std::string o;
    for (const Col& d : s.n) {
      o += std::string("[") + (d.state & DOWN ? "dead " : d.state & QUAR ? "quarantined " : "") + (d.lock ? (char)('A' + (d.lock & 7) - 1) : '-');
      for (int c = 0; c < C; c++)
        if (d.ticket[c]) o += std::string(" ") + (char)('A' + c) + "=" + std::to_string(d.ticket[c] >> 2) + ((d.ticket[c] & 3) == GO ? "!" : d.ticket[c] & 3 ? "" : "?");
      o += "] ";
    }
    static const char* ph[] = {"idle", "asks", "waits", "holds", "turn", "done", "beaten", "dead"};
    for (int c = 0; c < C; c++) o += std::string(" ") + (char)('A' + c) + ":" + ph[s.c[c].ph] + (s.c[c].num ? " " + std::to_string(s.c[c].num) : "");
    return o;
  }
};
