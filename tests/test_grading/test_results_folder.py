"""The folder of results: no file is lost, no file is incomplete."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

from tools.grading import results_folder

OURS = {"grades.csv": ("student", "chapter", "points"), "totals.csv": ("student", "points")}


def run(out: Path, points: int, pages: tuple[str, ...] = ("Ada",)) -> Path | None:
    """Write results as a run does."""
    typed = results_folder.Typed(out, OURS)
    with results_folder.unfinished(out) as made:
        for page in pages:
            (made / "feedback").mkdir(exist_ok=True)
            (made / "feedback" / f"{page}.html").write_text(f"{page} {points}")
        for table, keys in (("grades.csv", ("Ada", "03")), ("totals.csv", ("Ada",))):
            with (made / table).open("w", encoding="utf-8-sig", newline="") as file:
                lines = csv.writer(file)
                lines.writerow([*OURS[table], *typed.columns(table)])
                lines.writerow([*keys, points, *typed.values(table, keys)])
        return results_folder.put_in_place(made, out)


def tree(out: Path) -> dict[str, str]:
    found = (
        path for path in out.rglob("*") if path.is_file() and path.name != results_folder.MADE_BY
    )
    return {path.relative_to(out).as_posix(): path.read_text("utf-8-sig") for path in found}


def test_results_of_an_earlier_run_and_other_files_are_kept(tmp_path):
    out = tmp_path / "out"
    assert run(out, 1, ("Ada", "Bo")) is None
    first = tree(out)
    (out / "letter.txt").write_text("mine")
    (out / "feedback" / "mine.html").write_text("mine")
    kept = run(out, 2)
    assert kept.parent == out / "earlier"
    assert tree(kept) == first
    now = tree(out)
    assert now["letter.txt"] == now["feedback/mine.html"] == "mine"
    assert now["feedback/Ada.html"] == "Ada 2" and "feedback/Bo.html" not in now
    assert run(out, 3) != kept and len(list((out / "earlier").iterdir())) == 2
    assert tree(kept) == first


def test_a_file_in_the_place_of_a_new_one_is_kept(tmp_path):
    out = tmp_path / "out"
    run(out, 1)
    (out / "feedback" / "Bo.html").write_text("mine")
    kept = run(out, 2, ("Ada", "Bo"))
    assert (kept / "feedback" / "Bo.html").read_text() == "mine"
    assert (out / "feedback" / "Bo.html").read_text() == "Bo 2"


def test_a_folder_of_the_first_version_is_kept(tmp_path):
    out = tmp_path / "out"
    run(out, 1)
    before = tree(out)
    (out / results_folder.MADE_BY).write_text(
        "tools/grade.py replaces this folder when it is run again."
    )
    assert tree(run(out, 2, ("Bo",))) == before


def rows(path: Path) -> list[dict[str, str]]:
    return results_folder.read_table(path)


@pytest.mark.parametrize(
    ("delimiter", "encoding", "number"),
    [
        (",", "utf-8-sig", "03"),
        (";", "utf-8-sig", "3"),
        (";", "cp1252", "3"),
        ("\t", "utf-8", "03"),
    ],
)
def test_added_columns_are_copied_to_the_new_table(delimiter, encoding, number, tmp_path):
    out = tmp_path / "out"
    run(out, 1)
    with (out / "grades.csv").open("w", encoding=encoding, newline="") as file:
        lines = csv.writer(file, delimiter=delimiter)
        lines.writerow(["student", "chapter", "points", "bonus", "Bemerkung für mich"])
        lines.writerow(["Ada", number, "1", "0,5", "süß;\nzwei Zeilen"])
    for points in (2, 3):
        run(out, points)
        (row,) = rows(out / "grades.csv")
        assert row["points"] == str(points)
        assert (row["bonus"], row["Bemerkung für mich"]) == ("0,5", "süß;\nzwei Zeilen")


def test_an_added_column_survives_a_run_without_its_chapter(tmp_path):
    out = tmp_path / "out"
    run(out, 1)
    (out / "grades.csv").write_text("student,chapter,points,bonus\nBo,02,1,7\n")
    run(out, 2)
    assert results_folder.Typed(out, OURS).values("grades.csv", ("Bo", "02")) == ["7"]


def test_unfinished_results_are_never_visible(tmp_path):
    out = tmp_path / "out"
    with pytest.raises(RuntimeError), results_folder.unfinished(out) as made:
        (made / "grades.csv").write_text("half")
        raise RuntimeError
    assert not out.exists()
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    with pytest.raises(RuntimeError), results_folder.unfinished(out) as made:
        (made / "grades.csv").write_text("half")
        assert [path.name for path in out.iterdir() if not path.name.startswith(".")] == [
            "mine.txt"
        ]
        raise RuntimeError
    assert tree(out) == {"mine.txt": "mine"}


def test_tables_come_last_and_every_file_in_one_step(tmp_path, monkeypatch):
    """After a kill at any time, every table is complete and has its pages."""
    out = tmp_path / "out"
    run(out, 1)
    moved, replace = [], os.replace

    def noted(source: Path, target: Path) -> None:
        moved.append(Path(target).relative_to(out).as_posix())
        replace(source, target)

    monkeypatch.setattr(results_folder.os, "replace", noted)
    run(out, 2)
    new = [name for name in moved if not name.startswith("earlier")]
    assert new == ["feedback/Ada.html", "grades.csv", "totals.csv", results_folder.MADE_BY]
    assert moved.index(new[0]) == len(moved) - len(new)
