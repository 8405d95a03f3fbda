"""Count what the cases of the clinic's bench hold: which bugs strangers' code has, and how often.

.venv/bin/python resources/make_wild_study.py

It writes `wild_study.json`, which chapter 08 draws, from `clinic/bench/cases`. Only modules that
were read because their repository came up are counted: those that were looked for because of a
bug say nothing about how often it is.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BENCH = ROOT / "clinic" / "bench"
TARGET = Path(__file__).with_name("wild_study.json")


def counted() -> dict[str, dict[str, int]]:
    """Return how many modules are healthy, sick or a variant, and have each bug."""
    sys.path.insert(0, str(BENCH))
    from wild.cases import NONE, read_cases
    from wild.study import counts, sampled

    cases = read_cases()
    bugs = {one.id: one.sample for one in counts(cases) if one.sample and one.id != NONE}
    return {"modules": sampled(cases), "bugs": bugs}


def main() -> None:
    """Write the file."""
    TARGET.write_text(json.dumps(counted(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
