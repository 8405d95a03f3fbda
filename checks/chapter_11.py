"""Checks of the exercises of chapter 11: decoding, beams, ceilings, training a translator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from checks.engine.answer import Wrong, written
from checks.engine.calls import attempt, naming, run
from checks.engine.cases import Case
from checks.engine.compare import difference, kind
from checks.engine.explain import first_cause
from checks.engine.functions import Trials, same_function
from checks.engine.guesses import same_shape
from checks.engine.message import Message, message
from checks.engine.modules import randomize
from checks.engine.patches import patches
from checks.engine.verdict import exercise, open_exercise
from utils.attention import record_attention
from utils.decoder import Transformer
from utils.text import BEGIN, END, PADDING, SPECIAL, Vocabulary, pad, padding_mask_of_ids

FIRST = len(SPECIAL)  # the first id of a symbol
SOURCES = 32  # of a batch; a power of 2, so that a mean is exact in float32 too
ONE_BLOCK = {"mlp_dim": 21, "num_encoder_layers": 1, "num_decoder_layers": 1, "max_length": 20}
EIGHT = {"gradients": False, "trials": Trials(8)}

# ------------------------------------------------------------------------------------ the shapes


@exercise("11.1", "From text to beam")
def from_text_to_beam(memory_shape, weights_shape, logits_shape, continuations_shape) -> Message:
    written(memory_shape, weights_shape, logits_shape, continuations_shape)
    sizes = {"source_size": 17, "target_size": 13, "embed_dim": 40, "num_heads": 5}
    model = Transformer(**sizes, **ONE_BLOCK)
    source, target = torch.zeros(7, 19, dtype=torch.long), torch.zeros(7, 12, dtype=torch.long)
    with torch.no_grad(), record_attention(model) as maps:
        scores = model(source, target[:, :-1])
        memory = model.encode(source)
    same_shape(memory_shape, memory.shape, "b j e")
    same_shape(weights_shape, maps[2].shape, "b h i j")
    same_shape(logits_shape, scores.shape, "b i v")
    same_shape(continuations_shape, (3, scores.shape[-1]), "w v")
    return message("four-shapes-right")


# ------------------------------------------------------------------------------------ greedy


class Scripted:
    """Return logits whose largest depends on the row and on how many tokens it has."""

    def __init__(self, case: Case):
        self.b, self.steps, self.v = case["b"] + 1, case["t"] + 3, case["v"] + 4
        self.logits = torch.randn(self.steps + 1, self.b, self.v, generator=case.generator)
        self.logits[:, :, END] -= 9.0
        self.logits[self.steps, :, END] = 9.0  # an answer that ignores `steps` ends here
        ends = case.integers("", 1, self.steps - 1)
        for row in range(case["j"] % 2, self.b):  # in half of the cases row 0 does not end in time
            at = (int(ends) + row) % (self.steps - 1) if case["k"] % 2 else row % int(ends + 1)
            self.logits[at, row, END] = 9.0

    def __call__(self, ids: Tensor) -> Tensor:
        return self.logits[min(ids.shape[1] - 1, self.steps)].clone()


def greedy(next_scores: Callable, b: int, steps: int) -> Tensor:
    ids = torch.full((b, 1), BEGIN)
    done = torch.zeros(b, dtype=torch.bool)
    for _ in range(steps):
        chosen = next_scores(ids).argmax(dim=-1)
        following = chosen.masked_fill(done, PADDING)
        done = done | (chosen == END)
        ids = torch.cat([ids, following[:, None]], dim=1)
        if done.all():
            break
    return ids


FILLED = "chosen.masked_fill(done, PADDING)"
GREEDY_MISTAKES = patches(
    greedy,
    {
        "goes-on-after-the-end": (FILLED, "chosen"),
        "end-becomes-padding": (FILLED, "chosen.masked_fill(done | (chosen == END), PADDING)"),
        "filled-with-end": ("PADDING", "END"),
        "done-is-inverted": ("(done, PADDING)", "(~done, PADDING)", "chosen ==", "following =="),
        "does-not-stop": ("done.all()", "False"),
        "does-not-stop-nor-fill": ("done.all()", "False", FILLED, "chosen"),
        "stops-at-the-first-end": ("done.all()", "done.any()"),
        "done-is-forgotten": [
            ("done | (chosen == END)", "chosen == END"),
            ("done | (chosen == END)", "chosen == END", "done.all()", "False"),
        ],
        "goes-past-steps": ("range(steps)", "range(steps + 9)"),
        "stops-one-step-early": ("range(steps)", "range(steps - 1)"),
        "begin-left-out": ("return ids", "return ids[:, 1:]"),
        "begins-with-padding": ("BEGIN", "PADDING"),
        "takes-the-smallest": ("argmax", "argmin"),
    },
)


@exercise("11.2", "Greedy, and stop")
def greedy_and_stop(answer) -> Message:
    def arguments(case: Case) -> tuple[Any, ...]:
        model = Scripted(case)
        return model, model.b, model.steps

    return same_function(answer, greedy, arguments, mistakes=GREEDY_MISTAKES, **EIGHT)


# ------------------------------------------------------------------------------------ one step


def step_of_beam(scores: Tensor, step: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
    longer = (scores[:, None] + step).flatten()
    values, order = longer.sort(descending=True, stable=True)
    values, order = values[:width], order[:width]
    v = step.shape[1]
    return order // v, order % v, values


SUMS = "(scores[:, None] + step).flatten()"
STEP_MISTAKES = patches(
    step_of_beam,
    {
        "last-step-alone": (SUMS, "step.flatten()"),
        "score-of-the-step": ("% v, values", "% v, step.flatten()[order]"),
        "logs-multiplied": ("+ step", "* step"),
        "best-of-each-row": (
            *(SUMS, "(scores[:, None] + step).amax(dim=1)"),
            *("order // v, order % v", "order, step[order].argmax(dim=1)"),
        ),
        "divided-by-w": ("step.shape[1]", "step.shape[0]"),
        "parents-and-tokens-exchanged": ("order // v, order % v", "order % v, order // v"),
        "worst-are-taken": ("descending=True", "descending=False"),
        "worst-first": ("[:width]", "[:width].flip(0)"),
        "probabilities-for-logs": ("% v, values", "% v, values.exp()"),
    },
)


@exercise("11.3", "One step of a beam")
def one_step_of_a_beam(beam_step) -> Message:
    def arguments(case: Case) -> tuple[Tensor, Tensor, int]:
        w = case["w"]
        scores = 2 * case.randn("w").log_softmax(dim=0)
        step = (2 * case.randn("w v")).log_softmax(dim=1)
        return scores, step, case.random.choice((2, w, w + 1))

    options = {"mistakes": STEP_MISTAKES, "loops": "forbidden", **EIGHT}
    compared = same_function(beam_step, step_of_beam, arguments, **options)
    scores, step, _ = arguments(Case(9))
    everything = (scores, step, step.numel() + 3)
    got = naming(run)(beam_step, everything, ["scores", "step", "width"])
    if difference(got, step_of_beam(*everything)):
        raise Wrong("width-beyond-all")
    return compared


# ------------------------------------------------------------------------------------ the ceiling


def drawn_rightly(texts: list[str], answers: list[str]) -> float:
    answered: dict[str, Counter] = {}
    for text, answer in zip(texts, answers, strict=True):
        answered.setdefault(text, Counter())[answer] += 1
    right = 0.0
    for counts in answered.values():
        n = counts.total()
        right += sum(count * count for count in counts.values()) / n
    return right / len(texts)


RIGHT = "sum(count * count for count in counts.values()) / n"
DRAWING_MISTAKES = patches(
    drawn_rightly,
    {
        "most-frequent-not-drawn": (RIGHT, "max(counts.values())"),
        "drawn-uniformly": (RIGHT, "n / len(counts)"),
        "different-texts-once": (RIGHT, f"{RIGHT} / n", "len(texts)", "len(answered)"),
        "text-is-ignored": ("setdefault(text", "setdefault('any'"),
        "share-that-is-wrong": (RIGHT, f"n - {RIGHT}"),
        "divided-by-different-texts": ("len(texts)", "len(answered)"),
        "number-not-share-of-texts": ("right / len(texts)", "right"),
        "percentage-of-texts": ("right / len(texts)", "100 * right / len(texts)"),
        "counts-not-squared": ("count * count", "count", " / n", ""),
        "sure-texts-only": (RIGHT, "n if len(counts) == 1 else 0"),
        "not-divided-by-text": (" / n", ""),
    },
)


@exercise("11.4", "What sampling costs")
def what_sampling_costs(answer) -> Message:
    def arguments(case: Case) -> tuple[list[str], list[str]]:
        count = 12 + case["b"]
        texts = [case.random.choice("abcd") for _ in range(count)]
        answers = [case.random.choice("xyz"[: 1 + (text > "a") + (text > "b")]) for text in texts]
        return texts, answers

    def simulated() -> str | None:
        """Return the cause of results that differ by call, or are nearly correct in all cases."""
        tried = [arguments(Case(seed)) for seed in range(9)]
        first, second = ([attempt(answer, *args) for args in tried] for _ in range(2))
        errors = [got - drawn_rightly(*args) for got, args in zip(first, tried, strict=True)]
        random = first != second or max(map(abs, errors)) < 0.05
        return "simulated-or-rounded" if random else None

    try:
        return same_function(answer, drawn_rightly, arguments, mistakes=DRAWING_MISTAKES)
    except Wrong as wrong:
        if known := wrong.why:
            wrong.why = lambda: first_cause(known, simulated)
        raise


# ------------------------------------------------------------------------------------ the bug


def share_written(model: nn.Module, source: Tensor, target: Tensor) -> float:
    mask = padding_mask_of_ids(source)
    ids = target[:, :1]
    with torch.no_grad():
        memory = model.encode(source, mask)
        for _ in range(target.shape[1] - 1):
            scores = model.decode(ids, memory, mask)[:, -1]
            ids = torch.cat([ids, scores.argmax(dim=-1, keepdim=True)], dim=1)
    return (ids[:, 1:] == target[:, 1:]).double().mean().item()


HANDED_IN = ("decode(ids,", "decode(target[:, : ids.shape[1]],")
NO_MASK = ("padding_mask_of_ids(source)", "None")
SHARE_MISTAKES = patches(
    share_written,
    {
        "right-beginning-is-handed-in": HANDED_IN,
        "right-beginning-without-mask": (*HANDED_IN, *NO_MASK),
        "padding-is-read": [NO_MASK, ("(source, mask)", "(source)"), ("memory, mask", "memory")],
        "last-token-is-read-alone": ("decode(ids,", "decode(ids[:, -1:],"),
        "first-row-is-read": ("[:, -1]", "[:, 0]"),
        "percentage-of-texts": ("return ", "return 100 * "),
        "does-not-start-with-begin": [
            ("target[:, :1]", f"torch.full_like(target[:, :1], {start})") for start in (0, 2)
        ]
        + [("target[:, :1]", "target[:, 1:2]")],
        "begin-is-counted": ("[:, 1:]", ""),
        "whole-answers-counted": (".double()", ".all(dim=1).double()"),
        "last-token-alone": ("[:, 1:]", "[:, -1]"),
        "first-token-alone": ("[:, 1:]", "[:, 1]"),
        "one-place-off": ("ids[:, 1:]", "ids[:, :-1]"),
        "number-of-tokens": [(".double().mean()", ".sum()"), (".mean()", ".sum()")],
        "tokens-that-are-wrong": ("==", "!="),
    },
)


@torch.no_grad()
def generated(model: nn.Module, source: Tensor, steps: int) -> Tensor:
    """Return BEGIN and the ids that a model generates greedily, (b, 1 + steps)."""
    mask = padding_mask_of_ids(source)
    memory = model.encode(source, mask)
    ids = torch.full((len(source), 1), BEGIN)
    for _ in range(steps):
        scores = model.decode(ids, memory, mask)[:, -1]
        ids = torch.cat([ids, scores.argmax(dim=-1, keepdim=True)], dim=1)
    return ids


def model_and_source(case: Case, figures: int) -> tuple[nn.Module, Tensor]:
    """Return a random model for targets of some figures, and padded sources."""
    j = case["j"] + 2
    sizes = {"source_size": 9, "target_size": FIRST + figures, "num_heads": case["h"]}
    model = Transformer(**sizes, embed_dim=4 * case["h"], **ONE_BLOCK).to(case.dtype)
    randomize(model, case["v"]).eval()
    with torch.no_grad():  # large enough that its own tokens decide the next ones
        for parameter in model.parameters():
            parameter *= 3
        model.head.bias[:FIRST] -= 1e4  # it generates no END and no padding
    source = torch.randint(4, 9, (SOURCES, j), generator=case.generator)
    lengths = torch.randint(1, j + 1, (SOURCES, 1), generator=case.generator)
    source[torch.arange(j) >= lengths] = PADDING
    return model, source


def model_and_pairs(case: Case) -> tuple[nn.Module, Tensor, Tensor]:
    """Return a random model, padded sources, and targets that it generates in part."""
    i, figures = 1 + case.random.choice((4, 8)), case["v"] + 1
    model, source = model_and_source(case, figures)
    own = generated(model, source, i - 1)
    changed = torch.rand(own.shape, generator=case.generator) < 0.3
    changed[:, 0] = False
    return model, source, torch.where(changed, FIRST + (own + 1 - FIRST) % figures, own)


@exercise("11.5", "Find the bug")
def find_the_bug(answer) -> Message:
    return same_function(answer, share_written, model_and_pairs, mistakes=SHARE_MISTAKES, **EIGHT)


# ------------------------------------------------------------------------------------ the numbers

READ, ENOUGH = 200, 0.9
DIGITS, PLACES = "일이삼사오육칠팔구", ("천", "백", "십", "")


def loss_of_numbers(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    source, target = batch
    logits = model(source, target[:, :-1], padding_mask_of_ids(source))
    rows, wanted = logits.flatten(0, 1), target[:, 1:].flatten()
    return F.cross_entropy(rows, wanted, ignore_index=PADDING)


LOSS_MISTAKES = patches(
    loss_of_numbers,
    {
        "padding-counts-in-the-loss": (", ignore_index=PADDING", ""),
        "target-is-not-shifted": [("1:]", ":-1]"), (":-1]", ":]", "1:]", ":]")],
        "loss-of-begin-left-out": ("target[:, :-1]", "target[:, 1:]"),
        "padding-is-read": (", padding_mask_of_ids(source)", ""),
        "loss-is-a-sum": ("=PADDING", "=PADDING, reduction='sum'"),
    },
)


def model_and_batch(case: Case) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Return a random model, and a batch of padded sources and targets."""
    figures = case["v"] + 1
    model, source = model_and_source(case, figures)
    target = FIRST + torch.randint(figures, (SOURCES, 6), generator=case.generator)
    target[:, 0] = BEGIN
    target[::2, 3:] = PADDING
    return model, (source, target)


def spelled(number: int) -> str:
    """Return a number below 10,000 in Korean words."""
    said = ""
    for digit, place in zip(f"{number:04}", PLACES, strict=True):
        if digit != "0":
            said += ("" if digit == "1" and place else DIGITS[int(digit) - 1]) + place
    return said or "영"


def held_out() -> list[int]:
    """Return some of the numbers that the exercise holds out."""
    some = torch.randperm(10_000, generator=torch.Generator().manual_seed(11)).tolist()
    return [n for n in some if n % 7 == 3][:READ]


def read_by(read: Callable, model: nn.Module, numbers: Sequence[int], *words: Vocabulary) -> list:
    """Return what the answer reads, after checking that it is a list of the right length."""
    texts = [spelled(number) for number in numbers]
    names = ["model", "texts", "letters", "figures"]
    said = naming(run)(read, (model, texts, *words), names)
    if not isinstance(said, list) or not all(isinstance(one, str) for one in said):
        inside = said[0] if isinstance(said, list) and said else said
        raise Wrong(message("read-returns-texts", got=kind(said), inside=kind(inside)))
    if len(said) != len(texts):
        raise Wrong(message("read-returns-as-many", got=len(said), want=len(texts)))
    return said


def share_of(said: Sequence[str], wanted: Sequence[str]) -> float:
    return sum(one == right for one, right in zip(said, wanted, strict=True)) / len(wanted)


def figures_of(ids: Tensor, figures: Vocabulary) -> list[str]:
    rows = [[*row, END] for row in ids.tolist()]
    return ["".join(figures.decode(row[: row.index(END)])) for row in rows]


class Babbling(nn.Module):
    """Note, as an embedding, which tokens come after END; as a head, predict a figure there."""

    def __init__(self, inside: nn.Module, ended: list[Tensor]):
        super().__init__()
        self.inside, self.ended = inside, ended

    def forward(self, x: Tensor, *start: int) -> Tensor:
        out = self.inside(x, *start)
        if x.is_floating_point():
            rows = out[..., 0].numel() // len(out)
            out[..., FIRST] += 1e6 * self.ended[0][:, -rows:].reshape(out.shape[:-1])
        else:
            self.ended[:] = [(x == END).cumsum(dim=1) > 0]  # (b, i)
        return out


def why_so_few(
    model: nn.Module, said: Sequence[str], wanted: Sequence[str], *words: Vocabulary
) -> Message:
    """Return what is wrong with the model or with the reading."""
    letters, figures = words
    source = pad([letters.encode(spelled(int(number))) for number in wanted])
    ids = generated(model.eval(), source, 5)
    share = share_of(figures_of(ids, figures), wanted)
    if share >= ENOUGH:
        cut = [one[: len(right)] for one, right in zip(said, wanted, strict=True)]
        if share_of(cut, wanted) >= ENOUGH:
            return message("read-goes-on-after-the-end")
        if share_of([one[::-1] for one in said], wanted) >= ENOUGH:
            return message("read-is-turned-round")
        starts = [right[: len(one)] for one, right in zip(said, wanted, strict=True)]
        early = any(said) and share_of(said, starts) >= ENOUGH
        return message("read-stops-too-early" if early else "model-reads-but-read-does-not")
    same = len({tuple(row) for row in ids.tolist()}) < len(wanted) / 10
    return message("model-says-the-same" if same else "model-has-not-learned")


@exercise("11.6", "Korean numbers")
def korean_numbers(number_loss, reader, read, letters, figures) -> Message:
    written(number_loss, reader, read)
    same_function(number_loss, loss_of_numbers, model_and_batch, mistakes=LOSS_MISTAKES, **EIGHT)
    if not isinstance(reader, Transformer):
        raise Wrong(message("reader-is-a-transformer", got=kind(reader)))
    numbers = held_out()
    wanted = [str(number) for number in numbers]
    reader = deepcopy(reader).eval()
    said = read_by(read, reader, numbers, letters, figures)
    share = share_of(said, wanted)
    if share < ENOUGH:
        raise Wrong(
            message("reads-too-few", share=share, want=ENOUGH, count=READ),
            lambda: why_so_few(reader, said, wanted, letters, figures),
        )
    babbler, ended = deepcopy(reader), []
    babbler.target_embedding = Babbling(babbler.target_embedding, ended)
    babbler.head = Babbling(babbler.head, ended)
    few = range(3, 1000, 7)  # at most three figures: room for more after END
    said = read_by(read, reader, few, letters, figures)
    if share_of(read_by(read, babbler, few, letters, figures), said) < 0.5:
        raise Wrong("read-goes-on-after-the-end")
    later = Vocabulary(figures.symbols[FIRST + 1 :] + figures.symbols[FIRST : FIRST + 1])
    if read_by(read, reader, few, letters, later) == said:
        raise Wrong("reads-without-the-model")
    return message("numbers-are-read", count=READ, want=ENOUGH)


open_exercise("11.7", "Which numbers does it miss?")
