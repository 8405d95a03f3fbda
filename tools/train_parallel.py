r"""Train the digits model with one process or several, on one or several machines (chapter 16).

    python tools/train_parallel.py                                        one process
    torchrun --standalone --nproc-per-node 2 tools/train_parallel.py      two processes
    torchrun --standalone --nproc-per-node gpu tools/train_parallel.py    one for each GPU here

On several machines, type the same line on each. HOST is the name of one of them, 29500 a free port
on it; the course must have the same path on all, and the folder of checkpoints must be shared:

    torchrun --nnodes 2 --nproc-per-node gpu --rdzv-backend c10d --rdzv-endpoint HOST:29500 \
        tools/train_parallel.py --checkpoints /shared/run-1

`--fsdp` also shards the weights. With `--checkpoints FOLDER`, type the same line again to continue
a killed run, with any number of processes. (torchrun can restart it, `--max-restarts 3`, but
restarted processes sometimes wait for the dead ones:
https://github.com/pytorch/pytorch/issues/135712.) Each process gets a GPU if there are enough,
otherwise all use the CPU.

Type it in the folder of the course, with `python` and `torchrun` of its `.venv`. On Windows, first
type `set USE_LIBUV=0`, since PyTorch for Windows is built without that library.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import threading
import time
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

# chapter 07's model with large patches: it learns in the fewest steps
MODEL = {**SHIPPED["digits"], "patch_size": 4}
WARM_UP = 0.15
# AdamW's running means of the gradients and of their squares
MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class Recipe:
    """The settings that determine the numbers of a run, for any number of processes.

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


def end_with_parent() -> None:
    """End this process when its parent is gone.

    This way no process remains when torchrun is killed, for example by interrupting a notebook.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


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
        end_with_parent()
        dist.init_process_group(backend)  # torchrun's environment variables list the others
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    return torch.device(device, local_rank) if device == "cuda" else torch.device(device)


def together(
    model: VisionTransformer,
    fsdp: bool,
    device: torch.device,
) -> nn.Module:
    """Wrap the model for all processes; a single process gets it unchanged."""
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
    """Return how many elements of some tensors are in this process."""
    return sum((t.to_local() if isinstance(t, DTensor) else t).numel() for t in tensors)


# ------------------------------------------------- what a step needs, from its number alone


def share(step: int, examples: int, recipe: Recipe) -> Tensor:
    """Return the indices of this process's examples in a step.

    All processes draw the same order and divide it, so no example is taken twice.
    """
    epoch, number = divmod(step, examples // recipe.batch_size)
    generator = torch.Generator().manual_seed(1000 * recipe.seed + epoch)
    order = torch.randperm(examples, generator=generator)
    batch = order[number * recipe.batch_size :][: recipe.batch_size]
    return batch[dist.get_rank() :: dist.get_world_size()]


def rate(step: int, recipe: Recipe) -> float:
    """Return the learning rate of a step: linear warm-up, cosine decay."""
    done = (step + 1) / recipe.steps
    if done < WARM_UP:
        return recipe.learning_rate * done / WARM_UP
    return recipe.learning_rate * (1 + math.cos(math.pi * (done - WARM_UP) / (1 - WARM_UP))) / 2


# -------------------------------------------------------------------------------- checkpoints


def save(folder: Path, step: int, state: dict[str, Any]) -> None:
    """Write a checkpoint: every process writes its shard; the table of contents comes last."""
    dcp.save(state, checkpoint_id=folder / f"step-{step:06}")


def newest(folder: Path) -> int:
    """Return the step of the newest complete checkpoint, 0 if there is none.

    An interrupted checkpoint has no table of contents and does not count.
    """
    steps = [int(path.parent.name[5:]) for path in folder.glob("step-*/.metadata")]
    found = [max(steps, default=0)]
    dist.broadcast_object_list(found)  # the first process decides for all
    return found[0]


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer, losses: Tensor) -> dict[str, Any]:
    """Return the state of a run, under names that do not depend on the number of processes."""
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments, "losses": losses}


def resume(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, losses: Tensor) -> int:
    """Load the newest checkpoint; return its step.

    Load only your own checkpoints: they hold pickled objects.
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
    """Refuse a batch that cannot be divided equally: unequal parts would change the mean."""
    size, processes = recipe.batch_size, dist.get_world_size()
    if size > examples or size % processes:
        raise SystemExit(
            f"train_parallel: --batch-size must be a multiple of {processes}, the number of "
            f"processes, and at most {examples}, the number of examples, got {size}. "
            f"Use for example {processes * min(max(size // processes, 1), examples // processes)}."
        )


def check_folder(folder: Path, recipe: Recipe) -> None:
    """Refuse a folder with a different recipe; write the recipe into a new one."""
    path, mine = folder / "recipe.json", vars(recipe)
    theirs = json.loads(path.read_text()) if path.exists() else mine
    if theirs != mine:
        name = next(name for name in mine if mine[name] != theirs.get(name))
        raise SystemExit(
            f"train_parallel: --{name.replace('_', '-')} must be {theirs.get(name)} as before in "
            f"{folder}, got {mine[name]}. Use the same value, or a new folder."
        )
    dist.barrier()  # all must read before one writes
    if dist.get_rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(mine))
    dist.barrier()


# --------------------------------------------------------------------------------- the training


def train(recipe: Recipe, options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Train, save regularly, and return the measurements.

    Three things differ from training with one process: `together` wraps the model, each process
    takes its `share` of the batch, and the reported loss is the mean of all processes.
    """
    (images, labels), test = load_digits()
    check_batch(len(images), recipe)
    images, labels = images.to(device), labels.to(device)
    torch.manual_seed(recipe.seed)  # the same initial weights in all processes
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
    """Kill the last process without any clean-up, like a failing machine."""
    if dist.get_rank() == dist.get_world_size() - 1:
        os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))


def say(text: str) -> None:
    """Print a line in the first process only."""
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
    parser.add_argument("--fsdp", action="store_true", help="also shard the weights")
    parser.add_argument("--checkpoints", type=Path, help="folder to save to, and to continue from")
    parser.add_argument("--save-every", type=int, default=20, help="steps")
    parser.add_argument("--result", type=Path, help="JSON file for the measurements")
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), help="default: a GPU each, if there are enough"
    )
    parser.add_argument(
        "--crash-at",
        type=int,
        metavar="STEP",
        help="for a trial: the last process of a new run kills itself at this step",
    )
    options = parser.parse_args(arguments)
    for name in ("steps", "batch_size", "save_every"):
        if getattr(options, name) < 1:
            option = f"--{name.replace('_', '-')}"
            parser.error(f"{option} must be at least 1, got {getattr(options, name)}. Write 1")
    return options


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Run the command, and return the measurements."""
    options = read_options(arguments)
    recipe = Recipe(options.steps, options.batch_size, options.learning_rate, options.seed)
    device = join(options.device)
    try:
        if options.checkpoints:
            check_folder(options.checkpoints, recipe)
        result = train(recipe, options, device)
        if options.result and dist.get_rank() == 0:
            options.result.write_text(json.dumps(result, indent=1))
        say(f"{100 * result['accuracy']:.1f} % of the test digits are correct")
        return result
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
