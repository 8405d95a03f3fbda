"""The script of chapter 16: many processes train as one does, and a killed run goes on."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import traceback
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.api import CheckpointException

from processes import running, wait_until
from tools import train_parallel
from tools.course.registry import ROOT
from tools.train_parallel import Recipe, main, rate, share

SCRIPT = ROOT / "tools" / "train_parallel.py"
STEPS = ["--steps", "24", "--save-every", "6"]
KILLED = signal.Signals(getattr(signal, "SIGKILL", signal.SIGTERM))
# Processes begin as copies of one that has imported all this once; Windows has no such thing.
CONTEXT = multiprocessing.get_context("spawn" if os.name == "nt" else "forkserver")
if os.name != "nt":
    CONTEXT.set_forkserver_preload(
        [
            "torch.distributed.checkpoint.state_dict",
            "torch.distributed.fsdp",
            "utils.training",
            "utils.vision_transformer",
        ]
    )


@dataclass
class Ended:
    """How some processes ended: their exit codes, what they said, and the result of the run."""

    codes: list[int]
    said: str
    result: dict[str, Any] | None


def one_of_many(variables: dict[str, str], arguments: list[str], said: str) -> None:
    """Be one process, with the variables that torchrun would set."""
    os.environ |= variables
    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
    os.dup2(1, 2)
    torch.set_num_threads(1)
    try:
        main(arguments)
    except Exception:  # a SystemExit ends the process by itself, and says why
        traceback.print_exc()
        os._exit(1)


def run(folder: Path, processes: int, *arguments: str) -> Ended:
    """Run the script in some processes; they meet at a port that the system chose."""
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    result, said = folder / "result.json", folder / "said.txt"
    result.unlink(missing_ok=True)
    said.unlink(missing_ok=True)
    common = {
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    line = [*STEPS, "--device", "cpu", "--result", str(result), *arguments]
    started = []
    for rank in range(processes):
        variables = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        process = CONTEXT.Process(target=one_of_many, args=(variables, line, str(said)))
        process.start()
        started.append(process)
    for process in started:
        process.join()
    found = json.loads(result.read_text()) if result.exists() else None
    return Ended([process.exitcode for process in started], said.read_text(), found)


def finished(folder: Path, processes: int, *arguments: str) -> dict[str, Any]:
    ended = run(folder, processes, *arguments)
    assert ended.codes == [0] * processes, ended.said
    return ended.result


def alone(*arguments: str) -> dict[str, Any]:
    return main([*STEPS, "--device", "cpu", *arguments])


def distance(one: dict[str, Any], other: dict[str, Any]) -> float:
    """The largest difference between the losses of two runs."""
    pairs = zip(one["losses"], other["losses"], strict=True)
    return max(abs(a - b) for a, b in pairs)


@pytest.fixture(scope="module")
def one() -> dict[str, Any]:
    return alone()


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoints of a run in two processes, one of which was killed before step 16."""
    folder = tmp_path_factory.mktemp("killed")
    options = ["--fsdp", "--checkpoints", str(folder / "saved"), "--crash-at", "16"]
    ended = run(folder, 2, *options)
    assert ended.codes[1] == -KILLED or os.name == "nt"
    assert ended.codes[0] not in (0, -KILLED), "the other one notices, and ends"
    assert ended.result is None
    names = sorted(path.name for path in (folder / "saved").iterdir())
    assert names == ["recipe.json", "step-000006", "step-000012"]
    return folder / "saved"


@pytest.fixture
def saved(killed: Path, tmp_path: Path) -> Path:
    return shutil.copytree(killed, tmp_path / "saved")


# -------------------------------------------------------------------------- many are like one


def test_one_process_learns(one: dict[str, Any]) -> None:
    assert one["processes"] == 1
    assert one["losses"][-1] < one["losses"][0] / 2
    assert one["accuracy"] > 0.5
    assert distance(one, alone()) == 0, "the same line gives the same run"
    assert distance(one, alone("--seed", "1")) > 0.01, "and a difference would be seen"


@pytest.mark.parametrize("kind", ["data", "fsdp"])
def test_two_processes_have_the_losses_of_one(
    kind: str, one: dict[str, Any], tmp_path: Path
) -> None:
    two = finished(tmp_path, 2, *(["--fsdp"] if kind == "fsdp" else []))
    assert two["processes"] == 2
    assert distance(one, two) < 1e-4
    assert two["accuracy"] == pytest.approx(one["accuracy"], abs=0.01)
    for what in ("weights held", "moments held"):
        kept = 1.0 if kind == "data" else 0.5
        assert two[what] / one[what] == pytest.approx(kept, abs=0.02), what
    assert one["moments held"] == 2 * one["weights held"]


def test_three_processes_split_sizes_that_three_does_not_divide(tmp_path: Path) -> None:
    line = ["--batch-size", "63", "--steps", "6"]
    three = finished(tmp_path, 3, "--fsdp", *line)
    assert distance(alone(*line), three) < 1e-4
    assert three["accuracy"] > 0


# ------------------------------------------------------------------------- a killed run goes on


def test_a_killed_run_goes_on_when_the_same_line_is_typed_again(
    saved: Path, one: dict[str, Any], tmp_path: Path
) -> None:
    line = ["--fsdp", "--checkpoints", str(saved), "--crash-at", "16"]
    again = finished(tmp_path, 2, *line)
    assert again["began after step"] == 12
    assert distance(one, again) < 1e-4
    assert again["accuracy"] == pytest.approx(one["accuracy"], abs=0.01)


def test_another_number_of_processes_goes_on_and_without_fsdp(
    saved: Path, one: dict[str, Any], tmp_path: Path
) -> None:
    on = finished(tmp_path, 4, "--checkpoints", str(saved))
    assert (on["processes"], on["began after step"]) == (4, 12)
    assert distance(one, on) < 1e-4


def test_what_was_forgotten_would_be_seen(saved: Path, one: dict[str, Any]) -> None:
    load = train_parallel.dcp.load

    def all_but_moments(state: dict[str, Any], **options: Any) -> None:
        load({name: state[name] for name in ("model", "losses")}, **options)

    with mock.patch.object(train_parallel.dcp, "load", all_but_moments):
        assert distance(one, alone("--checkpoints", str(saved))) > 0.01


def test_a_finished_run_has_nothing_left_to_do(one: dict[str, Any], tmp_path: Path) -> None:
    line = ["--checkpoints", str(tmp_path / "new" / "saved")]
    assert distance(one, alone(*line)) == 0
    again = alone(*line)
    assert again["began after step"] == 24
    assert distance(one, again) == 0
    assert again["accuracy"] == one["accuracy"]


def test_a_checkpoint_that_was_cut_off_does_not_count(saved: Path, one: dict[str, Any]) -> None:
    (saved / "step-000012" / ".metadata").unlink()
    on = alone("--checkpoints", str(saved))
    assert on["began after step"] == 6
    assert distance(one, on) < 1e-4


def test_the_table_of_contents_is_written_last(saved: Path) -> None:
    error = RuntimeError("killed when all parts are written")
    with (
        mock.patch.object(FileSystemWriter, "finish", side_effect=error),
        pytest.raises(CheckpointException, match="killed when all parts"),
    ):
        alone("--checkpoints", str(saved))
    assert [path.name for path in (saved / "step-000018").iterdir()] == ["__0_0.distcp"]
    assert alone("--checkpoints", str(saved))["began after step"] == 12


# --------------------------------------------------------------------------------- its parts


def shares(step: int, processes: int, recipe: Recipe, examples: int = 50) -> list[list[int]]:
    found = []
    for rank in range(processes):
        with mock.patch.multiple(
            dist, get_rank=lambda rank=rank: rank, get_world_size=lambda: processes
        ):
            found.append(share(step, examples, recipe).tolist())
    return found


def test_shares_are_equal_and_together_the_batch() -> None:
    recipe = Recipe(steps=9, batch_size=12, learning_rate=1.0, seed=3)
    epochs = []
    for epoch in range(2):
        seen = []
        for step in range(4 * epoch, 4 * epoch + 4):
            (batch,) = shares(step, 1, recipe)
            dealt = shares(step, 3, recipe)
            assert [len(part) for part in dealt] == [4, 4, 4]
            assert sorted(chain(*dealt)) == sorted(batch)
            seen += batch
        assert len(set(seen)) == 48, "none is taken twice in an epoch"
        epochs.append(seen)
    assert epochs[0] != epochs[1], "each epoch has an order of its own"


def test_the_learning_rate_rises_and_falls() -> None:
    recipe = Recipe(steps=100, batch_size=1, learning_rate=3.0, seed=0)
    rates = [rate(step, recipe) for step in range(100)]
    assert rates[14] == max(rates) == 3.0
    assert rates[:15] == sorted(rates[:15]) and rates[14:] == sorted(rates[14:], reverse=True)
    assert rates[0] == pytest.approx(0.2) and rates[-1] == pytest.approx(0)


@pytest.mark.parametrize(("gpus", "here", "kind"), [(0, 2, "cpu"), (1, 2, "cpu"), (2, 2, "cuda")])
def test_a_gpu_is_taken_where_each_process_has_one(gpus: int, here: int, kind: str) -> None:
    variables = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": str(here), "RANK": "1"}
    with (
        mock.patch.dict(os.environ, variables),
        mock.patch.multiple(
            torch.cuda, device_count=lambda: gpus, set_device=mock.DEFAULT
        ) as chosen,
        mock.patch.object(dist, "init_process_group") as joined,
        mock.patch.object(train_parallel, "end_with_parent"),
    ):
        device = train_parallel.join()
    assert device == torch.device("cuda", 1) if kind == "cuda" else torch.device("cpu")
    assert chosen["set_device"].called == (kind == "cuda")
    joined.assert_called_once_with({"cpu": "gloo", "cuda": "nccl"}[kind])


@pytest.mark.parametrize("size", ["63", "1438", "1"])
def test_a_batch_that_cannot_be_divided_is_refused(size: str, tmp_path: Path) -> None:
    ended = run(tmp_path, 2, "--batch-size", size)
    assert ended.codes == [1, 1]
    fix = {"63": 62, "1438": 1436, "1": 2}[size]
    assert "--batch-size must be a multiple of 2, the number of processes" in ended.said
    assert f"got {size}. Use for example {fix}." in ended.said


def test_another_recipe_is_refused_and_the_folder_left_alone(saved: Path) -> None:
    before = sorted(path.name for path in saved.iterdir())
    with pytest.raises(SystemExit, match=r"--seed must be 0 as before in .*, got 5\. Use the sam"):
        alone("--checkpoints", str(saved), "--seed", "5")
    assert sorted(path.name for path in saved.iterdir()) == before
    assert not dist.is_initialized(), "the group is left, whatever happens"


@pytest.mark.parametrize("option", ["--steps", "--batch-size", "--save-every"])
def test_numbers_below_one_are_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        alone(option, "0")
    assert f"{option} must be at least 1, got 0. Write 1" in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="the system has no such signal")
def test_a_killed_torchrun_leaves_no_process(tmp_path: Path) -> None:
    """As an interrupted cell of the chapter kills it, with no time to end what it started."""
    mark = {"ATTENTION_RUN": str(tmp_path)}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    command += ["2", str(SCRIPT), "--steps", "99999", "--device", "cpu"]
    launcher = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **mark}, stdout=subprocess.PIPE
    )
    assert b"step 20" in launcher.stdout.readline()
    assert len(running(mark)) >= 3
    launcher.kill()
    launcher.wait()
    wait_until(lambda: not running(mark))


# ------------------------------------------------------------------------- the documented lines


def test_several_machines_as_the_script_says(one: dict[str, Any], tmp_path: Path) -> None:
    """Two launchers are two machines; the meeting place is ours, so that its port is free."""
    documented = "torchrun --nnodes 2 --nproc-per-node gpu --rdzv-backend c10d --rdzv-endpoint HOST"
    assert documented in train_parallel.__doc__
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    line = documented.replace("gpu", "1").replace("HOST", f"localhost:{store.port}").split()[1:]
    result = tmp_path / "result.json"
    command = [sys.executable, "-m", "torch.distributed.run", *line, "--rdzv-conf", "is_host=false"]
    command += [str(SCRIPT), *STEPS, "--device", "cpu", "--result", str(result)]
    launchers = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for _ in range(2)
    ]
    said = [launcher.communicate()[0].decode() for launcher in launchers]
    assert [launcher.returncode for launcher in launchers] == [0, 0], said
    two = json.loads(result.read_text())
    assert two["processes"] == 2
    assert distance(one, two) < 1e-4
