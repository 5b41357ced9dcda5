"""What isn't in a doctest."""

from kvdist.trace.words import blocks


def test_several_groups_are_named() -> None:
    assert blocks([[1, 2], [5]]) == "blocks 1, 2 of group 0 and block 5 of group 1"
