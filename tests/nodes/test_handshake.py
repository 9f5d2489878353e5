"""What a new connection asks a server, and what the client makes of each answer."""

import asyncio
import contextlib
import ssl
import zlib
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

import hiredis
import pytest
import redis.asyncio
from redis.credentials import CredentialProvider

import asynclock
from asynclock._rules import validity
from asynclock.testing import LocalServer
from asynclock.testing.memory.commands import ReplyError
from asynclock.testing.plugin import StartServers
from tests import patient
from tests.nodes.virtual_servers import Server, alone, played_on
from tests.tables.inside import now
from tests.waiting import go_through, until

URL = "redis://p0"
SETTINGS: dict[str, Any] = {"ttl": 10.0, "max_ttl": 10.0, "node_timeout": 1.0}
NOT_READY = ("LOADING the dataset", "BUSY running a script")


def refuse(server: Server, **errors: str) -> None:
    """Let the server refuse commands; "hang up": end this connection; "end": end all of them."""

    def reply(error: str) -> Any:
        if error in ("end", "hang up"):
            return server.cut() if error == "end" else server.asking.hang_up()
        return error[1:].encode() if error[0] == "+" else ReplyError(error)

    for name, error in errors.items():
        server.instead[name.encode()] = partial(lambda error, _words: reply(error), error)


async def refusal(url: str = URL, **settings: Any) -> tuple[str, bool]:
    """Return why a server is of no use, and whether a person must put that right."""
    async with asynclock.connect(url, **{**SETTINGS, **settings}) as locks:
        with pytest.raises(asynclock.AsyncLockError) as caught:
            await locks.lock("a").try_acquire()
        return str(caught.value), isinstance(caught.value, asynclock.ConfigurationError)


@played_on(alone)
async def test_a_login_a_database_and_all_questions_are_sent(server: Server) -> None:
    async with asynclock.connect("redis://alice:secret@p0/1", **SETTINGS) as locks:
        await locks.ready()
        words = [[word.decode() for word in one] for one in server.asked]
        assert words[:6] == [
            ["HELLO", "3", "AUTH", "alice", "secret"],
            ["SELECT", "1"],
            ["CLIENT", "TRACKING", "ON", "OPTIN", "NOLOOP"],
            ["CONFIG", "GET", "appendfsync"],
            ["TIME"],
            ["INFO"],
        ]
        read = ["HMGET", "asynclock::#set", "accepted", "value", "name"]
        reading = words.index(read)
        assert {one[0] for one in words[6 : reading - 1]} == {"SCRIPT"}
        assert words[reading - 1] == ["CLIENT", "CACHING", "YES"]
        assert words[reading:] == [read], "a server that pushes is not asked whether it is a proxy"
    server.asked.clear()
    async with asynclock.connect(URL, **SETTINGS) as locks:
        await locks.ready()
        assert [words[:2] for words in server.asked[:2]] == [
            (b"HELLO", b"3"),
            (b"CLIENT", b"TRACKING"),
        ]


@played_on(alone)
async def test_what_a_server_refuses_but_the_login_is_done_without_and_said_once(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    no = "NOPERM no right"
    caplog.set_level("INFO")
    most = {"CONFIG": no, "TIME": no, "INFO": no, "SCRIPT": no, "HMGET": no}
    refuse(server, CLIENT=no, **most)
    async with asynclock.connect(URL, restart_guard=False, **SETTINGS) as locks:
        for _ in range(2):
            await go_through(locks.lock("a", timeout=5))
            server.cut()
            await asyncio.sleep(1)
        del server.instead[b"INFO"]
        server.cut()
        await asyncio.sleep(1)
        await go_through(locks.lock("a"))
    told = [one.message.partition(": ")[0] for one in caplog.records if "refuses" in one.message]
    every = [f"p0:6379 refuses {name}" for name in ("CLIENT", "CONFIG", "TIME")]
    rest = [f"p0:6379 refuses {name}" for name in ("SCRIPT", "HMGET")]
    assert told == [*every, "p0:6379 refuses INFO", *rest, *every, *rest]
    assert sum("they ask at intervals" in one.message for one in caplog.records) == 1


@pytest.mark.parametrize(
    ("replies", "cause", "permanent"),
    [
        ({"HELLO": "WRONGPASS invalid username-password pair"}, "pair (write redis", True),
        ({"HELLO": "NOAUTH HELLO must be called with AUTH"}, "it wants a password (NOAUTH)", True),
        (
            {
                "HELLO": "ERR unknown command `HELLO`, with args beginning with: `3`, `AUTH`",
                "INFO": "+redis_version:6.0.9",
            },
            "Redis 6.2 or later is needed: ERR unknown command `HELLO`",
            True,
        ),
        (
            {"HELLO": "NOPROTO unsupported HELLO", "INFO": "+redis_version:6.0.9"},
            "Redis 6.2 or later is needed: NOPROTO",
            True,
        ),
        (
            {"HELLO": "NOPROTO unsupported", "PING": "NOAUTH no"},
            "it wants a password (NOAUTH)",
            True,
        ),
        ({"HELLO": "ERR max number of clients"}, "ERR max number of clients", False),
        *(({"HELLO": error}, error, False) for error in NOT_READY),
        *(({"SCRIPT": error}, error, False) for error in NOT_READY),
        *(({"INFO": error}, error, False) for error in NOT_READY),
        ({"SELECT": "ERR DB index is out of range"}, "ERR DB index is out of range", True),
        ({"SELECT": "NOPERM no right"}, "NOPERM no right", True),
        *(
            ({"INFO": f"+{key}_mode:sentinel"}, "it is a Sentinel: write redis+sentinel://", True)
            for key in ("redis", "server", "redict")
        ),
        ({"HELLO": "end"}, "; if this port wants TLS, the URL must begin with rediss", False),
        ({"HELLO": "hang up", "PING": "end"}, "; if this port wants TLS", False),
        ({"HELLO": "hang up", "PING": "+OK"}, "; if this port wants TLS", False),
        ({"HELLO": "hang up"}, "closes the connection at HELLO, and so at other commands", True),
        ({"HELLO": "hang up", "PING": "NOAUTH no"}, "as twemproxy does: name the servers", True),
        ({"INFO": "+role:sentinel"}, "it is a sentinel, not a primary", True),
        ({"INFO": "+role:slave"}, "it is a replica, not a primary", True),
    ],
)
@played_on(alone)
async def test_why_a_server_is_of_no_use(
    server: Server, replies: dict[str, str], cause: str, *, permanent: bool
) -> None:
    refuse(server, **replies)
    found, needs = await refusal(f"{URL}/1")
    assert (cause in found, needs) == (True, permanent), found
    assert {asked[1:2] for asked in server.asked_for("HELLO")} == {(b"3",)}
    assert server.connections == 0


@pytest.mark.parametrize(
    ("login", "words"),
    [
        ("", (b"PING",)),
        (":secret@", (b"AUTH", b"secret")),  # a proxy may know no users
        ("alice:secret@", (b"AUTH", b"alice", b"secret")),
    ],
)
@pytest.mark.parametrize(
    "error",
    ["unsupported command 'HELLO'", "NOPROTO unsupported protocol version", "NOPERM no 'hello'"],
)
@played_on(alone)
async def test_where_hello_is_refused_the_connection_speaks_resp2(
    server: Server, error: str, login: str, words: tuple[bytes, ...]
) -> None:
    refuse(server, HELLO=error, AUTH="+OK")
    url = f"redis://{login}p0/1"
    async with asynclock.connect(url, **SETTINGS) as locks, asynclock.connect(url) as others:
        async with locks.lock("a"):
            waiter = asyncio.create_task(others.lock("a").acquire(timeout=5))
            await asyncio.sleep(1)
        await (await waiter).release()
        begun = server.asked.index(words)
        assert server.asked[begun + 1] == (b"SELECT", b"1")
        handshake = server.asked_for("HMGET")
        assert len(server.asked_for("CLIENT", "CACHING")) == len(handshake), "no push is asked for"


@played_on(alone)
async def test_an_empty_run_id_names_no_process(server: Server) -> None:
    """A process that has forgotten its keys would count as the one before it."""
    server.info = {"run_id": ""}
    async with asynclock.connect(URL, **SETTINGS) as locks:
        assert await locks.lock("a").try_acquire()
        server.restart()
        await until(lambda: "does not say when it started" in locks.nodes()[0].cause, timeout=9)


@pytest.mark.parametrize("restart_guard", [True, False])
@pytest.mark.parametrize(
    ("histories", "pause", "refused"),
    [
        (("a", "b", "a", "b"), 1, True),
        (("a", "b", "c", "a", "b"), 20, True),
        (("a", "b", "a"), 1, False),  # an operator moves the address, and back
        (("a", "b", "c", "d", "d"), 1, False),  # restarts
        (("a", "b", "a", "b"), 101, False),
        (("a", "b+a", "a+b", "b+a", "a+b"), 1, False),  # failovers
        (("", "", "", "", ""), 1, False),
    ],
)
@played_on(alone)
async def test_two_primaries_that_answer_in_turns_are_refused(
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    histories: tuple[str, ...],
    pause: float,
    *,
    refused: bool,
    restart_guard: bool,
) -> None:
    """Each process has an id of its own history, and perhaps that of the primary before it."""
    monkeypatch.setattr(validity, "SOON", 100.0)
    settings = {**SETTINGS, "restart_guard": restart_guard}
    async with asynclock.connect(URL, **settings) as locks:
        for number, history in enumerate(histories):
            own, _, before = history.partition("+")
            run_id = own or "ab"[number % 2]
            fields = {"run_id": run_id, "master_replid": own, "master_replid2": before or "0" * 40}
            server.info = {key: value for key, value in fields.items() if value}
            server.cut()
            await asyncio.sleep(pause)
            await until(lambda: locks.nodes()[0].state not in ("down", "connecting"))
            if number == 0:
                await locks.ready()
        if refused:
            with pytest.raises(asynclock.ConfigurationError, match="two primaries answer there"):
                await locks.lock("a").acquire(timeout=60)
        else:
            assert (await locks.lock("a").acquire(timeout=60)).held


@pytest.mark.parametrize("text", ["", "x", "nan", "²", "7" * 5000])
@played_on(alone)
async def test_what_is_no_number_counts_as_not_said(server: Server, text: str) -> None:
    numbers = ("uptime_in_seconds", "maxmemory", "connected_slaves", "redis_version")
    server.info = dict.fromkeys(numbers, text)
    server.instead[b"TIME"] = lambda _words: [text.encode(), b"0"]
    async with asynclock.connect(URL, **SETTINGS) as locks:
        assert await locks.lock("a").try_acquire()
        server.restart()
        await until(lambda: "does not say when it started" in locks.nodes()[0].cause, timeout=9)


@played_on(alone)
async def test_a_server_that_repeats_the_login_is_quoted_without_password(server: Server) -> None:
    refuse(
        server, HELLO="ERR no such command: HELLO 3 AUTH alice secret", INFO="+redis_version:6.0"
    )
    cause, _ = await refusal("redis://alice:secret@p0")
    assert "HELLO 3 AUTH alice ***" in cause
    refuse(server, AUTH="ERR no such command: AUTH alice secret")
    cause, _ = await refusal("redis://alice:secret@p0")
    assert "AUTH alice ***" in cause


class Provider(CredentialProvider):
    """Gives what a test tells it to."""

    def __init__(self, *found: str | Exception | None) -> None:
        self.found = found

    async def get_credentials_async(self) -> Any:
        await asyncio.sleep(0.05)
        if isinstance(self.found[0], Exception):
            raise self.found[0]
        return self.found


@pytest.mark.parametrize(
    ("found", "login"),
    [
        (("pw",), ("default", "pw")),
        (("u", "pw"), ("u", "pw")),
        ((None, "pw"), ("default", "pw")),
        (("", "pw"), ("default", "pw")),
        (("u", None), ("u", "")),
        ((None,), ("default", "")),
    ],
)
@played_on(alone)
async def test_a_provider_may_name_a_password_alone(
    server: Server, found: tuple[str | None, ...], login: tuple[str, str]
) -> None:
    client = redis.asyncio.Redis(host="p0", credential_provider=Provider(*found))
    async with asynclock.connect(client, **SETTINGS) as locks:
        await locks.ready()
        assert server.asked[0][3:] == tuple(word.encode() for word in login)


@played_on(alone)
async def test_an_error_of_a_provider_is_told_without_its_words(server: Server) -> None:
    """They may quote the password."""
    failing = Provider(PermissionError("the password canary has expired"))
    client: Any = redis.asyncio.Redis(host="p0", credential_provider=failing)
    cause = "no credentials: the provider raised PermissionError"
    found, needs = await refusal(client)
    assert (cause in found, needs) == (True, False)
    assert ("canary" in found, server.asked) == (False, [])


@played_on(alone)
async def test_a_wrong_password_of_a_provider_may_be_right_later(server: Server) -> None:
    refuse(server, HELLO="WRONGPASS invalid")
    client: Any = redis.asyncio.Redis(host="p0", credential_provider=Provider("pw"))
    found, needs = await refusal(client)
    assert ("WRONGPASS invalid" in found, needs) == (True, False)


@played_on(alone)
async def test_a_password_that_cannot_be_encoded_is_not_shown(server: Server) -> None:
    client: Any = redis.asyncio.Redis(host="p0", password="canary\udc80")
    cause, _ = await refusal(client)
    assert "the handshake failed: its address or login can't be encoded" in cause
    assert ("canary" in cause, server.asked) == (False, [])


def tls_error(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, "it failed")
    error.reason = reason
    return error


NO_TLS = "can't connect: it failed: does this port speak TLS?"


@pytest.mark.parametrize(
    ("error", "cause", "permanent"),
    [
        (ConnectionRefusedError(111, "Connect call failed"), "Connection refused", False),
        (OSError(), "can't connect: OSError", False),
        (OSError("no route"), "can't connect: no route", False),
        (tls_error("CERTIFICATE_VERIFY_FAILED"), "can't connect: it failed", True),
        (tls_error("WRONG_VERSION_NUMBER"), NO_TLS, False),
        (tls_error("RECORD_LAYER_FAILURE"), NO_TLS, False),
    ],
)
@played_on(alone)
async def test_a_connection_that_cannot_be_opened_says_why(
    server: Server, monkeypatch: pytest.MonkeyPatch, error: OSError, cause: str, *, permanent: bool
) -> None:

    async def closed(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(server, "open", closed)
    found, needs = await refusal()
    assert (cause in found, needs) == (True, permanent), found


@pytest.mark.parametrize("seconds", [0.25, 0.5])
@played_on(alone)
async def test_after_a_slow_handshake_a_silent_server_has_one_node_timeout(
    server: Server, seconds: float
) -> None:
    """Attempts to connect get more time after each that failed."""
    server.freeze()
    async with asynclock.connect(URL, **{**SETTINGS, "node_timeout": seconds}) as locks:
        words = f"no answer to the login within node_timeout={seconds} s"
        with pytest.raises(asynclock.QuorumUnavailableError, match=words):
            await locks.lock("a").try_acquire()
        await asyncio.sleep(5)
        assert words in locks.nodes()[0].cause
        server.thaw()
        await until(lambda: locks.nodes()[0].state == "up")
        server.freeze()
        began = now()
        with pytest.raises(asynclock.QuorumUnavailableError, match=f"within {seconds} s"):
            await locks.lock("a").try_acquire()
        assert now() - began == pytest.approx(seconds, abs=0.05)


# ---- on sockets
async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(65536):
        target.write(data)
    target.close()


async def test_a_connection_opens_in_one_round_trip(asynclock_nodes: list[LocalServer]) -> None:
    """The login, the database and all questions are there before the first answer."""
    server = asynclock_nodes[0]

    async def hold_back(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = b""
        while not all(word in data for word in (b"HELLO", b"SELECT", b"INFO", b"LOAD")):
            data += await reader.read(65536)
        replies, requests = await asyncio.open_connection(server.host, server.port)
        requests.write(data)
        await asyncio.gather(_copy(reader, requests), _copy(replies, writer))

    relay = await asyncio.start_server(hold_back, "127.0.0.1")
    port = relay.sockets[0].getsockname()[1]
    async with patient.connect(f"redis://127.0.0.1:{port}/3", restart_guard=False) as locks:
        lease = await locks.lock("a", timeout=5).acquire()
        assert (await locks.inspect("a")).owner == lease.owner
        await lease.release()
    relay.close()


async def _words(reader: asyncio.StreamReader) -> list[bytes]:
    count = int((await reader.readline())[1:])
    words = []
    for _ in range(count):
        size = int((await reader.readline())[1:])
        words.append((await reader.readexactly(size + 2))[:-2])
    return words


async def _pass_on(
    words: list[bytes], replies: asyncio.StreamReader, requests: asyncio.StreamWriter
) -> bytes:
    """Return the bytes of a server's reply."""
    packed = (b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
    requests.write(b"*%d\r\n%b" % (len(words), b"".join(packed)))
    raw, reader = b"", hiredis.Reader(notEnoughData=reply_under_way)
    while reader.gets() is reply_under_way:
        raw += (read := await replies.read(65536))
        reader.feed(read)
    return raw


reply_under_way = object()


@contextlib.asynccontextmanager
async def spreading(behind: Sequence[LocalServer]) -> AsyncIterator[str]:
    """Yield the URL of a proxy that sends each command to a server chosen by its first key."""
    served: list[asyncio.Task[Any]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.extend(filter(None, [asyncio.current_task()]))
        links = [await asyncio.open_connection(one.host, one.port) for one in behind]
        with contextlib.suppress(OSError, ValueError, asyncio.IncompleteReadError):
            while True:
                words = await _words(reader)
                key = words[3] if words[0].startswith(b"EVAL") else words[-1]
                tag = key.partition(b"{")[2].partition(b"}")[0] or key
                if words[0] in (b"HELLO", b"CLIENT", b"TIME", b"INFO"):
                    writer.write(b"-ERR unknown command '%b'\r\n" % words[0])
                else:
                    writer.write(await _pass_on(words, *links[zlib.crc32(tag) % len(behind)]))
        for one in (writer, *(requests for _, requests in links)):
            one.close()

    async with await asyncio.start_server(serve, "127.0.0.1") as proxy:
        yield f"redis://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
        await asyncio.gather(*served)  # the clients have gone


@pytest.mark.parametrize(
    ("servers", "settings", "cause"),
    [
        (1, {}, ""),
        (2, {}, "chooses a server by the first key of a script"),
        (2, {"set_guard": False}, "chooses a server by the first key of a script"),
        (2, {"prefix": "{locks}:"}, ""),
    ],
)
async def test_a_proxy_that_sends_scripts_to_several_servers_is_refused(
    asynclock_servers: StartServers, servers: int, settings: dict[str, Any], cause: str
) -> None:
    """Two clients would hold one lock on two servers, because each batch has a first key."""
    behind = await asynclock_servers(servers)
    connect = partial(patient.connect, restart_guard=False, **settings)
    async with spreading(behind) as url, connect(url) as locks:
        if cause:
            with pytest.raises(asynclock.ConfigurationError, match=cause):
                await locks.lock("a").acquire(timeout=20)
            with pytest.raises(asynclock.ConfigurationError, match=cause) as caught:
                [_ async for _ in locks.inspect_all()]
            assert "SCAN" not in str(caught.value)
        else:
            leases = await asyncio.gather(*(locks.lock(n).acquire(timeout=20) for n in "abcd"))
            await asyncio.gather(*(lease.release() for lease in leases))


@pytest.mark.parametrize(
    ("after", "reply", "cause"),
    [
        (b"", b"-ERR max number of clients reached\r\n", "ERR max number of clients reached"),
        (b"INFO", b"+OK\r\n", "the server closed the connection"),
    ],
    ids=["before it is asked", "before it says who it is"],
)
@pytest.mark.parametrize("provider", [None, Provider("default", "secret")])
async def test_a_server_that_ends_a_connection_is_quoted(
    provider: CredentialProvider | None, after: bytes, reply: bytes, cause: str
) -> None:
    """And not taken for one without the right to INFO, which may have forgotten everything."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if after:
            await reader.readuntil(after)
        writer.write(reply)
        writer.close()

    full = await asyncio.start_server(refuse, "127.0.0.1")
    port = full.sockets[0].getsockname()[1]
    client = redis.asyncio.Redis(port=port, credential_provider=provider)
    async with client, asynclock.connect(client) as locks:
        with pytest.raises(asynclock.QuorumUnavailableError) as caught:
            await locks.lock("a").try_acquire()
        (found,) = caught.value.nodes.values()
        assert found.startswith(cause) or (after and "connection lost" in found), found
    full.close()


async def test_a_host_name_that_cannot_be_encoded_does_not_end_the_node() -> None:
    async with asynclock.connect(f"redis://{'a' * 70}.example:6379") as locks:
        with pytest.raises(asynclock.QuorumUnavailableError, match="can't be encoded"):
            await locks.lock("a").try_acquire()
        (keeper,) = (t for t in asyncio.all_tasks() if t.get_name().startswith("asynclock: keep"))
        assert not keeper.done()
