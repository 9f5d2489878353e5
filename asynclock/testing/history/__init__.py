"""A recorder of critical sections, and a checker that finds violations in the recorded history.

history = History(tmp_path / "history.jsonl")          # every process opens the same file
began = history.now()
async with locks.lock("orders:42") as lease:
    with history.body(lease, began=began):
        ...
assert check(history) == []
"""

from asynclock.testing.history.checker import Violation, check
from asynclock.testing.history.recorder import Body, Event, History

__all__ = ["Body", "Event", "History", "Violation", "check"]
