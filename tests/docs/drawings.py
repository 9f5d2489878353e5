"""Draws the sequences and the demo's screen for docs/_static: python -m tests.docs.drawings

A drawing has a lane per process or server, and time goes to the right. `test_snippets.py` compares
the files with what this draws; the demo's screen is its real output, coloured by rich.
"""

import io
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from typing import Literal

from rich.console import Console
from rich.text import Text

from tests.docs.blocks import ROOT

STATIC = ROOT / "docs" / "_static"
STYLE = (
    ".t{fill:#333}.s{fill:#666;font-size:13px}.l{stroke:#999}.a{fill:#2f6fb3}.b{fill:#23774a}"
    ".g{fill:#5b6470}.p{fill:none;stroke-dasharray:4 4}.w{fill:#fff}"
    ".n{stroke:#c0392b;stroke-width:2;fill:none}.k{stroke:#2c8a57;stroke-width:2;fill:none}"
    "@media(prefers-color-scheme:dark){.t{fill:#ddd}.s{fill:#aaa}.l{stroke:#777}}"
)
OUTLINE = {"a": "#2f6fb3", "b": "#2c8a57", "g": "#8a929c"}
FROM, TO = 105, 750
FRAME = re.compile(r"\r\x1b\[2K(?:\x1b\[1A\x1b\[2K)*")
"""What rich writes before it draws a live screen anew."""


@dataclass(frozen=True)
class Bar:
    """What a lane does from `start` to `end`; dashed: it waits, or holds nothing."""

    lane: int
    start: int
    end: int
    label: str
    colour: Literal["a", "b", "g"] = "a"
    dashed: bool = False


@dataclass(frozen=True)
class Arrow:
    """A message from lane to lane; a refused or lost one is red."""

    x: int
    sender: int
    receiver: int
    label: str = ""
    good: bool = True


@dataclass(frozen=True)
class Note:
    x: int
    lane: float
    label: str


@dataclass(frozen=True)
class Drawing:
    title: str
    lanes: tuple[str, ...]
    parts: tuple[Bar | Arrow | Note, ...]

    def height(self, lane: float) -> int:
        return round(46 + 74 * lane)

    def svg(self) -> str:
        lanes = "".join(self.lane(number) for number in range(len(self.lanes)))
        behind = sorted(self.parts, key=lambda part: not isinstance(part, Arrow))
        parts = "\n".join(self.part(part) for part in behind)
        return (
            '<svg xmlns="http://www.w3.org/2000/svg" '
            f'viewBox="0 0 760 {self.height(len(self.lanes)) - 10}" role="img" '
            'aria-labelledby="title" font-family="system-ui, sans-serif" font-size="14">\n'
            f'<title id="title">{self.title}</title>\n<style>{STYLE}</style>\n{lanes}{parts}\n'
            "</svg>\n"
        )

    def lane(self, number: int) -> str:
        """Return the lane's name, and its line where no bar is."""
        y = self.height(number)
        bars = [part for part in self.parts if isinstance(part, Bar) and part.lane == number]
        ends = [FROM, *(x for bar in sorted(bars, key=start) for x in (bar.start, bar.end)), TO]
        lines = "".join(
            f'<line x1="{a}" y1="{y}" x2="{b}" y2="{y}" class="l"/>'
            for a, b in zip(ends[::2], ends[1::2], strict=True)
            if b > a
        )
        return f'<text x="8" y="{y + 5}" class="t">{self.lanes[number]}</text>{lines}\n'

    def part(self, part: Bar | Arrow | Note) -> str:
        if isinstance(part, Note):
            y = self.height(part.lane) + 5
            return f'<text x="{part.x}" y="{y}" class="t" text-anchor="middle">{part.label}</text>'
        if isinstance(part, Bar):
            y, middle = self.height(part.lane), (part.start + part.end) // 2
            look = f'class="p" stroke="{OUTLINE[part.colour]}"' if part.dashed else ""
            look = look or f'class="{part.colour}"'
            return (
                f'<rect x="{part.start}" y="{y - 14}" width="{part.end - part.start}" height="28" '
                f'rx="4" {look}/><text x="{middle}" y="{y + 5}" '
                f'class="{"s" if part.dashed else "w"}" text-anchor="middle">{part.label}</text>'
            )
        down = 1 if part.receiver > part.sender else -1
        begin = self.height(part.sender) + 14 * down
        end = self.height(part.receiver) - 16 * down
        way, head = f"M{part.x} {begin} V{end}", end - 8 * down
        colour = "k" if part.good else "n"
        tip = f"M{part.x - 5} {head} l5 {8 * down} l5 {-8 * down}"
        return (
            f'<path d="{way}" class="{colour}"/><path d="{tip}" class="{colour}"/>'
            f'<text x="{part.x + 9}" y="{(begin + end) // 2 + 5}" class="s">{part.label}</text>'
        )


def start(bar: Bar) -> int:
    return bar.start


DRAWINGS = {
    "fence": Drawing(
        "A is paused and loses its lease, B gets a larger fence, "
        "and the store refuses the late write of A",
        ("process A", "process B", "your store"),
        (
            Bar(0, 115, 270, "lease, fence 33"),
            Bar(0, 280, 480, "paused: its lease ends", dashed=True),
            Bar(1, 135, 330, "waits until it is woken", "b", dashed=True),
            Bar(1, 340, 650, "lease, fence 34", "b"),
            Arrow(380, 1, 2, "writes"),
            Arrow(530, 0, 2, good=False),
            Note(622, 0.5, "A goes on and writes"),
            Note(370, 2.3, "fence 34: accepted"),
            Note(600, 2.3, "fence 33: refused, 34 was here"),
        ),
    ),
    "loss": Drawing(
        "The network goes mute; the holder is interrupted at its deadline, before the nodes free "
        "the name",
        ("process A", "nodes", "process B"),
        (
            Bar(0, 115, 330, "lease, renewed"),
            Bar(0, 330, 500, "no replies: it still holds", dashed=True),
            Bar(0, 500, 640, "LeaseLostError", "g"),
            Bar(1, 115, 530, "key of A, until its ttl is over", "g"),
            Bar(1, 540, 750, "key of B", "g"),
            Bar(2, 250, 530, "waits", "b", dashed=True),
            Bar(2, 540, 750, "lease, larger fence", "b"),
            Arrow(130, 0, 1, "acquire"),
            Arrow(235, 0, 1, "renewal"),
            Arrow(350, 0, 1, "lost", good=False),
            Arrow(420, 0, 1, "lost", good=False),
            Arrow(560, 1, 2, "granted"),
            Note(590, -0.42, "its own deadline, 1 % before the nodes'"),
        ),
    ),
    "failover": Drawing(
        "The primary dies; the promoted replica grants nothing until every lease that it may have "
        "missed has ended",
        ("primary", "replica", "process A", "process B"),
        (
            Bar(0, 115, 250, "key of A", "g"),
            Bar(0, 250, 750, "dead", "g", dashed=True),
            Bar(1, 150, 320, "key of A", "g", dashed=True),
            Bar(1, 320, 590, "new primary: grants nothing yet", "g", dashed=True),
            Bar(1, 590, 750, "grants", "g"),
            Bar(2, 125, 480, "lease, renewed by the new primary after 2 s"),
            Bar(3, 210, 590, "waits: max_ttl and 2 s since the promotion", "b", dashed=True),
            Bar(3, 600, 750, "lease, larger fence", "b"),
            Arrow(165, 0, 1, "acks=1"),
            Arrow(400, 2, 1, "renewal"),
            Arrow(620, 1, 3),
        ),
    ),
    "hand-over": Drawing(
        "Tasks of one process hand the lease on without a request; after a turn the nodes wake the "
        "next process",
        ("task 1 of A", "task 2 of A", "nodes", "process B"),
        (
            Bar(0, 125, 260, "lease, fence 33"),
            Bar(1, 150, 260, "waits", dashed=True),
            Bar(1, 270, 420, "lease, fence 34"),
            Bar(2, 125, 430, "key of A", "g"),
            Bar(2, 500, 750, "key of B", "g"),
            Bar(3, 190, 490, "waits in the queue of the nodes", "b", dashed=True),
            Bar(3, 500, 750, "lease, fence 41", "b"),
            Arrow(135, 0, 2),
            Arrow(265, 0, 1, "handed over: no request"),
            Arrow(412, 1, 2, "turn over: release"),
            Arrow(445, 2, 3, "push"),
            Arrow(515, 3, 2, "acquire"),
        ),
    ),
}


def demo() -> str:
    """Return the last screen of the demo, as it comes."""
    command = [sys.executable, "-m", "asynclock", "demo"]
    environment = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": "90", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, check=True)
    first, *_, last = FRAME.split(done.stdout.decode())
    console = Console(record=True, width=90, file=io.StringIO())
    console.print(Text("$ asynclock demo", style="bold"))
    console.print(Text.from_ansi(first.splitlines()[0] + "\n" + last.rstrip()))
    return console.export_svg(title="asynclock demo", unique_id="demo")


if __name__ == "__main__":
    for name, drawing in DRAWINGS.items():
        (STATIC / f"{name}.svg").write_text(drawing.svg(), "utf-8")
    if "demo" in sys.argv:
        (STATIC / "demo.svg").write_text(demo(), "utf-8")
