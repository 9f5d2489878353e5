"""What the scripts reply: fences and late requests in every way, several names, registers."""

# Mutants of a script are shown first to the tests that import its module.
from asynclock._primitives import lock, multi, readwrite  # noqa: F401
from asynclock._primitives.shared import register  # noqa: F401
from tests.tables.primitives.replies import played

WAYS = {
    "lock": ("lock acquire me", "1 {} ''", "-1", "l,c,q"),
    "slot": ("lock(l c q n) acquire me", "1 {} ''", "-1", "l,c,q"),
    "waiter": ("lock wait t1", "1 {} ''", "-1", "l,c,q"),
    "batch": ("lock(l q c) batch 0 me", "0 [{}]", "1 [[-1 *]]", "l,c,q"),
    "batch of slots": ("lock(l q n c) batch 0 me", "0 [{}]", "1 [[-1 *]]", "l,c,q"),
    "batch of readers": ("read(r q w c) batch 0 me", "0 [{}]", "1 [[-1 *]]", "r,c,q"),
    "batch of writers": ("write(w q r c) batch 0 me", "0 [{}]", "1 [[-1 *]]", "w,c,q"),
    "multi": ("multi(l c) acquire me", "1 {} ''", "-1", "l,c"),
    "batch of several": ("multi(l c) batch 0 me", "0 [{}]", "1 [[-1 *]]", "l,c"),
    "read": ("read wait me", "1 {} ''", "-1", "r,c,q"),
    "write": ("write wait me", "1 {} ''", "-1", "w,c,q"),
}
"""Every way to acquire, its reply with a fence, its reply if it is late, and what it may write."""
FENCES = (
    ("above a lower counter", "SET c now+4", "now+5", "now+5", "DAY+1"),
    ("above an equal counter", "SET c now+5", "now+5", "now+6", "DAY+1"),
    ("above a higher counter", "SET c now+12", "now+5", "now+13", "DAY+1"),
    ("no counter and a floor that is too old", "DEL c", "now-MINUTE", "now-MINUTE+1", "DAY"),
    ("no counter and no floor", "DEL c", "0", "now-MINUTE+1", "DAY"),
    ("no counter and an old floor", "DEL c", "now-MINUTE+2", "now-MINUTE+2", "DAY"),
    ("a floor a minute ahead", "DEL c", "now+MINUTE", "now+MINUTE", "DAY+60000"),
    ("a floor too far ahead", "DEL c", "now+MINUTE+1", "now-MINUTE+1", "DAY"),
    ("a floor too far ahead of a counter", "SET c 7", "now+MINUTE+1", "8", "DAY"),
    ("a floor that is unknown", "DEL c", "-1", "now", "DAY"),
    ("a floor that is a little ahead", "DEL c", "now+1500", "now+1500", "DAY+2"),
)
"""A counter, a floor, the fence that is given out then, and how long the counter is kept."""


def in_one_way(way: str) -> str:
    ask, granted, late, keys = WAYS[way]
    return f"""
    {way}: a counter that is ahead stays ahead on any clock
      SET c now+30000000
      {ask} floor=now -> {granted.format("now+30000001")}
      GET c -> now+30000001

    {way}: a request is done up to its bound and not after it
      still
      {ask} late=now-1 -> {late}
      EXISTS {keys} -> {" ".join("0" for _ in keys.split(","))}
      {ask} late=now -> {granted.format("now-MINUTE+1")}
""" + "".join(
        f"""
    {way}: {what}
      still
      {counter}
      {ask} floor={floor} -> {granted.format(fence)}
      GET c -> {fence}
      PTTL c -> {keep}
"""
        for what, counter, floor, fence, keep in FENCES
    )


test_a_fence_in_memory, test_a_fence = played("".join(map(in_one_way, WAYS)))

KEPT = {
    "lock": ("lock(l c q)", "lock(m d q)", "l", "m", "0", "TTL"),
    "multi": ("multi(l c)", "multi(m d)", "l", "m", "0", "TTL"),
    "read": ("read(r c q w)", "read(s d q v)", "r", "s", "1", "DAY"),
}
"""Two names; their keys; and what a raise to less replies, and for how long the counter is kept."""


def raised(script: str) -> str:
    mine, other, first, second, lower, kept = KEPT[script]
    half, pair = f"{script}({first} c)", f"{script}({first} c {second} d)"
    keys = f"{first},c,{second},d"
    return f"""
    {script}: a raise is for the owner and never downwards
      {mine} acquire me
      SET c 6 PX TTL
      {half} raise you 9 -> 0 6
      {half} raise me 7 -> 1 6
      GET c -> 7
      PTTL c -> DAY
      {half} raise me 7 -> 1 7
      SET c 8 PX TTL
      {half} raise me 7 -> {lower} 8
      GET c -> 8
      PTTL c -> {kept}

    {script}: a counter ahead of the clock stays until the clock is past it, up to a day
      still
      {mine} acquire me
      {half} raise me now+500000000 -> 1 *
      PTTL c -> DAY+500000
      {half} extend me -> 1
      PTTL c -> DAY+500000
      PEXPIRE c DAY-5
      {half} extend me -> 1
      PTTL c -> DAY
      {half} raise me now+864000000000 -> 1 *
      PTTL c -> DAY+DAY

    {script}: a renewal that comes late shortens nothing
      {mine} acquire me
      {half} extend me ttl=5000 -> 1
      PTTL {first},c -> TTL DAY

    {script}: a renewal is for those that are ours
      {mine} acquire me
      {other} acquire other
      PEXPIRE {keys} 5000
      {pair} extend me you -> 10
      PTTL {keys} -> TTL DAY 5000 5000
      PEXPIRE {keys} 5000
      {pair} extend you other -> 01
      PTTL {keys} -> 5000 5000 TTL DAY
      PEXPIRE {keys} 5000
      {pair} extend me other -> 11
      PTTL {keys} -> TTL DAY TTL DAY
"""


test_a_counter_in_memory, test_a_counter = played("".join(map(raised, KEPT)))

WRONG = "!WRONGTYPE q must be a sorted set .of waiters., but is string"
CALLS = ("acquire me", "acquire me 0 t 0 1", "leave t", "pass")


def wrong_queue(kind: str) -> str:
    calls = [call for call in CALLS if (kind, call) != ("read", "pass")]
    return (
        "".join(
            f"""
    {kind} {call}: a queue that is none is named, and what it is
      SET q text
      {kind} {call} -> {WRONG}
"""
            for call in calls
        )
        + f"""
    {kind}: a name is released although its queue is none
      {kind} acquire me 0 t 0
      SET q text
      {kind} release me -> {WRONG}
      {kind} check me -> 0
"""
    )


test_a_wrong_queue_in_memory, test_a_wrong_queue = played(
    "".join(map(wrong_queue, ("lock", "read", "write")))
)

test_several_in_memory, test_several = played("""
    several names have one fence, and each is asked for again
      still
      SET ac now+7 PX TTL
      multi acquire me floor=now -> 1 now+8 ''
      PTTL ac,bc -> DAY+1 DAY+1
      PEXPIRE b 5000
      multi acquire me floor=now -> 1 now+9 ''
      GET ac,bc -> now+9 now+9
      PTTL a,b -> TTL TTL
      multi raise me now+12 -> 1 now+9
      GET ac,bc -> now+12 now+12

    counters rise to the highest, and nobody's key is overwritten
      SET bc,cc now+9
      multi(a ac b bc c cc) acquire me floor=now -> 1 now+10 ''
      GET ac,bc,cc -> now+10 now+10 now+10
      HSET d x y
      multi(e ec d dc) acquire you -> !WRONGTYPE
      multi(f h g g gc gc fc hc) batch 0 him her floor=now -> 1 [now [0 TTL him 0 0 0 [] *]]
      EXISTS h -> 0

    a raise looks at each counter
      multi acquire me
      SET ac,bc 5
      SET ac 9
      multi raise me 7 -> 0 9
      SET ac 5
      SET bc 9
      multi raise me 7 -> 0 9

    who lacks the first name has not all
      multi acquire me
      DEL a
      multi check me -> 0
      multi extend me -> 0
      multi raise me 999 -> 0 *
      multi release me -> 0 []
      GET b -> -
      multi release me 0 t TTL 9 -> 0 []
      EXISTS a:#queue -> 0

    who lacks the last name has not all, and releases what is left
      multi acquire me
      SET b you PX TTL
      multi check me -> 0
      multi release me 0 t TTL 0 -> 0 [a:#queue:#t]
      GET a,b -> - you
      ZRANGE b:#queue 0 -1 WITHSCORES -> t now

    groups are renewed one by one
      multi acquire one
      multi(d dc e ec) acquire two
      PEXPIRE a,ac,d,dc,e,ec 5000
      multi(a ac b bc d dc e ec) extend you two -> 01
      PTTL a,ac,d,dc,e,ec -> 5000 5000 TTL DAY TTL DAY
      multi(a ac b bc d dc e ec) extend one two -> 11
      PTTL a,ac -> TTL DAY

    a refusal names who has the first name, and when all are free
      SET a one PX 10000
      SET b two PX 45000
      SET c three PX 10000
      multi(a ac b bc c cc) acquire me -> 0 45000 one 0 0 0 []
      SET a one PX 45000
      SET b two PX 10000
      multi(a ac b bc c cc) acquire me -> 0 45000 one 0 0 0 []
      SET a,b,c endless
      multi(a ac b bc c cc) wait me TTL -1 floor=-1 -> 0 -1 endless now 0 0 []

    one that takes places in several queues has one number and goes in order
      SET b holder PX TTL
      lock(b bc b:#queue) wait t1 floor=70
      multi wait mine TTL -1 floor=9 -> 0 TTL holder 71 0 0 []
      ZRANGE a:#queue 0 -1 -> mine
      ZRANGE b:#queue 0 -1 -> t1 mine
      DEL b
      multi wait mine TTL 71 -> 0 TTL t1 71 0 1 [b:#queue:#t1]
      GET b:#queue:#t1 -> go
      multi wait mine TTL 40 -> 1 * ''
      EXISTS a:#queue -> 0
      ZRANGE b:#queue 0 -1 -> t1
      multi release MINE 0 mine 9000 99 -> 1 [a:#queue:#mine b:#queue:#t1]
      ZRANGE a:#queue 0 -1 WITHSCORES -> mine 99
      PTTL a:#queue:#mine -> 9000
      ZRANGE b:#queue 0 -1 -> t1 mine
      lock(a ac a:#queue) wait t2 floor=100
      multi leave mine -> 1 [a:#queue:#t2 b:#queue:#t1]
      multi(c cc d dc) leave mine -> 1 []
      ZRANGE a:#queue 0 -1 -> t2
      ZRANGE b:#queue 0 -1 -> t1

    a release wakes the first waiter of each name that it had
      multi acquire me
      lock(a ac a:#queue) wait t1
      lock(a ac a:#queue) wait t2
      lock(b bc b:#queue) wait t1
      SET b you PX TTL
      multi release me -> 0 [a:#queue:#t1]
      GET a:#queue:#t1,a:#queue:#t2,b:#queue:#t1 -> go 1 1

    a queue of another type is named by one that takes a place or leaves it
      SET b:#queue text
      multi wait mine TTL -1 -> !WRONGTYPE b:#queue must be a sorted set
      multi leave mine -> !WRONGTYPE b:#queue must be a sorted set
      GET a,b -> - -

    a first queue that is none keeps no name and no other waiter
      multi acquire me
      lock(b bc b:#queue) wait t
      SET a:#queue text
      multi release me -> !WRONGTYPE a:#queue must be a sorted set
      GET a,b,b:#queue:#t -> - - go

    nor does a last one
      multi acquire me
      lock(a ac a:#queue) wait t
      SET b:#queue text
      multi release me -> !WRONGTYPE b:#queue must be a sorted set
      GET a,b,a:#queue:#t -> - - go
""")

test_a_state_in_memory, test_a_state = played("""
    a register keeps what it accepted for as long as the change says
      register prepare 5 me 20000 0 -> 1 0 -
      PTTL x -> 20000
      register prepare 5 you 20000 0 -> 0 5
      register prepare 5 me 20000 0 -> 1 0 -
      register accept 5 me TTL 0 value -> 1
      register read -> 1 5 value TTL
      register prepare 4 me TTL 0 -> 0 5
      register accept 5 you TTL 0 other -> 0 5
      register accept 6 me 20000 0 value -> 1
      register read -> 1 6 value 20000
      register prepare 7 you TTL 0 -> 1 6 value
      register inspect -> 1 6 value TTL
      register prepare 8 me 20000 0 -> 1 6 value
      register read -> 1 6 value TTL

    a promise is kept for as long as anybody asked
      register prepare 1 me TTL 0
      register prepare 2 you 20000 0
      PTTL x -> TTL
      register prepare 2 me TTL 0 -> 0 2

    an accepted number belongs to its owner, even on a node that was not asked to promise it
      register prepare 5 me TTL 0
      register accept 8 you TTL 0 value
      register prepare 5 me TTL 0 -> 0 8
      register prepare 8 me TTL 0 -> 0 8
      register prepare 8 you TTL 0 -> 1 8 value

    a change is made up to its bound and not after it
      still
      register prepare 7 me TTL now-1 -> -1
      register accept 7 me TTL now-1 value -> -1
      EXISTS x -> 0
      register prepare 7 me TTL now -> 1 0 -
      register accept 7 me TTL now value -> 1

    a message is published by the owner of all names and expires
      lock acquire me floor=now
      lock(l v) publish you theirs 20000 -> 0
      GET v -> -
      lock(l v) publish me mine 20000 -> 1
      PTTL v -> 20000
      GET v -> mine
      multi(l v b bv) publish me both 20000 -> 0
      multi acquire me -> 1 * ''
      multi(a v b bv) publish me both 20000 -> 1
      GET v,bv -> both both
""")
