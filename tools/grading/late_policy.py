"""When a notebook was due, and how many days too late it came.

    DUE=2026-11-20                               the end of that day
    DUE="2026-11-20 18:00"
    DUE="03=2026-11-20 18:00, 04=2026-11-27"     for each chapter
    DUE=none                                     no date any more

Times are those of this computer's clock, or say otherwise: 2026-11-20 18:00+01:00.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from datetime import datetime, time, timedelta

NONE = "none"
ALL = ""  # stands for every chapter that has no date of its own
DAY = timedelta(days=1)
PART = re.compile(r"(?:(?P<chapter>\d\d)\s*=\s*)?(?P<when>\d{4}-.+)")


@dataclass(frozen=True)
class LatePolicy:
    """Dates by chapter.

    Args:
        dates: for each chapter, or `ALL`.
        percent: of the points that each day costs; 0 takes nothing.
    """

    dates: dict[str, datetime] = field(default_factory=dict)
    percent: float = 0.0

    def of(self, chapter: str) -> datetime | None:
        """Return when a chapter was due; None if nobody said."""
        return self.dates.get(chapter, self.dates.get(ALL))

    def days_late(self, chapter: str, when: datetime | None) -> int:
        """Return the begun days between the date and a submission, 0 in time."""
        due = self.of(chapter)
        if due is None or when is None or when <= due:
            return 0
        return math.ceil((when - due) / DAY)

    def penalty(self, points: float, days: int) -> float:
        """Return the points that so many days cost, never more than there are."""
        return min(points, round(points * self.percent * days / 100, 2))


def parse(text: str | None, percent: float = 0.0) -> LatePolicy:
    """Read dates as they are typed.

    Args:
        text: see above; None or "" without a date.
        percent: of the points that each day costs.

    Raises:
        ValueError: what is typed is no date, or no percent.
    """
    if not 0 <= percent <= 100:
        raise ValueError(f"LATE is a percent from 0 to 100, got {percent:g}. Write 10")
    if percent and not (text or "").strip():
        raise ValueError(f"LATE takes points by the day, got {percent:g} and no date. Add DUE=")
    dates: dict[str, datetime] = {}
    if (text or "").strip().casefold() == NONE:
        return LatePolicy()
    for part in filter(None, (part.strip() for part in (text or "").split(","))):
        match = PART.fullmatch(part)
        when = _moment(match["when"].strip()) if match else None
        if when is None:
            raise ValueError(
                f"DUE is a date, with an hour if you like, got {part!r}. "
                "Write 2026-11-20, or 03=2026-11-20 18:00"
            )
        chapter = match["chapter"] or ALL
        if chapter in dates:
            name = f"chapter {chapter}" if chapter else "all chapters"
            raise ValueError(f"DUE: one date for {name}, got two. Take one out")
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
