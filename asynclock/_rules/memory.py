"""Which answers count when nodes are asked for a value that some of them may have forgotten.

The answer of a node that holds a value always counts. The answer "nothing" counts if the node has
kept its memory for longer than values are kept. It also counts if the node has kept its memory
since before the newest value on another node was written: the writer of that value had asked a
majority, and the node has forgotten nothing since. Any other node may have restarted and forgotten
the value: its "nothing" doesn't count until a change writes the value to it again.
"""

from __future__ import annotations

SLACK = 1_000_000
"""Maximum harmless difference between the clocks of two nodes, in microseconds."""


def surely_empty(since: float, newest: int) -> bool:
    """Return whether a node that has forgotten nothing since `since` would know the newest value.

    `since` is in microseconds. `newest` is the number of the newest value that other nodes hold:
    the time of its writing in microseconds, or a little more.
    """
    return since + SLACK <= newest


def countable(size: int, *, sure: int, unsure: int, left: int) -> int:
    """Return how many of the answers so far count towards a majority of `size` nodes.

    `sure` nodes hold a value or can't have forgotten one, `unsure` nodes may have forgotten one,
    and `left` nodes have not answered yet. Unsure answers count only when no more answers can come,
    and only in two cases: every node has answered, so no other node could know more; or no answer
    is sure, which is normal for a deployment that was just started.
    """
    if not left and (sure + unsure == size or not sure):
        return sure + unsure
    return sure
