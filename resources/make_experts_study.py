"""Train mixtures of experts beside dense models, and decoders with windows, and write down both.

Run it with `.venv/bin/python resources/make_experts_study.py`, or name parts of it: grammar, pixels
or windows. It writes `experts_study.json`. Grammar and pixels are the two tasks of chapters 12 and
13, each learned by five decoders that differ only in their feed-forward:

    dense, equal active   as many parameters as one token uses in the mixtures
    dense, equal total    as many as the mixtures have
    no balancing          8 experts, 2 for each token, and only the loss of the task
    balanced by a loss    the same, with the load-balancing loss of Switch Transformer, times 0.01
    balanced by a bias    the same, with the bias of DeepSeek-V3, moved by 0.01 after each step

The windows: decoders of two blocks learn the rules of chapter 14, in which a letter's digit has to
be found in an earlier example, with a window of 6 tokens in no block, in the first, the second, or
both.

All models, sizes and both rates were chosen before the first run, and none was left out afterwards.
Every model is trained with three seeds. It takes about a quarter of an hour on one core that is
free. On another processor the last digits differ. Chapter 19 draws the file.
"""

import json
import sys
from functools import partial
from pathlib import Path
from runpy import run_path
from typing import Any

import torch
import torch.nn.functional as F
from einops import einsum
from torch import Tensor, nn

from utils.data import rule_sequences
from utils.masking import causal_mask
from utils.modern_decoder import ModernDecoder
from utils.text import PADDING
from utils.training import fit_batches

TARGET = Path(__file__).with_name("experts_study.json")
SEEDS = (0, 1, 2)
EXPERTS, CHOSEN, MLP_DIM = 8, 2, 16
DENSE = {"dense, equal active": CHOSEN, "dense, equal total": EXPERTS}  # experts' worth of numbers
MIXTURES = ("no balancing", "balanced by a loss", "balanced by a bias")
LOSS_WEIGHT, BIAS_STEP = 0.01, 0.01
WINDOW = 6
LAYOUTS = {
    "no window": (None, None),
    "window in block 0": (WINDOW, None),
    "window in block 1": (None, WINDOW),
    "window in both": (WINDOW, WINDOW),
}


class StackedExperts(nn.Module):
    """A mixture of experts that computes all experts for all tokens, with gate 0 where unchosen.

    It gives what a mixture gives that sends tokens to their experts, and while experts are as small
    as here it is faster.
    """

    def __init__(self, embed_dim: int, mlp_dim: int, num_experts: int, experts_per_token: int):
        super().__init__()
        self.experts_per_token = experts_per_token
        self.router = nn.Linear(embed_dim, num_experts, bias=False)
        shapes = (num_experts, embed_dim, 2 * mlp_dim), (num_experts, mlp_dim, embed_dim)
        self.up, self.down = (
            nn.Parameter(torch.empty(shape).uniform_(-1, 1) * shape[1] ** -0.5) for shape in shapes
        )
        self.register_buffer("balance_bias", torch.zeros(num_experts))

    def forward(self, x: Tensor) -> Tensor:
        probabilities = self.router(x).softmax(dim=-1)  # (b, n, x)
        chosen = (probabilities + self.balance_bias).topk(self.experts_per_token).indices
        gates = probabilities.gather(-1, chosen)
        gates = gates / gates.sum(dim=-1, keepdim=True)
        self.seen = probabilities, chosen
        spread = torch.zeros_like(probabilities).scatter(-1, chosen, gates)
        gate, value = einsum(x, self.up, "b n e, x e m -> b n x m").chunk(2, dim=-1)
        return einsum(F.silu(gate) * value, self.down, spread, "b n x m, x m e, b n x -> b n e")


def fractions(layer: StackedExperts, real: Tensor) -> Tensor:
    """Return the fraction of choices of the real tokens (b, n) that each expert got: (x,)."""
    chosen = layer.seen[1][real]  # (t, k)
    return torch.bincount(chosen.flatten(), minlength=EXPERTS) / chosen.numel()


def balancing_loss(layer: StackedExperts, real: Tensor) -> Tensor:
    """Return x times the sum over experts of fraction times mean probability: k if all are equal.

    The fractions are those of tokens, which sum to k, as in `transformers`.
    """
    of_tokens = CHOSEN * fractions(layer, real)
    return EXPERTS * (of_tokens * layer.seen[0][real].mean(dim=0)).sum()


def build(sizes: dict[str, int], kind: str) -> ModernDecoder:
    """Build a decoder with the feed-forward of a kind: dense, or a mixture of experts."""
    inner = DENSE.get(kind, EXPERTS) * MLP_DIM + round(EXPERTS / 3)  # a router has e * x numbers
    model = ModernDecoder(
        vocab_size=sizes["vocab_size"],
        embed_dim=sizes["embed_dim"],
        num_heads=sizes["num_heads"],
        num_kv_heads=sizes["num_heads"],
        mlp_dim=inner,
        num_layers=sizes["num_layers"],
    )
    if kind in MIXTURES:
        for layer in model.layers:
            layer.mlp = StackedExperts(sizes["embed_dim"], MLP_DIM, EXPERTS, CHOSEN)
    return model


def is_real(ids: Tensor, padded: bool) -> Tensor:
    return ids != PADDING if padded else torch.ones_like(ids, dtype=torch.bool)


def train(task: Any, kind: str, seed: int, padded: bool) -> tuple[nn.Module, float]:
    """Train one model; return it and what the task measures."""
    torch.manual_seed(seed)
    model = build(task.sizes, kind)
    mixtures = [layer.mlp for layer in model.layers if isinstance(layer.mlp, StackedExperts)]

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        value = task.loss(model, ids)
        real = is_real(ids[:, :-1], padded)
        if kind == "balanced by a loss":
            value = value + LOSS_WEIGHT * sum(balancing_loss(m, real) for m in mixtures)
        if kind == "balanced by a bias":
            for mixture in mixtures:  # up where an expert got less than its part, down where more
                mixture.balance_bias += BIAS_STEP * (1 / EXPERTS - fractions(mixture, real)).sign()
        return value

    fit_batches(model, task.draw, loss, steps=task.steps, seed=seed, progress=False)
    with torch.no_grad():
        return model, task.measure(model)


def count(model: nn.Module) -> dict[str, int]:
    """Return how many parameters there are, and how many of them one token uses."""
    total = sum(p.numel() for p in model.parameters())
    idle = sum(
        (EXPERTS - CHOSEN) * (m.up[0].numel() + m.down[0].numel())
        for m in model.modules()
        if isinstance(m, StackedExperts)
    )
    return {"parameters": total, "active": total - idle}


def compare(task: Any, padded: bool, kept: Tensor) -> dict[str, dict[str, object]]:
    """Train all five kinds; return sizes, bits, and the fractions (layers, experts) by seed."""
    measured = {}
    real = is_real(kept[:, :-1], padded)
    for kind in (*DENSE, *MIXTURES):
        bits, loads = [], []
        for seed in SEEDS:
            model, value = train(task, kind, seed, padded)
            bits.append(round(value, 4))
            with torch.no_grad():
                model(kept[:, :-1])
            mixtures = [m for m in model.modules() if isinstance(m, StackedExperts)]
            loads.append([[round(f, 4) for f in fractions(m, real).tolist()] for m in mixtures])
        measured[kind] = {**count(model), "bits": bits}
        if kind in MIXTURES:
            measured[kind]["fractions"] = loads
        print(kind, json.dumps(measured[kind]), flush=True)
    return measured


# --- windows


class WindowedDecoder(ModernDecoder):
    """A decoder in which each block may have a window of its own.

    Args:
        windows: for each block, how many tokens one may attend to, itself included; None: all.
    """

    def __init__(self, windows: tuple[int | None, ...], **sizes: int):
        super().__init__(num_layers=len(windows), **sizes)
        self.windows = windows

    def forward(self, ids: Tensor) -> Tensor:
        x, positions = self.embedding(ids), torch.arange(ids.shape[1])
        for layer, window in zip(self.layers, self.windows, strict=True):
            mask = causal_mask(ids.shape[1])
            mask = mask if window is None else mask.triu(1 - window)
            x = layer(x, mask, positions)
        return self.head(self.norm(x))


def rule_loss(model: nn.Module, ids: Tensor) -> Tensor:
    return F.cross_entropy(model(ids[:, :-1])[:, ::2].mT, ids[:, 1::2])


def examples_back(ids: Tensor) -> Tensor:
    """Return how many examples ago each letter (b, examples) was there last; 0: never."""
    letters = ids[:, ::2]
    same = (letters[:, :, None] == letters[:, None]).tril(-1)
    last = (same * torch.arange(1, letters.shape[1] + 1)).amax(dim=-1)  # 1 + its number, or 0
    return torch.where(last > 0, torch.arange(1, letters.shape[1] + 1) - last, 0)


def read_windows() -> dict[str, object]:
    """Return the accuracy by how many examples ago a letter was there, for layouts and seeds."""
    kept = rule_sequences(2000, torch.Generator().manual_seed(99))
    back, accuracy = examples_back(kept), {}
    for name, windows in LAYOUTS.items():
        accuracy[name] = []
        for seed in SEEDS:
            torch.manual_seed(seed)
            model = WindowedDecoder(
                windows, vocab_size=12, embed_dim=32, num_heads=2, num_kv_heads=2, mlp_dim=64
            )
            draw = partial(rule_sequences, 64)
            options = {"learning_rate": 5e-3, "seed": seed, "progress": False}
            fit_batches(model, draw, rule_loss, steps=800, **options)
            with torch.no_grad():
                right = model(kept[:, :-1])[:, ::2].argmax(dim=-1) == kept[:, 1::2]
            by_distance = [right[back == d].double().mean().item() for d in range(9)]
            accuracy[name].append([round(a, 4) for a in by_distance])
        print(name, json.dumps(accuracy[name]), flush=True)
    return {"window": WINDOW, "accuracy": accuracy}


def main() -> None:
    """Run all parts of the study, or those that are named, and write the file."""
    modern = run_path(str(Path(__file__).with_name("make_modern_study.py")))
    study = json.loads(TARGET.read_text()) if TARGET.exists() else {}
    words, pixels = modern["words"](), modern["pixels"]()
    kept_words = modern["load_grammar"]().sample(300, torch.Generator().manual_seed(99))
    parts = {
        "grammar": lambda: compare(words, True, kept_words),
        "pixels": lambda: compare(pixels, False, modern["digits_as_ids"]()[1]),
        "windows": read_windows,
    }
    for name in sys.argv[1:] or parts:
        study[name] = parts[name]()
        TARGET.write_text(json.dumps({"seeds": SEEDS, **study}, indent=1) + "\n")


if __name__ == "__main__":
    main()
