"""The factors of the parts of a block, found again among its parameters."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torch import Tensor, nn

from attention_clinic.examine.leaves import Unclear


def kinds_of_factors(
    module: nn.Module, factors: Mapping[str, Tensor], conditioned: Collection[str], parts: int
) -> tuple[list[str], list[str]]:
    """Return the variants that factors are, and what is said of those that are none.

    Args:
        module: the block.
        factors: by which the results of its parts are multiplied.
        conditioned: the norms that a condition scales and shifts.
        parts: how many parts it has.

    Raises:
        Unclear: one is neither a number nor a parameter, and none of a condition.
    """
    kind, found = nn.modules.batchnorm._BatchNorm, []
    numbers: dict[str, float] = {}  # that nobody learns
    norms = [part for part in module.modules() if isinstance(part, kind)]
    fixed = {id(p) for norm in norms for p in norm.parameters()}  # factors of other purpose
    held = [p.detach().flatten() for p in module.parameters() if p.ndim < 4 and id(p) not in fixed]
    for name, factor in factors.items():
        near = [p for p in held if p.numel() == factor.numel()]
        if any((p - factor).abs().max() < 1e-5 for p in near):
            found.append("layer-scale")
        elif any((p.tanh() - factor).abs().max() < 1e-5 for p in near):
            found.append("tanh-gate")
        elif not conditioned and factor.numel() > 1:
            raise Unclear
        elif not conditioned:
            numbers[name] = float(factor)
    if len(numbers) == parts and max(numbers.values()) - min(numbers.values()) < 1e-4:
        return [*found, "scaled-residual"], []
    said = (f"what {name.partition(' ')[2]} returned is multiplied by {number:.4g}, others are not"
            for name, number in numbers.items())  # fmt: skip
    return found, list(said)
