"""Count the seconds that code takes itself, and not those in which the machine serves others.

A limit in seconds of the clock would make marks depend on what else the machine does. A limit in
seconds of the processor alone would let code sleep for ever. `ChargedTime` counts both: the seconds
that the processor worked for the code, and those in which all of it waited of its own will. Code
that is ready to run and is not let does not get older.
"""

from __future__ import annotations

LOOK = 0.2  # seconds between two looks
MOST_WAITED = 1.5 * LOOK  # what one look counts of waiting: a late look proves nothing


class ChargedTime:
    """The own seconds of a group of processes; told at every look what is seen.

    >>> own = ChargedTime(now=100.0)
    >>> own.look(now=110.0, cpu=1.0, waits=False)  # it was let to run for one second of ten
    1.0

    Args:
        now: seconds of a clock that only goes forward.
    """

    def __init__(self, now: float):
        self.seconds = 0.0
        self._now, self._cpu = now, 0.0

    def look(self, now: float, cpu: float, waits: bool) -> float:
        """Return the own seconds so far, never more than the clock's.

        Args:
            now: the clock.
            cpu: seconds of the processor that the group used since it began; may shrink when a
                process of the group ends.
            waits: whether all processes sleep of their own will.
        """
        passed, used = now - self._now, max(0.0, cpu - self._cpu)
        if waits:
            used = max(used, MOST_WAITED)
        self.seconds += min(passed, used)
        self._now, self._cpu = now, cpu
        return self.seconds
