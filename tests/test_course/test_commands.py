"""The command line: help before anything is installed, wrong calls in one form, exit statuses."""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tools import __main__ as entry
from tools import arguments, commands, environment, run
from tools.commands import Refusal
from tools.course.registry import ROOT

COMMANDS = commands.commands()
PARTS = ("arguments.py", "command_list.py", "commands.py")
OLD_SYNTAX = ("__init__.py", "__main__.py", "environment.py")
# Without packages, as on a machine on which nothing is installed.
BARE = [sys.executable, "-I", "-S", "-c"]
CALL = "import sys; sys.path.insert(0, {root!r}); sys.argv[1:] = {words!r}; "
CALL += "import runpy; runpy.run_module({module!r}, run_name='__main__')"


def call(
    *words: str, make: bool = False, module: str = "tools", root: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """Calls the command line in a Python without packages; nothing can be installed."""
    alone = {key: value for key, value in os.environ.items() if key != "MAKELEVEL"}
    code = CALL.format(root=str(root), words=words, module=module)
    return subprocess.run(
        [*BARE, code],
        cwd=root,
        env=alone | ({"MAKELEVEL": "1"} if make else {}),
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A course with a command or two, whose environment is this Python's."""
    root = tmp_path / "the course's 'folder'"
    (root / "tools" / "course").mkdir(parents=True)
    for name in (*OLD_SYNTAX, *PARTS, "run.py", "install.py"):
        shutil.copy(ROOT / "tools" / name, root / "tools")
    shutil.copy(ROOT / "pyproject.toml", root)
    said = "import sys\ndef main(arguments):\n    print('ran', list(arguments))\n    return 3\n"
    for name in ("progress", "update"):
        (root / "tools" / "course" / f"{name}.py").write_text(said)
    return root


# ------------------------------------------------------------------------------------------- help


@pytest.mark.parametrize("name", COMMANDS)
def test_help_answers_before_anything_is_installed(name: str) -> None:
    done = call(name, "--help")
    assert done.returncode == 0 and done.stderr == ""
    assert f"usage: {commands.CALL} {name}" in done.stdout
    assert f"examples:\n  {commands.CALL} {name}" in done.stdout
    assert "anew" not in done.stdout and "make " not in done.stdout.partition("examples:")[2]
    if COMMANDS[name].passes_on:
        assert "other options: those of " in done.stdout


def test_the_list_names_every_command_and_the_version() -> None:
    for words in ((), ("help",), ("--help",)):
        said = call(*words).stdout
        assert all(f"{commands.CALL} {name} " in said for name in COMMANDS)
    assert f"make {'lab':12} open the course" in call(make=True).stdout
    said = call("--version").stdout
    assert re.fullmatch(r"attention-shape-by-shape \d+\.\d+\.\d+\n", said)


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_are_calls_that_work_and_are_shown_as_make_takes_them(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for line in COMMANDS[name].examples:
        assert line.split()[0] == name
        commands.parse_arguments(name, commands.shlex.split(line)[1:])
    monkeypatch.setenv("MAKELEVEL", "1")
    assert all(
        commands.as_typed(line).startswith(f"make {name}") for line in COMMANDS[name].examples
    )


def test_a_call_is_shown_as_make_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MAKELEVEL", raising=False)
    assert commands.as_typed("refresh 03 --check") == f"{commands.CALL} refresh 03 --check"
    monkeypatch.setenv("MAKELEVEL", "1")
    assert commands.as_typed("refresh 03 04 --check") == 'make refresh NB="03 04" ARGS=--check'
    assert commands.as_typed("update new.zip") == "make update FROM=new.zip"
    assert commands.as_typed("lab --port 8899") == 'make lab ARGS="--port 8899"'


def test_a_command_whose_file_is_not_there_is_not_offered(copy: Path) -> None:
    said = call(root=copy).stdout
    assert "progress" in said and "lint" in said
    assert "grade" not in said and "bench" not in said
    refused = call("grade", "folder", root=copy)
    assert refused.returncode == 2
    assert "tools: a command must be one of test, progress, update" in refused.stderr
    assert "got 'grade'. Type: " in refused.stderr


# ------------------------------------------------------------------------------------ wrong calls

WRONG = [
    (
        ("grade", "x", "--late-percent", "a"),
        "LATE",
        "must be a number from 0 to 100, got 'a'. Write",
    ),
    (("grade", "x", "--late-percent", "101"), "LATE", "must be a number from 0 to 100, got '101'."),
    (("grade", "x", "--out"), "OUT", "must have a value, got none. Type: "),
    (("grade", "x", "--memory", "3XB"), "--memory", "must be a number with a unit, got '3XB'."),
    (("grade", "x", "--jobs", "0"), "--jobs", "must be an integer of at least 1, got '0'."),
    (("bench", "--table", "x"), "--table", "must be one of models, memory, generation, loading,"),
    (("install", "all"), "LEVEL", "must be one of course, dev, got 'all'. Write course."),
    (("refresh", "--foo"), "options", "must be those of --help, got --foo. Type: "),
    (("new-chapter",), "NAME", "must be given, got none. Type: "),
]


@pytest.mark.skipif("grade" not in COMMANDS, reason="a student's copy does not grade")
@pytest.mark.parametrize("make", [False, True], ids=["tools", "make"])
@pytest.mark.parametrize(("words", "variable", "rule"), WRONG, ids=lambda value: str(value)[:30])
def test_a_wrong_call_names_what_was_typed(
    words: tuple[str, ...], variable: str, rule: str, make: bool
) -> None:
    done = call(*words, make=make)
    named = variable
    if not make and variable.isupper() and len(words) > 2:
        named = next(word for word in words if word.startswith("--"))
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith(f"{words[0]}: {named} {rule}"), done.stderr
    assert done.stderr.count("\n") == 1


def test_a_message_names_what_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "FROM must be a zip, got /a/FROM b. Add FROM=x."
    monkeypatch.setenv("MAKELEVEL", "1")
    assert commands.in_words_typed(text, COMMANDS["update"]) == text
    monkeypatch.delenv("MAKELEVEL")
    assert commands.in_words_typed(text, COMMANDS["update"]) == (
        "SOURCE must be a zip, got /a/FROM b. Add SOURCE=x."
    )


def test_amounts_are_read() -> None:
    assert [
        arguments.memory(text) for text in ("3GB", "1.5gb", "200 KB".replace(" ", ""), "7")
    ] == [
        3 * 10**9,
        15 * 10**8,
        200_000,
        7,
    ]
    with pytest.raises(argparse.ArgumentTypeError):
        arguments.integer(1)("-3")


# ---------------------------------------------------------------------------------- exit statuses


def test_the_status_of_a_command_is_passed_on(copy: Path) -> None:
    """Once in truth: from any Python into the one of .venv, and from there into the command."""
    import json
    import venv

    (copy / "requirements.txt").touch()
    venv.create(copy / ".venv", with_pip=False)
    code = (
        "from tools import install; import json; print(json.dumps("
        "{'made in': install.ROOT, 'levels': {'course': install.fingerprint('course')}}))"
    )
    state = subprocess.check_output([sys.executable, "-c", code], cwd=copy, env=alone(copy))
    (copy / ".venv" / "installed.json").write_bytes(state)
    assert json.loads(state)["made in"] == os.path.realpath(copy)
    command = [sys.executable, "-m", "tools", "progress"]
    done = subprocess.run(command, cwd=copy, env=alone(copy), capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (3, "ran []\n"), done.stderr


def alone(root: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(root)}


def started(root: Path, code: str, command: str = "progress") -> subprocess.Popen[str]:
    (root / "tools" / "course" / "progress.py").write_text(code)
    return subprocess.Popen(
        [sys.executable, "-m", "tools.run", command],
        cwd=root,
        env=alone(root),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


@pytest.mark.skipif(os.name == "nt", reason="signals are not there")
def test_an_interrupted_command_ends_with_130_and_a_killed_one_by_its_signal(copy: Path) -> None:
    code = "import time\ndef main(a):\n    print('begun', flush=True)\n    time.sleep(99)\n"
    for sent, status in ((signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)):
        process = started(copy, code)
        process.stdout.readline()
        process.send_signal(sent)
        _, said = process.communicate(timeout=300)
        assert (process.returncode, said) == (status, "")


@pytest.mark.skipif(os.name == "nt", reason="signals are not there")
def test_the_status_of_several_processes_is_128_and_the_signal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kill = ("-c", "import os; os.kill(os.getpid(), 15)")
    several = arguments.Command("several", "x", calls=(("-c", "pass"), kill))
    monkeypatch.setattr(commands, "COMMANDS", (several,))
    monkeypatch.chdir(ROOT)
    assert run.run(several, []) == 143


def test_a_refusal_is_one_line_with_its_status(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(command: arguments.Command, arguments: list[str]) -> int:
        raise Refusal("the disk must have room, got none. Make room.", status=1)

    assert run.answer(["progress"], refuse) == 1
    assert capsys.readouterr().err == "progress: the disk must have room, got none. Make room.\n"


# ------------------------------------------------------------------------------------ other Pythons


def test_old_pythons_read_the_beginning() -> None:
    for name in OLD_SYNTAX:
        ast.parse((ROOT / "tools" / name).read_text(), feature_version=(3, 7))
    lines = (ROOT / "tools" / "__main__.py").read_text().splitlines()
    first = [line for line in lines if re.match(r"(from|import) ", line)]
    assert first == ["import os", "import shutil", "import sys", EARLY]


EARLY = "from tools.environment import NEWEST, OLDEST, PYTHON, start"


def test_a_python_that_is_too_old_or_too_new_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert entry.unsupported((3, 11, 0), "lab") is None
    assert entry.unsupported((3, 14, 9), "lab") is None
    monkeypatch.setattr(entry.shutil, "which", lambda name: name == "python3.13")
    for version in ((3, 9, 2), (3, 15, 0)):
        got = ".".join(map(str, version[:2]))
        assert entry.unsupported(version, "lab") == (
            f"tools: Python must be 3.11 to 3.14, got {got}. Type: python3.13 -m tools lab "
            "(or make lab PYTHON=python3.13)."
        )
    monkeypatch.setattr(entry.shutil, "which", lambda name: None)
    assert "Install one of them" in entry.unsupported((3, 15), "lab")
    assert "Colab or Binder" in entry.unsupported((3, 15), "lab")


def test_any_python_hands_over_to_an_environment_that_is_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(entry, "unsupported", lambda version, command: "too old")
    monkeypatch.setattr(entry, "start", lambda python, words: (python, words))
    monkeypatch.setattr(entry, "PYTHON", str(tmp_path / "python"))
    assert entry.main(["lab"]) == 2
    assert capsys.readouterr().err == "too old\n"
    (tmp_path / "python").touch()
    assert entry.main(["lab", "x"]) == (entry.PYTHON, ["-m", "tools", "lab", "x"])


def test_the_oldest_python_says_the_same_everywhere() -> None:
    oldest, newest = (".".join(map(str, v)) for v in (environment.OLDEST, environment.NEWEST))
    makefile = (ROOT / "Makefile").read_text().replace("' \\\n\t'", " ")
    assert f"Install Python {oldest} to {newest}" in makefile


# ------------------------------------------------------------------------------------------- make


def test_make_has_every_command() -> None:
    files = [ROOT / name for name in ("Makefile", "instructor.mk") if (ROOT / name).exists()]
    text = "".join(path.read_text() for path in files).replace("\\\n", " ")
    targets = {
        name for line in text.splitlines() if line.startswith(".PHONY:") for name in line.split()
    }
    assert targets - {".PHONY:", "help"} == set(COMMANDS)
    for command in COMMANDS.values():
        for one in command.arguments:
            assert not one.make or f"\n{one.make} ?=" in text, one


@pytest.mark.skipif(os.name == "nt", reason="make is not there")
def test_make_passes_names_on_as_they_are(copy: Path) -> None:
    (copy / "tools" / "__main__.py").write_text("import sys; print(sys.argv[1:])")
    for name in ("Makefile", "instructor.mk"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, copy)
    # what a make around this one was told is not for this one
    alone = {key: value for key, value in os.environ.items() if key not in ("ARGS", "MAKEFLAGS")}

    def made(*words: str) -> str:
        command = ["make", "--no-print-directory", *words, f"PYTHON={sys.executable}"]
        done = subprocess.run(
            command, cwd=copy, env=alone, capture_output=True, text=True, timeout=300
        )
        return done.stdout.splitlines()[-1] if done.stdout else done.stderr

    assert made("update", "FROM=it's a zip.zip") == """['update', "it's a zip.zip"]"""
    assert made("lab", "ARGS=--a 'b c'") == "['lab', '--a', 'b c']"
    if (ROOT / "instructor.mk").exists():
        grade = made("grade", "SUBMISSIONS=a b", "OUT=c d", "LATE=10")
        assert grade == "['grade', 'a b', '--out', 'c d', '--late-percent', '10']"
        assert made("grade", "OUT=term") == "['grade', '--out', 'term']"
        assert made("new-chapter", "NAME=x") == "['new-chapter', 'x']"
    done = subprocess.run(["make", "PYTHON=none"], cwd=copy, capture_output=True, text=True)
    assert "there is no none" in done.stderr
