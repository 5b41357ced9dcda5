"""A machine does what its table says, tells its story, and refuses what can't be."""

from enum import Enum

import pytest

from kvdist.connector.machine import STORY_LENGTH, Machine, Table
from kvdist.errors import ConfigError, InvalidTransition


class Lamp(Enum):
    OFF = "off"
    ON = "on"


class Hand(Enum):
    PRESS = "press"
    UNSCREW = "unscrew"
    LOOK = "look"


class Light(Enum):
    SHINE = "shine"


ROWS = {
    (Lamp.OFF, Hand.PRESS): (Lamp.ON, (Light.SHINE,)),
    (Lamp.ON, Hand.PRESS): (Lamp.OFF, ()),
    (Lamp.OFF, Hand.UNSCREW): (Lamp.OFF, ()),
}
HOT = {(Lamp.ON, Hand.UNSCREW): "it is hot"}
LAMP = Table("lamp", Lamp.OFF, ROWS, HOT, late=frozenset({Hand.LOOK}))


def test_it_advances_and_says_what_to_do() -> None:
    machine = Machine(LAMP, "mine")
    done = [(machine.handle(Hand.PRESS), machine.state) for _ in range(2)]
    assert done == [((Light.SHINE,), Lamp.ON), ((), Lamp.OFF)]


def test_what_comes_late_changes_nothing() -> None:
    machine = Machine(LAMP, "mine")
    assert machine.handle(Hand.LOOK) == ()
    assert (machine.state, list(machine.story)) == (Lamp.OFF, [])


def test_what_cannot_be_carries_the_story_and_the_reason() -> None:
    machine = Machine(LAMP, "mine")
    machine.handle(Hand.PRESS)
    with pytest.raises(InvalidTransition, match=r"lamp mine: OFF -PRESS-> ON -UNSCREW-> it is hot"):
        machine.handle(Hand.UNSCREW)
    assert machine.state is Lamp.ON
    assert len(machine.story) == 1


def test_a_long_story_keeps_its_end() -> None:
    machine = Machine(LAMP, "mine")
    for _ in range(3 * STORY_LENGTH):
        machine.handle(Hand.PRESS)
    assert len(machine.story) == STORY_LENGTH


def test_a_pair_that_nobody_thought_of() -> None:
    with pytest.raises(ConfigError, match="lamp: 0 ways for ON, UNSCREW"):
        Table("lamp", Lamp.OFF, ROWS, {}, late=frozenset({Hand.LOOK}))


def test_a_pair_that_is_a_row_and_impossible() -> None:
    both = {**HOT, (Lamp.OFF, Hand.PRESS): "no"}
    with pytest.raises(ConfigError, match="lamp: 2 ways for OFF, PRESS"):
        Table("lamp", Lamp.OFF, ROWS, both, late=frozenset({Hand.LOOK}))
