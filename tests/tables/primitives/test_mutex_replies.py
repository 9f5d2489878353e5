"""What the scripts of a mutex reply and leave behind: its queue, slots and batches (lock.lua)."""

# Mutants of a script are shown first to the tests that import its module.
from asynclock._primitives import lock  # noqa: F401
from tests.tables.primitives.replies import played

test_a_mutex_in_memory, test_a_mutex = played("""
    an owner that asks again gets the whole ttl
      lock acquire me -> 1 * ''
      PEXPIRE l 5000
      lock acquire me -> 1 * ''
      PTTL l -> TTL
      lock acquire you -> 0 TTL me 0 0 0

    a detached lease is resumed in the place of its owner alone, even if others wait
      lock acquire old ttl=5000
      lock wait t1
      lock acquire new 0 t 0 0 old -> 1 * t1
      lock acquire third 0 t 0 0 old -> 0 TTL new 0 0 0
      DEL l
      lock acquire third 0 t 0 0 new -> 0 -2 '' 0 0 0

    a name rests for as long as was asked, or until a moment that comes sooner
      still
      lock acquire me
      lock rest me 3000 0 -> 1 ''
      GET l -> #rests:me
      lock rest me 9000 0 -> 1 ''
      lock rest you 9000 0 -> 0 ''
      PTTL l -> 3000
      SET l me
      lock rest me 3000 now+999001 -> 1 ''
      PTTL l -> 1000
      SET l me
      lock rest me 3000 now+9000000 -> 1 ''
      PTTL l -> 3000
      SET l me
      lock rest me 3000 1 -> 1 ''
      PTTL l -> 1

    the last number that a counter can have
      SET c 9007199254740990
      lock acquire me -> 1 9007199254740991 ''
      lock acquire me -> !WRONGTYPE c must keep a whole number
      GET c -> 9007199254740991

    a fraction is no fence, in a batch or alone
      SET c,ac 12.5
      lock acquire me floor=now -> !WRONGTYPE c must keep a whole number
      lock(a aq ac) batch 0 me -> 1 [!WRONGTYPE]
      GET c -> 12.5
      GET ac -> 12.5

    a tool that knows no queue looks and releases
      lock acquire me floor=now
      lock(l c) inspect -> me TTL now
      lock(l c) check me -> 1
      lock(l c) check you -> 0
      lock(l c) release you -> 0 ''
      lock(l c) release me -> 1 ''
      GET l -> -

    a name that is no text is left alone
      HSET b field value
      lock(b bc q) acquire me -> !WRONGTYPE
      multi acquire me -> !WRONGTYPE
      HMGET b field -> value
      DEL b
      SET bc words
      multi acquire me -> !WRONGTYPE bc must keep a whole number
      GET bc -> words
""")

test_a_queue_in_memory, test_a_queue = played("""
    a waiter that is refused learns its number and its rank
      SET l holder PX TTL
      lock wait t1 floor=9 -> 0 TTL holder 9 0 0
      lock wait t2 floor=9 -> 0 TTL holder 10 1 0
      lock wait t3 floor=30 -> 0 TTL holder 30 2 0
      lock wait t2 floor=50 -> 0 TTL holder 10 1 0
      ZRANGE q 0 -1 -> t1 t2 t3
      lock wait t1 TTL 20 floor=50 -> 0 TTL holder 20 1 0
      lock wait t0 0 floor=5 -> 0 TTL holder 0 0 0
      ZRANGE q 0 -1 WITHSCORES -> t2 10 t1 20 t3 30
      lock wait t4 TTL 1 -> 0 TTL holder 1 0 0
      lock wait t5 TTL 1 -> 0 TTL holder 1 1 0

    one that only asks has no number and no rank, although its ticket waits from before
      SET l holder PX TTL
      lock wait t1 0 -> 0 TTL holder 0 0 0
      EXISTS q -> 0
      lock wait t1 floor=9
      lock wait t2 floor=9
      lock wait t2 0 0 -> 0 TTL holder 0 0 0
      lock wait t3 0 20 -> 0 TTL holder 0 0 0
      ZRANGE q 0 -1 WITHSCORES -> t1 9 t2 10

    without a floor the clock of the node gives the number
      SET l holder PX TTL
      lock wait t1 floor=-1 -> 0 TTL holder now 0 0
      DEL q
      lock release holder 0 t3 TTL 0 -> 1 t3
      ZRANGE q 0 -1 WITHSCORES -> t3 now

    the order stays when the clock is set back
      SET l holder PX TTL
      lock wait t1 floor=-1
      sleep -3600000
      lock wait t2 floor=-1
      ZRANGE q 0 -1 -> t1 t2

    a queue lives as long as its tickets
      SET l holder PX TTL
      lock wait t1 1000
      PTTL q,q:#t1 -> 1000 1000
      lock wait t2 3000
      PTTL q,q:#t2 -> 3000 3000
      sleep 500
      lock wait t1 2000
      PTTL q:#t1 -> 2000

    a waiter that is woken is told once and may still die
      SET l holder PX TTL
      lock wait t1 1000
      lock wait t2
      lock release holder -> 1 t1
      GET q:#t1 -> go
      PTTL q:#t1 -> 1000
      listen
      lock pass -> 1 t1
      lock wait t3 -> 0 1000 t1 * 2 1
      quiet q:#t1
      sleep 1500
      lock pass -> 1 t2
      ZRANGE q 0 -1 -> t2 t3
      GET q:#t2 -> go
      lock wait t2 0 -> 1 * t3
      ZRANGE q 0 -1 -> t3
      GET q:#t2 -> -

    a waiter that was woken and asks in vain waits again
      SET l holder PX TTL
      lock wait t1
      lock release holder -> 1 t1
      SET l another PX TTL
      lock wait t1 -> 0 TTL another ...
      GET q:#t1 -> 1

    a newcomer gets no free name that somebody waits for
      lock acquire holder
      lock wait t1
      lock release holder -> 1 t1
      lock wait t2 0 -> 0 TTL t1 0 0 1
      lock wait t2 -> 0 TTL t1 * 1 1
      lock wait t1 -> 1 * t2
      EXISTS q:#t1 -> 0
      lock release T1 -> 1 t2
      lock wait t2 -> 1 * ''
      EXISTS q,q:#t2 -> 0 0
      PTTL l -> TTL

    a newcomer at a name that expired wakes the first waiter
      SET l holder PX TTL
      lock wait t1 9000
      DEL l
      lock wait t2 floor=99 -> 0 9000 t1 99 1 1
      GET q:#t1 -> go
      lock wait t3 0 -> 0 9000 t1 0 0 1

    a waiter keeps its place on a node that forgot it, because it has settled on a lower number
      SET l holder PX TTL
      lock wait t2 floor=9
      DEL l
      lock wait t1 TTL 5 -> 1 * t2
      ZRANGE q 0 -1 -> t2
      GET q:#t2 -> 1

    a number that others agreed on replaces ours before we look
      SET l holder PX TTL
      lock wait t2 floor=7
      lock wait t1 floor=9
      DEL l
      lock wait t1 TTL 6 -> 1 * t2

    leaving wakes the next where the name is free
      SET l holder PX TTL
      lock wait t1
      lock wait t2
      lock wait t3
      lock leave t2 -> 0 ''
      ZRANGE q 0 -1 -> t1 t3
      GET q:#t2 -> -
      lock leave t1 -> 0 ''
      GET q:#t3 -> 1
      DEL l
      lock leave another -> 1 t3
      GET q:#t3 -> go

    leaving wakes nobody who was woken before, perhaps for a slot that is taken by now
      SET l holder PX TTL
      lock wait t1
      lock wait t2
      SET q:#t2 go PX TTL
      lock leave t1 -> 0 ''

    a release within a turn wakes nobody, and after a failed attempt the ticket goes on waiting
      lock acquire me
      lock wait t1 floor=9
      lock release me 1 -> 1 ''
      GET q:#t1 -> 1
      lock leave t1
      lock acquire me
      lock release me 0 mine 20000 5 -> 1 mine
      ZRANGE q 0 -1 WITHSCORES -> mine 5
      PTTL q:#mine -> 20000

    waiters are listed in the order in which they go, readers that came later after a writer
      ZADD q -1 turn
      ZADD q 5 first
      ZADD q 6 second
      ZADD q LATER later
      ZADD q 7 dead
      SET q:#turn,q:#first,q:#second,q:#later 1 PX TTL
      waiters inspect 10 -> [turn -1 1 -1] [first 5 1 5] [second 6 1 6] [later 5.5 1 LATER]
      waiters inspect 2 -> [turn -1 1 -1] [first 5 1 5]
      SET w writer PX TTL
      waiters inspect 10 -> [turn -1 1 -1] [first 5 1 5] [second 6 1 6] [later 0.5 1 LATER]
""")

TURN = """
    within its turn a process goes before others, {what}
      lock wait one {ms}
      lock wait two
      lock wait three
      lock release ONE 1 -> 1 ''
      listen
      lock wait one {ms} 0 1 floor={floor} -> 1 {fence} two
      GET q:#two -> {woken}
      quiet q:#two
      lock release ONE 1 -> 1 ''
      lock wait three {ms} 0 1 -> 1 * two
      ZRANGE q 0 -1 -> two
      EXISTS q:#three -> 0
      lock release THREE 1 -> 1 ''
      lock wait two {ms} 0 1 -> 1 * ''
      EXISTS q -> 0
      lock wait three
      lock release TWO 1 -> 1 ''
      lock wait one -> 0 * three * 1 1
      GET q:#three -> go
      lock wait one {ms} 0 1 -> 1 * three
      ZRANGE q 0 -1 -> three
      lock release ONE 1 -> 1 ''
      DEL q:#three
      lock wait one {ms} 0 1 -> 1 * ''
"""
test_a_turn_in_memory, test_a_turn = played(
    "\n".join(
        TURN.format(what=f"floor {floor} for {ms}", floor=floor, ms=ms, fence=fence, woken=1)
        for ms in ("0", "TTL")
        for floor, fence in (("now+9", "now+9"), ("-1", "now"), ("5", "now-MINUTE+2"))
    )
)

test_slots_in_memory, test_slots = played("""
    a refusal tells of other slots and when the first is free
      SET l holder PX 50000
      SET n0 other PX 20000
      lock(l c q n0 n1) wait t1 -> 0 20000 holder 0 0 0 10
      ZRANGE q 0 -1 ->
      SET n1 without-a-ttl
      lock(l c q n0 n1) wait t1 floor=7 -> 0 20000 holder 7 0 0 11
      GET q:#t1 -> 3
      SET n0 other PX 180000
      lock(l c q n0 n1) wait t1 -> 0 50000 holder ...
      SET n0 other PX 20000
      SET n1 other PX 45000
      lock(l c q n0 n1) wait t1 -> 0 20000 holder ...
      SET n0 other PX 45000
      SET n1 other PX 20000
      lock(l c q n0 n1) wait t1 -> 0 20000 holder ...

    any free slot is ours for the asking
      SET l,n1 holder PX TTL
      lock(l c q n0 n1) wait t1 -> 0 TTL holder 0 0 0 01
      lock(l c q n0 n1) wait t1 TTL 5 -> 0 TTL holder 0 0 0 01
      ZRANGE q 0 -1 ->

    a rival that settles a split vote takes a place although a slot is free
      SET l holder PX TTL
      lock(l c q n0) wait t1 TTL -1 floor=7 -> 0 TTL holder 7 0 0 0
      ZRANGE q 0 -1 -> t1

    a free slot is left to the first waiter
      SET l,n0,n1 holder PX TTL
      lock(l c q n0 n1) wait t1
      DEL n1
      lock(l c q n0 n1) wait t2 -> 0 TTL t1 * 1 1 11
      GET q:#t1 -> go
      lock(l c q n0 n1) wait t1 -> 0 TTL holder 0 0 0 10

    a slot is taken in a turn, and the first waiter woken for another
      SET l,n0,n1 holder PX TTL
      lock(l c q n0 n1) wait t1
      DEL l,n1
      lock(l c q n0 n1) wait t9 TTL 0 1 -> 1 * t1
      GET q:#t1 -> go

    a waiter that asks about fewer slots is woken as well
      SET l,n0,n1 holder PX TTL
      lock wait t1
      DEL l,n1
      lock(l c q n0 n1) wait t9 TTL 0 1 -> 1 * t1
      GET q:#t1 -> go

    a turn of a single slot wakes a waiter that asks about more
      SET l,n0,n1 other PX TTL
      lock(l c q n0 n1) wait t1
      DEL l
      lock wait t9 TTL 0 1 -> 1 * t1
      GET q:#t1 -> go

    a waiter that leaves wakes the next for a free slot
      SET l,n0,n1 holder PX TTL
      lock(l c q n0 n1) wait t1
      lock(l c q n0 n1) wait t2
      lock(l c q n0 n1) wait t3
      lock(l c q n0 n1) leave t1 -> 0 ''
      DEL n1
      lock(l c q n0 n1) leave t2 -> 1 t3

    a waiter that leaves wakes the next for its own slot
      SET l,n0,n1 holder PX TTL
      lock(l c q n0 n1) wait t1
      lock(l c q n0 n1) wait t2
      DEL l
      lock(l c q n0 n1) leave t1 -> 1 t2

    a waiter that leaves from behind wakes nobody
      SET l,n0,n1 holder PX TTL
      lock wait t1
      lock(l c q n0 n1) wait t2
      lock(l c q n0 n1) leave t2 -> 0 ''
      GET q:#t1 -> 1
      lock(l c q n0 n1) wait t0 TTL 1
      lock(l c q n0 n1) leave t0 -> 1 t1
""")

WINNER = """
    a winner that asks about {ours} others leaves one that asks about {theirs} {woken}, free: {free}
      SET l,{others} holder PX TTL
      lock(l c q{mine}) wait t1 -> 0 ...
      lock(l c q{next}) wait t2 -> 0 ...
      DEL l,{free}
      lock(l c q{mine}) wait t1 -> 1 * t2 ...
      GET q:#t2 -> {woken}
"""
"""One that asks about fewer slots, or about as many as a request can, may find another free."""


def winner(ours: int, theirs: int, free: str, woken: str) -> str:
    others = [f"n{number}" for number in range(ours)]
    mine, next_one = ("".join(f" {other}" for other in others[:n]) for n in (ours, theirs))
    texts = {"others": ",".join(others), "mine": mine, "next": next_one}
    return WINNER.format(ours=ours, theirs=theirs, free=free, woken=woken, **texts)


test_a_winner_in_memory, test_a_winner = played(
    "\n".join(
        (
            winner(2, 2, "no", "3"),
            winner(2, 2, "n0", "go"),
            winner(2, 0, "no", "go"),
            winner(62, 62, "no", "63"),
            winner(63, 63, "no", "go"),
        )
    )
)


test_a_batch_in_memory, test_a_batch = played("""
    a batch replies plainly unless somebody waits or others hold
      SET a me PX TTL
      lock(a b aq bq bc) batch 1 me you floor=now -> 0 [1 now]
      GET a,b -> - you
      PTTL b,bc -> TTL DAY
      lock(a aq) batch 1 me floor=now -> 1 [[0 '' *]]
      lock(b bq bc) batch 0 me floor=now wait=20000 -> 1 [[0 TTL you now 0 0 *]]
      ZRANGE bq 0 -1 -> me
      PTTL bq:#me -> 20000
      GET bq:#me -> 1
      lock(b c bq cq cc) batch 1 you you floor=now -> 1 [[1 me *] now]
      GET bq:#me -> go
      lock(b d bq dq bc dc) batch 0 him her floor=now wait=20000 -> 1 [[0 20000 me * 1 1 *] now]
      GET bq:#him -> 1
      lock(b bq bc) batch 0 third floor=now -> 1 [[0 20000 me 0 0 1 *]]

    a batch replies plainly for each name where nobody waits
      SET a,b me PX TTL
      lock(b bc bq) acquire other TTL t 0
      lock(a b aq bq) batch 2 me me floor=now -> 1 [1 [1 t *]]
      SET d,n other PX TTL
      lock(a d aq dq m n dc) batch 1 me me floor=now wait=20000 -> 1 [[0 '' *] [0 TTL other ...
      GET dq:#me -> 2

    the acquires of a batch that comes late are not made, and its releases are
      SET a me PX TTL
      lock(a b aq bq bc) batch 1 me you floor=now late=now-1 -> 1 [1 [-1 *]]
      GET a,b -> - -

    a batch gives fences above the counters, whether these have reached its floor or not
      still
      SET bc now
      SET dc now-1
      lock(b d bq dq bc dc) batch 0 me him floor=now -> 0 [now+1 now]

    a batch overlooks waiters that died
      SET l holder PX TTL
      lock wait t1 1000
      lock wait t2 9000
      lock leave t2
      DEL l,c
      sleep 2000
      lock(l q c) batch 0 me floor=now+2000000 -> 0 [now+2000000]
      GET l,c -> me now+2000000
      PTTL l,c -> TTL DAY

    a batch releases nothing of another, and asks for the names that are left in its order
      SET a you PX TTL
      lock(a b aq bq) batch 2 me me -> 1 [[0 '' *] [0 '' *]]
      GET a -> you
      lock(a a aq aq c c) batch 0 me him floor=now wait=20000 -> 1 [[0 TTL you now 0 ...

    the releases of a batch are plain where nobody waits, and otherwise tell who was woken
      read wait one
      write wait two
      read(r q w) batch 1 ONE -> 1 [[1 [two] *]]
      write wait two -> 1 ...
      write(w q r) batch 1 TWO -> 0 [1]
      multi acquire me
      lock(b bc b:#queue) wait t
      multi(a b bc) batch 1 me -> 1 [[1 [b:#queue:#t] *]]

    a release that fails in a batch fails alone
      SET a,b me PX TTL
      ZADD aq 1 t
      HSET aq:#t x y
      lock(a b aq bq) batch 2 me me -> 1 [!WRONGTYPE 1]
      EXISTS a,b -> 0 0
      HSET a,bc x y
      lock(a b aq bq bc) batch 1 me you -> 1 [!WRONGTYPE !WRONGTYPE]
""")
