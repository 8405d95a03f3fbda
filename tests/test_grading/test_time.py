"""Limits of time, with clocks that the tests turn: nothing here waits."""

from __future__ import annotations

import pytest

pytest.importorskip("nbgrader", reason="grading has requirements of its own")

from tools.grading.cpu_time import LOOK, MOST_WAITED, ChargedTime
from tools.grading.run_notebook import (
    GRACE,
    INTERRUPTS,
    PATIENCE,
    SETTLING,
    Action,
    Limits,
    CellMonitor,
)

LIMITS = Limits(cell=30.0, notebook=180.0, output=1000)


def looks(*seen: tuple[float, float, bool]) -> float:
    """Own seconds after looks, each with what passed, what was worked, and whether all waited."""
    own, now, cpu = ChargedTime(now=1000.0), 1000.0, 0.0
    for passed, worked, waits in seen:
        now, cpu = now + passed, cpu + worked
        own.look(now, cpu, waits)
    return own.seconds


@pytest.mark.parametrize("load", [1, 2, 10, 100])
def test_code_that_works_gets_older_by_its_work_whatever_the_load(load):
    assert looks(*[(LOOK * load, LOOK, False)] * 50) == pytest.approx(50 * LOOK)


@pytest.mark.parametrize("late", [1.0, 1.4])
def test_code_that_waits_gets_older_with_the_clock(late):
    assert looks(*[(LOOK * late, 0.0, True)] * 50) == pytest.approx(50 * LOOK * late)


def test_a_look_that_comes_very_late_counts_little():
    assert looks((60.0, 0.0, True)) == MOST_WAITED
    assert looks((60.0, 0.0, False)) == 0.0


def test_many_processes_are_no_faster_than_the_clock():
    assert looks(*[(LOOK, 8 * LOOK, False)] * 10) == pytest.approx(10 * LOOK)


def test_a_process_that_ends_takes_nothing_back():
    own = ChargedTime(now=0.0)
    own.look(10.0, 9.0, False)
    assert own.look(20.0, 1.0, False) == 9.0
    assert own.look(30.0, 2.0, False) == 10.0


def test_a_cell_runs_until_it_has_answered_and_settled():
    watch = CellMonitor(LIMITS, began=100.0, left=180.0)
    assert watch.decide(130.0, 0) is Action.WAIT
    watch.answered(130.0)
    assert watch.decide(130.0 + SETTLING, 0) is Action.WAIT
    assert watch.decide(130.1 + SETTLING, 0) is Action.LEAVE
    assert watch.trouble is None


def test_a_cell_that_takes_too_long_is_interrupted_some_times_and_given_up():
    watch = CellMonitor(LIMITS, began=100.0, left=180.0)
    steps = 2 * INTERRUPTS
    said = [watch.decide(130.01 + n * PATIENCE / steps + n / 1000, 0) for n in range(steps + 1)]
    assert said == [*[Action.INTERRUPT, Action.WAIT] * INTERRUPTS, Action.GIVE_UP]
    assert watch.is_interrupted
    assert watch.trouble == "it took longer than 30 s and did not let itself be interrupted"


def test_a_cell_that_answers_when_it_is_interrupted_is_not_given_up():
    watch = CellMonitor(LIMITS, began=0.0, left=180.0)
    assert watch.decide(31.0, 0) is Action.INTERRUPT
    watch.answered(31.5)
    assert watch.decide(32.0, 0) is Action.WAIT
    assert watch.trouble == "it took longer than 30 s"


def test_a_cell_that_prints_too_much_has_a_moment_to_stop_by_itself():
    watch = CellMonitor(LIMITS, began=0.0, left=180.0)
    assert watch.decide(1.0, 1000) is Action.WAIT
    assert watch.decide(1.0 + GRACE, 5000) is Action.WAIT
    assert watch.decide(1.1 + GRACE, 5000) is Action.INTERRUPT
    assert watch.trouble == "it printed more than 0.001 MB"


def test_a_cell_has_no_more_than_the_notebook_has_left():
    watch = CellMonitor(LIMITS, began=0.0, left=5.0)
    assert watch.decide(5.0, 0) is Action.WAIT
    assert watch.decide(5.1, 0) is Action.INTERRUPT
    assert watch.trouble == "the notebook took longer than 180 s"
