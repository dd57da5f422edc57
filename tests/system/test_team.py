"""What the processes of a team give each other: values, turns, and errors."""

import os
import signal
import time
from contextlib import suppress

import pytest

from combemb.system.team import ALONE, FailedElsewhere, Team
from tests.teams import together


def turns(team: Team, lengths: list[int]) -> list[str]:
    return list(team.in_turns(f"{team.rank}{i}" for i in range(lengths[team.rank])))


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([3, 2], ["00", "10", "01", "11", "02"]),
        ([0, 1, 2], ["10", "20", "21"]),
        ([0, 0], []),
    ],
)
def test_all_see_the_values_of_all_in_turns(tmp_path, lengths, expected):
    assert together(tmp_path, len(lengths), turns, lengths) == [expected] * len(lengths)


def test_alone_the_turns_are_ones_own():
    assert turns(ALONE, [3]) == ["00", "01", "02"]
    assert ALONE.exchange("a") == ["a"]
    with pytest.raises(OSError, match="mine"), ALONE.bound():
        raise OSError("mine")


def facts(team: Team) -> None:
    with team.bound():
        team.require_same({"number of wheels": 4, "colour": "red" if team.rank < 2 else "blue"})


def test_a_fact_in_which_a_process_differs_is_named_in_all(tmp_path):
    errors = together(tmp_path, 3, facts)
    message = "colour: red in process 0, blue in process 2; give all processes the same data and settings"
    assert [str(error) for error in errors] == [message] * 3


def failing(team: Team, which: list[int], when: str) -> str:
    with team.bound():
        if when == "exchange":
            team.exchange(1)
        if team.rank in which:
            raise OSError(f"disk {team.rank} is full")
        if when == "exchange":
            list(team.in_turns(iter(range(5))))
    return "went on"


@pytest.mark.parametrize("when", ["exchange", "end"])
def test_an_error_of_one_process_is_raised_in_all(tmp_path, when):
    first, second, third = together(tmp_path, 3, failing, [1], when)
    assert (type(second), str(second)) == (OSError, "disk 1 is full")
    for other in (first, third):
        assert (type(other), str(other)) == (FailedElsewhere, "disk 1 is full (in process 1 of 3)")


def test_processes_that_all_fail_raise_their_own_errors(tmp_path):
    errors = together(tmp_path, 2, failing, [0, 1], "exchange")
    assert [str(error) for error in errors] == ["disk 0 is full", "disk 1 is full"]


def again(team: Team) -> list[int]:
    with suppress(OSError, FailedElsewhere):
        failing(team, [0], "exchange")
    return team.exchange(team.rank)


def test_after_an_error_the_team_can_go_on(tmp_path):
    assert together(tmp_path, 2, again) == [[0, 1], [0, 1]]


def dying(team: Team) -> None:
    with team.bound():
        team.exchange(1)
        if team.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        team.exchange(2)


def test_nobody_waits_for_a_dead_process(tmp_path):
    began = time.monotonic()
    first, second, third = together(tmp_path, 3, dying)
    assert second == -signal.SIGKILL
    for other in (first, third):
        assert isinstance(other, RuntimeError)
    assert time.monotonic() - began < 20
