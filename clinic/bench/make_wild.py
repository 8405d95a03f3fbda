"""Examine strangers' modules and print how often the verdicts are right: `make wild`.

    make wild                                               all cases of the open share
    make wild ARGS="--sources FOLDER --offline"             with clones that are there
    make wild ARGS="--share last"                           the share that nobody tunes to
    make wild ARGS=--study                                  counts the bugs, writes study.csv
    make wild ARGS="--plant 5"                              plants mistakes in the right modules
    make wild ARGS="--share last --record AREAS"            writes down what a fresh share gave

The code comes from its repositories, at the commit that a case names, and is run: in a process of
its own, without a network where the system allows that, and with a limit of time. It is code of
strangers: where you would not run it, call this in a container. Exit status: 0 when no verdict is
a wrong name or a false healthy, 1 otherwise, 2 for a call that does not work.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from wild import planted, record
from wild.cases import SHARES, Case, chosen, read_cases
from wild.planted import Tried, tried
from wild.scoring import FALSE, WRONG, Result, outcome
from wild.sources import Sources
from wild.study import STORED, study, table
from wild.table import report
from wild.trial import CLINIC, Verdict, examined


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    given = _parser().parse_args(arguments)
    try:
        cases = read_cases()
        if given.study:
            STORED.write_text(table(cases), encoding="utf-8")
            print(study(cases))
            return 0
        cases = chosen(cases, given.share, given.only)
        if not cases:
            raise ValueError(f"wild: no case fits {given.only!r}. Call it without --only.")
        if given.plant:
            cases = tuple(case for case in cases if case.truth != "bug")
        with tempfile.TemporaryDirectory(prefix="wild") as temporary:
            folder = Path(given.sources or temporary)
            folder.mkdir(parents=True, exist_ok=True)
            if given.plant:
                return _planted(cases, Sources(folder, given.offline), given)
            results = [_result(c, Sources(folder, given.offline), given) for c in cases]
        if given.record:
            record.write([*record.read(), record.row(results, datetime.date.today(), given.record)])
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if given.json:
        said = [{**asdict(r.case), **asdict(r.verdict), "outcome": r.outcome} for r in results]
        Path(given.json).write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
    print(report(results, f"{len(results)} cases, {given.share} share"))
    return int(any(r.outcome in (WRONG, FALSE) for r in results))


def _result(case: Case, sources: Sources, given: argparse.Namespace) -> Result:
    """Examine one case in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="wild") as place:
        try:
            sources.unpack(case, Path(place))
        except ValueError as error:
            verdict = Verdict("broken", words=str(error))
        else:
            verdict = examined(case, Path(place), given.seconds, given.tool)
    result = Result(case, verdict, outcome(case, verdict))
    print(f"{result.outcome:14}{case.id}", file=sys.stderr)
    if given.reports:
        print(verdict.words, file=sys.stderr)
    return result


def _planted(cases: Sequence[Case], sources: Sources, given: argparse.Namespace) -> int:
    """Plant mistakes in right modules, say how they fared, and return the exit status."""
    found: list[Tried] = []
    for case in cases:
        with tempfile.TemporaryDirectory(prefix="wild") as place:
            try:
                sources.unpack(case, Path(place))
            except ValueError as error:
                print(error, file=sys.stderr)
                continue
            for one in tried(case, Path(place), given.plant, given.pairs, given.seconds):
                print(f"{one.outcome:14}{case.id}: {one.planted.kind}", file=sys.stderr)
                found.append(one)
    print(planted.table(found))
    return int(any(one.outcome in (planted.WRONG, planted.FALSE) for one in found))


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0],
        epilog="exit status: 0, or 1 after a wrong name or a false healthy",
    )
    parser.add_argument(
        "--sources", metavar="FOLDER", help="bare clones, kept; a temporary folder otherwise"
    )
    parser.add_argument("--offline", action="store_true", help="only what --sources holds")
    parser.add_argument("--share", choices=SHARES, default="open", help="open, or last")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose id holds this")
    parser.add_argument(
        "--seconds", type=float, default=120.0, help="of processor time for one case (120)"
    )
    parser.add_argument(
        "--tool", default=CLINIC, metavar="MODULE:FUNCTION", help=f"what examines ({CLINIC})"
    )
    parser.add_argument(
        "--plant", type=int, default=0, metavar="N", help="plant N mistakes in each right module"
    )
    parser.add_argument("--pairs", action="store_true", help="two planted mistakes at once")
    parser.add_argument(
        "--record",
        default="",
        metavar="AREAS",
        help="a row for record.csv, with where was looked: once, before anything is mended",
    )
    parser.add_argument("--json", metavar="FILE", help="write every verdict there, too")
    parser.add_argument("--reports", action="store_true", help="show every report")
    parser.add_argument("--study", action="store_true", help="count the bugs anew, examine nothing")
    return parser


if __name__ == "__main__":
    sys.exit(main())
