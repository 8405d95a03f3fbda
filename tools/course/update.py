"""Bring a newer course into this folder, and touch nothing that the student changed.

    make update FROM=attention-shape-by-shape-1.1.0.zip     from a zip, or from its unpacked folder
    make update                                             in a git clone: from where it came

A file as it was handed out is replaced. One that the student changed stays, and the new version
is put beside it as NAME.new.EXT. Running a notebook is no change. What was handed out is told by
MANIFEST.json or, in a clone, by its commit; that one moves on last, so that an update which was
interrupted is finished by calling it again.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import tarfile
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NoReturn

from tools.course.files import write
from tools.course.local_changes import BLOCKED, KEPT, MANIFEST, SAME, changed, fingerprint, put, say
from tools.course.registry import ROOT

REMOVED = "removed"

Files = dict[str, bytes]


def refuse(text: str) -> NoReturn:
    raise SystemExit(f"update: {text}")


@dataclass
class Version:
    """A version of the course.

    Args:
        version: what it is called.
        files: its files; the names are relative to the folder of the course.
        finish: makes the folder know that it holds this version.
    """

    version: str
    files: Files
    finish: Callable[[], object]


# ----------------------------------------------------------------------------------- from a release


def manifest(content: bytes, where: str) -> dict[str, str]:
    """Returns the fingerprints of a release by file name, and refuses names that lead elsewhere."""
    try:
        files = json.loads(content)["files"]
        pairs = {str(name): str(value) for name, value in files.items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        refuse(f"{where} lists the files of the course, got something else. Get the zip again")
    for name in pairs:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name:
            refuse(f"{where}: files lie in the course's folder, got {name!r}. Get the zip again")
    return pairs


def release(source: Path, root: Path) -> Version:
    """Reads a released zip, or the folder that it was unpacked to.

    Args:
        source: the zip or the folder.
        root: the folder to be brought up to date.
    """
    try:
        files = _unpack(source) if source.is_file() else _collect(source)
    except (OSError, zipfile.BadZipFile) as error:
        refuse(f"FROM is a zip of the course, or its folder, got {source} ({error})")
    listed = manifest(files[MANIFEST], f"{source}, {MANIFEST}")
    for name, value in listed.items():
        if name not in files or fingerprint(name, files[name]) != value:
            refuse(f"{source}: its files are as released, got another {name}. Get the zip again")
    version = str(json.loads(files[MANIFEST]).get("version", "?"))
    own = {name: files[name] for name in listed}
    return Version(version, own, lambda: write(root / MANIFEST, files[MANIFEST]))


def _unpack(source: Path) -> Files:
    with zipfile.ZipFile(source) as zipped:
        names = [name for name in zipped.namelist() if PurePosixPath(name).name == MANIFEST]
        if not names:
            refuse(f"FROM is a zip of the course, got {source} without {MANIFEST}")
        top = str(min(names, key=len)).removesuffix(MANIFEST)
        return {
            name.removeprefix(top): zipped.read(name)
            for name in zipped.namelist()
            if name.startswith(top) and not name.endswith("/")
        }


def _collect(source: Path) -> Files:
    tops = [source, *sorted(path for path in source.iterdir() if path.is_dir())]
    top = next((path for path in tops if (path / MANIFEST).is_file()), None)
    if top is None:
        refuse(f"FROM is the folder of a released course, got {source} without {MANIFEST}")
    content = (top / MANIFEST).read_bytes()
    listed = [name for name in manifest(content, MANIFEST) if (top / name).is_file()]
    return {MANIFEST: content, **{name: (top / name).read_bytes() for name in listed}}


# ------------------------------------------------------------------------------------ from a clone


def git(root: Path, *command: str) -> bytes | None:
    """Returns what git prints; None when it fails."""
    try:
        result = subprocess.run(["git", "-C", str(root), *command], capture_output=True)
    except FileNotFoundError:
        refuse("git is not installed. Give a zip instead: make update FROM=new.zip")
    return result.stdout if result.returncode == 0 else None


def tree(root: Path, commit: str) -> Files:
    archive = git(root, "archive", "--format=tar", commit)
    if archive is None:
        refuse(f"git cannot read the commit {commit}. Call it again, or clone the course anew")
    with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        members = [member for member in packed if member.isfile()]
        return {member.name: packed.extractfile(member).read() for member in members}


def clone(root: Path) -> tuple[Version, Files] | None:
    """Fetches what is new upstream; returns it with the files of the present commit.

    Returns:
        None when nothing is new.
    """
    if not (root / ".git").exists():
        refuse("this folder is no git clone, so it needs a zip. Type: make update FROM=new.zip")
    if git(root, "rev-parse", "@{upstream}") is None:
        refuse("this branch follows none, got no upstream. Type: git branch -u origin/main")
    if git(root, "fetch", "--quiet") is None:
        refuse("git fetch failed: no network, or no access. Call it again when there is one")
    new = (git(root, "rev-parse", "@{upstream}") or b"").decode().strip()
    if own := (git(root, "rev-list", f"{new}..HEAD") or b"").split():
        refuse(f"this clone has commits of its own, got {len(own)}. Merge with git: git pull")
    if git(root, "diff", "--cached", "--quiet") is None:
        refuse("something is staged for a commit, and would be lost. Type: git reset")
    if git(root, "rev-parse", "HEAD") == git(root, "rev-parse", new):
        return None
    return Version(new[:8], tree(root, new), lambda: _move(root, new)), tree(root, "HEAD")


def _move(root: Path, commit: str) -> None:
    # The files are in place already; this moves the branch and leaves them alone.
    if git(root, "reset", "--quiet", commit) is None:
        refuse("git reset failed. Call it again")


# ---------------------------------------------------------------------------------------- updating


def update(new: Version, began: dict[str, str], root: Path) -> bool:
    """Puts a version in place and says what happened to each file.

    Args:
        new: the version to come.
        began: fingerprints of the version that is here, by file name.
        root: the folder of the course.
    Returns:
        Whether it came to its end; False when a file is in the way.
    """
    count: Counter[str] = Counter()
    for name, content in sorted(new.files.items()):
        state = put(root / name, content, began.get(name))
        count[state] += 1
        if state != SAME:
            say(state, root / name, root)
    for name in sorted(set(began) - set(new.files)):
        path = root / name
        if not path.is_file():
            continue
        if changed(path, began[name]):
            print(f"{KEPT:9}  {name}: you changed it; {_instead(name, new.files)}")
            count[KEPT] += 1
        else:
            path.unlink()
            print(f"{REMOVED:9}  {name}")
            count[REMOVED] += 1
    said = ", ".join(f"{number} {state}" for state, number in sorted(count.items()))
    if count[BLOCKED]:
        print(f"update: not finished: {said}", flush=True)
        return False
    new.finish()
    print(f"update: this is version {new.version} now: {said}", flush=True)
    return True


def _instead(name: str, files: Files) -> str:
    """Says where the new version has what a dropped file held."""
    path = PurePosixPath(name)
    exercises = path.with_name(f"{path.name[:2]}_exercises.ipynb")
    if path.parent.name == "exercises" and str(exercises) in files:
        return f"the new version is called {exercises.name}"
    return "the new version has it no more"


def main(arguments: list[str] | None = None, root: Path = ROOT) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", nargs="?", type=Path, help="a released zip, or its folder")
    source = parser.parse_args(arguments).source
    here = root / MANIFEST
    if source is None:
        found = clone(root)
        if found is None:
            print("update: nothing is new")
            return
        new, old = found
        began = {name: fingerprint(name, content) for name, content in old.items()}
    else:
        if not here.is_file():
            how = "make update" if (root / ".git").exists() else "Unpack the zip in a new folder"
            refuse(f"a zip updates what came as a zip, got a folder without {MANIFEST}. {how}")
        new, began = release(source.expanduser(), root), manifest(here.read_bytes(), str(here))
    try:
        finished = update(new, began, root)
    except OSError as error:
        refuse(f"not finished: {error}. Call it again")
    raise SystemExit(not finished)


if __name__ == "__main__":
    main()
