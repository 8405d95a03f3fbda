"""What a hub hands out: the students' copy of the course, and a repository of its notebooks."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from tools.course.files import write
from tools.course.student_copy import Files

BRANCH = "main"
# Exercises that both the student and the instructor changed stay as the student has them: merged
# line by line, an answer could get a line that its author never saw. Chapters are merged, so that a
# student who only ran one gets its corrections.
ATTRIBUTES = {".gitattributes": b"notebooks/exercises/*.ipynb -merge\n"}


def update_folder(files: Files, folder: Path) -> None:
    """Write files into a folder and remove all others, except hidden ones at the top and caches."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, content)
    for path in sorted(folder.rglob("*"), reverse=True):
        name = path.relative_to(folder)
        kept = name.as_posix() in files or name.parts[0] == ".venv" or "__pycache__" in name.parts
        if path.is_file() and not kept:
            path.unlink()


def handed_out(files: Files) -> Files:
    """Return the notebooks of a release, and the files that they name by relative paths."""
    notebooks = {name: content for name, content in files.items() if name.endswith(".ipynb")}
    text = b"".join(notebooks.values())
    named = {name: content for name, content in files.items() if f"../{name}".encode() in text}
    return notebooks | named | ATTRIBUTES


def publish(files: Files, repository: Path) -> bool:
    """Commit files to a bare repository; return whether something changed."""
    # The user's own settings of git, such as signatures, must not count.
    environment = os.environ | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    identity = ["-c", "user.name=Course", "-c", "user.email=course@localhost"]

    def git(*words: str, folder: str = ".") -> subprocess.CompletedProcess[str]:
        command = ["git", *identity, "--git-dir", str(repository), *words]
        return subprocess.run(
            command, cwd=folder, env=environment, check=True, capture_output=True, text=True
        )

    if not repository.exists():
        git("init", "--quiet", "--bare", "--initial-branch", BRANCH)
    with tempfile.TemporaryDirectory() as folder:
        update_folder(files, Path(folder))
        git("--work-tree", folder, "add", "--all", ".", folder=folder)
        if not git("--work-tree", folder, "status", "--porcelain", folder=folder).stdout:
            return False
        git("--work-tree", folder, "commit", "--quiet", "-m", "Update the course", folder=folder)
    return True
