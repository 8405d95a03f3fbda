"""Mixture of experts: a router sends each token to a few of many feed-forwards (chapter 19)."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from einops import rearrange
from torch import Tensor, nn

from utils.modern_decoder import GatedFeedForward
from utils.validation import (
    check_floating,
    check_ids,
    check_multiple,
    check_number,
    check_positive,
    check_real,
    check_shape,
)


def route(
    logits: Tensor,
    experts_per_token: int,
    *,
    scoring: str = "softmax",
    normalize: bool = True,
    scale: float = 1.0,
    num_groups: int = 1,
    groups_per_token: int = 1,
    balance_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Choose the experts of each token, and by how much the output of each is multiplied.

    >>> route(torch.tensor([[2.0, 1.0, 0.0, 1.5]]), experts_per_token=2)  # softmax of 2.0 and 1.5
    (tensor([[0.6225, 0.3775]]), tensor([[0, 3]]))

    Args:
        logits: of the router.
        experts_per_token: how many experts are chosen, k.
        scoring: "softmax" over all experts (Mixtral), or "sigmoid" of each one (DeepSeek-V3).
        normalize: divide the gates of a token by their sum.
        scale: multiplies the gates after that.
        num_groups: neighbouring experts form groups; the sum of its two best ranks a group.
        groups_per_token: experts are chosen only from this many of the best groups.
        balance_bias: is added to the scores for the choice, but not to the gates.

    Shape:
        logits        (t, x)
        balance_bias  (x,), or None
        gates         (t, k)
        chosen        (t, k), integers

    Raises: ValueError for sizes that leave no choice, another scoring, or a bias of NaN.
    Source: Shazeer et al. 2017, section 2.1; DeepSeek-AI 2024 (DeepSeek-V3), section 2.1.2;
        chapter 19.
    """
    check_shape("route", "logits", logits, "t x", "Flatten the batch first: 'b n x -> (b n) x'.")
    check_positive("route", num_groups=num_groups)
    check_multiple("route", num_experts=logits.shape[1], num_groups=num_groups)
    fix = "There are no more groups to choose."
    check_number("route", "groups_per_token", groups_per_token, 1, num_groups, fix)
    most = logits.shape[1] // num_groups * groups_per_token
    fix = "There are no more experts to choose."
    check_number("route", "experts_per_token", experts_per_token, 1, most, fix)
    check_real("route", "(0, inf)", "Pass scale=1.0 for none.", scale=scale)
    scores = worth = _scores(logits, scoring)
    if balance_bias is not None:
        check_shape("route", "balance_bias", balance_bias, "x", "One each.", x=logits.shape[1])
        if not torch.compiler.is_compiling() and not balance_bias.isfinite().all():
            raise ValueError(
                "route: balance_bias must be finite, got NaN or infinity. Begin with zeros."
            )
        worth = scores + balance_bias
    if groups_per_token < num_groups:
        grouped = rearrange(worth, "t (groups each) -> t groups each", groups=num_groups)
        rank = grouped.topk(min(2, grouped.shape[2])).values.sum(dim=-1)  # (t, groups)
        best = rank.topk(groups_per_token).indices
        out = torch.ones_like(rank, dtype=torch.bool).scatter(1, best, False)
        worth = grouped.masked_fill(out[..., None], -torch.inf).flatten(1)  # (t, x)
    chosen = worth.topk(experts_per_token).indices
    gates = scores.gather(1, chosen)
    if normalize:
        gates = gates / (gates.sum(dim=-1, keepdim=True) + 1e-20)  # sigmoids may all be 0
    return gates * scale, chosen


def expert_load(chosen: Tensor, num_experts: int) -> Tensor:
    """Return for each expert the fraction of tokens that chose it.

    >>> expert_load(torch.tensor([[0, 2], [0, 1]]), num_experts=4)
    tensor([1.0000, 0.5000, 0.5000, 0.0000])

    Args:
        chosen: numbers of the chosen experts.
        num_experts: number of experts, x.

    Shape:
        chosen  (t, k), integers
        result  (x,), its sum is k

    Raises: ValueError for another shape, or other numbers.
    Source: chapter 19.
    """
    check_positive("expert_load", num_experts=num_experts)
    check_shape("expert_load", "chosen", chosen, "t k", "Take the second result of route.")
    check_ids("expert_load", "chosen", chosen, num_experts, "Build it with num_experts={needed}.")
    experts = torch.arange(num_experts, device=chosen.device)
    return (chosen[..., None] == experts).sum(dim=(0, 1)) / chosen.shape[0]


def load_balancing_loss(probabilities: Tensor, chosen: Tensor) -> Tensor:
    """Return a loss that is k when all experts are chosen equally often, and up to x otherwise.

    It is x times the sum, over the experts, of the fraction of tokens that chose an expert and its
    mean probability. Only the probabilities have a gradient: it lowers those of crowded experts.

    >>> load_balancing_loss(torch.full((2, 4), 0.25), torch.tensor([[0, 2], [1, 3]]))
    tensor(2.)

    Args:
        probabilities: of all experts, from the router.
        chosen: numbers of the chosen experts.

    Shape:
        probabilities  (t, x)
        chosen         (t, k), integers
        result         ()

    Raises: ValueError for shapes that do not fit.
    Source: Fedus et al. 2021 (Switch), equations 4 to 6; chapter 19.
    """
    fix = "Take both from one Routing of record_routing."
    check_shape("load_balancing_loss", "probabilities", probabilities, "t x", fix)
    check_floating("load_balancing_loss", "probabilities", probabilities, fix)
    t, x = probabilities.shape
    check_shape("load_balancing_loss", "chosen", chosen, "t k", fix, t=t)
    return x * (expert_load(chosen, x) * probabilities.mean(dim=0)).sum()


class MixtureOfExperts(nn.Module):
    """Let a router choose a few feed-forwards for each token, and add their outputs by its gates.

    The model grows with x, the work of a token with k. How many tokens an expert computes depends
    on the data: while the module is compiled or exported, every expert computes every token, with
    a gate of 0 where it was not chosen.

    >>> MixtureOfExperts(8, 16, num_experts=4, experts_per_token=2)(torch.zeros(2, 5, 8)).shape
    torch.Size([2, 5, 8])

    Args:
        embed_dim: width of a token, e.
        mlp_dim: inner width of one expert, m.
        num_experts: number of experts, x.
        experts_per_token: see `route`.
        num_shared: experts that compute every token, without a gate; they are one feed-forward of
            inner width num_shared * mlp_dim.
        scoring, normalize, scale, num_groups, groups_per_token: see `route`. With "sigmoid" there
            is a buffer `balance_bias`.

    Shape:
        x             (b, n, e)
        result        (b, n, e)
        balance_bias  (x,), or None

    Raises: ValueError for bad sizes, or an input of another width.
    Source: Shazeer et al. 2017; Jiang et al. 2024 (Mixtral), section 2.1; DeepSeek-AI 2024
        (DeepSeek-V3), section 2.1.2; chapter 19.
    """

    balance_bias: Tensor | None

    def __init__(
        self,
        embed_dim: int,
        mlp_dim: int,
        num_experts: int,
        experts_per_token: int,
        *,
        num_shared: int = 0,
        scoring: str = "softmax",
        normalize: bool = True,
        scale: float = 1.0,
        num_groups: int = 1,
        groups_per_token: int = 1,
    ):
        super().__init__()
        check_positive("MixtureOfExperts", embed_dim=embed_dim, num_experts=num_experts)
        check_positive("MixtureOfExperts", least=0, num_shared=num_shared)
        self.embed_dim, self.num_experts = embed_dim, num_experts
        self.choice: dict[str, Any] = {
            "experts_per_token": experts_per_token,
            "scoring": scoring,
            "normalize": normalize,
            "scale": scale,
            "num_groups": num_groups,
            "groups_per_token": groups_per_token,
        }
        route(torch.zeros(1, num_experts), **self.choice)  # refuses what leaves no choice
        self.router = nn.Linear(embed_dim, num_experts, bias=False)
        bias = torch.zeros(num_experts) if scoring == "sigmoid" else None
        self.register_buffer("balance_bias", bias)
        experts = (GatedFeedForward(embed_dim, mlp_dim) for _ in range(num_experts))
        self.experts = nn.ModuleList(experts)
        self.shared = GatedFeedForward(embed_dim, num_shared * mlp_dim) if num_shared else None
        self.routings: list[Routing] | None = None  # set by record_routing

    def forward(self, x: Tensor) -> Tensor:
        fix = f"Tokens have shape (b, n, {self.embed_dim})."
        check_shape("MixtureOfExperts", "x", x, "b n e", fix, e=self.embed_dim)
        tokens = rearrange(x, "b n e -> (b n) e")
        logits = self.router(tokens)  # (t, x)
        gates, chosen = route(logits, **self.choice, balance_bias=self.balance_bias)
        if self.routings is not None:
            scores = _scores(logits, self.choice["scoring"])
            probabilities = scores / scores.sum(dim=-1, keepdim=True)
            self.routings.append(Routing(probabilities, gates, chosen))
        result = torch.zeros_like(tokens)
        if torch.compiler.is_compiling():
            every = gates.new_zeros(logits.shape).scatter(1, chosen, gates)  # (t, x)
            for gate, expert in zip(every.unbind(dim=1), self.experts, strict=True):
                result = result + (gate[:, None] * expert(tokens[None])[0]).to(result)
        else:
            for number, expert in enumerate(self.experts):
                row, slot = torch.where(chosen == number)  # the tokens that chose this expert
                output = gates[row, slot, None] * expert(tokens[row][None])[0]
                result = result.index_add(0, row, output.to(result))
        result = result.view(x.shape)
        return result if self.shared is None else result + self.shared(x)

    @torch.no_grad()
    def update_balance_bias(self, chosen: Tensor, speed: float = 1e-3) -> None:
        """Raise the bias of experts that too few tokens chose (t, k), and lower the others'.

        Called after each training step, it balances the load without a loss on the router.

        Raises: ValueError for a choice of another shape, or without a balance_bias.
        """
        if self.balance_bias is None:
            raise ValueError(
                "MixtureOfExperts: scoring must be 'sigmoid' for a balance_bias, "
                f"got scoring={self.choice['scoring']!r}. Use load_balancing_loss instead."
            )
        check_real("MixtureOfExperts", "[0, inf)", "DeepSeek-V3 has 0.001.", speed=speed)
        load = expert_load(chosen, self.num_experts)
        self.balance_bias += speed * torch.sign(load.mean() - load)


class Routing(NamedTuple):
    """Hold how one call of a `MixtureOfExperts` routed its tokens.

    Args:
        probabilities: of all experts, from the router; sigmoids divided by their sum.
        gates, chosen: see `route`.

    Shape: as `route`; probabilities (t, x).
    Source: chapter 19.
    """

    probabilities: Tensor
    gates: Tensor
    chosen: Tensor


@contextmanager
def record_routing(model: nn.Module) -> Iterator[list[Routing]]:
    """Collect how each `MixtureOfExperts` in `model` routes its tokens, in running order.

    >>> model, x = MixtureOfExperts(8, 16, 4, 2), torch.zeros(1, 5, 8)
    >>> with record_routing(model) as routings:
    ...     output = model(x)
    >>> loss = sum(load_balancing_loss(one.probabilities, one.chosen) for one in routings)

    Args:
        model: any module that holds `MixtureOfExperts` layers.

    Shape:
        routings  one `Routing` for each call of a layer; a loss of them trains the routers

    Raises: ValueError for no such layer in the model.
    Source: chapter 19.
    """
    layers = [module for module in model.modules() if isinstance(module, MixtureOfExperts)]
    if not layers:
        raise ValueError(
            "record_routing: the model must hold a MixtureOfExperts, "
            f"got model={type(model).__name__} without one. Give it one as block.mlp."
        )
    before: list[list[Routing] | None] = [layer.routings for layer in layers]
    routings: list[Routing] = []
    try:
        for layer in layers:
            layer.routings = routings
        yield routings
    finally:
        for layer, old in zip(layers, before, strict=True):
            layer.routings = old


def _scores(logits: Tensor, scoring: str) -> Tensor:
    """Return scores from 0 to 1 (t, x), in float32: half precision would make close ones equal."""
    if scoring not in ("softmax", "sigmoid"):
        raise ValueError(
            f"route: scoring must be 'softmax' or 'sigmoid', got scoring={scoring!r}. "
            "Mixtral has softmax, DeepSeek-V3 sigmoid."
        )
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return logits.softmax(dim=-1) if scoring == "softmax" else logits.sigmoid()
