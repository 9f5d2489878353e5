"""Plays a dialogue on one link, of which a table has the lines, in virtual time.

A line is what happens, and behind ` -> ` all that is heard because of it. Requests are named by
their words: `a` is a command of the server's own, `acquire me` the operation of a script.
"""

import asyncio
import itertools
import ssl
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import hiredis

from asynclock import _clock
from asynclock._nodes.handshake import reading_record
from asynclock._nodes.link import Link
from asynclock._nodes.replicated.acks import AckedLink, Acks
from asynclock._nodes.wire import (
    BATCH,
    CACHING,
    NOBODY,
    UNDOES,
    BatchCommand,
    Command,
    Failure,
    Sink,
)
from asynclock._primitives.lock import SCRIPT

TIMEOUT = 1.0
CLOCK = 1_700_000_000
"""What the server's clock shows when a dialogue begins, in seconds since 1970."""
REPLIES = {
    "GRANT": f"*3, :1, :5, :{CLOCK}000000",
    "REFUSAL": f"*4, :0, :100, +you, :{CLOCK}000000",
    "NOSCRIPT": "-NOSCRIPT No matching script",
}


def cases(table: str) -> dict[str, tuple[str, ...]]:
    """Read a table: names, and below each, indented, the lines of its dialogue.

    What is indented further goes on with the line above it.
    """
    found: dict[str, tuple[str, ...]] = {}
    name = ""
    for line in textwrap.dedent(table).strip("\n").splitlines():
        text = line.strip()
        depth = len(line) - len(line.lstrip())
        if depth == 0:
            found[name := text] = ()
        elif depth == 2:
            found[name] += (text,)
        else:
            found[name] = (*found[name][:-1], f"{found[name][-1]} {text}")
    return found


def command(words: str) -> Command:
    """Make a command of the words by which a table names it."""
    op, *args = words.split()
    if op in (BATCH, "bundle"):
        parts = [command(part.replace(":", " ")) for part in args]
        claims = [word for part in parts for word in part.claims]
        batch = BatchCommand(SCRIPT, ("k",), (BATCH, *args), claims, lambda: parts)
        if op == "bundle":
            batch.size, batch.packed = len(parts), b"".join(part.packed for part in parts)
        return batch
    if op == "record":
        return reading_record("#set")[1]
    if not args:
        return Command.plain(op)
    made = Command(SCRIPT, ("k",), (op, *args))
    if op in UNDOES:
        made.asked_since, made.retry_until = 0.0, _clock.now() + 60
        made.unlimited = True
    return made


class Dialogue(asyncio.Transport):
    """One link, its owner, and the server at its other end."""

    def __init__(self, *, greeted: bool = True, doubt_after: float = 0.0) -> None:
        super().__init__({"socket": self})
        self.heard: list[str] = []
        self.stuck = self.ended = False
        self._began, self._reader = _clock.now(), hiredis.Reader()
        self._futures: dict[str, asyncio.Future[Any]] = {}
        self.watched_keys: list[str] = []
        self.lack: Failure | None = None
        self.answers: list[str] = []
        self.on_wake = lambda key: self.heard.append(f"wakes {key}")
        self.in_cluster = False
        self.link: Any = self._opened(Link(self, TIMEOUT), greeted=greeted)
        if doubt_after:
            until = _clock.now() + doubt_after
            self.link.doubted = lambda now: Failure("who knows") if now > until else None

    def _opened(self, link: Link, *, greeted: bool) -> Link:
        link.connection_made(self)
        if greeted:
            link.answer_within(TIMEOUT)
        return link

    def acknowledged(self, acks: Acks, replicas: int, *, recount: bool, timeout: float) -> None:
        """Let grants wait for replicas."""
        self.link = self._opened(AckedLink(self, TIMEOUT, acks, timeout), greeted=True)
        self.link.replicas, self.link.recount = replicas, recount

    def sink(self, name: str = "") -> Any:
        """Make what takes the answer to a request of that name."""
        return _Sink(self, name)

    async def play(self, lines: tuple[str, ...]) -> None:
        """Do what the lines say, and hear what they say."""
        for line in lines:
            did, _, expected = line.partition(" -> ")
            verb, _, rest = did.partition(" ")
            done = self._verbs()[verb](rest)
            if done is not None:
                await done
            assert "; ".join(self._found()) == expected, f"{line}\n{self.heard}"
            self.heard.clear()

    def _verbs(self) -> dict[str, Callable[[str], Any]]:
        link, loop = self.link, asyncio.get_running_loop()
        return {
            "ask": lambda words: self._ask(words, {}),
            "now": lambda words: self._ask(words, {"write": True}),
            "tracks": lambda _: setattr(link, "tracking", True),
            "cluster": lambda _: setattr(link, "in_cluster", True),
            "arm": lambda words: link.send(command(words).behind(CACHING), self.sink(words), 0),
            "future": lambda word: self._futures.update({word: link.ask(command(word))}),
            "cancel": lambda word: self._futures[word].cancel() and None,
            "tick": lambda _: _ticks(),
            "wait": lambda seconds: asyncio.sleep(float(seconds)),
            "stand": lambda seconds: setattr(loop, "now", loop.time() + float(seconds)),
            "reads": self._reads,
            "fills": lambda _: self._fill(),
            "behind": lambda _: link.pause_writing(),
            "caught": lambda _: link.resume_writing(),
            "stuck": lambda _: setattr(self, "stuck", True),
            "close": lambda cause: link.close(cause),
            "finish": lambda _: link.finish(),
            "lose": lambda error: link.connection_lost(_error(error)),
            "greet": lambda seconds: link.answer_within(float(seconds)),
            "time?": lambda _: self._note(f"{_clock.now() - self._began:.2f}"),
            "stalled?": lambda _: self._note(self._since(link.stalled_since)),
            "releasing?": lambda _: self._note(str(link.releasing)),
            "closed?": lambda _: self._note(str(link.closed.done())),
            "told?": self._told,
            "lacks": lambda error: setattr(self, "lack", Failure(error)),
            "watches": lambda key: self.watched_keys.append(key),
        }

    def _note(self, what: str) -> None:
        self.heard.append(what)

    def _told(self, _: str) -> None:
        self.heard.append(", ".join(self.answers))
        self.answers.clear()

    def _since(self, moment: float) -> str:
        return f"since {moment - self._began:.2f}" if moment else "no"

    def _ask(self, words: str, how: dict[str, bool]) -> None:
        times, _, rest = words.partition(" times ")
        for _ in range(int(times) if rest else 1):
            self.link.send(command(rest or words), self.sink(rest or words), 0, **how)

    def _reads(self, replies: str) -> None:
        for word, reply in REPLIES.items():
            replies = replies.replace(word + ",", reply + ",") if reply != word else replies
            replies = reply.join(replies.rsplit(word, 1)) if replies.endswith(word) else replies
        try:
            self.link.data_received(replies.replace(", ", "\r\n").encode() + b"\r\n")
        except TypeError as error:
            self.heard.append(f"raises {error}")

    def _fill(self) -> None:
        """Let a reply begin that is larger than the buffer."""
        buffer = self.link.get_buffer(-1)
        buffer[:] = b"$99999\r\n".ljust(len(buffer), b"x")
        self.link.buffer_updated(len(buffer))

    def _found(self) -> Iterator[str]:
        for what, same in itertools.groupby(self.heard):
            times = len(list(same))
            yield what if times == 1 else f"{times} × {what}"

    # the owner

    def on_answer(self, command: Command, answer: Any) -> None:
        error = f" {answer.code or answer.cause}" if isinstance(answer, Failure) else ""
        self.answers.append(str(command.op) + error)

    def on_clock(self, clock: float, sent: float, _received: float) -> None:
        self.heard.append(f"clock {clock - CLOCK:g}, asked at {sent - self._began:.1f}")

    def on_push(self, push: list[Any]) -> None:
        self.heard.append(f"push {push}")

    def keep_release(self, release: Command) -> Sink:
        self.heard.append(f"keep {' '.join(map(str, release.args))}")
        return NOBODY

    def on_disconnect(self, _link: Link, end: Failure, unanswered: list[Command]) -> None:
        lost = [" ".join(map(str, one.args)) for one in unanswered]
        self.heard.append(f"end of {', '.join(lost)}" if lost else "end")
        if end.code:
            self.heard.append(end.code)

    # the other side

    def write(self, data: Any) -> None:
        if self.ended:
            return
        self._reader.feed(bytes(data))
        names = []
        while (words := self._reader.gets()) is not False:
            script = words[0] in (b"EVALSHA", b"EVAL")
            text = b" ".join(words[3 + int(words[2]) :] if script else words).decode()
            names.append(f"with source {text}" if words[0] == b"EVAL" else text)
        groups = [(name, len(list(same))) for name, same in itertools.groupby(names)]
        text = ", ".join(name if n == 1 else f"{n} × {name}" for name, n in groups)
        self.heard.append(f"writes {text}")

    def close(self) -> None:
        if not self.stuck:
            self.abort()

    def abort(self) -> None:
        if not self.ended:
            self.ended = True
            asyncio.get_running_loop().call_soon(self.link.connection_lost, None)

    def fileno(self) -> int:
        return 12345


class _Sink:
    def __init__(self, dialogue: Dialogue, name: str) -> None:
        self._dialogue, self._name = dialogue, name

    def on_reply(self, _index: int, reply: Any) -> None:
        if self._name == "strict" and not isinstance(reply, Failure):
            raise TypeError("what is this?")
        text = repr(reply)
        if isinstance(reply, Failure):
            needs = f" ({'permanent ' * reply.permanent}{reply.code})"
            text = f"! {reply.cause}" + needs * bool(reply.permanent or reply.code)
        elif isinstance(reply, bytes):
            text = reply.decode()
        self._dialogue.heard.append(f"{self._name}: {text}")


def _error(text: str) -> Exception | None:
    if text.startswith("TLS"):
        error = ssl.SSLError(1, "alert")
        error.reason = text
        return error
    return ConnectionResetError(text) if text else None


async def _ticks() -> None:
    for _ in range(3):
        await asyncio.sleep(0)
