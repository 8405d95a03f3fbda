r"""Train the digits model with one process or with many: chapter 16, on one machine or on several.

    python tools/train_parallel.py                                        one process
    torchrun --standalone --nproc-per-node 2 tools/train_parallel.py      two processes
    torchrun --standalone --nproc-per-node gpu tools/train_parallel.py    one for each GPU here

On several machines, type the same line on each. HOST is the name of one of them, 29500 a port that
is free there; the course lies at the same path everywhere, and the folder of checkpoints is shared:

    torchrun --nnodes 2 --nproc-per-node gpu --rdzv-backend c10d --rdzv-endpoint HOST:29500 \
        tools/train_parallel.py --checkpoints /shared/run-1

`--fsdp` splits the weights, too. With `--checkpoints FOLDER` a run that was killed goes on where it
was when the same line is typed again, with as many processes as you like. (torchrun can type it for
you, `--max-restarts 3`, but its restarted processes sometimes look for the dead ones:
https://github.com/pytorch/pytorch/issues/135712.) Processes get a GPU each where there are enough,
else the CPU.

Type it in the folder of the course. `python` and `torchrun` are those of its `.venv`; on Windows,
`set USE_LIBUV=0` comes first, since PyTorch is built without that library there.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from utils.data import SHIPPED, load_digits
from utils.training import accuracy
from utils.vision_transformer import VisionTransformer

# of chapter 07's models the one with large patches: it learns in the fewest steps
MODEL = {**SHIPPED["digits"], "patch_size": 4}
WARM_UP = 0.15
# AdamW's running means of the gradients and of their squares
MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class Recipe:
    """What decides the numbers of a run, whoever computes them.

    Args:
        steps: batches in the whole run.
        batch_size: examples in a batch, of all processes together.
        learning_rate: the highest one.
        seed: of the first weights and of the order of the examples.
    """

    steps: int
    batch_size: int
    learning_rate: float
    seed: int


# ------------------------------------------------------------------------------ the processes


def join(device: str | None = None) -> torch.device:
    """Join the processes that torchrun started, and return the device of this one."""
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    if device is None:
        needed = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
        device = "cuda" if torch.cuda.device_count() >= needed else "cpu"
    backend = "nccl" if device == "cuda" else "gloo"
    if device == "cuda":
        torch.cuda.set_device(local_rank)
    if "RANK" in os.environ:
        dist.init_process_group(backend)  # who and where the others are, torchrun has told
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    return torch.device(device, local_rank) if device == "cuda" else torch.device(device)


def together(
    model: VisionTransformer,
    fsdp: bool,
    device: torch.device,
) -> nn.Module:
    """Return the model as all processes train it together; alone, as it is."""
    if dist.get_world_size() == 1:
        return model
    if not fsdp:
        return DistributedDataParallel(model)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for layer in model.encoder.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def mean_of_all(value: Tensor) -> float:
    """Return the mean over all processes of one number."""
    value = value.detach().clone()
    dist.all_reduce(value)
    return value.item() / dist.get_world_size()


def held(tensors: Iterable[Tensor]) -> int:
    """Return how many numbers of some tensors lie in this process."""
    return sum((t.to_local() if isinstance(t, DTensor) else t).numel() for t in tensors)


# ------------------------------------------------- what a step needs, from its number alone


def share(step: int, examples: int, recipe: Recipe) -> Tensor:
    """Return the places of the examples that this process takes in a step.

    All processes draw the same order, and deal it out: none is taken twice.
    """
    epoch, place = divmod(step, examples // recipe.batch_size)
    generator = torch.Generator().manual_seed(1000 * recipe.seed + epoch)
    order = torch.randperm(examples, generator=generator)
    batch = order[place * recipe.batch_size :][: recipe.batch_size]
    return batch[dist.get_rank() :: dist.get_world_size()]


def rate(step: int, recipe: Recipe) -> float:
    """Return the learning rate of a step: up in a line, down in half a wave."""
    done = (step + 1) / recipe.steps
    if done < WARM_UP:
        return recipe.learning_rate * done / WARM_UP
    return recipe.learning_rate * (1 + math.cos(math.pi * (done - WARM_UP) / (1 - WARM_UP))) / 2


# -------------------------------------------------------------------------------- checkpoints


def save(folder: Path, step: int, state: dict[str, Any]) -> None:
    """Write a checkpoint: every process its own part, and last of all the table of contents."""
    dcp.save(state, checkpoint_id=folder / f"step-{step:06}")


def newest(folder: Path) -> int:
    """Return the step of the newest whole checkpoint, 0 if there is none; the same everywhere.

    One that was cut off while it was written has no table of contents, and does not count.
    """
    steps = [int(path.parent.name[5:]) for path in folder.glob("step-*/.metadata")]
    found = [max(steps, default=0)]
    dist.broadcast_object_list(found)  # what the first process sees counts for all
    return found[0]


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer, losses: Tensor) -> dict[str, Any]:
    """Return all that a run must remember, with names that do not tell how many wrote it."""
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments, "losses": losses}


def resume(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, losses: Tensor) -> int:
    """Bring everything to where the newest checkpoint was; return its step.

    Read only what you wrote yourself: a checkpoint holds pickled objects.
    """
    step = newest(folder)
    if step:
        state = state_of(model, optimizer, losses)
        dcp.load(state, checkpoint_id=folder / f"step-{step:06}")  # into the tensors of state
        set_state_dict(
            model,
            optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
    return step


def check_batch(examples: int, recipe: Recipe) -> None:
    """Refuse a batch that cannot be dealt out: the mean of unequal shares is another mean."""
    size, processes = recipe.batch_size, dist.get_world_size()
    if size > examples or size % processes:
        raise SystemExit(
            "train_parallel: a batch must have an equal share for each process and fit into the "
            f"{examples} examples, got --batch-size {size} for {processes} processes. "
            f"Use for example {processes * min(max(size // processes, 1), examples // processes)}."
        )


def check_folder(folder: Path, recipe: Recipe) -> None:
    """Refuse a folder in which another recipe was begun; begin an empty one."""
    path, mine = folder / "recipe.json", vars(recipe)
    theirs = json.loads(path.read_text()) if path.exists() else mine
    if theirs != mine:
        name = next(name for name in mine if mine[name] != theirs.get(name))
        raise SystemExit(
            f"train_parallel: a run goes on with the recipe that it began with, got "
            f"{name}={mine[name]} for {folder}, which was begun with {theirs.get(name)}. "
            "Use the same, or another folder."
        )
    dist.barrier()  # all have looked before one writes
    if dist.get_rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(mine))
    dist.barrier()


# --------------------------------------------------------------------------------- the training


def train(recipe: Recipe, options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Train, save now and then, and return what was measured.

    It is the training of one process but for three things: the model is wrapped by `together`,
    each process takes its `share` of the batch, and the loss to report is the mean of all.
    """
    (images, labels), test = load_digits()
    check_batch(len(images), recipe)
    images, labels = images.to(device), labels.to(device)
    torch.manual_seed(recipe.seed)  # so that all begin with the same weights
    model = together(VisionTransformer(**MODEL).to(device), options.fsdp, device)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.05)
    losses = torch.zeros(recipe.steps, dtype=torch.float64)
    weights_held = held(model.parameters())
    folder = options.checkpoints
    first = resume(folder, model, optimizer, losses) if folder else 0
    model.train()
    for step in range(first, recipe.steps):
        if step == options.crash_at and first == 0:
            crash()
        chosen = share(step, len(images), recipe).to(device)
        for group in optimizer.param_groups:
            group["lr"] = rate(step, recipe)
        loss = F.cross_entropy(model(images[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses[step] = mean_of_all(loss)
        if (step + 1) % options.save_every == 0 or step + 1 == recipe.steps:
            if folder:
                save(folder, step + 1, state_of(model, optimizer, losses))
            say(f"step {step + 1} of {recipe.steps}: loss {losses[step]:.4f}")
    moments = [both[name] for both in optimizer.state.values() for name in MOMENTS]
    return {
        "processes": dist.get_world_size(),
        "began after step": first,
        "losses": losses.tolist(),
        "accuracy": accuracy(model, test),
        "weights held": weights_held,
        "moments held": held(moments),
    }


def crash() -> None:
    """Kill the last process, as a machine that fails: it can clean up nothing, and say nothing."""
    if dist.get_rank() == dist.get_world_size() - 1:
        os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))


def say(text: str) -> None:
    """Print a line once, and not once for each process."""
    if dist.get_rank() == 0:
        print(text, flush=True)


def read_options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=220)
    parser.add_argument("--batch-size", type=int, default=64, help="of all processes together")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fsdp", action="store_true", help="split the weights, too")
    parser.add_argument("--checkpoints", type=Path, help="folder to save to, and to go on from")
    parser.add_argument("--save-every", type=int, default=20, help="steps")
    parser.add_argument("--result", type=Path, help="file for what was measured, in JSON")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: a GPU each, if any")
    parser.add_argument(
        "--crash-at",
        type=int,
        metavar="STEP",
        help="to try it: the last process kills itself here, if the run began at the beginning",
    )
    options = parser.parse_args(arguments)
    for name in ("steps", "batch_size", "save_every"):
        if getattr(options, name) < 1:
            parser.error(f"{name} must be at least 1, got {getattr(options, name)}")
    return options


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Run the command, and return what was measured."""
    options = read_options(arguments)
    recipe = Recipe(options.steps, options.batch_size, options.learning_rate, options.seed)
    device = join(options.device)
    try:
        if options.checkpoints:
            check_folder(options.checkpoints, recipe)
        result = train(recipe, options, device)
        if options.result and dist.get_rank() == 0:
            options.result.write_text(json.dumps(result, indent=1))
        say(f"{100 * result['accuracy']:.1f} % of the test digits are right")
        return result
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
