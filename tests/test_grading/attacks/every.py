"""All attacks, in one list."""

from __future__ import annotations

from attacks import forging, harming, lying, reaching
from attacks.attack import Attack


def every() -> list[Attack]:
    return [*lying.ATTACKS, *reaching.ATTACKS, *forging.ATTACKS, *harming.ATTACKS]
