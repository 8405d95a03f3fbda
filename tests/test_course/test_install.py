"""Installing: whole or not at all, refused in words, and no stranger's `utils` is in its way."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import venv
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tools import environment, install
from tools.command_list import LEVELS
from tools.commands import Refusal
from tools.course.registry import ROOT

BIN = "Scripts" if os.name == "nt" else "bin"


@dataclass
class Pretended:
    """Installs into a folder of a test; making an environment and installing take no time."""

    root: Path
    called: list[str] = field(default_factory=list)

    @property
    def python(self) -> Path:
        return self.root / ".venv" / BIN / "python"

    def call(self, command: list[str], **options: Any) -> int:
        words = list(map(str, command))
        if words[1:3] == ["-m", "venv"]:
            self.python.parent.mkdir(parents=True)
            self.python.write_text("")
        elif words[1:] != ["-c", "pass"]:
            self.called.append(words[-1])
            return "!" in (self.root / words[-1]).read_text()
        return 0

    def __call__(self, level: str) -> list[str]:
        """Return what was installed, or the message of the end."""
        self.called = []
        packages = self.root / "packages"
        packages.mkdir(exist_ok=True)
        found = json.dumps(str(packages)).encode()
        venv = str(self.root / ".venv")
        own = {"ROOT": str(self.root), "VENV": venv, "PYTHON": str(self.python)}
        with (
            mock.patch.multiple(install, **own, STATE=os.path.join(venv, "installed.json")),
            mock.patch.multiple(install.subprocess, call=self.call, check_output=lambda *_: found),
        ):
            try:
                install.install(level)
            except Refusal as refusal:
                return [str(refusal)]
        return self.called


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A folder with requirements, so that nothing is fetched."""
    root = tmp_path / "the course's 'folder'"
    root.mkdir()
    (root / "requirements.txt").write_text("torch==1  # x\n")
    (root / "requirements-dev.txt").write_text("-r requirements.txt\n")
    return root


def test_it_installs_once_again_after_an_interruption_and_anew_after_a_move(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pretended = Pretended(copy)
    assert pretended("course") == ["requirements.txt"]
    kept = copy / ".venv" / "kept"
    kept.touch()
    assert pretended("course") == []
    # more is needed: it comes into the same environment, and what it includes is there, too
    assert pretended("dev") == ["requirements-dev.txt"]
    assert pretended("course") == []
    (copy / "requirements.txt").write_text("# newer\n")
    assert pretended("course") == ["requirements.txt"]
    assert kept.exists()
    # pip fails, as if the network were gone: it is not installed, and the next call begins again
    (copy / "requirements.txt").write_text("broken!\n")
    (said,) = pretended("course")
    assert said == "pip must install requirements.txt, got an error (above). Run it again."
    (copy / "requirements.txt").write_text("")
    assert pretended("course") == ["requirements.txt"]
    assert not kept.exists()
    assert "building it again" in capsys.readouterr().out
    moved = copy.rename(copy.with_name("moved"))
    assert Pretended(moved)("course") == ["requirements.txt"]
    assert "building it again" in capsys.readouterr().out


def test_what_version_1_installed_is_not_thrown_away(copy: Path) -> None:
    python = copy / ".venv" / BIN / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    mark = copy / ".venv" / "made-in"
    with mock.patch.multiple(
        install,
        ROOT=str(copy),
        VENV=str(copy / ".venv"),
        PYTHON=str(python),
        STATE=str(copy / ".venv" / "installed.json"),
    ):
        mark.write_text(str(copy))
        assert install.state() == {"made in": str(copy), "levels": {}}
        mark.write_text("/elsewhere")
        assert install.state() == {}


def test_a_link_to_an_environment_is_unlinked_not_emptied(copy: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine").touch()
    (copy / ".venv").symlink_to(other)
    assert Pretended(copy)("course") == ["requirements.txt"]
    assert (other / "mine").exists()
    assert not (copy / ".venv").is_symlink()


def test_the_small_torch_comes_first_where_it_is_asked_for(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[list[str]] = []
    monkeypatch.setattr(install.subprocess, "call", lambda call, **_: called.append(call))
    monkeypatch.setattr(install.sys, "platform", "linux")
    monkeypatch.delenv("TORCH", raising=False)
    install._pip("python", "-r", "requirements.txt")
    assert [call[-1] for call in called] == ["requirements.txt"]
    called.clear()
    monkeypatch.setenv("TORCH", "cpu")
    install._pip("python", "-r", "requirements.txt")
    assert called[0][-1] == install.UV and called[2][-1] == "requirements.txt"
    assert called[1][1:4] == ["-m", "uv", "pip"] and "--torch-backend" in called[1]
    torch = [Requirement(word) for word in called[1] if word.startswith("torch==")]
    assert [one.name for one in torch if not one.marker or one.marker.evaluate()] == ["torch"]
    called.clear()
    monkeypatch.setattr(install.sys, "platform", "darwin")
    install._pip("python", "-r", "requirements.txt")
    assert len(called) == 1
    monkeypatch.setenv("TORCH", "gpu")
    with pytest.raises(Refusal, match="TORCH must be cpu or not set, got gpu"):
        install._pip("python", "-r", "requirements.txt")


# ------------------------------------------------------------------------------ which machines can

GLIBC = ("glibc", "2.36")
MACHINES = [
    (("linux-x86_64", "x86_64", "", GLIBC), None),
    (("linux-aarch64", "aarch64", "", ("glibc", "2.28")), None),
    (("macosx-11.0-arm64", "arm64", "14.2", ("", "")), None),
    (("macosx-10.13-universal2", "arm64", "26.0", ("", "")), None),
    (("win-amd64", "AMD64", "", ("", "")), None),
    (("linux-x86_64", "x86_64", "", ("glibc", "2.27")), "Linux with glibc 2.27"),
    (("linux-x86_64", "x86_64", "", ("", "")), "Linux with the C library musl"),
    (("linux-armv7l", "armv7l", "", GLIBC), "a Python for armv7l"),
    (("macosx-10.13-universal2", "x86_64", "15.1", ("", "")), "a Python for x86_64 on macOS"),
    (("macosx-11.0-arm64", "arm64", "13.6", ("", "")), "macOS 13.6"),
    (("win-arm64", "ARM64", "", ("", "")), "a Python for arm64"),
    (("win32", "x86", "", ("", "")), "a Python for win32"),
]


@pytest.mark.parametrize(("machine", "found"), MACHINES, ids=[" ".join(m[:1]) for m, _ in MACHINES])
def test_machines_without_torch_are_known(machine: tuple, found: str | None) -> None:
    said = install.unsupported(*machine)
    assert said is None if found is None else said.startswith(found)


def test_nothing_is_fetched_on_a_machine_that_cannot(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "unsupported", lambda: "a Python for x86_64 on macOS")
    (said,) = Pretended(copy)("course")
    assert "must be one for which PyTorch is built" in said and "Colab or Binder" in said
    assert not (copy / ".venv").exists()


def test_a_folder_that_is_too_long_for_windows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    install.check_folder(999)  # a limit of Windows alone
    monkeypatch.setattr(install.os, "name", "nt")
    monkeypatch.setattr(install, "_long_paths", lambda: True)
    install.check_folder(999)
    monkeypatch.setattr(install, "_long_paths", lambda: False)
    install.check_folder(install.LONGEST_FOLDER)
    with pytest.raises(Refusal, match="at most 100 characters on Windows, got 101"):
        install.check_folder(install.LONGEST_FOLDER + 1)


LONGEST_PATH = 259  # of Windows: 260 with the zero at the end


def windows_paths(packages: importlib.metadata.Distribution) -> Iterator[str]:
    """Give the paths that a package has on Windows, below the folder of the course."""
    for name in map(str, packages.files or ()):
        name = name.replace("\\", "/")
        ups = name.count("../")  # to the environment, from Lib/site-packages
        yield "/.venv/" + (name.replace("../", "") if ups else f"Lib/site-packages/{name}")


def test_the_pinned_packages_fit_into_a_folder_on_windows() -> None:
    """What is pinned for Windows alone is counted where it is installed: on Windows."""
    elsewhere = {
        requirement.name
        for line in (ROOT / "requirements.txt").read_text().splitlines()
        if "==" in line and (requirement := Requirement(line.partition("  #")[0])).marker
        if requirement.marker.evaluate() != requirement.marker.evaluate({"sys_platform": "win32"})
    }
    assert elsewhere <= {"torch", "jupyterlab"}
    found = [
        (len(path), path)
        for packages in importlib.metadata.distributions()
        if packages.name not in elsewhere
        for path in windows_paths(packages)
    ]
    length, longest = max(found)
    assert length + install.LONGEST_FOLDER <= LONGEST_PATH, longest


def test_every_supported_python_is_named_alike() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    supported = SpecifierSet(re.search(r'requires-python = "([^"]+)"', text).group(1))
    oldest, newest = environment.OLDEST, environment.NEWEST
    for minor in range(oldest[1] - 1, newest[1] + 2):
        assert (f"3.{minor}" in supported) == (oldest <= (3, minor) <= newest)


# ------------------------------------------------------------------- beside a project of one's own

FIND = "import importlib.util as i; print(i.find_spec('utils').origin)"
COURSE = str(ROOT / "utils" / "__init__.py")


def made(folder: Path, *, always: bool, root: Path = ROOT) -> Path:
    """Make an environment in which a stranger's `utils` is installed, and then the course."""
    venv.create(folder, with_pip=False)
    packages = next(folder.rglob("site-packages"))
    (packages / "utils").mkdir()
    (packages / "utils" / "__init__.py").touch()
    install.write_path(packages, always=always, root=str(root))
    return folder / BIN / "python"


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("theirs"), always=False)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("own"), always=True)


def origin(python: Path, folder: Path, *words: str, **variables: str) -> Path:
    """Find out which `utils` a process in a folder imports."""
    alone = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(
        [python, *(words or ("-c", FIND))],
        cwd=folder,
        capture_output=True,
        text=True,
        env=alone | variables,
    )
    assert done.stderr == ""
    return Path(done.stdout.strip())


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a `utils` of its own."""
    folder = tmp_path / "project"
    (folder / "utils").mkdir(parents=True)
    (folder / "utils" / "__init__.py").touch()
    (folder / "run.py").write_text(FIND)
    return folder


def test_somebody_elses_environment_shows_the_course_inside_its_folder_only(
    theirs: Path, project: Path, tmp_path: Path
) -> None:
    for folder in ("notebooks", "notebooks/exercises"):
        assert str(origin(theirs, ROOT / folder)) == COURSE
    mine = project / "utils" / "__init__.py"
    assert origin(theirs, project) == mine
    assert origin(theirs, project, "run.py") == mine
    assert "site-packages" in origin(theirs, tmp_path).parts
    # a folder beside the course whose name begins like the course's
    beside = tmp_path / f"{ROOT.name}-2"
    beside.mkdir()
    assert "site-packages" in origin(theirs, beside).parts


def test_the_courses_own_environment_shows_it_everywhere_and_a_project_its_own(
    own: Path, project: Path, tmp_path: Path
) -> None:
    """A notebook that was copied elsewhere finds the course."""
    for folder in (tmp_path, ROOT / "notebooks"):
        assert str(origin(own, folder)) == COURSE
    assert origin(own, project) == project / "utils" / "__init__.py"
    find = FIND.replace("utils", "attention_clinic")
    assert origin(own, tmp_path, "-c", find).parent == ROOT / "clinic" / "attention_clinic"
    # A second copy of the course is found where PYTHONPATH names it.
    copy = project / "utils" / "__init__.py"
    assert origin(own, tmp_path, PYTHONPATH=str(project)) == copy


@pytest.mark.parametrize("always", [True, False])
def test_a_folder_beyond_ascii_is_read_in_every_locale(tmp_path: Path, always: bool) -> None:
    root = tmp_path / "cours d'été 한국"
    (root / "utils").mkdir(parents=True)
    (root / "utils" / "__init__.py").touch()
    python = made(tmp_path / "environment", always=always, root=root)
    text = "import sys; print(any(p.endswith('\\ud55c\\uad6d') for p in sys.path))"
    for variables in ({"LC_ALL": "C"}, {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}, {}):
        assert str(origin(python, root, "-c", text, **variables)) == "True"


def test_a_kernel_shows_the_course_to_notebooks_elsewhere(tmp_path: Path) -> None:
    install.write_kernel(tmp_path, "python", "/the/course")
    (place,) = tmp_path.rglob("kernel.json")
    assert place.relative_to(tmp_path).parts[:3] == ("share", "jupyter", "kernels")
    told = json.loads(place.read_text(encoding="ascii"))
    assert told["env"]["PYTHONPATH"].split(os.pathsep)[0] == "/the/course"
    assert told["argv"][0] == "python" and told["display_name"] == install.KERNEL


def test_nothing_called_utils_is_installed() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert "[tool.setuptools]\npackages = []\n" in text
    assert "-e" not in (ROOT / "requirements.txt").read_text().split()


def test_learning_needs_no_tools_for_testing() -> None:
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    names = {line.partition("==")[0] for line in lines}
    testing = {"ruff", "hypothesis", "pytest", "pytest-xdist", "nbval", "mypy", "nbgrader"}
    assert not names & testing
    assert install.included("dev") == ["dev", "course"]
    assert {ROOT / name for name in LEVELS.values()} == set(ROOT.glob("requirements*"))


def test_cleaning_removes_what_was_installed_and_nothing_else(tmp_path: Path) -> None:
    for name in (".venv/a", "build/a", "tools/__pycache__/a", "notebooks/a", ".git/__pycache__/a"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    with mock.patch.object(install, "ROOT", str(tmp_path)):
        install.clean()
    left = sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("a"))
    assert left == [".git/__pycache__/a", "notebooks/a"]
