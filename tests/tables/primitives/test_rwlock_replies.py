"""What the scripts of a read-write lock reply and leave behind: read.lua, write.lua, phases.lua."""

# Mutants of a script are shown first to the tests that import its module.
from asynclock._primitives import readwrite  # noqa: F401
from tests.tables.primitives.replies import played

test_readers_in_memory, test_readers = played("""
    readers, and for how long they read
      still
      read wait one -> 1 now-MINUTE+1 ''
      read wait two 1000 ttl=1000 -> 1 now-MINUTE+2 ''
      read inspect -> [TWO ms+1000 ONE ms+TTL] now-MINUTE+2
      PTTL r -> TTL
      read check TWO -> 1
      read check two -> 0

    what comes too late is not done
      read acquire one late=1 -> -1
      write acquire one late=1 -> -1
      EXISTS r,w -> 0 0

    a reader reads no more from its expiry on
      read acquire one ttl=1000
      read acquire two
      sleep 999
      read check one -> 1
      sleep 1
      read check one -> 0
      read inspect -> [two ms+TTL] *
      read(r c r c) extend one two -> 01
      read raise one 5 -> 0 *
      read release one -> 0 []
      ZCARD r -> 1
      read inspect -> [two ms+1000+TTL] *

    a short reader shortens no others, neither when it comes nor when it is extended
      read acquire slow
      read acquire hasty ttl=5000
      PTTL r -> TTL
      read(r c) extend hasty ttl=5000 -> 1
      PTTL r -> TTL

    a renewal of a reader that comes late shortens nothing
      still
      read acquire me
      read(r c) extend me ttl=5000 -> 1
      read inspect -> [me ms+TTL] *

    a reader removes those that died
      ZADD r 1 dead
      read acquire me
      ZCARD r -> 1

    a reader that a writer keeps out waits or only asks
      write wait writer
      read wait one 0 -> 0 TTL WRITER 0 0 0 []
      read wait other 1 -> 0 TTL WRITER 1 0 0 []
      read leave other
      EXISTS q -> 0
      read wait one 20000 -> 0 TTL WRITER 1 0 0 []
      ZRANGE q 0 -1 WITHSCORES -> one LATER+ms
      PTTL q:#one -> 20000

    a reader that asks again keeps its place
      write wait writer
      read wait one
      sleep 500
      read wait one 2000
      ZRANGE q 0 -1 WITHSCORES -> one LATER+ms
      PTTL q:#one -> 2000

    readers wait in the order in which they asked
      write wait writer
      read wait b
      sleep 1
      read wait c
      sleep 1
      read wait a
      ZRANGE q 0 -1 -> b c a

    a reader that finds a free name wakes the writer that goes first
      still
      write wait first
      write wait second 9000
      DEL w
      read wait one -> 0 9000 second 1 0 1 [second]
      GET q:#second -> go
      PTTL q:#second -> 9000
      listen
      read wait one -> 0 9000 second 1 0 1 [second]
      quiet q:#second

    a reader keeps its turn until it has read
      write wait first
      read wait one
      write wait second
      write release FIRST 1 -> 1 []
      ZSCORE q one -> -1
      write wait first TTL 0 1 -> 1 ...
      read wait one -> 0 ...
      ZSCORE q one -> -1
      write release FIRST -> 1 [one]
      read wait one -> 1 ...
      ZRANGE q 0 -1 -> second
      GET q:#one -> -

    all readers that waited for a writer have their turn
      still
      write wait first
      read wait one 5000
      read wait three 5000
      read wait two 5000
      write wait second floor=9000
      write wait third floor=9000
      write release FIRST -> 1 [one three two]
      ZRANGE q 0 -1 WITHSCORES -> one -1 three -1 two -1 second 9 third 10
      PTTL q:#one -> 5000
      listen
      write pass -> 1 [one three two]
      quiet q:#one
      quiet q:#three
      DEL q:#two,q:#three
      write pass -> 1 [one]
      ZRANGE q 0 -1 -> one second third
      read wait new 0 -> 0 TTL second 0 0 0 [one]
      read leave one -> 1 [second]

    a writer that is refused beside a reader tells whom it woke
      write wait first
      read wait one
      read wait two
      write release FIRST 1
      read wait one -> 1 ...
      write wait second -> 0 TTL ONE * 0 0 [two]
      GET q:#two -> go

    without writers all readers are woken
      write wait writer
      read wait one
      read wait two
      DEL w
      write pass -> 1 [one two]
      read leave one -> 1 [two]
      GET q:#one -> -

    nobody is woken while a writer writes
      write wait writer
      read wait one
      read wait two
      write wait second
      read leave another -> 1 []
      write leave another -> 1 []
      read leave two -> 1 []
      GET q:#one -> 1

    a reader's attempt that failed elsewhere goes on waiting
      read wait one
      read wait two
      write wait writer
      read release ONE 0 one 30000 1 -> 1 []
      ZRANGE q 0 -1 WITHSCORES -> writer * one LATER+ms
      PTTL q:#one -> 30000
      read release TWO -> 1 [writer]

    it goes on waiting where nobody else does
      read wait one
      read release ONE 0 one 30000 1 -> 1 [one]
      PTTL q:#one -> 30000

    a waiting writer keeps new readers out, but no lease that is put back
      read wait old
      write wait writer 1000
      read acquire new -> 0 1000 writer 0 0 0 []
      read wait old 0 0 1 -> 1 ...
      write leave another -> 1 []
      read wait new 0 -> 0 ...
      sleep 1500
      read wait new 0 -> 1 ...

    a downgrade goes before all who wait
      write wait me
      write wait second
      read wait one
      read wait mine TTL 0 0 ME -> 1 * ''
      GET w -> ME
      read wait theirs TTL 0 0 another -> 0 TTL ME ...
      DEL w
      read wait again TTL 0 0 ME -> 1 * ''
""")

test_writers_in_memory, test_writers = played("""
    writers have numbers of their own
      write wait holder
      write wait w1 floor=0 -> 0 TTL HOLDER 2 0 0 []
      write wait w2 floor=0 -> 0 TTL HOLDER 3 0 0 []
      write wait w3 floor=90999 -> 0 TTL HOLDER 90 0 0 []
      read wait reader
      write wait w4 floor=9000 -> 0 TTL HOLDER 91 0 0 []
      write wait w2 floor=95000 -> 0 TTL HOLDER 3 0 0 []
      write wait w2 TTL 50 floor=95000 -> 0 TTL HOLDER 50 0 0 []
      ZRANGE q 0 -1 -> w1 w2 w3 w4 reader
      write wait w7 floor=-1 -> 0 TTL HOLDER ms 0 0 []
      write leave w7
      write wait w5 floor=LATER -> 0 TTL HOLDER 4000000000000 0 0 []
      write wait w6 floor=LATER -> 0 TTL HOLDER 4000000000001 0 0 []
      ZRANGE q 0 -1 -> w1 w2 w3 w4 w5 w6 reader
      write leave w6 -> 1 []
      write wait w6 0 -> 0 TTL HOLDER 0 0 0 []
      ZRANGE q 0 -1 -> w1 w2 w3 w4 w5 reader

    a writer that only asks has no number
      write wait holder
      write wait t1 floor=9
      write acquire me -> 0 TTL HOLDER 0 0 0 []
      write wait me 0 10 -> 0 TTL HOLDER 0 0 0 []
      ZRANGE q 0 -1 -> t1

    a writer learns which reader ends first, and when all have ended
      still
      read acquire short ttl=1000
      read acquire long ttl=9000
      write wait writer -> 0 9000 short * 0 0 []
      sleep 10000
      write wait writer -> 1 * ''

    a writer is told the time of a reader rounded up
      still
      read acquire reader ttl=9000
      sleep 0.4
      write wait me 0 -> 0 9000 reader 0 0 0 []

    a writer at a name that is left to another wakes that one
      write wait holder
      write wait first 9000 floor=9000
      DEL w
      write wait second -> 0 9000 first 10 0 1 [first]
      GET q:#first -> go
      write wait first -> 1 * second
      ZRANGE q 0 -1 -> second
      GET q:#first -> -
      DEL w
      write wait second -> 1 * ''

    a writer never wakes itself
      read wait reader
      write wait writer -> 0 TTL READER * 0 0 []
      GET q:#writer -> 1

    a writer keeps its place on a node that forgot it
      write wait holder
      write wait second floor=9000
      DEL w
      write wait first TTL 5 -> 1 * second
      DEL w
      write wait third TTL 20 -> 0 ...

    a number that others agreed on replaces ours before we look
      write wait holder
      write wait t2 floor=7000
      write wait t1 floor=9000
      DEL w
      write wait t1 TTL 6 -> 1 * t2

    a writer that asks again and one in its turn go first
      write wait me
      write wait second
      PEXPIRE w 5000
      write wait me -> 1 * second
      PTTL w -> TTL
      DEL w
      write wait third -> 0 ...
      write wait third TTL 0 1 -> 1 * second

    a writer waits for no reader that goes after it
      write wait first
      read wait one
      DEL w
      write wait second -> 1 * one

    readers go before a writer that asks while the name is kept
      write wait first
      read wait reader
      write wait second
      write release FIRST 1 -> 1 []
      write wait second -> 0 ...
      write wait again TTL 0 1 -> 1 ...
      write release AGAIN 1 -> 1 []
      write pass -> 1 [reader]
      write wait second -> 0 ...
      read wait reader -> 1 ...

    the last reader wakes a writer, which goes before readers
      read wait one
      read wait two
      write wait writer
      read wait late
      read release ONE -> 1 []
      read release TWO -> 1 [writer]
      write wait writer -> 1 * late
      write release WRITER 1 -> 1 []
      GET q:#late -> 1

    a crashed reader holds the next writer up until its ticket expires
      write wait first
      read wait alive
      read wait crashed 1000
      write wait second
      write release FIRST -> 1 [alive crashed]
      read wait alive -> 1 ...
      read release ALIVE -> 1 [crashed]
      write wait second -> 0 1000 crashed * 0 1 [crashed]
      sleep 1500
      write wait second -> 1 ...

    a reader that has expired keeps nobody out, though nobody has removed it
      read acquire short ttl=1000
      read acquire long
      write wait writer
      sleep 1000
      EXISTS r -> 1
      read release long -> 1 [writer]
      write wait writer -> 1 ...

    a writer that leaves lets the next go
      read wait reader
      write wait w1 floor=9
      write wait w2 floor=9
      read wait late
      write leave w1 -> 1 []
      ZRANGE q 0 -1 -> w2 late
      GET q:#w1 -> -
      write leave w2 -> 1 [late]

    a writer's ticket that has expired keeps no reader out
      write wait holder
      read wait waiting
      write wait dead 1000
      sleep 1500
      DEL w
      read wait one -> 1 ...

    nor behind a reader whose turn it is, where nobody has removed the ticket
      write wait holder
      read wait waiting
      write wait dead 1000
      write release HOLDER
      read wait one -> 0 ...
      sleep 1500
      read wait one -> 1 ...

    a release by another changes nothing
      write wait me
      read wait one
      write release you -> 0 []
      GET w,q:#one -> ME 1

    a writer's attempt that failed elsewhere keeps its place, and no turn has ended
      write wait me
      read wait one
      write wait second floor=9000
      write release ME 0 me 30000 5 -> 1 [me]
      ZRANGE q 0 -1 -> me second one
      PTTL q:#me -> 30000

    without a number the ticket of such an attempt gets one from the clock
      write wait me
      write release ME 0 me 30000 0 -> 1 [me]
      ZRANGE q 0 -1 WITHSCORES -> me ms

    an attempt that failed, as of a try, ends no turn
      write wait try
      read wait reader
      write wait writer
      write release TRY 2 -> 1 [writer]
      write wait writer -> 1 * reader
      write release WRITER -> 1 [reader]

    an upgrade goes before writers and after other readers
      read wait mine
      read wait other
      write wait writer
      write wait me TTL 0 0 MINE -> 0 TTL OTHER 1 0 0 []
      ZRANGE q 0 -1 -> me writer
      read wait new -> 0 TTL me 1 0 0 []
      read release OTHER -> 1 [me]
      write wait me TTL 1 0 MINE -> 1 * writer
      ZSCORE q me -> -
      write release ME -> 1 [new]

    readers that come later wait for an upgrade also if no writer waits
      read wait mine
      read wait other
      write wait me TTL 0 0 MINE
      read wait new -> 0 TTL me ...

    an upgrade is granted at once beside its own reader
      read wait mine
      write wait writer
      write wait me TTL 0 0 MINE -> 1 * writer

    an upgrade looks at the other readers only, also if its own expires last
      read acquire mine ttl=1000
      read acquire other ttl=9000
      write wait me TTL 0 0 mine -> 0 9000 other ...
      read extend mine -> 1
      write wait me TTL 0 0 mine -> 0 TTL other ...
      sleep 9000
      write wait me TTL 0 0 mine -> 1 ...

    an upgrade sees another reader on a node that forgot its own, and does not wake itself
      read acquire other
      write wait me 0 0 0 mine -> 0 TTL other 0 0 0 []
      write wait me TTL 0 0 mine -> 0 TTL other 1 0 0 []
      GET q:#me -> 1
""")
