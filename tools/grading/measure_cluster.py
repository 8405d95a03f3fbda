"""Measure how many students per minute a cluster on this machine grades, and draw it.

    python -m tools.grading.measure_cluster docs/cluster.svg

It grades a class of twelve with one to three workers, and with as many `--jobs` without a cluster.
Imports and preparation at the start are not counted.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tools.grading.made_up_submissions import GRADE, assignment_of, raw

CHAPTER, STUDENTS, MOST = "03", 12, 3


def submit(folder: Path) -> Path:
    """Write the submissions of a class: all exercises solved, or only some."""
    assignment = assignment_of(CHAPTER)
    for number in range(STUDENTS):
        place = folder / "class" / f"student {number:02}"
        place.mkdir(parents=True)
        solved = assignment.solved(None if number % 3 else ["1", "2"])
        (place / f"{assignment.stem}.ipynb").write_bytes(raw(solved))
    return folder / "class"


def students_per_minute(command: list[str], at_once: int) -> float:
    """Grade a class; return how many students were finished in a minute after the first ones."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        finished = [time.monotonic() for line in process.stdout if f"/{STUDENTS}  " in line]
    if process.returncode:
        raise RuntimeError(f"the command must succeed, got the status {process.returncode}")
    return 60 * (STUDENTS - at_once) / (finished[-1] - finished[at_once - 1])


def measure(folder: Path) -> dict[str, list[float]]:
    """Return students per minute by number of workers or jobs."""
    from distributed import LocalCluster

    found: dict[str, list[float]] = {"Dask workers": [], "--jobs on one machine": []}
    command = [*GRADE, str(submit(folder)), "--out"]
    for count in range(1, MOST + 1):
        with LocalCluster(
            n_workers=count,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            local_directory=str(folder),
        ) as cluster:
            options = [str(folder / f"cluster {count}"), "--scheduler", cluster.scheduler_address]
            found["Dask workers"].append(students_per_minute([*command, *options], count))
        options = [str(folder / f"pool {count}"), "--jobs", str(count)]
        found["--jobs on one machine"].append(students_per_minute([*command, *options], count))
        print(count, *(f"{name}: {rates[-1]:.1f}" for name, rates in found.items()), flush=True)
    return found


def draw(found: dict[str, list[float]], path: Path) -> None:
    """Draw students per minute by workers, with the line of perfect scaling."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = path.name  # the same drawing has the same bytes
    from matplotlib import pyplot as plt

    counts = range(1, MOST + 1)
    figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
    for (name, rates), style in zip(found.items(), ("o-", "s--"), strict=True):
        axes.plot(counts, rates, style, label=name)
    first = found["Dask workers"][0]
    axes.plot(counts, [first * n for n in counts], ":", color="grey", label="perfect scaling")
    axes.set(xlabel="students at once", ylabel="students per minute", xticks=counts, ylim=(0, None))
    axes.legend()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="measure-") as temporary:
        draw(measure(Path(temporary)), Path(sys.argv[1]))
