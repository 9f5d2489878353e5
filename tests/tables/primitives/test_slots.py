"""Which slot of a semaphore is asked for after a refusal."""

import pytest

from asynclock._primitives.semaphore import slot

FULL = b"1" * 63


@pytest.mark.parametrize(
    ("votes", "spare", "asked"),
    [
        ((b"1100", b"0101", b"0110"), 1, {"3", "0", "1"}),
        ((b"1110", b"0101", b"0110"), 1, {"3", "1"}),
        ((b"1110", b"1111", b"1110"), 1, {"1"}),
        ((b"1110", b"1111", b"1111"), 1, set()),  # a majority has it taken
        ((b"1101",), 0, {"0"}),
    ],
)
def test_any_slot_is_asked_for_that_enough_nodes_have_free(
    votes: tuple[bytes, ...], spare: int, asked: set[str]
) -> None:
    """Clients that are refused at the same moment don't all ask for the same one."""
    choose = slot("a", "a", 5, 2).choose_slot
    assert choose is not None
    found = (choose([*votes], spare, chance / 10) for chance in range(10))
    assert {spec.part for spec in found if spec is not None} == asked


@pytest.mark.parametrize(
    ("permits", "votes", "asked"),
    [
        (64, [FULL] * 9, [3]),
        (65, [FULL] * 9, [3, 2]),
        (128, [FULL] * 9, [3, 67]),
        (129, [FULL] * 9, [3, 67, 2]),
        (256, [FULL] * 9, [3, 67, 131, 195]),
        # What is free may be taken before it is asked for: the same windows must not begin anew.
        (130, [FULL, b"1" * 9 + b"0" + b"1" * 53, FULL, FULL], [3, 67, 77, 11]),
    ],
)
def test_a_refusal_in_one_window_leads_to_the_next_until_all_were_seen(
    permits: int, votes: list[bytes], asked: list[int]
) -> None:
    spec, found, seen = slot("a", "a", permits, 3), [3], set[str]()
    for vote in votes:
        seen |= {*spec.watched}
        assert len(spec.neighbours) == 63
        assert spec.choose_slot is not None
        following = spec.choose_slot([vote], 0, 0.5)
        if following is None:
            break
        spec = following
        found.append(int(spec.part))
    assert found == asked
    assert len(seen) == permits
