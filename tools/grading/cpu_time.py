"""Charge code for CPU time and for voluntary waiting, not for the load of the machine.

With a limit on wall-clock time, grades would depend on the load of the machine. With a limit on CPU
time alone, code could sleep forever. `ChargedTime` counts both: CPU seconds, and seconds in which
all processes sleep voluntarily. Time in which the code is ready to run but gets no CPU is free.
"""

from __future__ import annotations

INTERVAL = 0.2  # seconds between two measurements
MAX_WAITED = 1.5 * INTERVAL  # waiting that one measurement may add, since it may come late


class ChargedTime:
    """The charged seconds of a group of processes.

    >>> charged = ChargedTime(now=100.0)
    >>> charged.update(now=110.0, cpu=1.0, waits=False)  # it got the CPU for one second of ten
    1.0

    Args:
        now: seconds of a monotonic clock.
    """

    def __init__(self, now: float):
        self.seconds = 0.0
        self._now, self._cpu = now, 0.0

    def update(self, now: float, cpu: float, waits: bool) -> float:
        """Return the charged seconds so far, never more than the clock's.

        Args:
            now: seconds of the clock.
            cpu: CPU seconds of the group since it began; they may shrink when a process ends.
            waits: whether all processes sleep voluntarily.
        """
        passed, used = now - self._now, max(0.0, cpu - self._cpu)
        if waits:
            used = max(used, MAX_WAITED)
        self.seconds += min(passed, used)
        self._now, self._cpu = now, cpu
        return self.seconds
