"""Setting up: whole or not at all, told clearly, and no stranger's `utils` is in its way."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest

from tools.course.registry import ROOT

SCRIPT = ROOT / "tools" / "setup.py"


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"setup_of_{path.parents[1].name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A course whose installation needs nothing, so that it takes no time and no network."""
    root = tmp_path / "the course's 'folder'"
    (root / "tools").mkdir(parents=True)
    (root / "clinic").mkdir()
    shutil.copy(SCRIPT, root / "tools")
    (root / "tools" / "progress.py").write_text("import sys; print('ran', sys.argv[1:])")
    for name in ("pyproject.toml", "clinic/pyproject.toml", "requirements.txt"):
        (root / name).write_text("")
    (root / "requirements-grading.txt").write_text("-r requirements.txt\n")
    (root / "requirements-dev.txt").write_text("-r requirements.txt\n-r requirements-grading.txt\n")
    return root


@dataclass
class Pretended:
    """Runs the script in this process; making an environment and installing take no time."""

    root: Path
    called: list[str] = field(default_factory=list)

    def call(self, command: list[str], **options: Any) -> int:
        words = list(map(str, command))
        python = Path(load(self.root / "tools" / "setup.py").PYTHON)
        if words[1:3] == ["-m", "venv"]:
            python.parent.mkdir(parents=True)
            python.write_text("")
        elif words[1:4] == ["-m", "pip", "install"]:
            self.called.append(words[-1])
            return "!" in (self.root / words[-1]).read_text()
        elif words[1:] != ["-c", "pass"]:
            self.called.append(" ".join(Path(word).name for word in words[1:]))
        return 0

    def __call__(self, *arguments: str) -> list[str]:
        """Returns what was installed and run, or the message of the end."""
        script, self.called = load(self.root / "tools" / "setup.py"), []
        packages = self.root / "packages"
        packages.mkdir(exist_ok=True)
        with mock.patch.multiple(
            script.subprocess, call=self.call, check_output=lambda *_: str(packages).encode()
        ):
            try:
                script.main(list(arguments))
            except SystemExit as ended:
                return [str(ended.code)]
        return self.called


def call(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, root / "tools" / "setup.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_it_installs_once_again_after_an_interruption_and_anew_after_a_move(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    setup = Pretended(copy)
    assert setup("progress", "a b") == ["requirements.txt", "progress.py a b"]
    kept = copy / ".venv" / "kept"
    kept.touch()
    assert setup("progress") == ["progress.py"]
    # more is asked for: it comes into the same environment, and what it includes is there, too
    assert setup("install", "dev") == ["requirements-dev.txt"]
    assert setup("install", "grading") == []
    (copy / "requirements.txt").write_text("# newer\n")
    assert setup("install", "lab") == ["requirements.txt"]
    assert kept.exists()
    # pip fails, as if the network were gone: it is not installed, and the next call begins again
    (copy / "requirements.txt").write_text("broken!\n")
    (said,) = setup("progress")
    assert said == "setup: pip could not install requirements.txt, see above. Call it again"
    (copy / "requirements.txt").write_text("")
    assert setup("install", "lab") == ["requirements.txt"]
    assert not kept.exists()
    assert "building it anew" in capsys.readouterr().out
    moved = copy.rename(copy.with_name("moved"))
    assert Pretended(moved)("install", "lab") == ["requirements.txt"]
    assert "building it anew" in capsys.readouterr().out


def test_the_script_starts_a_command_with_its_own_python(copy: Path) -> None:
    """Once for true: an environment without pip, which was installed into already."""
    script = load(copy / "tools" / "setup.py")
    venv.create(script.VENV, with_pip=False)
    levels = {"lab": script.fingerprint("lab")}
    state = {"made in": str(copy), "levels": levels}
    (copy / ".venv" / "installed.json").write_text(json.dumps(state))
    done = call(copy, "progress", "a b")
    assert (done.returncode, done.stdout) == (0, "ran ['a b']\n"), done.stderr
    assert script.environment("progress")["PYTHONPATH"].split(os.pathsep)[0] == str(copy)


def test_what_version_1_installed_is_not_thrown_away(copy: Path) -> None:
    script = load(copy / "tools" / "setup.py")
    (copy / ".venv" / script.SCRIPTS).mkdir(parents=True)
    Path(script.PYTHON).symlink_to(sys.executable)
    (copy / ".venv" / "made-in").write_text(str(copy))
    assert script.state() == {"made in": str(copy), "levels": {}}
    (copy / ".venv" / "made-in").write_text("/elsewhere")
    assert script.state() == {}


def test_a_link_to_an_environment_is_unlinked_not_emptied(copy: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine").touch()
    (copy / ".venv").symlink_to(other)
    assert Pretended(copy)("install", "lab") == ["requirements.txt"]
    assert (other / "mine").exists()
    assert not (copy / ".venv").is_symlink()


def test_an_old_python_gets_a_clear_message(monkeypatch: pytest.MonkeyPatch) -> None:
    ast.parse(SCRIPT.read_text(), feature_version=(3, 7))  # else it could not say it
    script = load(SCRIPT)
    script.check_version((3, 11, 0))
    monkeypatch.setattr(script.shutil, "which", lambda name: name == "python3.13")
    with pytest.raises(SystemExit) as ended:
        script.check_version((3, 9, 2), "lab")
    assert str(ended.value) == (
        "setup: the course needs Python 3.11 or newer, got 3.9. This machine has python3.13. "
        "Type: python3.13 tools/setup.py lab (or make lab PYTHON=python3.13)"
    )
    monkeypatch.setattr(script.shutil, "which", lambda name: None)
    with pytest.raises(SystemExit, match="Install a newer one"):
        script.check_version((3, 9, 2))


def test_commands_are_offered_where_their_scripts_are(copy: Path) -> None:
    said = call(copy, "help").stdout
    assert "progress" in said and "lab" in said
    assert "grade" not in said and "bench" not in said
    refused = call(copy, "grade", "folder")
    assert refused.returncode == 1
    assert "a command is one of lab, test, progress" in refused.stderr
    here = load(SCRIPT)
    for name, (level, script, words) in {**here.COMMANDS, **here.INSTRUCTORS}.items():
        assert words, name
        assert (level in here.LEVELS) == (name != "clean"), name
        if name != "browser" and (ROOT / "instructor.mk").exists():
            assert not script or (ROOT / script).exists(), name


def test_make_has_every_command() -> None:
    here = load(SCRIPT)
    text = "".join(p.read_text() for p in (ROOT / "Makefile", ROOT / "instructor.mk") if p.exists())
    targets = {
        name for line in text.splitlines() if line.startswith(".PHONY:") for name in line.split()
    }
    commands = {**here.COMMANDS, **(here.INSTRUCTORS if (ROOT / "instructor.mk").exists() else {})}
    assert targets - {".PHONY:", "help"} == set(commands)


@pytest.mark.skipif(os.name == "nt", reason="make is not there")
def test_make_passes_names_on_as_they_are(copy: Path) -> None:
    for name in ("Makefile", "instructor.mk"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, copy)
    (copy / "tools" / "update.py").write_text("import sys; print('ran', sys.argv[1:])")
    (copy / "tools" / "grade.py").write_text("import sys; print('ran', sys.argv[1:])")

    script = load(copy / "tools" / "setup.py")
    venv.create(script.VENV, with_pip=False)
    for name in script.LEVELS.values():
        (copy / name).touch()
    levels = {name: script.fingerprint(name) for name in script.LEVELS}
    state = {"made in": str(copy), "levels": levels}
    (copy / ".venv" / "installed.json").write_text(json.dumps(state))

    # what a make around this one was told is not for this one
    alone = {key: value for key, value in os.environ.items() if key not in ("ARGS", "MAKEFLAGS")}

    def made(*words: str) -> str:
        command = ["make", "--no-print-directory", *words, f"PYTHON={sys.executable}"]
        done = subprocess.run(
            command, cwd=copy, env=alone, capture_output=True, text=True, timeout=300
        )
        return done.stdout.splitlines()[-1] if done.stdout else done.stderr

    assert made("update", "FROM=it's a zip.zip") == """ran ["it's a zip.zip"]"""
    assert made("progress", "ARGS=--a 'b c'") == "ran ['--a', 'b c']"
    if (ROOT / "instructor.mk").exists():
        assert made("grade", "SUBMISSIONS=a b", "OUT=c d") == "ran ['a b', '--out', 'c d']"
    done = subprocess.run(["make", "PYTHON=none"], cwd=copy, capture_output=True, text=True)
    assert "there is no none" in done.stderr


# ------------------------------------------------------------------- beside a project of one's own


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment in which a stranger's package `utils` is installed, and then the course."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    packages = next(folder.rglob("site-packages"))
    (packages / "utils").mkdir()
    (packages / "utils" / "__init__.py").write_text("whose = 'installed'\n")
    load(SCRIPT).write_path(str(packages))
    return folder


def whose(environment: Path, folder: Path, script: str = "") -> str:
    python = environment / ("Scripts" if os.name == "nt" else "bin") / "python"
    text = "import utils; print(getattr(utils, 'whose', utils.__file__))"
    variables = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    command = [python, script] if script else [python, "-c", text]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=variables)
    assert done.stderr == ""
    return done.stdout.strip()


def test_a_project_with_its_own_utils_and_the_course_work_in_one_environment(
    environment: Path, tmp_path: Path
) -> None:
    course = str(ROOT / "utils" / "__init__.py")
    find = "import importlib.util as i; print(i.find_spec('utils').origin)"
    python = environment / ("Scripts" if os.name == "nt" else "bin") / "python"

    def origin(folder: Path) -> str:
        variables = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
        done = subprocess.run(
            [python, "-c", find], cwd=folder, capture_output=True, text=True, env=variables
        )
        assert done.stderr == ""
        return done.stdout.strip()

    project = tmp_path / "project"
    (project / "utils").mkdir(parents=True)
    (project / "utils" / "__init__.py").write_text("whose = 'mine'\n")
    (project / "run.py").write_text("import utils; print(utils.whose)\n")
    assert origin(ROOT / "notebooks") == course
    assert origin(ROOT / "notebooks" / "exercises") == course
    assert whose(environment, project) == "mine"
    assert whose(environment, project, "run.py") == "mine"
    assert whose(environment, tmp_path) == "installed"
    # a folder beside the course whose name begins like the course's
    beside = tmp_path / "deep"
    beside.mkdir()
    assert whose(environment, beside) == "installed"


def test_nothing_called_utils_is_installed() -> None:
    import tomllib

    content = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert content["tool"]["setuptools"] == {"packages": []}


def test_learning_needs_no_tools_for_testing() -> None:
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    names = {line.partition("==")[0] for line in lines}
    assert not names & {"ruff", "hypothesis", "pytest", "pytest-xdist", "nbval", "mypy"}
    assert json.dumps(load(SCRIPT).SETTINGS)
