"""Train a classifier and measure it (chapter 07)."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from math import pi

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from utils.shapes import check_positive, check_shape

Examples = tuple[Tensor, Tensor]


@dataclass
class History:
    """What `fit` measured, one number for each epoch.

    Args:
        loss: mean training loss, in nats.
        accuracy: share of the test examples that are classified correctly, 0 to 1.

    Source: chapter 07.
    """

    loss: list[float] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)


@torch.no_grad()
def predict(model: nn.Module, images: Tensor, batch_size: int = 512) -> Tensor:
    """Return the scores of the model for all images, in eval mode and batch by batch.

    The model's mode is put back afterwards.

    Args:
        model: maps (b, ...) to (b, k).
        images: the inputs.
        batch_size: how many at a time.

    Shape:
        images  (b, ...)
        result  (b, k)

    Raises:
        ValueError: no images, or a batch_size below 1.

    Source: chapter 07.
    """
    check_positive("predict", batch_size=batch_size)
    if not len(images):
        raise ValueError(
            f"predict: there must be at least one image, got images.shape={tuple(images.shape)}. "
            "Check the selection that made them."
        )
    modes = {module: module.training for module in model.modules()}
    device = next((parameter.device for parameter in model.parameters()), images.device)
    model.eval()
    try:
        return torch.cat([model(part.to(device)) for part in images.split(batch_size)])
    finally:
        for module, mode in modes.items():
            module.training = mode


def accuracy(model: nn.Module, examples: Examples, batch_size: int = 512) -> float:
    """Return the share of examples, 0 to 1, whose largest score is at the right class.

    Args:
        model: maps (b, ...) to (b, k).
        examples: (images, labels).
        batch_size: how many at a time.

    Shape:
        images  (b, ...)
        labels  (b,), integers

    Raises:
        ValueError: no examples, or not one label for each image.

    Source: chapter 07.
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
    """Shift, turn and zoom each image a little, each by its own random amount.

    Args:
        images: the images.
        generator: a CPU generator, so that a seed gives the same pictures on every device.
        shift: largest shift, in pixels.
        degrees: largest turn, in degrees.
        zoom: largest relative change of size.

    Shape:
        images  (b, c, H, W)
        result  (b, c, H, W)

    Raises:
        ValueError: images of another rank.

    Source: chapter 07.
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
    """Train a classifier with AdamW and a one-cycle learning rate, and count the epochs aloud.

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
        label_smoothing: share of each target that is spread over all classes.
        warm_up: share of the steps in which the learning rate rises, before it falls; 0, or no
            more than one step, keeps it constant.
        schedule: the learning rate as a share of the highest, for the share of all steps that
            are done, from 0 up to 1; None: the one cycle of `warm_up`, which it replaces.
        change: makes a changed copy of each batch, such as `augment`; None leaves it as it is.
        seed: of the order and of `change`; the weights' own start is the caller's.
        measure_every: measure `test` after every so many epochs; None: only after the last.
        progress: write the number of about every tenth epoch; in Jupyter the line is stored with
            the notebook, elsewhere it goes to stderr.

    Shape:
        images  (b, ...)
        labels  (b,), integers

    Returns:
        A `History`: the loss of every epoch, the accuracy of every measurement.

    Raises:
        ValueError: no examples, not one label for each image, an epoch or batch below 1, or a
            warm_up outside [0, 1).

    Source: chapter 07; Loshchilov and Hutter 2019 (AdamW), Smith and Topin 2018 (one cycle).
    """
    check_positive("fit", epochs=epochs, batch_size=batch_size)
    if not 0 <= warm_up < 1:
        raise ValueError(
            "fit: warm_up must be a share from 0 up to, not including, 1, "
            f"got warm_up={warm_up}. Pass for example warm_up=0.15."
        )
    images, labels = _check_examples("fit", train)
    _check_examples("fit", test)
    device = next(model.parameters()).device
    images, labels = images.to(device), labels.to(device)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=weight_decay)
    steps = epochs * -(-len(images) // batch_size)
    scheduler = None
    if schedule is not None:
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: schedule(step / steps)
        )
    elif warm_up * steps > 1:
        scheduler = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=learning_rate, total_steps=steps, pct_start=warm_up
        )
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
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
            total += loss.item() * len(chosen)
        history.loss.append(total / len(images))
        if epoch == epochs or (measure_every and epoch % measure_every == 0):
            history.accuracy.append(accuracy(model, test))
        if progress:
            _count_aloud(epoch, epochs)
    model.eval()
    return history


def _count_aloud(epoch: int, epochs: int) -> None:
    """Write "epochs 6 12 18 ..." on one line while they pass: no clock, so the same every time."""
    # Jupyter paints stderr red, as an error; and a widget would be empty when opened again.
    stream = sys.stdout if "ipykernel" in sys.modules else sys.stderr
    if epoch == 1:
        stream.write("epochs")
    if epoch == epochs or epoch % -(-epochs // 10) == 0:
        stream.write(f" {epoch}\n" if epoch == epochs else f" {epoch}")
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
