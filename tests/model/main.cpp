// Runs cases of the table below and compares each outcome with the expected one: the protocol must
// pass with its whole reachable state space explored, a naive variant must be caught.
//   mc            all ordinary cases         mc --nightly   all of them (6 GB, about 25 minutes)
//   mc T1 X       cases whose names begin so  mc --list      names only
// Exit status 0: every outcome was the expected one.
#include <functional>
#include "durable.hpp"
#include "failover.hpp"
#include "fences.hpp"
#include "handover.hpp"
#include "heir.hpp"
#include "nodeset.hpp"
#include "once.hpp"
#include "phases.hpp"
#include "queue.hpp"
#include "rest.hpp"
#include "restore.hpp"
#include "resume.hpp"
#include "retention.hpp"
#include "timing.hpp"

enum When { QUICK, NIGHTLY };
enum Expect { HOLDS, CAUGHT };
struct Case { const char* name; When when; Expect expect; const char* what; std::function<Result()> run; };

template <class M> static Result go(const M& m) { Checker<M> c(m); return c.run(); }
template <class M> static Result go_all(const M& m) {
  Checker<M> c(m);
  Result r = c.run();
  std::string ex;
  uint64_t n = r.exhausted ? c.stuck(&ex, &r) : 0;
  if (n) r.violation = "L: " + std::to_string(n) + " states from which somebody can't get there any more";
  return r;
}
template <class C, class F> static C with(F f) { C c; f(c); return c; }

#define SHORT(name, expect, what, expr) {#name, QUICK, expect, what, [] { return expr; }}
#ifdef SHORT_ONLY  // compiles in less than half the time
#define LARGE(name, what, expr) {#name, NIGHTLY, HOLDS, what, nullptr}
#else
#define LARGE(name, what, expr) {#name, NIGHTLY, HOLDS, what, [] { return expr; }}
#endif
#define MODEL(type, cfg, body) type(with<cfg>([](cfg& c) { (void)c; body; }))
#define COMMA ,
#define FENCES(N, K, FULL, body) MODEL(FenceModel<N COMMA K COMMA FULL>, FenceCfg, body)
#define FLOORS(N, K, body) MODEL(HybridModel<N COMMA K>, HybCfg, body)
#define HANDOVER(N, K, body) MODEL(HandModel<N COMMA K>, HandCfg, body)
#define RESTORE(N, K, body) MODEL(RestoreModel<N COMMA K>, RestoreCfg, body)
#define KEEP(N, K, body) MODEL(KeepModel<N COMMA K>, KeepCfg, body)
#define DURABLE(N, K, body) MODEL(DurableModel<N COMMA K>, DurableCfg, body)
#define FAILOVER(N, K, body) MODEL(FailModel<N COMMA K>, FailCfg, body)
#define HEIRS(N, body) MODEL(HeirModel<N COMMA 2>, HeirCfg, body)
#define TWO c.first = 2
// Three servers without the time that a confirmation counts, which leaves few enough states.
#define SMALL c.conf = 0; c.belief = c.quar = c.apart = 2; c.recent = 1
#define TWICE c.failovers = 2; c.lookers = 3
#define NODESET(body) MODEL(SetModel<2>, SetCfg, body)
#define QUEUE(N, K, body) MODEL(QueueModel<N COMMA K>, QueueCfg, body)
#define PHASES(N, K, body) MODEL(PhaseModel<N COMMA K>, PhaseCfg, body)
#define RESTS(N, K, body) MODEL(RestModel<N COMMA K>, RestCfg, body)
#define RESUME(N, K, body) MODEL(ResumeModel<N COMMA K>, ResumeCfg, body)
#define ONCE(N, K, B, body) MODEL(OnceModel<N COMMA K COMMA B>, OnceCfg, body)
#define TIMING(N, K, body) MODEL(TimedModel<N COMMA K>, TimeCfg, body)

static const std::vector<Case> CASES = {
  // ---- T, A: fences, no timing assumption -------------------------------------------------------
  SHORT(T1, HOLDS, "protocol, N=3, 3 acquisitions, checking store", go(FENCES(3, 3, true, c.store = true))),
  LARGE(T2, "+ healing on release, N=3, 3 acquisitions, checking store", go(FENCES(3, 3, true, c.store = c.heal = true; c.heal_giveup = false))),
  SHORT(T3, HOLDS, "+ healing on release and on giving up, N=3, 2 acquisitions, checking store", go(FENCES(3, 2, true, c.store = c.heal = true))),
  LARGE(T4, "+ arbitrary floor 0..3 per attempt, N=3, 3 acquisitions, no healing", go(FENCES(3, 3, true, c.floors = 3))),
  LARGE(T5, "+ arbitrary floor 0..3 per attempt, all healing, N=3, 2 acquisitions", go(FENCES(3, 2, true, c.floors = 3; c.heal = true))),
  LARGE(T6, "protocol, N=3, 4 acquisitions by 2 clients (at most 2 at once), no zombie requests", go(FENCES(3, 4, false, c.active = 2; c.zombies = false))),
  SHORT(T7, HOLDS, "protocol, N=5, 2 acquisitions, healing on release", go(FENCES(5, 2, true, c.heal = true; c.heal_giveup = false))),
  LARGE(T8, "variant: raise without ownership test but strictly '<' (unique and rising all the same)", go(FENCES(3, 3, true, c.raise = FenceCfg::ANY_LT))),
  LARGE(T9, "variant: healing raises even nodes locked by others (unique and rising all the same)", go(FENCES(3, 2, true, c.heal = c.heal_locked = true))),
  LARGE(T10, "protocol, N=5, 3 acquisitions, at most 2 at once, no zombie requests", go(FENCES(5, 3, false, c.active = 2; c.zombies = false))),
  LARGE(A1, "most general protocol (any floors, rounds, repairs, healing), N=3, 3 acquisitions, values 1..3", go(AbstractModel<3, 3>(3))),
  LARGE(A2, "most general protocol, N=3, 2 acquisitions, values 1..4", go(AbstractModel<3, 2>(4))),
  LARGE(A3, "most general protocol, N=5, 2 acquisitions, values 1..3", go(AbstractModel<5, 2>(3))),
  LARGE(A4, "most general protocol over counters shared with other names (buckets), N=3, 3 acquisitions, values 1..3", go(AbstractModel<3, 3>(3, true))),
  SHORT(L1, HOLDS, "nothing fails, one after the other: the second round trip is never needed", go(FENCES(3, 3, true, c.lossless = true))),
  SHORT(L2, HOLDS, "progress: an owner of a majority can always still get its fence", go_all(FENCES(3, 3, true, c.live = c.heal = true))),
  SHORT(X1, CAUGHT, "NAIVE maximum of a majority's grants, no second round", go(FENCES(3, 3, true, c.decide = FenceCfg::MAXGRANT; c.store = true))),
  SHORT(X2, CAUGHT, "NAIVE raise acks when counter <= m, no matter who issued m", go(FENCES(3, 3, true, c.raise = FenceCfg::ANY_LE))),
  SHORT(X3, CAUGHT, "NAIVE counter key may expire or be evicted while unlocked (no clock floor)", go(FENCES(3, 3, true, c.vanish = 1))),
  SHORT(X4, CAUGHT, "healing of nodes locked by others, with a single second round: owners get stuck", go_all(FENCES(3, 3, true, c.live = c.heal = c.heal_locked = true))),
  // ---- P: hand-over of a live lease inside a process ---------------------------------------------
  SHORT(P1, HOLDS, "block above the largest previous counter, N=3, 2 owners, 2 raises", go(HANDOVER(3, 2, c.raises = 2))),
  SHORT(P2, HOLDS, "+ arbitrary floor 0..3 per attempt, blocks of up to 3, 1 raise", go(HANDOVER(3, 2, c.floors = c.size = 3))),
  SHORT(P3, HOLDS, "strict: each hand-over is a raise at a quorum, N=3, 2 owners, 2 raises", go(HANDOVER(3, 2, c.mode = HandCfg::STRICT; c.raises = 2))),
  SHORT(P4, HOLDS, "strict, + arbitrary floor 0..3 per attempt, 1 raise", go(HANDOVER(3, 2, c.mode = HandCfg::STRICT; c.floors = c.size = 3))),
  LARGE(P5, "block of one, N=5, 2 owners, 1 raise", go(HANDOVER(5, 2, c.size = 1))),
  LARGE(P6, "block, N=3, 3 owners, 1 raise", go(HANDOVER(3, 3, ))),
  LARGE(P7, "strict, N=3, 3 owners, 1 raise", go(HANDOVER(3, 3, c.mode = HandCfg::STRICT))),
  LARGE(P8, "block, N=3, 3 owners, 2 raises of one number each", go(HANDOVER(3, 3, c.raises = 2; c.size = 1))),
  LARGE(P9, "block, N=5, 2 owners, 2 raises", go(HANDOVER(5, 2, c.raises = 2))),
  SHORT(Q1, CAUGHT, "NAIVE block from v + 1", go(HANDOVER(3, 2, c.from = HandCfg::ABOVE_OWN))),
  SHORT(Q2, CAUGHT, "block, order demanded while the owner owns any quorum, changed by a late grant", go(HANDOVER(3, 2, c.floors = 3; c.order = HandCfg::UNBROKEN))),
  SHORT(Q3, CAUGHT, "NAIVE block counted on from v without any raise", go(HANDOVER(3, 2, c.raise = false))),
  SHORT(Q4, CAUGHT, "block, raise believed with one answer less than a quorum", go(HANDOVER(3, 2, c.small_quorum = true))),
  SHORT(Q5, CAUGHT, "block, raise executed without comparing the owner", go(HANDOVER(3, 2, c.check_owner = false))),
  SHORT(Q6, CAUGHT, "block, order demanded even after an unnoticed loss", go(HANDOVER(3, 2, c.order = HandCfg::ALWAYS))),
  SHORT(Q7, CAUGHT, "strict, raise believed with one answer less than a quorum", go(HANDOVER(3, 2, c.mode = HandCfg::STRICT; c.small_quorum = true))),
  SHORT(Q8, CAUGHT, "strict, raise executed without comparing the owner", go(HANDOVER(3, 2, c.mode = HandCfg::STRICT; c.check_owner = false))),
  // ---- R: a node loses its memory, plain counters ------------------------------------------------
  SHORT(R1, CAUGHT, "one node loses its memory, no guard", go(FENCES(3, 3, true, c.crashes = 1))),
  SHORT(R2, CAUGHT, "restart guard alone, counter not recovered", go(FENCES(3, 3, true, c.crashes = 1; c.guard = FenceCfg::QUAR))),
  SHORT(R3, CAUGHT, "counter recovered from Q nodes at once, without quarantine", go(FENCES(3, 3, true, c.crashes = 1; c.guard = FenceCfg::SYNC_ONLY))),
  SHORT(R4, HOLDS, "quarantine, then recovery from Q healthy nodes; 1 restart, any older counter value", go(FENCES(3, 2, true, c.crashes = 1; c.rollback = true; c.guard = FenceCfg::QUAR_SYNC))),
  LARGE(R5, "same, 2 restarts", go(FENCES(3, 2, true, c.crashes = 2; c.rollback = true; c.guard = FenceCfg::QUAR_SYNC))),
  LARGE(R6, "quarantine + recovery from Q nodes, N=3, 3 acquisitions, 1 restart", go(FENCES(3, 3, true, c.crashes = 1; c.guard = FenceCfg::QUAR_SYNC))),
  // ---- H: a node loses its memory, floors from the clock -----------------------------------------
  LARGE(H1, "clock floors, attempt 1, skew 1, guard 4 (= attempt + 2*skew + 1), 1 restart", go(FLOORS(3, 2, c.T = 10; c.att = 1; c.skew = 1; c.quar = 4))),
  LARGE(H2, "clock floors, attempt 1, skew 0, guard 2, 2 restarts, any older counter value", go(FLOORS(3, 2, c.T = 8; c.att = 1; c.quar = 2; c.crashes = 2; c.rollback = true))),
  SHORT(H3, HOLDS, "clock floors, attempt 2, skew 0, guard 3, any older counter value", go(FLOORS(3, 2, c.T = 6; c.att = 2; c.quar = 3; c.rollback = true))),
  SHORT(H4, CAUGHT, "clock floors, skew 1, guard one tick too short", go(FLOORS(3, 2, c.T = 10; c.att = 1; c.skew = 1; c.quar = 3))),
  SHORT(H5, CAUGHT, "clock floors, no guard at all", go(FLOORS(3, 2, c.T = 8; c.att = 1; c.quar = 0))),
  SHORT(H6, CAUGHT, "guard, but plain counters", go(FLOORS(3, 2, c.T = 8; c.att = 1; c.quar = 4; c.floors = false))),
  LARGE(H7, "clock floors, 3 acquisitions, attempt 1, guard 4, 1 restart", go(FLOORS(3, 3, c.T = 5; c.att = 1; c.quar = 4))),
  // ---- M: mutual exclusion under bounded timing --------------------------------------------------
  LARGE(M1, "early quorum return, belief = shortest key life (margin covers drift), 3 acquisitions", go(TIMING(3, 3, ))),
  LARGE(M2, "+ any number of extensions, 3 acquisitions, TTL 2", go(TIMING(3, 3, c.ext = true; c.ttl_lo = c.belief = 2))),
  SHORT(M3, HOLDS, "+ extensions re-create missing keys (not counted), 2 acquisitions", go(TIMING(3, 2, c.ext = true; c.repair = TimeCfg::UNCOUNTED))),
  LARGE(M4, "1 amnesia restart, guard = longest validity, extensions, 2 acquisitions", go(TIMING(3, 2, c.ext = true; c.crashes = 1; c.quar = 3))),
  LARGE(M5, "2 amnesia restarts, guard, 2 acquisitions", go(TIMING(3, 2, c.crashes = 2; c.quar = 3))),
  LARGE(M6, "1 forward clock jump noticed by every client, guard, extensions", go(TIMING(3, 2, c.ext = true; c.jumps = 1; c.quar = 3))),
  LARGE(M7, "restart + jump, guard, extensions that re-create keys (not counted)", go(TIMING(3, 2, c.ext = true; c.repair = TimeCfg::UNCOUNTED; c.crashes = c.jumps = 1; c.quar = 3))),
  LARGE(M8, "same, re-created keys counted at once", go(TIMING(3, 2, c.ext = true; c.repair = TimeCfg::COUNTED; c.crashes = c.jumps = 1; c.quar = 3))),
  LARGE(M9, "N=5, 2 acquisitions, TTL 2", go(TIMING(5, 2, c.ttl_lo = c.belief = 2))),
  LARGE(M10, "1 amnesia restart, guard, extensions, 3 acquisitions, TTL 2", go(TIMING(3, 3, c.ttl_lo = c.belief = 2; c.ext = true; c.crashes = 1; c.quar = 2))),
  SHORT(M11, HOLDS, "early quorum return, extensions, 2 acquisitions", go(TIMING(3, 2, c.ext = true))),
  SHORT(Y1, CAUGHT, "margin too small for the drift (belief = shortest key life + 1)", go(TIMING(3, 2, c.belief = 4))),
  SHORT(Y2, CAUGHT, "NAIVE validity counted from the end of the acquisition", go(TIMING(3, 2, c.from_end = true))),
  SHORT(Y3, CAUGHT, "NAIVE elapsed time not checked (pause before the replies are read)", go(TIMING(3, 2, c.check_belief = false))),
  SHORT(Y4, CAUGHT, "amnesia restart, no guard", go(TIMING(3, 2, c.crashes = 1))),
  SHORT(Y5, CAUGHT, "amnesia restart, guard one tick too short", go(TIMING(3, 2, c.crashes = 1; c.quar = 2))),
  SHORT(Y6, CAUGHT, "forward clock jump, no guard (or a client too young to notice)", go(TIMING(3, 2, c.jumps = 1))),
  SHORT(Y7, CAUGHT, "NAIVE release deletes without comparing the owner", go(TIMING(3, 3, c.del_any = true))),
  SHORT(Y8, CAUGHT, "NAIVE extend does not compare the owner", go(TIMING(3, 2, c.ext = c.ext_any = true))),
  // ---- V, W: does a node that may have forgotten count when it extends? ---------------------------
  SHORT(V1, HOLDS, "restart, its extend counts where its grant had counted, TTL 2", go(TIMING(3, 2, c.ttl_lo = c.belief = 2; c.ext = true; c.quar_ext = TimeCfg::WHERE_GRANTED; c.crashes = 1; c.quar = 2))),
  LARGE(V2, "the same with TTL 3", go(TIMING(3, 2, c.ext = true; c.quar_ext = TimeCfg::WHERE_GRANTED; c.crashes = 1; c.quar = 3))),
  LARGE(V3, "restart + jump, its extend counts where its grant had counted, TTL 2", go(TIMING(3, 2, c.ttl_lo = c.belief = 2; c.ext = true; c.quar_ext = TimeCfg::WHERE_GRANTED; c.crashes = c.jumps = 1; c.quar = 2))),
  LARGE(V4, "the same with TTL 3", go(TIMING(3, 2, c.ext = true; c.quar_ext = TimeCfg::WHERE_GRANTED; c.crashes = c.jumps = 1; c.quar = 3))),
  LARGE(V5, "restart, its extend counts where its grant had counted, 3 acquisitions, TTL 2", go(TIMING(3, 3, c.ttl_lo = c.belief = 2; c.ext = true; c.quar_ext = TimeCfg::WHERE_GRANTED; c.crashes = 1; c.quar = 2))),
  SHORT(W1, CAUGHT, "NAIVE a restarted node's extend always counts", go(TIMING(3, 2, c.ttl_lo = c.belief = 2; c.ext = true; c.quar_ext = TimeCfg::ALWAYS; c.crashes = 1; c.quar = 2))),
  SHORT(W2, CAUGHT, "the same where a clock jumped", go(TIMING(3, 2, c.ttl_lo = c.belief = 2; c.ext = true; c.quar_ext = TimeCfg::ALWAYS; c.jumps = 1; c.quar = 2))),
  // ---- K, J: a holder's key is put back where a node has lost it -----------------------------------
  SHORT(K1, HOLDS, "put back where the node is free and votes, 1 restart, TTL 2", go(TIMING(3, 2, c.ttl_lo = c.belief = 2; c.ext = true; c.quar_ext = TimeCfg::WHERE_GRANTED; c.crashes = 1; c.quar = 2; c.restores = 1))),
  SHORT(K2, HOLDS, "fences over a rolling restart of nodes that get the key back with its counter raised", go(RESTORE(3, 2, ))),
  LARGE(K3, "K1 with 2 requests", go(TIMING(3, 2, c.ttl_lo = c.belief = 2; c.ext = true; c.quar_ext = TimeCfg::WHERE_GRANTED; c.crashes = 1; c.quar = 2; c.restores = 2))),
  LARGE(K4, "K1 with a restart and a jump, 2 requests", go(TIMING(3, 2, c.ttl_lo = c.belief = 2; c.ext = true; c.quar_ext = TimeCfg::WHERE_GRANTED; c.crashes = c.jumps = 1; c.quar = 2; c.restores = 2))),
  LARGE(K5, "K2 with 3 acquisitions, 3 restarts", go(RESTORE(3, 3, c.crashes = 3))),
  SHORT(K6, HOLDS, "put on a node that had no vote when the lease was won, once it votes, 1 restart, TTL 2", go(TIMING(3, 2, c.ttl_lo = c.belief = 2; c.ext = true; c.quar_ext = TimeCfg::WHERE_GRANTED; c.crashes = 1; c.quar = 2; c.restores = 1; c.no_vote = true))),
  LARGE(K7, "K6 with 2 restarts, 2 requests", go(TIMING(3, 2, c.ttl_lo = c.belief = 2; c.ext = true; c.quar_ext = TimeCfg::WHERE_GRANTED; c.crashes = 2; c.quar = 2; c.restores = 2; c.no_vote = true))),
  SHORT(J1, CAUGHT, "NAIVE put back on a node in quarantine, and counted", go(TIMING(3, 2, c.ttl_lo = c.belief = 2; c.ext = true; c.quar_ext = TimeCfg::WHERE_GRANTED; c.crashes = 1; c.quar = 2; c.restores = 1; c.restore_quar = true))),
  SHORT(J2, CAUGHT, "NAIVE put back over somebody else's key", go(TIMING(3, 2, c.ttl_lo = c.belief = 2; c.ext = true; c.quar_ext = TimeCfg::WHERE_GRANTED; c.restores = 1; c.restore_any = true))),
  SHORT(J3, CAUGHT, "NAIVE validity counted from the answer that the key is back", go(TIMING(3, 2, c.ttl_lo = c.belief = 2; c.ext = true; c.quar_ext = TimeCfg::WHERE_GRANTED; c.crashes = 1; c.quar = 2; c.restores = 1; c.restore_fresh = true))),
  SHORT(J4, CAUGHT, "NAIVE put back without raising the counter", go(RESTORE(3, 2, c.raise = false))),
  SHORT(J5, CAUGHT, "NAIVE its answer counts although its own acquire may still be on its way", go(TIMING(3, 2, c.ttl_lo = c.belief = 2; c.ext = true; c.quar_ext = TimeCfg::WHERE_GRANTED; c.crashes = 1; c.quar = 2; c.restores = 1; c.restore_doubt = false))),
  SHORT(J6, CAUGHT, "NAIVE put on a node that had no vote while it is in quarantine, and counted", go(TIMING(3, 2, c.ttl_lo = c.belief = 2; c.ext = true; c.quar_ext = TimeCfg::WHERE_GRANTED; c.crashes = 1; c.quar = 2; c.restores = 1; c.no_vote = c.restore_quar = true; c.restore_doubt = false))),
  SHORT(J7, CAUGHT, "NAIVE put there once it votes, and a voter from then on, 2 restarts", go(TIMING(3, 2, c.ttl_lo = c.belief = 2; c.ext = true; c.quar_ext = TimeCfg::WHERE_GRANTED; c.crashes = 1; c.quar = 2; c.restores = 1; c.no_vote = c.begun = true; c.restore_doubt = false))),
  // ---- C, N: counters that expire ------------------------------------------------------------------
  SHORT(C1, HOLDS, "counters expire when the clock shows value + 2; floors exact, clocks agree, one set back by 1, N=3", go(KEEP(3, 2, c.ticks = 2; c.near = c.skew = 0; c.keep = 2))),
  SHORT(C2, HOLDS, "single node, 3 acquisitions, floors 2 off, clock set back by 3, kept for 6", go(KEEP(1, 3, c.ticks = 7; c.near = 2; c.back = 3; c.keep = 6))),
  LARGE(C3, "C1 with clocks 1 apart", go(KEEP(3, 2, c.ticks = 2; c.near = 0; c.keep = 2))),
  SHORT(N1, CAUGHT, "kept one tick too short", go(KEEP(3, 2, c.near = 0; c.keep = 1))),
  SHORT(N2, CAUGHT, "NAIVE a floor far behind the node's clock is believed", go(KEEP(3, 2, c.near = 0; c.keep = 2; c.own_clock = false))),
  SHORT(N3, CAUGHT, "NAIVE kept from the moment of writing, not from the counter's value", go(KEEP(1, 2, c.from_value = false))),
  // ---- D, E: nodes that restart with and without a disk --------------------------------------------
  SHORT(D1, HOLDS, "votes at once if both processes are durable, the mark fits and no process in between can have granted, 1 restart", go(DURABLE(3, 2, c.crashes = 1))),
  LARGE(D2, "the same with 2 restarts", go(DURABLE(3, 2, ))),
  SHORT(E1, CAUGHT, "NAIVE a process that is durable now votes at once", go(DURABLE(3, 2, c.crashes = 1; c.before = false))),
  SHORT(E2, CAUGHT, "both processes are durable, the mark is not compared", go(DURABLE(3, 2, c.crashes = 1; c.mark = false))),
  SHORT(E3, CAUGHT, "a process in between that kept nothing may have had the time to grant", go(DURABLE(3, 2, c.silence = false))),
  SHORT(E4, CAUGHT, "a quarantine under way ends with the process", go(DURABLE(3, 2, c.wait = false))),
  SHORT(D3, HOLDS, "the operator promises to keep the disks: a durable process votes at once, also when it is met first, 1 restart", go(DURABLE(3, 2, c.crashes = 1; c.promised = true; c.empty = c.change = false))),
  LARGE(D4, "the same with 2 restarts", go(DURABLE(3, 2, c.promised = true; c.empty = c.change = false))),
  SHORT(E5, CAUGHT, "the promise is broken: a node restarts on an empty disk", go(DURABLE(3, 2, c.crashes = 1; c.promised = true; c.change = false))),
  SHORT(E6, CAUGHT, "the promise is broken: a node runs without its disk in between", go(DURABLE(3, 2, c.crashes = 1; c.promised = true; c.empty = false))),
  // ---- F, G: a primary that is replaced while some clients see the old one ------------------------
  SHORT(F1, HOLDS, "confirmed primaries, one failover, 3 servers", go(FAILOVER(3, 2, ))),
  SHORT(F2, HOLDS, "confirmed primaries, there and back again, 2 servers", go(FAILOVER(2, 2, c.failovers = 2))),
  LARGE(F3, "grants acknowledged by all attached replicas, and a new primary waits", go(FAILOVER(3, 2, c.acks_all = true))),
  SHORT(G1, CAUGHT, "NAIVE an open connection goes on without a confirmation", go(FAILOVER(3, 2, c.confirm = false))),
  SHORT(G2, CAUGHT, "a new primary's quarantine without the time that a confirmation counts", go(FAILOVER(3, 2, c.quar = 2))),
  SHORT(G3, CAUGHT, "NAIVE all attached replicas acknowledge, and a new primary votes at once", go(FAILOVER(3, 2, c.acks_all = c.complete = true))),
  SHORT(G4, CAUGHT, "the mark names the process alone, which is named again before it has copied anything", go(FAILOVER(2, 2, c.failovers = 2; c.term = false))),
  SHORT(G5, CAUGHT, "NAIVE a new primary extends at once, while the old one may grant", go(FAILOVER(3, 2, c.wait = false))),
  SHORT(G6, CAUGHT, "NAIVE an answer counts that comes after the confirmation has run out", go(FAILOVER(3, 2, c.late = true))),
  // ---- O, B: the queue over N nodes ---------------------------------------------------------------
  SHORT(O1, HOLDS, "1 node, 3 clients, a turn", go_all(QUEUE(1, 3, c.turns = 1))),
  SHORT(O2, HOLDS, "3 nodes, 2 clients, a node dies", go_all(QUEUE(3, 2, c.down = 1))),
  SHORT(O3, HOLDS, "an answer is lost", go_all(QUEUE(3, 2, c.lost = 1))),
  SHORT(O4, HOLDS, "a turn, and a waiter leaves", go_all(QUEUE(3, 2, c.turns = c.leavers = 1))),
  SHORT(O5, HOLDS, "a client dies, its keys expire, others ask at intervals", go_all(QUEUE(3, 2, c.timers = c.expiry = true; c.deaths = 1))),
  SHORT(O6, HOLDS, "2 tickets expire although their waiters live", go_all(QUEUE(3, 2, c.timers = true; c.lapses = 2))),
  SHORT(O7, HOLDS, "2 rivals try once: the order settles a split", go_all(QUEUE(3, 2, c.tries = 3))),
  SHORT(O8, HOLDS, "a client that knows no queue", go_all(QUEUE(3, 2, c.timers = true; c.old = 2))),
  LARGE(O9, "a node restarts", go_all(QUEUE(3, 2, c.timers = true; c.restarts = 1))),
  LARGE(O10, "a turn, and a node dies", go_all(QUEUE(3, 2, c.turns = c.down = 1))),
  LARGE(O11, "an attempt ends early, and a node dies", go_all(QUEUE(3, 2, c.impatient = c.down = 1))),
  SHORT(O12, HOLDS, "3 nodes, 3 clients, as in the library: a grant forgets the number, and numbers begin at the clock", walk(QUEUE(3, 3, c.forget = c.clocks = true; c.turns = c.down = 1), 3000, 3000)),
  SHORT(O13, HOLDS, "3 nodes, 3 clients, everything that may go wrong", walk(QUEUE(3, 3, c.timers = c.expiry = true; c.turns = c.deaths = c.lapses = c.lost = c.leavers = 1; c.restarts = c.impatient = 2), 3000, 3000)),
  SHORT(O14, HOLDS, "5 nodes, 3 clients, everything that may go wrong", walk(QUEUE(5, 3, c.timers = c.expiry = true; c.turns = c.deaths = c.lapses = c.lost = c.leavers = c.restarts = 1; c.down = c.impatient = 2), 3000, 3000)),
  SHORT(O15, HOLDS, "3 nodes, 3 rivals try once, 3 answers come late", walk(QUEUE(3, 3, c.tries = 7; c.lost = 3), 3000, 3000)),
  SHORT(O16, HOLDS, "every push is lost, and others ask at intervals", go_all(QUEUE(3, 2, c.wake = false; c.timers = true))),
  SHORT(B1, CAUGHT, "NAIVE a number that no node was asked for", go_all(QUEUE(1, 3, c.number = QueueCfg::NONE))),
  SHORT(B2, CAUGHT, "a number from any one answer", walk(QUEUE(3, 3, c.number = QueueCfg::ANY_ANSWER; c.impatient = 2), 200000, 3000)),
  SHORT(B3, CAUGHT, "NAIVE a newcomer is granted a free name although tickets wait", go_all(QUEUE(1, 3, c.barge = true))),
  SHORT(B4, CAUGHT, "a grant forgets the ticket's number, and numbers begin anywhere", walk(QUEUE(3, 3, c.forget = true), 30000, 3000)),
  SHORT(B5, CAUGHT, "a node keeps the larger of two numbers of a ticket, and another node dies", walk(QUEUE(3, 3, c.raise = true; c.down = 1), 30000, 3000)),
  SHORT(B6, CAUGHT, "a refusal leaves the ticket woken", go_all(QUEUE(3, 2, c.keep_go = true; c.turns = 1))),
  SHORT(B7, CAUGHT, "one node's wake-up is enough to ask again", go_all(QUEUE(3, 2, c.any_go = true))),
  SHORT(B8, CAUGHT, "NAIVE a release wakes nobody", go_all(QUEUE(3, 2, c.wake = false))),
  SHORT(B9, CAUGHT, "a failed attempt loses its ticket", walk(QUEUE(3, 3, c.back = false), 30000, 3000)),
  SHORT(B10, CAUGHT, "a ticket that is put back as the first counts as waiting", go_all(QUEUE(3, 2, c.back_go = false; c.down = 1))),
  SHORT(B11, CAUGHT, "NAIVE a dead ticket is not skipped", go_all(QUEUE(1, 3, c.skip = false; c.timers = c.expiry = true; c.deaths = 1))),
  SHORT(B12, CAUGHT, "a turn's request, which is lost, settles the number", go_all(QUEUE(3, 2, c.turn = QueueCfg::SETTLES; c.turns = c.down = 1))),
  SHORT(B13, CAUGHT, "a winner's ticket stays where it was refused", go_all(QUEUE(3, 2, c.clean = false; c.down = 1))),
  SHORT(B14, CAUGHT, "a refusal by a free node doesn't wake the first ticket", go_all(QUEUE(3, 2, c.wake_refused = false; c.down = 1))),
  SHORT(B15, CAUGHT, "a turn that is not used is not passed on", go_all(QUEUE(3, 2, c.pass = false; c.turns = 1))),
  SHORT(B16, CAUGHT, "a rival gives up that heard its refusals before its grant", walk(QUEUE(3, 3, c.claims = true; c.tries = 7; c.lost = 3), 30000, 3000)),
  SHORT(B17, CAUGHT, "a rival gives up for a ticket that is first on a quorum", walk(QUEUE(3, 3, c.yield_head = true; c.tries = 7), 30000, 3000)),
  // ---- I: the queue of readers and writers --------------------------------------------------------
  SHORT(I1, HOLDS, "1 node, 2 writers, 2 readers", go_all(PHASES(1, 4, c.writers = 3))),
  SHORT(I2, HOLDS, "3 nodes, a writer, a reader, a node dies", go_all(PHASES(3, 2, c.down = 1))),
  SHORT(I3, HOLDS, "a client dies, what it leaves expires, others ask at intervals", go_all(PHASES(3, 2, c.timers = c.expiry = true; c.deaths = 1))),
  SHORT(I4, HOLDS, "a waiter dies, 1 node, 2 writers, 2 readers", go_all(PHASES(1, 4, c.writers = 3; c.timers = c.expiry = true; c.deaths = 1))),
  SHORT(I5, HOLDS, "3 nodes, a writer, 2 readers", go(PHASES(3, 3, c.writers = 1))),
  SHORT(I6, HOLDS, "3 nodes, 2 writers, 2 readers, a node dies", walk(PHASES(3, 4, c.writers = 3; c.timers = true; c.down = 1), 3000, 3000)),
  SHORT(I7, HOLDS, "3 nodes, 2 writers, 2 readers, everything that may go wrong", walk(PHASES(3, 4, c.writers = 3; c.timers = c.expiry = true; c.deaths = c.lapses = c.down = c.impatient = 1), 3000, 3000)),
  SHORT(I8, HOLDS, "3 nodes, 2 writers, a reader", walk(PHASES(3, 3, c.writers = 3; c.timers = true), 3000, 3000)),
  LARGE(I9, "3 nodes, 2 writers, a reader", go(PHASES(3, 3, c.writers = 3))),
  SHORT(I10, HOLDS, "1 node, 2 writers, 2 readers, a release in two steps", go_all(PHASES(1, 4, c.writers = 3; c.keeps = true))),
  SHORT(I20, HOLDS, "3 nodes, 2 writers, a reader, a release in two steps", walk(PHASES(3, 3, c.writers = 3; c.keeps = c.timers = true), 3000, 3000)),
  SHORT(I11, CAUGHT, "NAIVE a writer doesn't look at readers", go_all(PHASES(1, 2, c.beside = true))),
  SHORT(I12, CAUGHT, "NAIVE a reader doesn't look at waiting writers", go_all(PHASES(1, 3, c.barge = true))),
  SHORT(I13, CAUGHT, "writers first: a writer's release lets no reader go before the next", go_all(PHASES(1, 3, c.writers = 3; c.ready = false))),
  SHORT(I14, CAUGHT, "a writer doesn't wait for the readers whose turn it is", go_all(PHASES(1, 3, c.writers = 3; c.respect = false))),
  SHORT(I15, CAUGHT, "a failed attempt ends a turn", walk(PHASES(3, 3, c.writers = 1; c.back_turn = true; c.impatient = 1), 200000, 3000)),
  SHORT(I16, CAUGHT, "NAIVE a dead ticket is not skipped", go_all(PHASES(1, 3, c.writers = 3; c.skip = false; c.timers = c.expiry = true; c.deaths = 1))),
  SHORT(I17, CAUGHT, "NAIVE the last reader wakes nobody", go_all(PHASES(1, 3, c.last = false))),
  SHORT(I18, CAUGHT, "3 nodes, a reader's request is ahead of the writer's release on one of them", go(PHASES(3, 3, c.writers = 3; c.cross = true))),
  SHORT(I19, CAUGHT, "the second step of a release ends the turn", go_all(PHASES(1, 3, c.writers = 3; c.keeps = c.late_turn = c.timers = true))),
  // ---- heirs that serve at once (docs/decisions/0029) ----------------------------------------------
  SHORT(F9, HOLDS, "an heir serves those who saw that it has everything, extensions, a replica restarts with older data, 2 servers", go(HEIRS(2, TWO; c.extends = true; c.restarts = 1))),
  SHORT(F10, HOLDS, "F9 without these, 2 failovers", go(HEIRS(2, TWO; TWICE))),
  SHORT(F11, HOLDS, "F10 with 3 servers and one list", go(HEIRS(3, SMALL; TWICE; c.moves = false))),
  SHORT(F12, HOLDS, "one of the clients asks for fewer acknowledgements, 2 servers", go(HEIRS(2, TWO; c.fewer = true))),
  SHORT(F13, HOLDS, "others ask for fewer acknowledgements, 2 servers", go(HEIRS(2, TWO; c.closers = true))),
  LARGE(F14, "an heir serves those who saw that it has everything, 3 servers", go(HEIRS(3, ))),
  LARGE(F15, "the same, extensions, a replica restarts with older data", go(HEIRS(3, SMALL; c.extends = true; c.restarts = 1))),
  LARGE(F16, "F10 with 3 servers", go(HEIRS(3, SMALL; TWICE))),
  SHORT(G12, CAUGHT, "names are dropped one tick too early", go(HEIRS(2, TWO; c.recent = 3))),
  SHORT(G13, CAUGHT, "NAIVE a name that leaves need not acknowledge any more", go(HEIRS(2, TWO; c.leaving = false))),
  SHORT(G14, CAUGHT, "NAIVE as many replicas acknowledge as are listed, whichever they are", go(HEIRS(3, SMALL; TWO; c.named = c.moves = false))),
  SHORT(G15, CAUGHT, "a look proves a replica that has not acknowledged since an earlier one", go(HEIRS(2, TWO; c.looked_since = false))),
  SHORT(G16, CAUGHT, "the list may change between the two looks", go(HEIRS(2, TWO; c.unchanged = false))),
  SHORT(G17, CAUGHT, "NAIVE the list in the heir's own data is believed", go(HEIRS(2, TWO; c.own_look = false))),
  SHORT(G18, CAUGHT, "the heir may have restarted since the look", go(HEIRS(2, TWO; c.restarts = 1; c.same_process = false))),
  SHORT(G19, CAUGHT, "F10, and a look counts at a primary that does not vote yet", go(HEIRS(2, TWO; TWICE; c.voting = false))),
  SHORT(G20, CAUGHT, "F11, and the look may be at an earlier term than the one right before", go(HEIRS(3, SMALL; TWICE; c.moves = c.next_term = false))),
  SHORT(G21, CAUGHT, "F10, and a believed heir doesn't wait until confirmations have run out", go(HEIRS(2, TWO; TWICE; c.lag = false))),
  SHORT(G22, CAUGHT, "F12, and that client leaves the list as it is", go(HEIRS(2, TWO; c.fewer = true; c.closes = false))),
  SHORT(G23, CAUGHT, "F12, and that client doesn't wait", go(HEIRS(2, TWO; c.fewer = true; c.closing_waits = false))),
  SHORT(G24, CAUGHT, "F13, and a closed list names nobody", go(HEIRS(2, TWO; c.closers = true; c.closing_lists = false))),
  SHORT(G25, CAUGHT, "F9, and extensions need no acknowledgement", go(HEIRS(2, TWO; c.extends = true; c.ext_acks = false))),
  // ---- S, U: the set of nodes changes, {1 2 3} -> {1 2 3 4} -> {2 3 4} -----------------------------
  SHORT(S1, HOLDS, "one node at a time, each step closed before the next", go(NODESET(c.belief = c.wait = 1))),
  LARGE(S2, "the same, leases of 2 ticks", go(NODESET())),
  LARGE(S3, "the last step, leases of 2 ticks, extensions", go(NODESET(c.first = 1; c.extend = true))),
  LARGE(S4, "one node restarts empty, and is told again", go(NODESET(c.belief = c.wait = c.quar = 1; c.crashes = 1))),
  SHORT(U1, CAUGHT, "NAIVE one step replaces a node", go(NODESET(c.belief = c.wait = 1; c.hop = true))),
  SHORT(U2, CAUGHT, "NAIVE the next step begins at once", go(NODESET(c.belief = 1; c.wait = 0))),
  SHORT(U3, CAUGHT, "clients that know nothing of the record", go(NODESET(c.belief = c.wait = 1; c.compare = false))),
  SHORT(U4, CAUGHT, "NAIVE compared on connect only", go(NODESET(c.belief = c.wait = 1; c.pushed = false))),
  SHORT(U5, CAUGHT, "NAIVE a level is in force once any node keeps it", go(NODESET(c.belief = c.wait = 1; c.majority = false))),
  SHORT(U6, CAUGHT, "NAIVE a node that restarted is not told again", go(NODESET(c.first = 1; c.belief = c.wait = c.quar = 1; c.crashes = 1; c.heal = false))),
  SHORT(U7, CAUGHT, "NAIVE a refused client goes on extending", go(NODESET(c.first = 1; c.extend = true; c.renewals = false))),
  // ---- Z: zombie grants (liveness) ---------------------------------------------------------------
  SHORT(Z1, CAUGHT, "the release overtakes its own acquire (two connections, no deadline)", go(TIMING(3, 2, c.zcheck = true))),
  SHORT(Z2, HOLDS, "acquire and release travel on one connection, in order", go(TIMING(3, 2, c.zcheck = c.fifo = true))),
  SHORT(Z3, HOLDS, "acquire carries a deadline, a release is sent after it", go(TIMING(3, 2, c.zcheck = true; c.deadline = 1))),
  // ---- AL, AX: a name rests after a release ---------------------------------------------------
  SHORT(AL1, HOLDS, "at_least: a release counts the rest from when the lease was won, 2 acquisitions", go(RESTS(3, 2, ))),
  SHORT(AX1, CAUGHT, "NAIVE a release that is sent again deletes", go(RESTS(3, 2, c.plain = true))),
  SHORT(AX2, CAUGHT, "NAIVE the rest begins where the release is executed", go(RESTS(3, 2, c.relative = true))),
  // ---- DR, DX: a detached lease is resumed --------------------------------------------------------
  SHORT(DR1, HOLDS, "2 clients resume a detached lease, and one locks the name", go(RESUME(3, 3, ))),
  SHORT(DR2, HOLDS, "3 clients resume it", go(RESUME(3, 3, c.tickets = 3))),
  SHORT(DX1, CAUGHT, "NAIVE the owner stays the same", go(RESUME(3, 3, c.keep = true))),
  SHORT(DX2, CAUGHT, "NAIVE it also takes a free name", go(RESUME(3, 3, c.absent = true))),
  SHORT(DX3, CAUGHT, "NAIVE the counter is not raised", go(RESUME(3, 3, c.count = false))),
  SHORT(DX4, CAUGHT, "NAIVE a release puts the old owner's key back", go(RESUME(3, 3, c.back = true))),
  // ---- DO, OX: a result that is kept once ------------------------------------------------------
  SHORT(DO1, HOLDS, "once: a claim, then a result; 2 runs, 4 changes at any numbers", go(ONCE(3, 2, 4, ))),
  SHORT(DO2, HOLDS, "same, 3 runs", go(ONCE(3, 3, 4, ))),
  LARGE(DO3, "same, 3 runs, 5 changes", go(ONCE(3, 3, 5, ))),
  SHORT(OX1, CAUGHT, "NAIVE a run begins without a claim, when a quorum shows no result", go(ONCE(3, 2, 4, c.claim = false))),
  SHORT(OX2, CAUGHT, "NAIVE a claim takes the place of that of a higher fence", go(ONCE(3, 2, 4, c.fence = false))),
  SHORT(OX3, CAUGHT, "NAIVE a result takes the place of another run's claim", go(ONCE(3, 2, 4, c.ticket = false))),
  SHORT(OX4, CAUGHT, "NAIVE a result that a minority has is given away without a write", go(ONCE(3, 3, 4, c.write = false))),
};

static bool as_expected(const Case& c, const Result& r) {
  if (c.expect == CAUGHT) return !r.violation.empty();
  return r.violation.empty() && (r.exhausted || r.sampled) && !r.truncated;
}

static bool report(const Case& c) {
  Result r = c.run();
  bool fine = as_expected(c, r);
  printf("%-3s %-6s %-10s states=%-9llu depth=%-3d %-9s %6.1fs  %s\n", c.name, r.violation.empty() ? "holds" : "caught", fine ? "expected" : "UNEXPECTED",
         (unsigned long long)r.states, r.depth, r.truncated ? "TRUNCATED" : r.sampled ? "sampled" : r.exhausted ? "exhausted" : r.violation.empty() ? "NOT ALL" : "stopped", r.secs, c.what);
  if (!r.violation.empty()) printf("    violated %s\n", r.violation.c_str());
  for (size_t i = 0; i < r.trace.size(); i++) printf("    %2zu %s\n", i + 1, r.trace[i].c_str());
  fflush(stdout);
  return fine;
}

int main(int argc, char** argv) {
  bool list = argc == 2 && !strcmp(argv[1], "--list"), nightly = argc == 2 && !strcmp(argv[1], "--nightly");
  bool named = argc > 1 && !nightly && !list;
  int run = 0, unexpected = 0;
  for (const Case& c : CASES) {
    bool want = !named && (nightly || c.when == QUICK);
    for (int i = 1; i < argc && named; i++) want |= !strncmp(c.name, argv[i], strlen(argv[i]));
    // a whole name means that case alone: T1 is not T10
    for (int i = 1; i < argc && named; i++) for (const Case& d : CASES)
      if (want && !strcmp(d.name, argv[i]) && strcmp(c.name, argv[i]) && argc == 2) want = false;
    if (list) printf("%s %s %s\n", c.name, c.when == QUICK ? "quick" : "nightly", c.expect == HOLDS ? "holds" : "caught");
    else if (want && c.run) { run++; unexpected += !report(c); }
  }
  if (!list && !run) { fprintf(stderr, "no such case here\n"); return 2; }
  return unexpected != 0;
}
