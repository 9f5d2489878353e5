"""What is taken out of texts that may have a password, and authorities that nodes share."""

from pathlib import Path

import pytest

import asynclock
from asynclock._nodes.endpoint import Endpoint, Seeds, harmless, redacted, without
from asynclock.cli._settings import load
from asynclock.testing import make_certificates
from tests.access.test_secrets import CANARY, chain, shows

ARGUMENTS = ", with args beginning with: `3`, `"


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
    """A traceback or a debugger shows the arguments of functions."""
    assert not shows(repr(load([f"redis://u:{CANARY}@h:6379"], None)))


@pytest.mark.parametrize(
    ("reply", "secrets", "left"),
    [
        (f"ERR no such: HELLO 3 AUTH u {CANARY}", [CANARY], "ERR no such: HELLO 3 AUTH u ***"),
        (f"ERR no such: AUTH u {CANARY[:6]}...", [CANARY], "ERR no such: AUTH u ***..."),
        (f"ERR no command `HELLO`{ARGUMENTS}{CANARY}`, ", [CANARY], "ERR no command `HELLO`"),
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
def test_only_the_password_is_cut_out_of_a_reply(reply: str, secrets: list[str], left: str) -> None:
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


def test_authorities_are_loaded_once_for_all_nodes_that_trust_the_same(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    trusting = f"?ssl_ca_certs={certificates.ca}"
    first = Endpoint.of(f"rediss://a{trusting}")
    same = Endpoint.of(f"rediss://user:pw@b/3{trusting}", [Endpoint.of("redis://x"), first])
    assert first.tls is same.tls
    for query in (f"{trusting}&ssl_check_hostname=false", ""):
        other = Endpoint.of(f"rediss://c{query}", [first])
        assert other.tls not in (None, first.tls)
    assert Endpoint.of("redis://d", [first]).tls is None
    seeds = Seeds(f"rediss+cluster://a,b:7,c{trusting}", port=6379).endpoints()
    assert {seed.tls for seed in seeds} == {seeds[0].tls}
