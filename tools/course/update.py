"""Install a newer version of the course in this folder, and keep the student's changes.

The new version comes from a zip or its unpacked folder or, in a git clone, from its upstream.

Unchanged files are replaced. A file that the student changed stays, and its new version is written
next to it as NAME.new.EXT. Running a notebook does not count as a change. MANIFEST.json, or the
commit of a clone, says which files were released; it is updated last, so a second run finishes an
interrupted update.
"""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tools.commands import Refusal, as_typed, parse_arguments
from tools.course.files import write
from tools.course.local_changes import BLOCKED, KEPT, MANIFEST, SAME, changed, fingerprint, put, say
from tools.course.registry import ROOT

REMOVED = "removed"

Files = dict[str, bytes]


def with_zip() -> str:
    """Return the advice to update from a zip."""
    return f"Type: {as_typed('update attention-shape-by-shape.zip')}, with the name of your zip."


@dataclass
class Version:
    """A version of the course.

    Args:
        version: its name.
        files: its files; the names are relative to the folder of the course.
        finish: records in the folder that it holds this version.
    """

    version: str
    files: Files
    finish: Callable[[], object]


# ----------------------------------------------------------------------------------- from a release


def manifest(content: bytes, where: str) -> dict[str, str]:
    """Return the fingerprints of a release by file name; refuse names outside of the folder."""
    try:
        files = json.loads(content)["files"]
        pairs = {str(name): str(value) for name, value in files.items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        raise Refusal(
            f"{where} must list the files of the course, got something else. Get the zip again."
        ) from None
    for name in pairs:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name:
            raise Refusal(
                f"{where} must list files in the course's folder, got {name!r}. Get the zip again."
            )
    return pairs


def release(source: Path, root: Path) -> Version:
    """Read a released zip, or its unpacked folder.

    Args:
        source: the zip or the folder.
        root: the folder to update.
    """
    try:
        files = _unpack(source) if source.is_file() else _collect(source)
    except (OSError, zipfile.BadZipFile) as error:
        raise Refusal(
            f"FROM must be a zip of the course or its folder, got {source} ({error}). "
            "Check its name."
        ) from None
    listed = manifest(files[MANIFEST], f"{source}, {MANIFEST}")
    for name, value in listed.items():
        if name not in files or fingerprint(name, files[name]) != value:
            raise Refusal(
                f"{source} must hold the files as released, got a changed {name}. "
                "Get the zip again."
            )
    version = str(json.loads(files[MANIFEST]).get("version", "?"))
    own = {name: files[name] for name in listed}
    return Version(version, own, lambda: write(root / MANIFEST, files[MANIFEST]))


def _unpack(source: Path) -> Files:
    with zipfile.ZipFile(source) as zipped:
        names = [name for name in zipped.namelist() if PurePosixPath(name).name == MANIFEST]
        if not names:
            raise Refusal(
                f"FROM must be a zip of the course, got {source} without {MANIFEST}. "
                "Check its name."
            )
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
        raise Refusal(
            f"FROM must be the folder of a released course, got {source} without {MANIFEST}. "
            "Check its name."
        )
    content = (top / MANIFEST).read_bytes()
    listed = [name for name in manifest(content, MANIFEST) if (top / name).is_file()]
    return {MANIFEST: content, **{name: (top / name).read_bytes() for name in listed}}


# ------------------------------------------------------------------------------------ from a clone


def git(root: Path, *command: str) -> bytes | None:
    """Return the output of git; None if it fails."""
    try:
        result = subprocess.run(["git", "-C", str(root), *command], capture_output=True)
    except FileNotFoundError:
        raise Refusal(
            f"git must be installed to update a clone, got no git. {with_zip()}", status=1
        ) from None
    return result.stdout if result.returncode == 0 else None


def tree(root: Path, commit: str) -> Files:
    archive = git(root, "archive", "--format=tar", commit)
    if archive is None:
        raise Refusal(
            f"git must be able to read the commit {commit}, got an error. Clone the course again.",
            status=1,
        )
    with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        members = [member for member in packed if member.isfile()]
        return {member.name: packed.extractfile(member).read() for member in members}


def clone(root: Path) -> tuple[Version, Files] | None:
    """Fetch from upstream, and return the new version and the files of the current commit.

    Returns:
        None if nothing is new.
    """
    if not (root / ".git").exists():
        raise Refusal(f"the folder must be a git clone, got none. {with_zip()}")
    if git(root, "rev-parse", "@{upstream}") is None:
        raise Refusal(
            "the branch must have an upstream, got none. Type: git branch -u origin/main",
            status=1,
        )
    if git(root, "fetch", "--quiet") is None:
        raise Refusal(
            "git fetch must reach the repository, got no network or no access. "
            "Check the network, and run it again.",
            status=1,
        )
    new = (git(root, "rev-parse", "@{upstream}") or b"").decode().strip()
    if own := (git(root, "rev-list", f"{new}..HEAD") or b"").split():
        raise Refusal(
            f"the clone must have no own commits, got {len(own)}. Type: git pull", status=1
        )
    if git(root, "diff", "--cached", "--quiet") is None:
        raise Refusal(
            "the git index must be empty, since an update would discard it, got staged changes. "
            "Type: git reset",
            status=1,
        )
    if git(root, "rev-parse", "HEAD") == git(root, "rev-parse", new):
        return None
    return Version(new[:8], tree(root, new), lambda: _move(root, new)), tree(root, "HEAD")


def _move(root: Path, commit: str) -> None:
    # The files are written already; this moves only the branch.
    if git(root, "reset", "--quiet", commit) is None:
        raise Refusal("git reset must move the branch, got an error. Run it again.", status=1)


# ---------------------------------------------------------------------------------------- updating


def update(new: Version, began: dict[str, str], root: Path) -> bool:
    """Install a version, and print a line for each changed file.

    Args:
        new: the version to install.
        began: fingerprints of the installed version, by file name.
        root: the folder of the course.
    Returns:
        Whether it is finished; False if a file blocks it.
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
    print(f"update: installed version {new.version}: {said}", flush=True)
    return True


def _instead(name: str, files: Files) -> str:
    """Return where the new version has the contents of a removed file."""
    path = PurePosixPath(name)
    exercises = path.with_name(f"{path.name[:2]}_exercises.ipynb")
    if path.parent.name == "exercises" and str(exercises) in files:
        return f"the new version is called {exercises.name}"
    return "the new version does not have it"


def main(arguments: Sequence[str] = (), root: Path = ROOT) -> int:
    source = parse_arguments("update", arguments).source
    here = root / MANIFEST
    if source is None:
        found = clone(root)
        if found is None:
            print("update: already up to date")
            return 0
        new, old = found
        began = {name: fingerprint(name, content) for name, content in old.items()}
    else:
        if not here.is_file():
            clone_here = (root / ".git").exists()
            how = f"Type: {as_typed('update')}" if clone_here else "Unpack the zip in a new folder."
            raise Refusal(
                f"FROM must be used in an unpacked zip, got a folder without {MANIFEST}. {how}"
            )
        new, began = (
            release(Path(source).expanduser(), root),
            manifest(here.read_bytes(), str(here)),
        )
    try:
        finished = update(new, began, root)
    except OSError as error:
        raise Refusal(
            f"all files must be written, got {error}. Free some space, and run it again.", status=1
        ) from None
    return not finished
