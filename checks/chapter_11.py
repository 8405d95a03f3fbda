"""Checks of the exercises of chapter 11: decoding, beams, ceilings, your own translator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from checks.engine.answer import NotYet, Wrong, written
from checks.engine.calls import naming, run
from checks.engine.cases import Case
from checks.engine.compare import difference, kind
from checks.engine.functions import Trials, same_function
from checks.engine.guesses import same_shape
from checks.engine.message import Message, message
from checks.engine.modules import randomise
from checks.engine.patches import patches
from checks.engine.verdict import exercise, open_exercise
from utils.attention import record_attention
from utils.decoder import Transformer
from utils.text import BEGIN, END, PADDING, Vocabulary, padding_mask_of_ids

# ------------------------------------------------------------------------------------ the shapes


@exercise("11.1", "From text to beam")
def from_text_to_beam(memory_shape, weights_shape, scores_shape, continuations_shape) -> Message:
    written(memory_shape, weights_shape, scores_shape, continuations_shape)
    model = Transformer(
        source_size=17,
        target_size=13,
        embed_dim=40,
        num_heads=5,
        mlp_dim=21,
        num_encoder_layers=1,
        num_decoder_layers=1,
        max_length=19,
    )
    source, target = torch.zeros(7, 19, dtype=torch.long), torch.zeros(7, 12, dtype=torch.long)
    with torch.no_grad(), record_attention(model) as maps:
        scores = model(source, target[:, :-1])
        memory = model.encode(source)
    same_shape(memory_shape, memory.shape, "b j e")
    same_shape(weights_shape, maps[2].shape, "b h i j")
    same_shape(scores_shape, scores.shape, "b i v")
    same_shape(continuations_shape, (3, scores.shape[-1]), "w v")
    return message("four-shapes-right")


# ------------------------------------------------------------------------------------ greedy


class Scripted:
    """Give logits whose largest depends on the row and on the number of tokens so far."""

    def __init__(self, case: Case):
        self.b, self.steps, self.v = case["b"] + 1, case["t"] + 3, case["v"] + 4
        self.scores = torch.randn(self.steps, self.b, self.v, generator=case.generator)
        self.scores[:, :, END] -= 9.0
        ends = case.integers("", 1, self.steps - 1)  # the last row to end, or none
        for row in range(self.b):
            at = (int(ends) + row) % (self.steps - 1) if case["k"] % 2 else row % int(ends + 1)
            self.scores[at, row, END] = 9.0

    def __call__(self, ids: Tensor) -> Tensor:
        return self.scores[ids.shape[1] - 1].clone()


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
        "does-not-stop": ("done.all()", "False"),
        "does-not-stop-nor-fill": ("done.all()", "False", FILLED, "chosen"),
        "stops-at-the-first-end": ("done.all()", "done.any()"),
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

    return same_function(
        answer,
        greedy,
        arguments,
        mistakes=GREEDY_MISTAKES,
        gradients=False,
        trials=Trials(8),
    )


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

    compared = same_function(
        beam_step,
        step_of_beam,
        arguments,
        mistakes=STEP_MISTAKES,
        loops="forbidden",
        gradients=False,
        trials=Trials(8),
    )
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
        "number-not-share-of-texts": ("right / len(texts)", "right"),
        "percentage-of-texts": ("right / len(texts)", "100 * right / len(texts)"),
        "counts-not-squared": ("count * count", "count", " / n", ""),
        "sure-texts-only": (RIGHT, "n if len(counts) == 1 else 0"),
        "not-divided-by-text": (" / n", ""),
    },
)


@exercise("11.4", "What drawing costs")
def what_drawing_costs(right_by_drawing) -> Message:
    def arguments(case: Case) -> tuple[list[str], list[str]]:
        count = 12 + case["b"]
        texts = [case.random.choice("abcd") for _ in range(count)]
        answers = [case.random.choice("xyz"[: 1 + (text > "a") + (text > "b")]) for text in texts]
        return texts, answers

    return same_function(right_by_drawing, drawn_rightly, arguments, mistakes=DRAWING_MISTAKES)


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


HANDED_IN = (
    "model.decode(ids, memory, mask)",
    "model.decode(target[:, : ids.shape[1]], memory, mask)",
)
NO_MASK = ("padding_mask_of_ids(source)", "None")
SHARE_MISTAKES = patches(
    share_written,
    {
        "right-beginning-is-handed-in": HANDED_IN,
        "right-beginning-without-mask": (*HANDED_IN, *NO_MASK),
        "padding-is-read": NO_MASK,
        "begin-is-counted": ("[:, 1:]", ""),
        "whole-answers-counted": (".double()", ".all(dim=1).double()"),
        "last-token-alone": ("[:, 1:]", "[:, -1]"),
        "first-token-alone": ("[:, 1:]", "[:, 1]"),
        "one-place-off": ("ids[:, 1:]", "ids[:, :-1]"),
        "number-of-tokens": [(".double().mean()", ".sum()"), (".mean()", ".sum()")],
        "tokens-that-are-wrong": ("==", "!="),
    },
)


def model_and_pairs(case: Case) -> tuple[nn.Module, Tensor, Tensor]:
    """A model with random weights, padded sources, and targets that it generates in part."""
    b, j, i = case["b"] + 20, case["j"] + 2, case["i"] + 3
    model = Transformer(
        source_size=9,
        target_size=case["v"] + 5,
        embed_dim=2 * case["h"] * 2,
        num_heads=case["h"],
        mlp_dim=12,
        num_encoder_layers=1,
        num_decoder_layers=1,
        max_length=j + i,
    ).to(case.dtype)
    randomise(model, case["v"]).eval()
    with torch.no_grad():  # large enough that the tokens so far decide the next one
        for parameter in model.parameters():
            parameter *= 3
    source = torch.randint(4, 9, (b, j), generator=case.generator)
    lengths = torch.randint(1, j + 1, (b, 1), generator=case.generator)
    source[torch.arange(j) >= lengths] = PADDING
    own = torch.full((b, 1), BEGIN)
    mask = padding_mask_of_ids(source)
    with torch.no_grad():
        for _ in range(i - 1):
            scores = model(source, own, mask)[:, -1]
            own = torch.cat([own, scores.argmax(dim=-1, keepdim=True)], dim=1)
    changed = torch.rand(own.shape, generator=case.generator) < 0.3
    changed[:, 0] = False
    return model, source, torch.where(changed, (own + 1) % (case["v"] + 5), own)


@exercise("11.5", "Find the bug")
def find_the_bug(share_right) -> Message:
    return same_function(
        share_right,
        share_written,
        model_and_pairs,
        mistakes=SHARE_MISTAKES,
        gradients=False,
        trials=Trials(6),
    )


# ------------------------------------------------------------------------------------ the numbers

READ, ENOUGH, BY_CHANCE = 200, 0.9, 0.5
DIGITS, PLACES = "일이삼사오육칠팔구", ("천", "백", "십", "")


def spelled(number: int) -> str:
    """Say a number below 10,000 in Korean words."""
    said = ""
    for digit, place in zip(f"{number:04}", PLACES, strict=True):
        if digit != "0":
            said += ("" if digit == "1" and place else DIGITS[int(digit) - 1]) + place
    return said or "영"


def held_out() -> list[int]:
    """Numbers that are not in the training data of this exercise."""
    generator = torch.Generator().manual_seed(11)
    some = torch.randperm(10_000, generator=generator).tolist()
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


@torch.no_grad()
def read_rightly(model: nn.Module, texts: Sequence[str], letters: Vocabulary) -> Tensor | None:
    """What the model generates when it is used correctly, ids (b, 6); None where it cannot."""
    longest = max(map(len, texts))
    rows = [letters.encode(text) for text in texts]
    source = torch.tensor([row + [PADDING] * (longest - len(row)) for row in rows])
    mask = padding_mask_of_ids(source)
    memory = model.encode(source, mask)
    ids = torch.full((len(texts), 1), BEGIN)
    for _ in range(5):
        scores = model.decode(ids, memory, mask)[:, -1]
        ids = torch.cat([ids, scores.argmax(dim=-1, keepdim=True)], dim=1)
    return ids


def figures_of(ids: Tensor, figures: Vocabulary) -> list[str]:
    rows = [[*row, END] for row in ids.tolist()]
    return ["".join(figures.decode(row[: row.index(END)])) for row in rows]


class Prompter(nn.Module):
    """Generate every number correctly, then noise after its END."""

    said = "model-that-writes-on"

    def __init__(self, letters: Vocabulary, figures: Vocabulary):
        super().__init__()
        self.letters, self.figures = letters, figures
        self.numbers = {spelled(number): str(number) for number in range(10_000)}

    def encode(self, source: Tensor, source_mask: Tensor | None = None) -> Tensor:
        return source

    def decode(self, target: Tensor, memory: Tensor, source_mask: Tensor | None = None) -> Tensor:
        b, i = target.shape
        scores = torch.zeros(b, i, len(self.figures))
        for row, source in enumerate(memory):
            number = self.numbers["".join(self.letters.decode(source))]
            right = [*self.figures.encode(number), END, *self.figures.encode("1234567")]
            scores[row, torch.arange(i), torch.tensor(right[:i])] = 1.0
        return scores

    def forward(self, source: Tensor, target: Tensor, source_mask: Tensor | None = None) -> Tensor:
        return self.decode(target, self.encode(source, source_mask), source_mask)


def why_so_few(
    model: nn.Module, said: Sequence[str], wanted: Sequence[str], *words: Vocabulary
) -> Message | None:
    """Say whether the model or the reading is at fault, and how."""
    letters, figures = words
    texts = [spelled(int(number)) for number in wanted]
    model.eval()
    ids = read_rightly(model, texts, letters)
    share = share_of(figures_of(ids, figures), wanted)
    if share >= ENOUGH:
        cut = [one[: len(right)] for one, right in zip(said, wanted, strict=True)]
        if share_of(cut, wanted) >= ENOUGH:
            return message("read-goes-on-after-the-end")
        if share_of([one[::-1] for one in said], wanted) >= ENOUGH:
            return message("read-is-turned-round")
        if max(map(len, said)) < 4:
            return message("read-stops-too-early")
        return message("model-reads-but-read-does-not")
    if (ids == BEGIN).all(dim=1).double().mean() > 0.5:
        return message("model-copies")
    if len({tuple(row) for row in ids.tolist()}) < len(wanted) / 10:
        return message("model-says-the-same")
    return message("model-has-not-learned")


@exercise("11.6", "Korean numbers")
def korean_numbers(reader, read, letters, figures) -> Message:
    written(reader, read)
    if not isinstance(reader, nn.Module):
        raise Wrong(message("reader-is-a-module", got=kind(reader)))
    if not any(True for _ in reader.parameters()):
        raise NotYet(message("reader-has-nothing-learned"))
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
    few = numbers[:20]
    if read_by(read, Prompter(letters, figures), few, letters, figures) != wanted[:20]:
        raise Wrong("read-goes-on-after-the-end")
    blank = randomise(deepcopy(reader), 0).eval()
    if share_of(read_by(read, blank, numbers, letters, figures), wanted) > BY_CHANCE:
        raise Wrong("reads-without-the-model")
    return message("numbers-are-read", count=READ, want=ENOUGH)


open_exercise("11.7", "Which numbers does it miss?")
