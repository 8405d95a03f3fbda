"""Make the zip for students: the course without its solutions.

It holds the chapters, freshly made exercises, `utils`, the tests that need no solutions, and
MANIFEST.json, which lets `make update` recognize files that a student changed. The same course
gives the same bytes. The files are searched for solutions before the zip is written.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path

from tools.commands import Refusal, parse_arguments, version
from tools.course.files import name_of, write
from tools.course.local_changes import MANIFEST, fingerprint
from tools.course.registry import ROOT, course
from tools.course.solution_leaks import leaks, solutions
from tools.course.student_copy import Files, release_files

NAME = "attention-shape-by-shape"
TOP = "attention"  # short: Windows unpacks it into a folder with the name of the zip
DATE = (2026, 1, 1, 0, 0, 0)  # of every file, so that the same course gives the same bytes


def pack(files: Files, version: str) -> bytes:
    """Pack the files into one folder; the same files give the same bytes."""
    listed = {name: fingerprint(name, content) for name, content in sorted(files.items())}
    text = json.dumps({"course": NAME, "version": version, "files": listed}, indent=1) + "\n"
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, content in sorted({**files, MANIFEST: text.encode()}.items()):
            entry = zipfile.ZipInfo(f"{TOP}/{name}", date_time=DATE)
            entry.create_system, entry.external_attr = 3, 0o100644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            zipped.writestr(entry, content)
    return memory.getvalue()


def site_files(folder: Path) -> Files:
    """Make the website and return its files, with names in site/.

    Args:
        folder: of the website.
    Raises:
        ValueError: Sphinx failed, or a page breaks a rule.
    """
    from tools.web.make_site import build  # only this needs Sphinx

    build(course(), folder, folder.with_name("site-work"))
    return {
        f"site/{path.relative_to(folder).as_posix()}": path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def main(arguments: Sequence[str] = ()) -> None:
    given = parse_arguments("release", arguments)
    if not course().source_notebooks():
        raise Refusal(
            "notebooks/solutions must hold the source notebooks, got no such folder. "
            "To pass on a student's copy, pass on its zip.",
            status=1,
        )
    try:
        files = release_files()
    except ValueError as error:
        raise Refusal(str(error), status=1) from None
    if found := list(leaks(files, solutions())):
        raise Refusal("a release must contain no solutions, got\n  " + "\n  ".join(found), status=1)
    if given.with_site:
        try:
            files |= site_files(ROOT / "build" / "site")
        except ValueError as error:
            raise Refusal(str(error), status=1) from None
    path = ROOT / "build" / f"{NAME}-{version()}.zip"
    path.parent.mkdir(exist_ok=True)
    content = pack(files, version())
    write(path, content)
    size = len(content) / 2**20
    print(f"{name_of(path)}: {len(files) + 1} files, {size:.1f} MB, no solutions", flush=True)
