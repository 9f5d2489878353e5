"""A canary for a password: it appears in no text of ours, whatever the deployment and the fault."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
from redis.credentials import CredentialProvider

import asynclock
from asynclock._nodes.redaction import harmless, redacted, without
from asynclock.cli._sources import load
from asynclock.observe import LogEvents
from asynclock.testing import Certificates, LocalServer
from asynclock.testing.plugin import StartServers
from tests.access.test_connections import tls_in_front

CANARY = "cAnAry-7f3"
BEGINNING = CANARY[:4]

DEPLOYMENTS = {
    "single": ["redis://u:{canary}@{host}"],
    "default user": ["redis://:{canary}@{host}"],
    "token": ["redis://{canary}@{host}"],
    "query": ["redis://{host}?username=u&password={canary}"],
    "with acks": ["redis://u:{canary}@{host}"],
    "quorum": ["redis://u:{canary}@{host}/0", "redis://127.0.0.1:1", "redis://127.0.0.1:2"],
    "sentinel": ["redis+sentinel://u:{canary}@{host},127.0.0.1:1/svc?sentinel_password={canary}"],
    "cluster": ["redis+cluster://u:{canary}@{host},127.0.0.1:1"],
}


def shows(text: object) -> bool:
    return BEGINNING in f"{text}" or BEGINNING in f"{text!r}"


SHORT = {"ttl": 2.0, "max_ttl": 2.0}
"""A call without a timeout tolerates an outage for the longest ttl and 3 s: keep that short."""


def chain(error: BaseException | None) -> list[str]:
    """All that an error says, with all that it came from, shown or not."""
    found = []
    while error is not None:
        found += [str(error), repr(error), repr(vars(error))]
        found += traceback.format_exception(error)
        error = error.__cause__ or error.__context__
    return found


async def everything(locks: asynclock.LockManager) -> list[str]:
    """All that the manager says while it is used."""
    texts: list[str] = []
    locks.observe(lambda event: texts.append(repr(event)))
    locks.observe(LogEvents())
    async with locks:
        for use in (locks.lock("a").try_acquire, locks.event("e").is_set):
            try:
                await use()
            except asynclock.AsyncLockError as error:
                texts += chain(error)
        with contextlib.suppress(asynclock.AsyncLockError):
            texts.append(repr(await locks.inspect("a")))
        texts += [repr(locks), repr(locks.nodes()), repr(locks.statistics())]
        texts += [repr(task) for task in asyncio.all_tasks()]
    return texts


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    formatter = logging.Formatter()
    return [formatter.format(record) + repr(vars(record)) for record in caplog.records]


async def said_by(command: str, *urls: str) -> str:
    nodes = [word for url in urls for word in ("--node", url)]
    words = [command, *(["a"] if command == "inspect" else []), *nodes]
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "asynclock",
        *words,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await asyncio.wait_for(program.communicate(), 60)
    return out.decode()


@pytest.mark.parametrize("fault", ["no HELLO", "another password"])
@pytest.mark.parametrize("deployment", DEPLOYMENTS)
async def test_of_a_login_that_fails(
    asynclock_servers: StartServers,
    caplog: pytest.LogCaptureFixture,
    deployment: str,
    fault: str,
) -> None:
    caplog.set_level(logging.DEBUG)
    if fault == "no HELLO":
        (server,) = await asynclock_servers(1, args=("--rename-command", "HELLO", ""))
    else:
        (server,) = await asynclock_servers(1, password="another")
    host = f"127.0.0.1:{server.port}"
    urls = [url.format(canary=CANARY, host=host) for url in DEPLOYMENTS[deployment]]
    texts = await everything(
        asynclock.connect(*urls, acks=int("acks" in deployment), node_timeout=0.5, **SHORT)
    )
    assert texts
    assert [text for text in [*texts, *logged(caplog)] if shows(text)] == []


@pytest.mark.parametrize("command", ["inspect", "doctor"])
async def test_of_the_command_line(asynclock_servers: StartServers, command: str) -> None:
    (server,) = await asynclock_servers(1, args=("--rename-command", "HELLO", ""))
    said = await said_by(command, f"redis://u:{CANARY}@127.0.0.1:{server.port}")
    assert said
    assert not shows(said)


async def test_with_tls_and_a_stranger_in_between(
    asynclock_servers: StartServers, caplog: pytest.LogCaptureFixture, certificates: Certificates
) -> None:
    caplog.set_level(logging.DEBUG)
    (server,) = await asynclock_servers(1, args=("--rename-command", "HELLO", ""))
    async with tls_in_front(server, certificates) as (port, _):
        for trusts in (f"?ssl_ca_certs={certificates.ca}", ""):
            url = f"rediss://u:{CANARY}@localhost:{port}{trusts}"
            texts = await everything(asynclock.connect(url, node_timeout=0.5, **SHORT))
            assert [text for text in [*texts, *logged(caplog)] if shows(text)] == []


async def test_of_a_provider_that_fails(
    asynclock_nodes: list[LocalServer], caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(CredentialProvider):
        def get_credentials(self) -> tuple[str]:
            raise ValueError(f"can't read {CANARY}")

    caplog.set_level(logging.DEBUG)
    port = asynclock_nodes[0].port
    client = redis.asyncio.Redis(host="127.0.0.1", port=port, credential_provider=Broken())
    texts = await everything(asynclock.connect(client))
    assert any("ValueError" in text for text in texts)
    assert [text for text in [*texts, *logged(caplog)] if shows(text)] == []


@pytest.mark.parametrize(
    "url",
    [
        f"u:{CANARY}@h:6379",
        f"//u:{CANARY}@h:6379",
        f"http://u:{CANARY}@h:6379",
        f"redis:/u:{CANARY}@h",
        f"redis://h?password={CANARY}&bogus=3",
        f"redis://u:p@h?db=x&password={CANARY}",
        f"redis://h:1?bogus=1&password=a@{CANARY}",
        f"redis://h:{CANARY}",
        f"redis://u:{CANARY}/x@h:6379",
        f"redis://u:x/{CANARY}@h:6379",
        f"redis://u:12/{CANARY}@h:6379",
        f"redis://u:12?{CANARY}@h:6379",
        f"redis://u:12#{CANARY}@h:6379",
        f"redis://u:{CANARY}@h:port",
        f"redis://u:{CANARY}@a,b",
        f"redis://u:{CANARY}@[::1",
        f"redis://u:x@{CANARY}@[h",
        f"redis://u:x@[{CANARY}]",
        f"rediss://u:{CANARY}@h?ssl_cert_reqs=bogus",
        f"rediss://u:{CANARY}@h?ssl_ca_certs=/nowhere&ssl_password={CANARY}",
        f"redis+sentinel://a,b?sentinel_password={CANARY}",
        f"redis+sentinel://u:{CANARY}@a:x,b/svc",
        f"redis+sentinel://u:{CANARY}@a,b:x/svc",
        f"redis+sentinel://u:{CANARY}@[a/svc",
        f"redis+sentinel://u:12#{CANARY}@a/svc",
        f"redis+cluster://u:{CANARY}@a/3",
        f"redis+cluster://u:{CANARY}@",
        f"redis+cluster://a?bogus=1&password={CANARY}",
        f"memory://u:{CANARY}@a",
        f"valkey://u:{CANARY}@h:port",
    ],
)
def test_of_a_malformed_url(url: str) -> None:
    with pytest.raises(asynclock.ConfigurationError) as caught:
        asynclock.connect(url)
    assert [text for text in chain(caught.value) if shows(text)] == [
        text for text in chain(caught.value) if "asynclock.connect" in text and shows(text)
    ]


@pytest.mark.parametrize(
    "text",
    [
        f'nodes = "redis://u:{CANARY}@h:6379"',
        f'nodes = ["redis://u:{CANARY}@h:port"]',
        f'nodes = ["redis://u:{CANARY}@h:6379", 3]',
        f'node = "redis://u:{CANARY}@h:6379"',
        f'nodes = "redis://u:{CANARY}@h:6379',
        f'ttl = "{CANARY}"',
    ],
)
def test_of_a_settings_file(tmp_path: Path, text: str) -> None:
    file = tmp_path / "locks.toml"
    file.write_text(text)
    with pytest.raises(asynclock.ConfigurationError) as caught:
        load(["redis://h"] if text.startswith("ttl") else None, file).connect()
    assert [said for said in chain(caught.value) if shows(said)] == []


def test_a_settings_object_shows_no_url() -> None:
    assert not shows(repr(load([f"redis://u:{CANARY}@h:6379"], None)))


@pytest.mark.parametrize(
    ("reply", "left"),
    [
        (f"ERR unknown command `HELLO`, with args beginning with: `3`, `{CANARY}`, ", "`HELLO`"),
        (f"ERR no such thing: HELLO 3 AUTH u {CANARY}", "***"),
        (f"ERR no such thing: HELLO 3 AUTH u {CANARY[:6]}...", "***..."),
    ],
)
def test_of_a_reply_that_repeats_the_login(reply: str, left: str) -> None:
    text: Any = without(reply, [CANARY])
    assert text.endswith(left)
    assert not shows(text)


@pytest.mark.parametrize(
    ("reply", "secrets", "left"),
    [
        (f"AUTH u {CANARY} {CANARY[:5]} {CANARY[:4]}", [CANARY], "AUTH u *** *** ***"),
        ("AUTH u abc and a", ["abc"], "AUTH u *** and a"),
        ("AUTH u cAn", [CANARY], "AUTH u cAn"),
        ("AUTH u **", ["**"], "AUTH u **"),
        ("AUTH u *", ["*"], "AUTH u *"),
        ("AUTH u", [""], "AUTH u"),
        ("AUTH u", [], "AUTH u"),
        ("ERR unknown command, with args beginning with: `3`", [], "ERR unknown command"),
    ],
)
def test_only_the_password_is_taken_out_of_a_reply(
    reply: str, secrets: list[str], left: str
) -> None:
    """Whole or cut off by the server; what is too short to be told from a word stays."""
    assert without(reply, secrets) == left


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"redis://{CANARY}@h:6379", "'redis://***@h:6379'"),
        (f"redis://u:{CANARY}@h/3", "'redis://u:***@h/3'"),
        (f" redis://:{CANARY}@a:1,b:2/x ", "'redis://:***@a:1,b:2/x'"),
        (f"rediss://h?password={CANARY}&db=3&{CANARY}", "'rediss://h?password=***&db=***&***'"),
        ("redis://[::1]:7", "'redis://[::1]:7'"),
        ("host:6379/3", "'host:6379/3'"),
        (f"host {CANARY}", "'***'"),
        (f"u:{CANARY}@host", "'***'"),
        (f"redis://a@{CANARY}@h", "'redis://***'"),
    ],
)
def test_an_address_is_shown_without_what_may_be_secret(url: str, shown: str) -> None:
    """A user without a password may be a token."""
    assert redacted(url) == shown


def test_an_error_is_quoted_without_values() -> None:
    assert harmless(ValueError(f"bad value '{CANARY}'")) == "bad value …"
    assert harmless(ValueError("unexpected keyword argument 'foo'")).endswith("argument 'foo'")
    assert not shows(harmless(ValueError(f'Port could not be cast as "{CANARY}"')))
