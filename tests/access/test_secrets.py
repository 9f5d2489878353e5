"""A canary for a password: it appears in no text of ours, whatever the deployment and the fault."""

import asyncio
import contextlib
import logging
import traceback
from pathlib import Path

import pytest
import redis.asyncio
from redis.credentials import CredentialProvider

import asynclock
from asynclock.observe import LogEvents
from asynclock.testing import Certificates, LocalServer
from asynclock.testing.plugin import StartServers
from tests.access.tls import tls_in_front
from tests.cli.conftest import Program

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
        for use in (locks.lock("a").try_acquire(), locks.event("e").is_set(timeout=0.5)):
            try:
                await use
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


@pytest.mark.parametrize("fault", ["no HELLO", "another password"])
@pytest.mark.parametrize("deployment", DEPLOYMENTS)
async def test_of_a_login_that_fails(
    asynclock_servers: StartServers, caplog: pytest.LogCaptureFixture, deployment: str, fault: str
) -> None:
    caplog.set_level(logging.DEBUG)
    if fault == "no HELLO":
        (server,) = await asynclock_servers(1, args=("--rename-command", "HELLO", ""))
    else:
        (server,) = await asynclock_servers(1, password="another")
    host = f"127.0.0.1:{server.port}"
    urls = [url.format(canary=CANARY, host=host) for url in DEPLOYMENTS[deployment]]
    texts = await everything(
        asynclock.connect(*urls, acks=int("acks" in deployment), node_timeout=0.5)
    )
    assert texts
    assert [text for text in [*texts, *logged(caplog)] if shows(text)] == []


@pytest.mark.parametrize("words", [("inspect", "a"), ("doctor",)])
async def test_of_the_command_line(
    asynclock_servers: StartServers, words: tuple[str, ...], tmp_path: Path
) -> None:
    (server,) = await asynclock_servers(1, args=("--rename-command", "HELLO", ""))
    node = f"redis://u:{CANARY}@127.0.0.1:{server.port}"
    ended = Program(tmp_path / "none").inside(*words, "--node", node, env={})
    assert ended.err + ended.out
    assert not shows(ended)


async def test_with_tls_and_a_stranger_in_between(
    asynclock_servers: StartServers, caplog: pytest.LogCaptureFixture, certificates: Certificates
) -> None:
    caplog.set_level(logging.DEBUG)
    (server,) = await asynclock_servers(1, args=("--rename-command", "HELLO", ""))
    async with tls_in_front(server, certificates) as (port, _):
        for trusts in (f"?ssl_ca_certs={certificates.ca}", ""):
            url = f"rediss://u:{CANARY}@localhost:{port}{trusts}"
            texts = await everything(asynclock.connect(url, node_timeout=0.5))
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
    texts = await everything(asynclock.connect(client, node_timeout=0.5))
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
