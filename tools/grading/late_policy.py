"""The late policy: due dates, days late and the penalty.

    --due 2026-11-20                               the end of that day
    --due "2026-11-20 18:00"
    --due "03=2026-11-20 18:00, 04=2026-11-27"     for each chapter
    --due none                                     without a due date again

Times are in the time zone of this computer, unless they name another: 2026-11-20 18:00+01:00.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from datetime import datetime, time, timedelta

NONE = "none"
ALL = ""  # every chapter without its own date
DAY = timedelta(days=1)
PART = re.compile(r"(?:(?P<chapter>\d\d)\s*=\s*)?(?P<when>\d{4}-.+)")


@dataclass(frozen=True)
class LatePolicy:
    """Due dates by chapter, and a penalty.

    Args:
        dates: for each chapter, or `ALL`.
        percent: of the points, for each day; 0 for no penalty.
    """

    dates: dict[str, datetime] = field(default_factory=dict)
    percent: float = 0.0

    def due(self, chapter: str) -> datetime | None:
        """Return when a chapter was due; None without a due date."""
        return self.dates.get(chapter, self.dates.get(ALL))

    def days_late(self, chapter: str, when: datetime | None) -> int:
        """Return the started days between the due date and a submission; 0 if in time."""
        due = self.due(chapter)
        if due is None or when is None or when <= due:
            return 0
        return math.ceil((when - due) / DAY)

    def penalty(self, points: float, days: int) -> float:
        """Return the points that late days cost, at most all of them."""
        return min(points, round(points * self.percent * days / 100, 2))


def parse(text: str | None, percent: float = 0.0) -> LatePolicy:
    """Read the dates as typed.

    Args:
        text: see above; None or "" without a date.
        percent: of the points, for each day.

    Raises:
        ValueError: a date or the percent is invalid.
    """
    if not 0 <= percent <= 100:
        raise ValueError(f"LATE must be a number from 0 to 100, got {percent:g}. Write 10.")
    if percent and not (text or "").strip():
        raise ValueError(f"LATE must come with DUE, got {percent:g} alone. Add DUE=2026-11-20.")
    dates: dict[str, datetime] = {}
    if (text or "").strip().casefold() == NONE:
        return LatePolicy()
    for part in filter(None, (part.strip() for part in (text or "").split(","))):
        match = PART.fullmatch(part)
        when = _moment(match["when"].strip()) if match else None
        if when is None:
            raise ValueError(
                f"DUE must be a date with or without an hour, got {part!r}. "
                "Write 2026-11-20, or 03=2026-11-20 18:00."
            )
        chapter = match["chapter"] or ALL
        if chapter in dates:
            name = f"chapter {chapter}" if chapter else "all chapters"
            raise ValueError(f"DUE must have one date for {name}, got two. Remove one.")
        dates[chapter] = when
    return LatePolicy(dates, percent)


def _moment(text: str) -> datetime | None:
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return None
    if len(text) == len("2026-11-20"):
        when = datetime.combine(when, time(23, 59, 59))
    return when.astimezone()
