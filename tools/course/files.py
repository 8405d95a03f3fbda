"""Files of the course: atomic writes, and names for a reader."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tools.course.registry import ROOT


def write(path: Path, content: bytes) -> bool:
    """Write a file in one step if its content changes; return whether it did."""
    there = path.exists()
    if there and path.read_bytes() == content:
        return False
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("xb") as file:  # with the permissions of the user's umask
            file.write(content)
        if there:
            shutil.copymode(path, temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return True


def name_of(path: Path, root: Path = ROOT) -> str:
    """Return the path of a file relative to the course; in full if it is outside."""
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


def newer_file(path: Path) -> Path:
    """Return the path for a newer version next to a file with a student's work."""
    return path.with_name(f"{path.stem}.new{path.suffix}")


def is_newer_file(path: Path) -> bool:
    """Return whether an update wrote this file next to another."""
    return Path(path.stem).suffix == ".new"
