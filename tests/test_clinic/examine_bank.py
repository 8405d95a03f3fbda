"""Examine every patient of the bank with several seeds and print the table: `make clinic`."""

import argparse
import os
import sys
import time
from collections import defaultdict

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from patients import CASES, UNKNOWN

from attention_clinic import BUGS, diagnose

HEALTHY = "healthy"


def main() -> int:
    """Run the bank; return 1 when a patient was judged wrongly."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="how many random starts (20)")
    seeds = parser.parse_args().seeds
    torch.set_num_threads(1)
    rows: dict[str, list] = defaultdict(lambda: [set(), 0, 0, 0.0])
    wrong = []
    for case in CASES:
        row = rows[" + ".join(case.ids) or HEALTHY]
        row[0].add(case.name)
        for seed in range(seeds):
            for e, h in case.sizes:
                start = time.process_time()
                try:
                    verdict = case.judge(case.examine(seed, e, h), h)
                except Exception as error:
                    verdict = f"{type(error).__name__}: {error}"
                row[3] = max(row[3], time.process_time() - start)
                row[1] += 1
                row[2] += verdict is None
                if verdict is not None:
                    wrong.append(f"{case.name} (seed {seed}, e={e}, h={h}): {verdict}")
    for make in UNKNOWN:
        row = rows["(unknown to the catalogue)"]
        row[0].add(make.__name__)
        for seed in range(seeds):
            torch.manual_seed(seed)
            report = diagnose(make(24, 4), 4)
            row[1] += 1
            good = not report.healthy and not report.explanations
            row[2] += good
            if not good:
                wrong.append(f"{make.__name__}: unexplained, but called {report.ids or HEALTHY}")
    print(f"{'bug':44}{'written':>9}{'examined':>10}{'right':>8}{'slowest':>10}")
    order = [HEALTHY, *BUGS]
    for name in sorted(rows, key=lambda n: (order.index(n) if n in order else len(order), n)):
        written, examined, right, slowest = rows[name]
        print(f"{name:44}{len(written):9}{examined:10}{right:8}{slowest:9.2f}s")
    total, right = sum(row[1] for row in rows.values()), sum(row[2] for row in rows.values())
    print(f"\n{right} of {total} examinations right, {len(CASES) + len(UNKNOWN)} patients")
    for line in wrong[:40]:
        print(f"  {line}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
