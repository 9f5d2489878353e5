"""What is said of a wrong setting, from the first word to the last, and what may just be."""

from __future__ import annotations

from typing import Any

import pytest

from asynclock import ConfigurationError, _settings
from asynclock._keys import lock_key, split


def test_the_words_of_other_libraries_are_answered_with_ours() -> None:
    answers = {
        "blocking": "try_acquire() instead of blocking=False",
        "blocking_timeout": "timeout= (seconds to wait)",
        "acquire_timeout": "timeout= (seconds to wait)",
        "lock_timeout": "ttl= (seconds that the lease lives without renewal)",
        "auto_release_time": "ttl= (seconds that the lease lives without renewal)",
        "expire": "ttl= (seconds that the lease lives without renewal)",
        "auto_renewal": "renew=",
        "retry_count": "timeout= (seconds to wait)",
        "retry_delay": "nothing: waiting does not poll",
        "sleep": "nothing: waiting does not poll",
        "thread_local": "nothing: a lease is an object of its own",
    }
    for word, answer in answers.items():
        text = str(_settings.unknown([word]))
        assert text == f"unexpected keyword argument {word!r}: write {answer}"
    assert str(_settings.unknown(["ttll"])) == "unexpected keyword argument 'ttll'"
    assert str(_settings.unknown(["sleep", "expire"])).startswith(
        "unexpected keyword argument 'expire'"
    )


@pytest.mark.parametrize(
    ("check", "text"),
    [
        (
            lambda: _settings.seconds(-1, "a pause", zero=True),
            "a pause must be finite and at least 0, not -1",
        ),
        (lambda: _settings.seconds(0, "a pause"), "a pause must be finite and above 0, not 0"),
        (lambda: _settings.seconds(2e10, "a pause"), "a pause must be at most 1e+10 seconds"),
        (lambda: _settings.name(7), "a lock's name must be a str, not int"),
        (lambda: _settings.name(""), "a lock's name must not be empty"),
        (
            lambda: _settings.label("x" * 201),
            f"label must be a str of at most 200 characters, not {'x' * 201!r}",
        ),
        (
            lambda: _settings.restart_guard("disc"),
            "restart_guard must be True, False or \"disk\", not 'disc'",
        ),
        (
            lambda: _settings.handoff(1),
            'handoff must be True (or "block"), "strict" or False, not 1',
        ),
        (
            lambda: _settings.count(0, "permits", 256),
            "permits must be a whole number from 1 to 256, not 0",
        ),
        (
            lambda: _settings.ttl(1, node_timeout=2.0, max_ttl=10.0),
            (
                "ttl=1 must be longer than node_timeout=2: "
                "a lease would end before the nodes have answered"
            ),
        ),
        (
            lambda: _settings.ttl(20, node_timeout=2.0, max_ttl=10.0),
            (
                "ttl=20 is longer than max_ttl=10: guards wait for max_ttl, so it must be the "
                "longest ttl of your whole fleet; ttl is in seconds (max_ttl=20, on the command "
                "line --max-ttl 20)"
            ),
        ),
    ],
)
def test_what_is_wrong_with_a_setting_is_said_whole(check: Any, text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check()
    assert str(caught.value) == text


def test_a_text_that_no_server_can_keep_is_called_what_it_is() -> None:
    for check, what in ((_settings.name, "a lock's name"), (_settings.label, "label")):
        with pytest.raises(ConfigurationError, match=f"^{what} can't be written as UTF-8"):
            check("\ud800")


def test_what_may_just_be_is_taken_as_it_is() -> None:
    assert _settings.label("x" * 200) == "x" * 200
    assert (_settings.label(""), _settings.label(None)) == ("", None)
    assert (_settings.count(1, "n", 256), _settings.count(256, "n", 256)) == (1, 256)
    assert _settings.ttl(10, node_timeout=0.25, max_ttl=10.0) == 10.0
    assert _settings.optional_seconds(0, "a pause", zero=True) == 0.0
    assert _settings.optional_seconds(None, "a pause") is None
    assert [_settings.handoff(way) for way in (True, "block", "strict", False)] == [
        True,
        True,
        "strict",
        False,
    ]
    assert [_settings.restart_guard(way) for way in (True, False, "disk", 1)] == [
        True,
        False,
        "disk",
        True,
    ]


def test_a_name_on_a_cluster_may_have_braces_but_not_begin_with_one_that_closes() -> None:
    assert lock_key("shop:{", "a}b") == "shop:{a}b}"
    assert split("shop:{", "shop:{a}}") == ("a}", ())
    with pytest.raises(ConfigurationError) as caught:
        lock_key("shop:{", "}a")
    assert str(caught.value) == "on a Cluster a name must not start with a brace: '}a'"
    for prefix, name, key in (("a:", "#b", "a:#b"), ("a:{", "b:#c", "a:{b:#c}")):
        with pytest.raises(ConfigurationError) as caught:
            lock_key(prefix, name)
        assert str(caught.value) == (
            "prefix and name together must not contain ':#', which marks keys that belong to a "
            f"lock: {key!r}"
        )
