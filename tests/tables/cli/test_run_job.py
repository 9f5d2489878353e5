"""When `asynclock run` ends its command: with nodes in memory, in virtual time, and no process."""

import asyncio
import contextlib
import errno
import itertools
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

import asynclock
from asynclock.cli import run as job
from asynclock.cli._output import Status
from asynclock.cli._settings import Settings
from asynclock.cli.run import RunArguments
from asynclock.manager import engine_of
from asynclock.testing import lose, memory_node
from tests.waiting import in_virtual_time

NODES = ("memory://a", "memory://b", "memory://c")
GROUP = 4_000_000


def now() -> float:
    return asyncio.get_running_loop().time()


@dataclass
class Guarding:
    """A guardian that notes its orders, and when they came."""

    orders: list[tuple[float, int, float]] = field(default_factory=list)

    def watch(self, group: int, deadline: float) -> None:
        self.orders.append((now(), group, deadline))


class Command:
    """A command that ignores SIGTERM, unless it is `hearing`, and notes its signals."""

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        *,
        whole_group: bool,
        on_fork: Callable[[int], None],
    ) -> None:
        self.group = GROUP
        self.env = env
        self.waits_for_all = whole_group
        self.signals: list[tuple[float, int]] = []
        self.hearing = False
        self.others = False
        """Whether other processes of its group live on."""
        self.may_go_on: Callable[[], bool] = lambda: True
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        on_fork(GROUP)

    def follow(self, may_go_on: Callable[[], bool]) -> None:
        self.may_go_on = may_go_on

    def wait_for_all(self) -> None:
        self.waits_for_all = True

    def others_live(self) -> bool:
        return self.others

    def send(self, number: signal.Signals) -> None:
        self.signals.append((now(), number))
        if number == signal.SIGKILL or (number == signal.SIGTERM and self.hearing):
            self.exit(128 + number)

    end = send

    def exit(self, status: int) -> None:
        for future in (self.ended, self.done):
            if not future.done():
                future.set_result(status)


@dataclass
class Run:
    """A command under a lease."""

    job: job._Job
    locks: asynclock.LockManager
    lease: asynclock.Lease
    guardian: Guarding
    status: asyncio.Future[int]

    @property
    def command(self) -> Command:
        child: Any = self.job._child
        assert isinstance(child, Command)
        return child

    async def ended(self) -> int:
        """Wait for the end of it all, and return the exit status."""
        async with asyncio.timeout(600.0):
            return await self.status

    def lose_the_quorum(self) -> float:
        """Freeze two nodes of three; return when the lease ends."""
        for name in NODES[1:]:
            memory_node(name).freeze()
        return now() + self.lease.remaining()

    async def lose_the_keys(self) -> None:
        """The nodes forget the lock; we learn of it by the next renewal or by the release."""
        for name in NODES:
            await memory_node(name).command("DEL", "asynclock:j")


def made(guardian: Any, **wanted: Any) -> job._Job:
    settings = Settings(NODES, {"restart_guard": False})
    return job._Job(settings, guardian, RunArguments("j", ["cmd"], **wanted))


@contextlib.asynccontextmanager
async def running(ttl: float = 10.0, **wanted: Any) -> AsyncIterator[Run]:
    """Run a command under the lock `j`."""
    guardian = Guarding()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job, "Child", Command)
        one = made(guardian, **wanted)
        async with asynclock.connect(*NODES, ttl=ttl, max_ttl=60.0) as locks:
            lease = await one._acquire(locks)
            assert lease is not None
            status = asyncio.ensure_future(one._under(lease, locks))
            await asyncio.sleep(0.01)
            yield Run(one, locks, lease, guardian, status)


# ---- a lease that can't be renewed ---------------------------------------------------------------
@pytest.mark.parametrize(("ttl", "grace"), [(4.0, 1.0), (20.0, 5.0), (60.0, 5.0)])
@in_virtual_time
async def test_the_command_gets_time_to_clean_up_and_none_after_the_lease(
    ttl: float, grace: float, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """At most a quarter of the ttl: until then the renewals have failed several times."""
    async with running(ttl) as run:
        await asyncio.sleep(ttl)
        end = run.lose_the_quorum()
        assert await run.ended() == Status.LOST
        (warned, first), (killed, last) = run.command.signals
        assert (first, last) == (signal.SIGTERM, signal.SIGKILL)
        assert end - warned == pytest.approx(grace, abs=0.01)
        assert end - killed == pytest.approx(0.02 * ttl, abs=0.01)
        # If we hang, the guardian kills a little later, and still before the end.
        *_, (_, group, deadline) = run.guardian.orders
        assert group == GROUP
        assert killed < deadline < end
        assert end - deadline == pytest.approx(0.01 * ttl, abs=0.01)
        assert run.command.waits_for_all
    said = capsys.readouterr().err
    assert "'j' can't be renewed: the command gets SIGTERM now, and SIGKILL" in said
    logged = sum("lost the lease" in record.getMessage() for record in caplog.records)
    assert logged + said.count("'j' was lost") == 1


@in_virtual_time
async def test_a_command_that_hears_ends_by_itself() -> None:
    async with running() as run:
        run.command.hearing = True
        end = run.lose_the_quorum()
        assert await run.ended() == Status.LOST
        assert now() < end - 2.0


@in_virtual_time
async def test_a_renewed_lease_ends_nothing() -> None:
    """The guardian hears of each renewal before its last deadline passes."""
    async with running(ttl=4.0) as run:
        await asyncio.sleep(100.0)
        assert not run.command.signals
        run.command.exit(7)
        assert await run.ended() == 7
        orders = run.guardian.orders
        assert len(orders) > 30
        for (_, _, deadline), (at, group, _) in itertools.pairwise(orders):
            assert group == GROUP
            assert at < deadline - 1.0
        assert await run.locks.lock("j").try_acquire(), "it was released"


# ---- a lease that was lost -----------------------------------------------------------------------
@in_virtual_time
async def test_a_loss_ends_the_command_at_once_with_a_moment_to_clean_up() -> None:
    async with running(ttl=30.0) as run:
        began = now()
        await run.lose_the_keys()
        assert await run.ended() == Status.LOST
        (warned, first), (killed, last) = run.command.signals
        assert (first, last) == (signal.SIGTERM, signal.SIGKILL)
        assert warned - began < 12.0, "when a renewal tells, not when the lease would end"
        assert killed - warned == pytest.approx(0.5)
        assert run.command.waits_for_all


@pytest.mark.parametrize(("on_loss", "status"), [("kill", Status.LOST), ("warn", 3)])
@in_virtual_time
async def test_a_loss_that_only_the_release_shows(on_loss: str, status: int) -> None:
    async with running(on_loss=on_loss) as run:
        await run.lose_the_keys()
        run.command.exit(3)
        assert await run.ended() == status


@pytest.mark.parametrize(("on_loss", "lost"), [("kill", True), ("warn", False)])
@in_virtual_time
async def test_a_command_that_ends_with_the_loss(on_loss: str, lost: bool) -> None:
    async with running(on_loss=on_loss) as run:
        run.command.exit(0)
        lose(run.lease)
        child: Any = run.command
        ended_by = await run.job._supervise(child, run.lease, engine_of(run.locks))
        assert bool(ended_by) is lost


@in_virtual_time
async def test_with_a_warning_only_the_command_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    async with running(on_loss="warn") as run:
        end = run.lose_the_quorum()
        await asyncio.sleep(end - now() - 0.2)
        assert "the command goes on" not in capsys.readouterr().err
        await asyncio.sleep(100.0)
        assert "'j' was lost; the command goes on (--on-loss warn)" in capsys.readouterr().err
        assert (run.command.signals, run.status.done()) == ([], False)
        assert {deadline for _, _, deadline in run.guardian.orders} == {float("inf")}
        run.command.exit(5)
        assert await run.ended() == 5


@in_virtual_time
async def test_a_command_that_was_stopped_goes_on_only_under_the_lock() -> None:
    """Ctrl-Z stops us as well: after `fg` the lease may have run out."""
    for on_loss, may in (("kill", False), ("warn", True)):
        async with running(on_loss=on_loss) as run:
            assert run.command.may_go_on()
            lose(run.lease)
            assert run.command.may_go_on() is may
            run.command.exit(0)
            await run.status


# ---- what the command leaves behind --------------------------------------------------------------
@in_virtual_time
async def test_processes_that_go_on_are_told_and_left(capsys: pytest.CaptureFixture[str]) -> None:
    async with running(wait_for="command") as run:
        assert not run.command.waits_for_all
        run.command.others = True
        run.command.exit(4)
        assert await run.ended() == 4
        assert run.guardian.orders[-1][1:] == (0, float("inf"))
    assert "'j' was released, but processes" in capsys.readouterr().err


@pytest.mark.parametrize(("wait_for", "lost"), [("command", True), ("group", False)])
@in_virtual_time
async def test_nothing_is_told_of_processes_that_were_ended_or_waited_for(
    wait_for: str, lost: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running(wait_for=wait_for) as run:
        run.command.others = True
        if lost:
            await run.lose_the_keys()
        else:
            run.command.exit(0)
        assert await run.ended() == (Status.LOST if lost else 0)
        assert 0 not in {group for _, group, _ in run.guardian.orders}
    assert "go on" not in capsys.readouterr().err


@in_virtual_time
async def test_a_group_that_outlives_its_command_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with running() as run:
        run.command.ended.set_result(4)
        await asyncio.sleep(0.9)
        assert not capsys.readouterr().err
        await asyncio.sleep(0.2)
        assert "ended with status 4, but processes" in capsys.readouterr().err
        run.command.exit(4)
        assert await run.ended() == 4
    async with running() as run:
        run.command.ended.set_result(4)
        await asyncio.sleep(0.5)
        run.command.exit(4)
        assert await run.ended() == 4
        await asyncio.sleep(5.0)
        assert not capsys.readouterr().err


@in_virtual_time
async def test_a_command_that_can_not_start_gives_the_lock_back(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOEXEC, "Exec format error")

    monkeypatch.setattr(job, "Child", refuse)
    one = made(Guarding())
    async with asynclock.connect(*NODES) as locks:
        lease = await one._acquire(locks)
        assert lease is not None
        assert await one._under(lease, locks) == Status.NOT_EXECUTABLE
        assert await locks.lock("j").try_acquire()
    assert capsys.readouterr().err == "asynclock: cmd: Exec format error\n"


# ---- before the command runs ---------------------------------------------------------------------
@in_virtual_time
async def test_a_label_of_a_long_file_name_is_cut() -> None:
    labels: list[str] = []

    class Noting(Settings):
        def connect(self, **options: Any) -> asynclock.LockManager:
            labels.append(options["label"])
            return super().connect(**options)

    long = "c" * 300
    for path in (long, f"/bin/{long}"):
        guardian: Any = Guarding()
        settings = Noting(NODES, {"restart_guard": False})
        one = job._Job(settings, guardian, RunArguments("j", [path]))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(one, "_let_signals_end_the_wait", lambda: None)
            patch.setattr(one, "_under", _done)
            patch.setattr(job, "FORWARDED", ())
            patch.setattr(
                asyncio.get_running_loop(), "remove_signal_handler", lambda _: False, raising=False
            )
            assert await one.run() == 0
    assert [len(label) for label in labels] == [200, 200]
    assert all(label.endswith("cc") for label in labels)


async def _done(lease: asynclock.Lease, _: asynclock.LockManager) -> int:
    await lease.release()
    return 0


@in_virtual_time
async def test_a_signal_that_came_before_the_handlers_of_the_command_reaches_it() -> None:
    handlers: dict[int, Callable[[], None]] = {}

    def note(number: int, call: Callable[..., None], *words: Any) -> None:
        handlers[number] = lambda: call(*words)

    async with running() as run:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(asyncio.get_running_loop(), "add_signal_handler", note, raising=False)
            run.job._let_signals_end_the_wait()
        handlers[signal.SIGTERM]()
        assert [number for _, number in run.command.signals] == [signal.SIGTERM]
        assert not run.job._stopped_by
        run.command.exit(7)
        assert await run.ended() == 7
