"""Limits of time, with simulated clocks: no test waits."""

from __future__ import annotations

import pytest

pytest.importorskip("nbgrader", reason="grading has requirements of its own")

from tools.grading.cpu_time import INTERVAL, MAX_WAITED, ChargedTime
from tools.grading.run_notebook import (
    GRACE,
    INTERRUPTS,
    PATIENCE,
    SETTLING,
    Action,
    CellMonitor,
    Limits,
)

LIMITS = Limits(cell=30.0, notebook=180.0, output=1000)


def charged(*measured: tuple[float, float, bool]) -> float:
    """Return the seconds charged for intervals of the clock, CPU seconds, and sleep or not."""
    time, now, cpu = ChargedTime(now=1000.0), 1000.0, 0.0
    for passed, worked, waits in measured:
        now, cpu = now + passed, cpu + worked
        time.update(now, cpu, waits)
    return time.seconds


@pytest.mark.parametrize("load", [1, 2, 10, 100])
def test_working_code_is_charged_for_cpu_time_at_any_load(load):
    assert charged(*[(INTERVAL * load, INTERVAL, False)] * 50) == pytest.approx(50 * INTERVAL)


@pytest.mark.parametrize("late", [1.0, 1.4])
def test_sleeping_code_is_charged_for_the_time_of_the_clock(late):
    assert charged(*[(INTERVAL * late, 0.0, True)] * 50) == pytest.approx(50 * INTERVAL * late)


def test_a_late_measurement_charges_little():
    assert charged((60.0, 0.0, True)) == MAX_WAITED
    assert charged((60.0, 0.0, False)) == 0.0


def test_many_processes_are_charged_at_most_the_time_of_the_clock():
    assert charged(*[(INTERVAL, 8 * INTERVAL, False)] * 10) == pytest.approx(10 * INTERVAL)


def test_the_end_of_a_process_reduces_nothing():
    time = ChargedTime(now=0.0)
    time.update(10.0, 9.0, False)
    assert time.update(20.0, 1.0, False) == 9.0
    assert time.update(30.0, 2.0, False) == 10.0


def test_a_cell_runs_until_it_has_replied_and_settled():
    monitor = CellMonitor(LIMITS, began=100.0, left=180.0)
    assert monitor.decide(130.0, 0) is Action.WAIT
    monitor.replied(130.0)
    assert monitor.decide(130.0 + SETTLING, 0) is Action.WAIT
    assert monitor.decide(130.1 + SETTLING, 0) is Action.FINISH
    assert monitor.trouble is None


def test_a_slow_cell_is_interrupted_several_times_and_given_up():
    monitor = CellMonitor(LIMITS, began=100.0, left=180.0)
    steps = 2 * INTERRUPTS
    said = [monitor.decide(130.01 + n * PATIENCE / steps + n / 1000, 0) for n in range(steps + 1)]
    assert said == [*[Action.INTERRUPT, Action.WAIT] * INTERRUPTS, Action.GIVE_UP]
    assert monitor.is_interrupted
    assert monitor.trouble == "it took longer than 30 s and could not be interrupted"


def test_a_cell_that_replies_to_an_interrupt_is_not_given_up():
    monitor = CellMonitor(LIMITS, began=0.0, left=180.0)
    assert monitor.decide(31.0, 0) is Action.INTERRUPT
    monitor.replied(31.5)
    assert monitor.decide(32.0, 0) is Action.WAIT
    assert monitor.trouble == "it took longer than 30 s"


def test_a_cell_that_prints_too_much_gets_time_to_stop():
    monitor = CellMonitor(LIMITS, began=0.0, left=180.0)
    assert monitor.decide(1.0, 1000) is Action.WAIT
    assert monitor.decide(1.0 + GRACE, 5000) is Action.WAIT
    assert monitor.decide(1.1 + GRACE, 5000) is Action.INTERRUPT
    assert monitor.trouble == "it printed more than 0.001 MB"


def test_a_cell_gets_only_the_time_that_the_notebook_has_left():
    monitor = CellMonitor(LIMITS, began=0.0, left=5.0)
    assert monitor.decide(5.0, 0) is Action.WAIT
    assert monitor.decide(5.1, 0) is Action.INTERRUPT
    assert monitor.trouble == "the notebook took longer than 180 s"
