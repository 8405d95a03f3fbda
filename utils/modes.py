"""Use models in eval mode for a moment, and leave them as they were (chapters 07 and 12)."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(*models: nn.Module) -> Iterator[None]:
    """Put models into eval mode inside a `with`, then every part of them back into its own mode.

    >>> with evaluating(model):
    ...     scores = model(images)  # without dropout

    Args:
        models: in any mode, also with parts in another mode than the whole, such as frozen ones.

    Source: chapter 07.
    """
    modes = {module: module.training for model in models for module in model.modules()}
    for model in models:
        model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
