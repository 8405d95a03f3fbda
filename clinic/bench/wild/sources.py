"""Where the code comes from: a git repository at a commit, fetched when it is needed."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

from wild.cases import Case

MINUTES = 5  # for one repository


class Sources:
    """Bare clones in a folder; what is not there comes from the network.

    Args:
        folder: holds clones as OWNER+NAME/repo, OWNER+NAME or OWNER/NAME, bare or not; new ones
            are put there as OWNER+NAME.
        offline: whether only what is there counts.
    """

    def __init__(self, folder: Path, offline: bool = False) -> None:
        self.folder, self.offline = folder, offline

    def unpack(self, case: Case, into: Path) -> None:
        """Write the Python files of a case's commit, and its own file, into a folder.

        Args:
            case: says repository, commit and file.
            into: an empty folder.

        Raises:
            ValueError: a repository or commit that cannot be had, or that lacks the file.
        """
        clone = self._clone(case)
        names = _git(clone, "ls-tree", "-r", "--name-only", case.commit).stdout.decode(
            errors="replace"
        )
        python = [":(glob)**/*.py"] if ".py\n" in names else []
        packed = _git(clone, "archive", "--format=tar", case.commit, "--", case.file, *python)
        if packed.returncode:
            raise ValueError(
                f"sources: {case.repository} must hold {case.file} at {case.commit[:10]}, got "
                f"{packed.stderr.decode(errors='replace').strip()}. Correct the case {case.id}."
            )
        with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
            plain = [member for member in archive if member.isfile()]  # links may lead anywhere
            archive.extractall(into, plain, filter="data")

    def _clone(self, case: Case) -> Path:
        """Return a clone that has the commit."""
        name = case.url.removesuffix(".git").rstrip("/").split("/")
        flat = self.folder / f"{name[-2]}+{name[-1]}"
        for place in (flat / "repo", flat, self.folder / name[-2] / name[-1]):
            for inner in (place / ".git", place):
                if inner.is_dir() and _has(inner, case.commit):
                    return inner
        if self.offline:
            raise ValueError(
                f"sources: {self.folder} must hold {case.repository} at {case.commit[:10]}, got no "
                "such clone. Leave out --offline, or clone it there."
            )
        made = self.folder / f"{flat.name}.git"
        if not made.exists():
            _git(self.folder, "init", "--quiet", "--bare", str(made))
        fetched = _git(made, "fetch", "--quiet", "--depth", "1", case.url, case.commit)
        if fetched.returncode or not _has(made, case.commit):
            raise ValueError(
                f"sources: {case.url} must give {case.commit[:10]}, got "
                f"{fetched.stderr.decode(errors='replace').strip() or 'another commit'}. Look "
                "whether it is still there."
            )
        return made


def _has(clone: Path, commit: str) -> bool:
    """Whether a clone has a commit, whole."""
    return _git(clone, "cat-file", "-e", f"{commit}^{{tree}}").returncode == 0


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run git there; it asks nobody for a password."""
    call = ["git", "-C", str(folder), "-c", "safe.directory=*", *arguments]
    try:
        return subprocess.run(
            call,
            capture_output=True,
            timeout=60 * MINUTES,
            env={"PATH": "/usr/local/bin:/usr/bin:/bin", "GIT_TERMINAL_PROMPT": "0"},
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(call, 1, b"", f"no answer in {MINUTES} minutes".encode())
