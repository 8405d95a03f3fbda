"""Train a classifier and measure it (chapter 07), or any model on any batches (chapter 11)."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isfinite, pi
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR

from utils.validation import check_positive, check_real, check_shape

Examples = tuple[Tensor, Tensor]
Batch = TypeVar("Batch")


@dataclass
class History:
    """What `fit` or `fit_batches` measured.

    Args:
        loss: training loss, in nats: the mean of each epoch, or of each step of `fit_batches`.
        accuracy: of `fit`'s model on the test examples, 0 to 1.
        measured: what `measure` of `fit_batches` returned, each time that it was called.
    """

    loss: list[float] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    measured: list[float] = field(default_factory=list)


@contextmanager
def eval_mode(*models: nn.Module) -> Iterator[None]:
    """Put models into eval mode inside a `with`, then every part of them back into its own mode.

    >>> model = nn.Dropout(0.5)
    >>> with eval_mode(model):
    ...     model(torch.ones(3))
    tensor([1., 1., 1.])

    Args:
        models: in any mode, also with parts in another mode than the whole, such as frozen ones.
    """
    modes = {module: module.training for model in models for module in model.modules()}
    for model in models:
        model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


@torch.no_grad()
def predict(model: nn.Module, images: Tensor, batch_size: int = 512) -> Tensor:
    """Return the logits of the model for all images, in `eval_mode` and batch by batch.

    Args:
        model: maps (b, ...) to (b, k).
        images: the inputs.
        batch_size: how many at a time.

    Shape:
        images  (b, ...)
        result  (b, k)

    Raises: ValueError for no images, or a batch_size below 1.
    """
    check_positive("predict", batch_size=batch_size)
    if not len(images):
        raise ValueError(
            f"predict: there must be at least one image, got images.shape={tuple(images.shape)}. "
            "Check the selection that made them."
        )
    device = next((parameter.device for parameter in model.parameters()), images.device)
    with eval_mode(model):
        return torch.cat([model(part.to(device)) for part in images.split(batch_size)])


def accuracy(model: nn.Module, examples: Examples, batch_size: int = 512) -> float:
    """Return the fraction of examples, 0 to 1, whose largest logit is at the correct class.

    Args:
        model, batch_size: see `predict`.
        examples: (images, labels).

    Shape:
        images  (b, ...)
        labels  (b,), integers

    Raises: ValueError for no examples, or not one label for each image.
    """
    images, labels = _check_examples("accuracy", examples)
    guesses = predict(model, images, batch_size).argmax(dim=-1)
    return (guesses == labels.to(guesses.device)).double().mean().item()


def augment(
    images: Tensor,
    generator: torch.Generator,
    shift: float = 0.5,
    degrees: float = 12.0,
    zoom: float = 0.1,
) -> Tensor:
    """Shift, rotate and zoom each image a little, each by its own random amount.

    Args:
        generator: a CPU generator, so that a seed gives the same pictures on every device.
        shift: largest shift, in pixels.
        degrees: largest rotation, in degrees.
        zoom: largest relative change of size.

    Shape:
        images  (b, c, H, W)
        result  (b, c, H, W)

    Raises: ValueError for images of another rank.
    """
    check_shape("augment", "images", images, "b c H W", "One image alone is images[None].")
    b, _, height, width = images.shape
    amount = torch.rand(4, b, generator=generator, device=generator.device) * 2 - 1
    across, down, turn, size = amount.to(images)
    angle = turn * degrees * pi / 180
    scale = 1 + size * zoom
    cos, sin = torch.cos(angle) * scale, torch.sin(angle) * scale
    # affine_grid counts in half-widths and half-heights: one pixel is 2 / width, 2 / height
    move_x, move_y = across * shift * 2 / width, down * shift * 2 / height
    aspect = height / width
    rows = [cos, -sin * aspect, move_x], [sin / aspect, cos, move_y]
    matrices = torch.stack([torch.stack(row, dim=-1) for row in rows], dim=1)
    grid = F.affine_grid(matrices, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)


def fit(
    model: nn.Module,
    train: Examples,
    test: Examples,
    *,
    epochs: int = 60,
    batch_size: int = 64,
    learning_rate: float = 2e-3,
    weight_decay: float = 0.05,
    label_smoothing: float = 0.1,
    warm_up: float = 0.15,
    schedule: Callable[[float], float] | None = None,
    change: Callable[[Tensor, torch.Generator], Tensor] | None = augment,
    seed: int = 0,
    measure_every: int | None = None,
    progress: bool = True,
) -> History:
    """Train a classifier with AdamW and a one-cycle learning rate, and print the epochs.

    The order of the examples and the augmentation come from a CPU generator of their own, so a
    seed means the same on every device. Gradients are clipped to norm 1.

    Args:
        model: maps (b, ...) to (b, k); trained in place, on the device where it is.
        train: (images, labels) to learn from.
        test: (images, labels) to measure, never to learn from.
        epochs: how often each example is seen.
        batch_size: examples in one step.
        learning_rate: the highest learning rate of the cycle.
        weight_decay: AdamW's.
        label_smoothing: fraction of each target that is spread over all classes.
        warm_up: fraction of the steps in which the learning rate rises, before it falls; 0, or no
            more than one step, keeps it constant.
        schedule: learning rate as a fraction of the highest, by the fraction of steps that are
            done, from 0 up to 1; None: the one cycle of `warm_up`, which it replaces.
        change: makes a changed copy of each batch, such as `augment`; None leaves it as it is.
        seed: of the order and of `change`; the weights' own start is the caller's.
        measure_every: measure `test` after every so many epochs; None: only after the last.
        progress: write the number of about every tenth epoch; in Jupyter the line is stored with
            the notebook, elsewhere it goes to stderr.

    Shape:
        images  (b, ...)
        labels  (b,), integers

    Raises: ValueError for bad examples, an epoch or batch below 1, or a bad warm_up.
    Source: chapter 07; Loshchilov and Hutter 2019 (AdamW), Smith and Topin 2018 (one cycle).
    """
    check_positive("fit", epochs=epochs, batch_size=batch_size)
    check_real("fit", "[0, 1)", "Pass for example warm_up=0.1.", warm_up=warm_up)
    images, labels = _check_examples("fit", train)
    _check_examples("fit", test)
    device = next(model.parameters()).device
    images, labels = images.to(device), labels.to(device)
    generator = torch.Generator().manual_seed(seed)
    steps = epochs * -(-len(images) // batch_size)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=learning_rate, weight_decay=weight_decay, fused=True
    )
    if schedule is None:
        scheduler = _one_cycle(optimizer, steps, warm_up, cycle_momentum=True)
    else:
        scheduler = LambdaLR(optimizer, lambda step: schedule(step / steps))
    history = History()
    model.train()
    for epoch in range(1, epochs + 1):
        total = 0.0
        for chosen in torch.randperm(len(images), generator=generator).split(batch_size):
            chosen = chosen.to(device)
            batch = images[chosen]
            if change is not None:
                batch = change(batch, generator)
            loss = F.cross_entropy(model(batch), labels[chosen], label_smoothing=label_smoothing)
            _take_step(loss, optimizer, scheduler)
            total += loss.item() * len(chosen)
        history.loss.append(total / len(images))
        if epoch == epochs or (measure_every and epoch % measure_every == 0):
            history.accuracy.append(accuracy(model, test))
        if progress:
            _print_count("epochs", epoch, epochs)
    model.eval()
    return history


def fit_batches(
    model: nn.Module,
    draw: Callable[[torch.Generator], Batch],
    loss: Callable[[nn.Module, Batch], Tensor],
    *,
    steps: int,
    learning_rate: float = 3e-3,
    weight_decay: float = 0.01,
    betas: tuple[float, float] = (0.9, 0.98),
    warm_up: float = 0.15,
    seed: int = 0,
    measure: Callable[[nn.Module], float] | None = None,
    measure_every: int | None = None,
    progress: bool = True,
) -> History:
    """Train any model on batches that `draw` makes for each step, and print the steps.

    The recipe is `fit`'s: AdamW, a one-cycle learning rate, and gradients clipped to norm 1.

    >>> history = fit_batches(nn.Linear(2, 1), draw=lambda g: torch.rand(8, 2, generator=g),
    ...                       loss=lambda model, x: model(x).square().mean(),
    ...                       steps=5, progress=False)
    >>> len(history.loss)
    5

    Args:
        model: trained in place, on the device where it is.
        draw: makes a batch, whatever it is, from a CPU generator.
        loss: one number, in nats, for the model and a batch.
        steps: how many batches.
        learning_rate, weight_decay, warm_up: see `fit`.
        betas: AdamW's; the second is that of the original Transformer, where PyTorch's is 0.999.
        seed: of the generator that `draw` gets; the weights' own start is the caller's.
        measure: a number to follow while the model learns; called in eval mode, without gradients.
        measure_every: call it after every so many steps; None: only after the last.
        progress: see `fit`; of steps.

    Raises: ValueError for steps below 1, a bad warm_up, or a loss that is not one finite number.
    Source: chapter 11; Vaswani et al. 2017, section 5.3.
    """
    check_positive("fit_batches", steps=steps)
    check_real("fit_batches", "[0, 1)", "Pass for example warm_up=0.1.", warm_up=warm_up)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=learning_rate, betas=betas, weight_decay=weight_decay, fused=True
    )
    scheduler = _one_cycle(optimizer, steps, warm_up, cycle_momentum=False)
    history = History()
    model.train()
    for step in range(1, steps + 1):
        value = loss(model, draw(generator))
        if value.numel() != 1 or not isfinite(value.item()):
            raise ValueError(
                f"fit_batches: loss must return one finite number, got {value.detach()} in step "
                f"{step}. Take the mean over the batch, or lower learning_rate={learning_rate}."
            )
        _take_step(value, optimizer, scheduler)
        history.loss.append(value.item())
        if measure and (step == steps or (measure_every and step % measure_every == 0)):
            with eval_mode(model), torch.no_grad():
                history.measured.append(float(measure(model)))
        if progress:
            _print_count("steps", step, steps)
    model.eval()
    return history


def _one_cycle(
    optimizer: Optimizer, steps: int, warm_up: float, cycle_momentum: bool
) -> LRScheduler | None:
    """Return the schedule that rises for `warm_up` of the steps and then falls; None: constant."""
    if warm_up * steps <= 1:
        return None
    options = {"pct_start": warm_up, "cycle_momentum": cycle_momentum}
    return OneCycleLR(optimizer, optimizer.param_groups[0]["lr"], steps, **options)


def _take_step(loss: Tensor, optimizer: Optimizer, scheduler: LRScheduler | None) -> None:
    """Move the weights one step against a loss, with gradients clipped to norm 1."""
    optimizer.zero_grad()
    loss.backward()
    (group,) = optimizer.param_groups
    nn.utils.clip_grad_norm_(group["params"], 1.0)
    optimizer.step()
    if scheduler is not None:
        scheduler.step()


def _print_count(what: str, count: int, total: int) -> None:
    """Print "epochs 6 12 18 ..." on one line: no clock, so the same every time."""
    # Jupyter paints stderr red, as an error; and a widget would be empty when opened again.
    stream = sys.stdout if "ipykernel" in sys.modules else sys.stderr
    if count == 1:
        stream.write(what)
    if count == total or count % -(-total // 10) == 0:
        stream.write(f" {count}\n" if count == total else f" {count}")
        stream.flush()


def _check_examples(where: str, examples: Examples) -> Examples:
    """Return (images, labels) after checking that they belong together."""
    images, labels = examples
    if not len(images) or labels.shape != images.shape[:1] or labels.dtype.is_floating_point:
        raise ValueError(
            f"{where}: examples must be images (b, ...) and integer labels (b,), at least one of "
            f"each, got images.shape={tuple(images.shape)}, labels.shape={tuple(labels.shape)} "
            f"and labels.dtype={labels.dtype}. Pass one class number for each image."
        )
    return images, labels
