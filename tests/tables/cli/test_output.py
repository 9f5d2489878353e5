"""Tables and texts: they fit the terminal, change nothing in a pipe, and obey no stranger."""

import io
import json
import logging
import re

import pytest
from rich.cells import cell_len
from rich.console import Console

from asynclock.cli import _output as output

TITLES = ("name", "holder", "note")
LONG = "orders:eu-central-1:customer-0042"


def shown_on(
    width: int | None,
    rows: list[tuple[str, ...]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    **console: bool,
) -> list[str]:
    """Print a table on a terminal of this width (None: into a pipe); return the lines."""

    def made(**_: bool) -> Console:
        return Console(
            file=io.StringIO(), force_terminal=width is not None, width=width or 20, **console
        )

    monkeypatch.setattr(output, "console", made)
    output.print_table(TITLES, rows)
    return capsys.readouterr().out.splitlines()


# ---- width ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["n" * 30, "日" * 15, "é" * 30, "n" * 29 + "é"])
def test_a_column_is_as_wide_as_its_longest_text_on_the_screen(name: str) -> None:
    """A wide character takes two places."""
    lines = output.lines_of_table(TITLES, [(name, "a", "x"), ("b", "c", "y")], None)
    assert lines[0] == f"name{' ' * 26}  holder  note"
    assert lines[1] == f"{name}  a       x"
    assert lines[2] == f"b{' ' * 29}  c       y"


@pytest.mark.parametrize("width", [50, 60, 79])
@pytest.mark.parametrize("filler", ["x", "日"])
def test_a_table_is_at_most_as_wide_as_the_terminal(width: int, filler: str) -> None:
    """The widest column is cut first, with an ellipsis; narrow ones stay whole."""
    rows = [(filler * 60, "web-1:77", "ok"), ("short", "web-2:88", "no quorum")]
    lines = output.lines_of_table(TITLES, rows, width)
    assert max(map(cell_len, lines)) == width
    assert "…" in lines[1]
    assert lines[1].endswith("…  web-1:77  ok")
    assert lines[2].endswith("  web-2:88  no quorum")


def test_a_name_is_not_cut_while_columns_are_empty_or_others_are_long() -> None:
    titles = ("name", "holder", "waiting", "remaining", "note")
    name = "orders:eu-central-1:customer-0042:shipment"
    rows = [(name, "web-1:77:job-of-the-night-shift", "", "9.0 s", "")]
    lines = output.lines_of_table(titles, rows, 75)
    assert lines[0].split() == ["name", "holder", "remaining"]
    assert lines[1].startswith(f"{name}  web-1:77:job-of-")
    whole = output.lines_of_table(titles, rows, 120)
    assert whole[0].split() == list(titles)
    assert output.lines_of_table(titles, [], 20)[0].split()[0] == "name"


LISTED = ("name", "holder", "held for", "remaining", "fence", "nodes", "note")


@pytest.mark.parametrize(
    ("width", "gone", "name"),
    [
        (150, "", LONG * 2),
        (110, "", LONG * 2),
        (90, "fence", LONG * 2),
        (75, "fence nodes", LONG * 2),
        (70, "fence nodes note", LONG * 2),
        (80, "fence", LONG[:20]),
        (87, "fence", LONG[:20]),
        (88, "", LONG[:20]),  # a part of its number would be of no use
    ],
)
def test_columns_go_before_a_name_is_cut_below_thirty(width: int, gone: str, name: str) -> None:
    row = (name, "web-1.example.org:31337", "4m 10s", "9.0 s", "1795901239846320", "3/3", "2 wait")
    lines = output.lines_of_table(LISTED, [row], width, output.SPARE)
    assert max(map(cell_len, lines)) <= width
    kept = [one for one in LISTED if one not in gone.split()]
    assert re.split("  +", lines[0]) == kept
    assert lines[1].startswith(name[:29])
    assert "…" not in lines[1].partition("  ")[2].partition("  ")[2], "only name and holder are cut"


def test_no_column_is_cut_below_what_can_be_read() -> None:
    lines = output.lines_of_table(TITLES, [("n" * 20, "h" * 20, "x" * 20)], 10)
    assert lines[1] == "  ".join(f"{one * 7}…" for one in "nhx")


def test_a_pipe_gets_every_text_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown_on(None, [(LONG, "web", "x" * 300)], monkeypatch, capsys)
    assert lines[1].split() == [LONG, "web", "x" * 300]
    assert "\x1b" not in "".join(lines)


def test_a_narrow_terminal_gets_a_block_per_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [(LONG, "web-1\x1b[2J", ""), ("b", "", "no quorum")]
    lines = shown_on(27, rows, monkeypatch, capsys, no_color=True)
    assert lines == [LONG, "  holder  web-1\\x1b[2J", "b", "  note    no quorum"]
    lines = shown_on(28, rows, monkeypatch, capsys, no_color=True)
    assert lines[0].split() == list(TITLES)


def test_titles_are_bold_on_a_terminal_that_shows_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [("a", "b", "c")]
    assert shown_on(80, rows, monkeypatch, capsys)[0].startswith("\x1b[1mname")
    assert shown_on(80, rows, monkeypatch, capsys, no_color=True)[0].startswith("name")


def test_parts_of_a_line_are_kept_whole_where_they_fit() -> None:
    def lines(width: int, *parts: str) -> list[str]:
        return [str(line) for line in output.wrapped(parts, width)]

    assert lines(20, "one", "two", "three") == ["one   two   three"]
    assert lines(16, "one", "two", "three") == ["one   two", "three"]
    assert lines(4, "longer", "two") == ["lon…", "two"]
    assert lines(20, "a\x1b[2J", "b") == ["a\\x1b[2J   b"]


def test_without_a_terminal_lines_are_long_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    assert output.console().width >= 120
    monkeypatch.setenv("COLUMNS", "70")
    assert output.console().width == 70


def test_a_text_of_a_stranger_has_no_markup_or_pictures(capsys: pytest.CaptureFixture[str]) -> None:
    output.console().print("[bold]a[/bold] :smiley: 42")
    assert capsys.readouterr().out == "[bold]a[/bold] :smiley: 42\n"


# ---- JSON ----------------------------------------------------------------------------------------
def test_json_has_a_line_per_element_and_only_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json({"locks": [{"name": "é\u202e"}, {"name": "b"}], "none": [], "held": 2})
    out = capsys.readouterr().out
    assert json.loads(out) == {
        "version": 1,
        "locks": [{"name": "é\u202e"}, {"name": "b"}],
        "none": [],
        "held": 2,
    }
    assert out.isascii()
    assert out.count("\n") == 9


# ---- texts ---------------------------------------------------------------------------------------
def test_no_mark_that_a_terminal_would_obey_is_left() -> None:
    """Control characters, bidirectional marks, zero width, line ends, halves of characters."""
    control, hidden = "\x00\x07\x1b\x7f\x9b\n\r\t", "\u200b\u200f\u202e\u2066\ufeff"
    for mark in f"{control}{hidden}\u2028\u2029\ud800":
        assert output.clean(f"a{mark}b") == f"a{mark.encode('unicode_escape').decode()}b"


def test_letters_and_pictures_stay_as_they_are() -> None:
    for whole in ("é日", "a b", "🔒"):
        assert output.clean(whole) == whole


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        *((None, ""), (0.0, "0.0 s"), (1.26, "1.3 s"), (59.9, "59.9 s"), (60.0, "1m 0s")),
        *((250.9, "4m 10s"), (3600.0, "1h 0m"), (86_399.0, "23h 59m"), (187_200.0, "2d 4h")),
    ],
)
def test_times_for_people(value: float | None, shown: str) -> None:
    assert output.seconds(value) == shown


def test_warnings_of_the_library_look_like_ours(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    output.log_to_stderr()
    logger.info("node %s is up", "a")
    logger.warning("node %s is down: %s", "a", "\x1b[2J")
    assert capsys.readouterr().err == "asynclock: node a is down: \\x1b[2J\n"
    assert not logger.propagate, "a handler of the root logger would say it again"


def test_a_command_that_shows_the_health_of_nodes_itself_logs_nothing(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    output.log_to_nobody()
    logger.propagate = False  # what pytest gets does not count
    logger.warning("node a is down")
    assert capsys.readouterr().err == ""


def test_what_is_said_is_on_one_line_and_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    output.say("a\nb\x1b[2J")
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "asynclock: a\\nb\\x1b[2J\n")
