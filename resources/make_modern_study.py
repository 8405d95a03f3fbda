"""Replace the parts of a GPT by today's, one at a time, and write down what each changes.

Run it with `make parts`; it writes `modern_study.json`. Two small models are trained, one for the
grammar of chapter 12 and one for digits as pixels (chapter 18): once as GPT-2 has it, once with
each part of chapter 13 in place of the old one, and once with all parts. What a part saves or costs
in parameters, the feed-forward gets or gives, so all models of a task are equally large (to less
than one inner number in each block). Each is trained for equally many steps, and once more for
equally long: where a part makes a step slower or faster on this machine, it gets fewer or more of
them.

Then a decoder with the parts of Llama learns to continue a sequence that repeats a pattern, and is
tested on longer sequences than it was trained on: with the base of its training, and larger ones.

The parts were chosen before the first run, and none was left out afterwards. All learn with the
recipe of `fit_batches`, which was chosen for the model without the parts. It takes about a quarter
of an hour on one core that is free. On another processor the last digits differ, and how many steps
take equally long. Chapter 13 draws the file, and takes the task of words, `train` and `PARTS` from
here.
"""

import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from utils.cache import KeyValueCache
from utils.data import load_digits, load_grammar
from utils.language_model import LanguageModel
from utils.modern_decoder import GatedFeedForward, GroupedQueryAttention, ModernDecoder, RMSNorm
from utils.text import PADDING
from utils.training import fit_batches

TARGET = Path(__file__).with_name("modern_study.json")
SEEDS = (0, 1, 2)
PARTS = ("RMSNorm", "SwiGLU", "rotary", "grouped", "qk-norm", "untied", "no biases")


class StandingAttention(GroupedQueryAttention):
    """Grouped queries that are not rotated, for a model with a position embedding."""

    def forward(
        self,
        x: Tensor,
        attn_mask: Tensor | None = None,
        positions: Tensor | None = None,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        q = self.q_proj(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)  # (b, h, n, d)
        k = self.k_proj(x).unflatten(-1, (self.num_kv_heads, -1)).transpose(1, 2)  # (b, g, n, d)
        v = self.v_proj(x).unflatten(-1, (self.num_kv_heads, -1)).transpose(1, 2)  # (b, g, n, d)
        q, k = self.q_norm(q), self.k_norm(k)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, enable_gqa=True)
        return self.out_proj(rearrange(mixed, "b h n d -> b n (h d)"))


def exchange(model: LanguageModel, parts: set[str], mlp_dim: int, num_kv_heads: int) -> None:
    """Replace the named parts of a GPT by those of chapter 13, in every block."""
    for layer in model.encoder.layers:
        embed_dim, num_heads = layer.attn.embed_dim, layer.attn.num_heads
        if "RMSNorm" in parts:
            layer.norm1, layer.norm2 = RMSNorm(embed_dim), RMSNorm(embed_dim)
        if "SwiGLU" in parts:
            layer.mlp = GatedFeedForward(embed_dim, mlp_dim)
        if parts & {"rotary", "grouped", "qk-norm"}:
            kind = GroupedQueryAttention if "rotary" in parts else StandingAttention
            heads = num_kv_heads if "grouped" in parts else num_heads
            norms = "qk-norm" in parts
            layer.attn = kind(embed_dim, num_heads, heads, bias=True, qk_norm=norms)
            layer.attn.out_proj = nn.Linear(embed_dim, embed_dim)
    if "RMSNorm" in parts:
        model.encoder.norm = RMSNorm(embed_dim)
    if "rotary" in parts:
        model.embedding.positions = None
    if "no biases" in parts:
        for module in model.modules():
            if getattr(module, "bias", None) is not None:
                module.bias = None


@dataclass(frozen=True)
class Task:
    """What is learned, and how large the model for it is.

    Args:
        sizes: arguments of `LanguageModel`.
        num_kv_heads: heads of keys and values where queries are grouped.
        steps: batches of a training.
        draw: makes a batch of ids (b, n + 1) from a generator.
        loss: nats for the model and a batch.
        measure: what is written down, in bits.
    """

    sizes: dict[str, int]
    num_kv_heads: int
    steps: int
    draw: Callable[[torch.Generator], Tensor]
    loss: Callable[[nn.Module, Tensor], Tensor]
    measure: Callable[[nn.Module], float]


def build(task: Task, parts: set[str]) -> LanguageModel:
    """Build the model of a task with some parts exchanged, as large as the one without."""

    def model_with(mlp_dim: int, parts: set[str]) -> LanguageModel:
        sizes = {**task.sizes, "mlp_dim": mlp_dim, "tie_weights": "untied" not in parts}
        model = LanguageModel(**sizes)
        # as in chapter 09, tokens and positions begin with the spread 1, in all models alike
        model.embedding.factor = task.sizes["embed_dim"] ** 0.5
        model.embedding.positions.data *= model.embedding.factor
        exchange(model, parts, mlp_dim, task.num_kv_heads)
        return model

    def count(mlp_dim: int, parts: set[str]) -> int:
        return sum(p.numel() for p in model_with(mlp_dim, parts).parameters())

    wanted = count(task.sizes["mlp_dim"], set())
    each = count(2, parts) - count(1, parts)
    return model_with(1 + round((wanted - count(1, parts)) / each), parts)


def train(task: Task, parts: set[str], seed: int, steps: int) -> float:
    """Train one model and return what the task measures."""
    torch.manual_seed(seed)
    model = build(task, parts)
    fit_batches(model, task.draw, task.loss, steps=steps, seed=seed, progress=False)
    model.eval()
    with torch.no_grad():
        return task.measure(model)


def relative_cost(task: Task, parts: set[str], steps: int = 20) -> float:
    """Return how long a step takes beside one without the parts: the fastest of each."""
    models, fastest = [build(task, set()), build(task, parts)], [math.inf, math.inf]
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        batch = task.draw(generator)
        for number, model in enumerate(models):
            start = time.process_time()
            task.loss(model, batch).backward()
            fastest[number] = min(fastest[number], time.process_time() - start)
    return fastest[1] / fastest[0]


def compare(task: Task) -> dict[str, dict[str, object]]:
    """Train a task without the parts, with each, and with all; return what was measured."""
    measured = {}
    for name in ("GPT-2", *PARTS, "all"):
        parts = set(PARTS) if name == "all" else {name} & set(PARTS)
        cost = relative_cost(task, parts) if parts else 1.0
        fewer = round(task.steps / cost)
        if abs(fewer / task.steps - 1) < 0.02:
            fewer = task.steps  # as long as one can measure
        bits = {
            steps: [round(train(task, parts, seed, steps), 4) for seed in SEEDS]
            for steps in {task.steps, fewer}
        }
        measured[name] = {
            "parameters": sum(p.numel() for p in build(task, parts).parameters()),
            "cost of a step": round(cost, 3),
            "equal steps": bits[task.steps],
            "steps in equal time": fewer,
            "equal time": bits[fewer],
        }
        print(name, json.dumps(measured[name]), flush=True)
    return measured


# --- the two tasks


def next_token_loss(model: nn.Module, ids: Tensor) -> Tensor:
    return F.cross_entropy(model(ids[:, :-1]).mT, ids[:, 1:])


def words() -> Task:
    grammar = load_grammar()
    kept = grammar.sample(300, torch.Generator().manual_seed(99))
    truth = grammar.after(kept[:, :-1])  # (b, n, v)
    real = kept[:, 1:] != PADDING

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        return F.cross_entropy(model(ids[:, :-1]).mT, ids[:, 1:], ignore_index=PADDING)

    def divergence(model: nn.Module) -> float:
        learned = model(kept[:, :-1]).double().log_softmax(dim=-1)
        return F.kl_div(learned[real], truth[real], reduction="batchmean").item() / math.log(2)

    return Task(
        sizes={
            "vocab_size": len(grammar.vocabulary),
            "embed_dim": 48,
            "num_heads": 4,
            "mlp_dim": 192,
            "num_layers": 2,
            "max_length": kept.shape[1],
        },
        num_kv_heads=2,
        steps=500,
        draw=lambda generator: grammar.sample(64, generator),
        loss=loss,
        measure=divergence,
    )


def digits_as_ids() -> tuple[Tensor, Tensor]:
    """Return training and test digits as ids: a word for the digit (17 to 26), then 64 levels."""
    return tuple(
        torch.cat([17 + y[:, None], (x.flatten(1) * 16).round().long()], dim=1)
        for x, y in load_digits()
    )


def pixels() -> Task:
    learned, kept = digits_as_ids()

    def bits(model: nn.Module) -> float:
        return next_token_loss(model, kept).item() / math.log(2)

    return Task(
        sizes={
            "vocab_size": 27,
            "embed_dim": 48,
            "num_heads": 4,
            "mlp_dim": 192,
            "num_layers": 2,
            "max_length": 64,
        },
        num_kv_heads=2,
        steps=300,
        draw=lambda g: learned[torch.randint(len(learned), (32,), generator=g)],
        loss=next_token_loss,
        measure=bits,
    )


# --- longer than trained


def draw_repeats(
    generator: torch.Generator, count: int, length: int, shortest: int, longest: int
) -> tuple[Tensor, Tensor]:
    """Draw sequences of 16 tokens that repeat a pattern, and where the next token is known.

    Args:
        count: number of sequences, b.
        length: tokens of each, n.
        shortest: the shortest pattern that is repeated.
        longest: the longest one.

    Shape:
        texts  (b, n + 1), integers
        known  (b, n), bool: the pattern has repeated for two tokens, so the one after t is known
    """
    size = torch.randint(shortest, longest + 1, (count, 1), generator=generator)
    piece = torch.randint(16, (count, longest), generator=generator)
    places = torch.arange(length + 1)
    return piece.gather(1, places % size), places[1:] >= size + 2


def repeat_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    texts, known = batch
    return F.cross_entropy(model(texts[:, :-1])[known], texts[:, 1:][known])


def repeater(seed: int) -> ModernDecoder:
    """Train a decoder on sequences of 32 tokens, in which patterns of 4 to 16 repeat."""
    torch.manual_seed(seed)
    model = ModernDecoder(
        vocab_size=16, embed_dim=48, num_heads=3, num_kv_heads=3, mlp_dim=96, num_layers=2
    )

    def draw(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return draw_repeats(generator, 32, 32, 4, 16)

    fit_batches(model, draw, repeat_loss, steps=500, learning_rate=5e-3, seed=seed, progress=False)
    return model.eval()


@torch.no_grad()
def accuracy(
    model: ModernDecoder, length: int, pieces: tuple[int, int], factor: float = 1
) -> float:
    """Return the accuracy on the known tokens, with the base rescaled by a factor."""
    texts, known = draw_repeats(torch.Generator().manual_seed(99), 100, length, *pieces)
    trained = [layer.attn.rope_theta for layer in model.layers]
    for layer, base in zip(model.layers, trained, strict=True):
        head_dim = layer.attn.q_proj.out_features // layer.attn.num_heads
        layer.attn.rope_theta = base * factor ** (head_dim / (head_dim - 2))
    right = model(texts[:, :-1]).argmax(dim=-1) == texts[:, 1:]
    for layer, base in zip(model.layers, trained, strict=True):
        layer.attn.rope_theta = base
    return right[known].double().mean().item()


FACTORS = (1, 2, 4, 8, 16, 32, 64)
READ = {
    "32 tokens, patterns of 4 to 16": (32, (4, 16)),
    "128 tokens, patterns of 4 to 16": (128, (4, 16)),
    "128 tokens, patterns of 40 to 60": (128, (40, 60)),
}


def read_longer() -> dict[str, object]:
    """Return the accuracies: one list for each kind of sequence, one row for each seed."""
    models = [repeater(seed) for seed in SEEDS]
    return {
        "factors": FACTORS,
        "accuracy": {
            name: [
                [round(accuracy(model, *text, factor), 4) for factor in FACTORS] for model in models
            ]
            for name, text in READ.items()
        },
    }


def main() -> None:
    """Run all parts of the study, or those that are named, and write the file."""
    study = json.loads(TARGET.read_text()) if TARGET.exists() else {}
    parts = {
        "grammar": lambda: compare(words()),
        "pixels": lambda: compare(pixels()),
        "longer": read_longer,
    }
    for name in sys.argv[1:] or parts:
        study[name] = parts[name]()
        TARGET.write_text(json.dumps({"seeds": SEEDS, **study}, indent=1) + "\n")


if __name__ == "__main__":
    main()
