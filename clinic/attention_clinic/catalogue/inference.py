"""What loading weights, and later calls with a cache, get wrong.

A bug of loading is undone: its function yields changes of the values of my model, given possible
numbers of heads. Layers are found by the shapes of their tensors.

A form of caching changes the calls of a plan, which is put into the model's own run on the whole
sequence: wherever scores are made or values are summed, the rows of new tokens are replaced by what
the plan says. One more sequence for each call has its tokens at other positions; both copies of a
token get the same result from every attention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, permutations
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from attention_clinic.capture.tape import TorchDispatchMode
from attention_clinic.catalogue.forms import Form, State, Step, bug

Values = Mapping[str, Tensor]
Changes = Iterator[tuple[str, dict[str, Tensor]]]  # what is said, and the values that change
MASKED = -1e6  # scores below are those of masked keys
ATEN = torch.ops.aten


def kind(name: str) -> str:
    """Return the name of a tensor without the number of its layer: layers.*.attn.q_proj.weight."""
    return ".".join("*" if word.isdigit() else word for word in name.split("."))


def parts(names: Iterable[str]) -> dict[str, dict[str, list[str]]]:
    """Return the kinds of tensors of every part: layers.*.attn.q_proj -> weight, bias -> names."""
    found: dict[str, dict[str, list[str]]] = {}
    for name in names:
        part, _, leaf = kind(name).rpartition(".")
        found.setdefault(part, {}).setdefault(leaf, []).append(name)
    return found


def by_kind(names: Iterable[str]) -> list[list[str]]:
    """Return the tensors of each kind, layer by layer."""
    return [own for leaves in parts(names).values() for own in leaves.values()]


def siblings(values: Values, count: int) -> Iterator[tuple[str, ...]]:
    """Yield some of the first three parts of one parent with the same leaves and one width."""
    groups: dict[object, list[str]] = {}
    for part, leaves in parts(values).items():
        widths = [values[own[0]].shape[1] for own in leaves.values() if values[own[0]].ndim == 2]
        if len(widths) == 1:
            groups.setdefault((part.rpartition(".")[0], *widths, *leaves), []).append(part)
    return (chosen for group in groups.values() for chosen in combinations(group[:3], count))


def laid(before: str, after: str, **sizes: int) -> Callable[[Tensor], Tensor]:
    """Return a change of the order of rows, given as axes of einops."""
    return lambda t: rearrange(t, f"({before}) ... -> ({after}) ...", **sizes)


bug("""loading-transposed, chapter 15
holds transposed matrices: rows and columns are swapped, and being square they fit
Fix: transpose them where they are loaded, by what the layer is (nn.Linear keeps (out, in), Conv1D
of GPT-2 (in, out)), never by whether the shape fits.
Seen: vllm-project/vllm#44113; lablup/mlxcel#926; nntile/nntile#402""")


def transposed(mine: Values, heads: list[int]) -> Changes:
    """Yield the square matrices of one kind, and all of them."""
    groups = by_kind(n for n, t in mine.items() if t.ndim == 2 and t.shape[0] == t.shape[1])
    for names in (*groups, [*chain(*groups)]):
        yield ", ".join(dict.fromkeys(map(kind, names))), {name: mine[name].T for name in names}


bug("""loading-packed, chapter 15
cuts packed weights in a different order than they were packed: per head, or other thirds
Fix: find out how theirs are laid out, "(k h d)" or "(h k d)", and rearrange the rows: rearrange(w,
"(h k d) e -> (k h d) e", k=3, h=num_heads).
Seen: sgl-project/sglang#40127; sgl-project/sglang#24321; huggingface/transformers#40253;
huggingface/transformers#21519; awslabs/slapo#46""")


def packed(mine: Values, heads: list[int]) -> Changes:
    """Yield other orders of the thirds of one matrix, and of three cut from one by head."""
    for part, leaves in parts(mine).items():
        names = list(chain(*leaves.values()))
        if any(mine[n].ndim == 2 and len(mine[n]) == 3 * mine[n].shape[1] for n in names):
            for h in (h for h in heads if len(mine[names[0]]) % (3 * h) == 0):
                for before, after in permutations(("h k d", "k h d")):
                    change = laid(before, after, k=3, h=h)
                    said = f"{part}: ({before}) instead of ({after})"
                    yield said, {name: change(mine[name]) for name in names}
    for three in siblings(mine, 3):
        triples = [*zip(*(chain(*parts(mine)[part].values()) for part in three), strict=True)]
        rows = {len(mine[name]) for names in triples for name in names}
        for h in (h for h in heads if len(rows) == 1 and max(rows) % h == 0):
            wholes = (torch.cat([mine[name] for name in names]) for names in triples)
            cut = [rearrange(t, "(h k d) ... -> k (h d) ...", k=3, h=h) for t in wholes]
            said = "theirs packs queries, keys and values head by head"
            yield said, dict(zip(chain(*triples), chain(*cut), strict=True))


def rotated(mine: Values, heads: list[int]) -> Changes:
    """Yield queries and keys whose rows rotate in other pairs."""
    found = parts(mine)
    for two in siblings(mine, 2):
        names = [name for part in two for name in chain(*found[part].values())]
        rows = [len(mine[name]) for name in names]
        for pairs in (max(rows) // h // 2 for h in heads):
            for before, after, said in (
                ("p s", "s p", "yours are neighbours, and your model rotates halves"),
                ("s p", "p s", "yours are halves, and your model rotates neighbours"),
            ):
                if pairs and not any(size % (2 * pairs) for size in rows):
                    change = laid(f"h {before}", f"h {after}", s=2, p=pairs)
                    yield said, {name: change(mine[name]) for name in names}


def one_number(value: Tensor) -> bool:
    """Return whether all numbers of a tensor are the same."""
    return value.numel() > 1 and bool((value == value.flatten()[0]).all())


LOADING = (
    ("loading-transposed", transposed),
    ("loading-packed", packed),
    ("rotary-convention", rotated),
)

bug("""cache-mask-corner, chapter 16
lets new token i attend to keys 0 to i, as if no token came before: the causal mask has not grown
Fix: start the rows of new tokens at their position: causal_mask(start + n)[start:]. is_causal=True
is correct only for as many queries as keys.
Seen: hyprstream/hyprstream#1521; pytorch/executorch#21749; pytorch/executorch#22443;
gittensor-ai-lab/sparkinfer#3; wenyuchen96/transformer""")
bug("""cache-window-cut, chapter 19
cuts the cache too early: queries lose keys that their window still allows
Fix: let the queries read the kept keys and all new ones, under the mask of the window, and cut
after that: n new tokens need the window - 1 keys before them as well.
Seen: huggingface/transformers#37574; rasbt/LLMs-from-scratch#1013; pytorch/executorch#20346;
mistralai/mistral-inference#60""")
bug("""cache-window-forgotten, chapter 19
lets new tokens attend to everything in the cache, although the model has a window
Fix: give a single new token the last keys of the window only: k[:, :, -window:], values alike.
Seen: karpathy/nanochat#452; goombalab/hnet#20; EricLBuehler/mistral.rs#2094""")


@dataclass(frozen=True)
class Call:
    """What the attention of one call with a cache computes."""

    start: int  # number of tokens before it
    end: int  # number of tokens after it
    shift: int = 0  # how far its tokens are from their own positions
    corner: bool = False  # whether its token i attends to keys 0 to i, as if no token came before
    open: bool = False  # whether it attends to all keys before it, whatever the window
    cut: int | None = None  # how many keys are left besides those of the window; None: all


Plan = tuple[Call, ...]


def plan_of(ends: Iterable[int]) -> Plan:
    """Return what a correct cache does in calls that end after so many tokens."""
    ends = tuple(ends)
    return tuple(Call(start, end) for start, end in zip((0, *ends), ends, strict=False))


class Emulation(TorchDispatchMode):
    """Carry out a plan, for b samples of n tokens, in every attention; no weight has size n."""

    def __init__(self, plan: Plan, b: int, n: int) -> None:
        super().__init__()
        self.plan, self.b, self.n, self.batch = plan, b, n, b * (1 + len(plan))
        self.raw: Tensor | None = None  # scores before the mask, and a copy of them
        self.open: Tensor | None = None

    _should_skip_dynamo = classmethod(lambda cls: False)  # else its compiler is imported: seconds

    def place(self, call: Call) -> tuple[slice, slice]:
        """Return the samples and positions of a call's tokens at the positions of the plan."""
        first = self.b * (1 + self.plan.index(call))
        return slice(first, first + self.b), slice(call.start + call.shift, call.end + call.shift)

    def _front(self, t: Tensor, axis: int = 1) -> Tensor:
        """Return a view (batch, length, heads, ...) of a tensor (batch * heads, ..., ...)."""
        return t.unflatten(0, (self.batch, -1)).movedim(axis + 1, 1)

    def _read(self, t: Tensor, axis: int, calls: Sequence[Call]) -> Tensor:
        """Return queries, keys or values of calls as rows of the sequence, 0 elsewhere."""
        made = torch.zeros_like(t)
        for call in calls:
            rows = self._front(t, axis)[self.place(call)]
            self._front(made, axis)[: self.b, call.start : call.end] = rows
        return made

    def _product(self, func: Callable, t: Tensor, other: Tensor, scores: bool) -> Tensor:
        """Return scores of queries and keys, or sums of values, as the calls compute them."""
        made = func(t, other)
        for number, call in enumerate(self.plan, 1):
            held = self._read(other, 2 if scores else 1, self.plan[:number])
            # a value that was cut off may be NaN
            new = func(self._read(t, 1, [call]), held) if scores else func(t, held.nan_to_num())
            rows = self._front(new)[: self.b, call.start : call.end]
            self._front(made)[: self.b, call.start : call.end] = rows
            if not scores:
                self._front(made)[self.place(call)] = rows
        return made

    def _masked(self, s: Tensor) -> Tensor:
        """Return masked scores (batch * heads, i, j) under the masks of the plan."""
        made = s.clone()
        window = int((self._front(s)[0, -1, :, : self.n] > MASKED).any(0).sum())
        for call in self.plan:
            index = (slice(self.b), slice(call.start, call.end), ..., slice(call.end))
            part = self._front(made)[index]  # a view (b, i, heads, j)
            square = torch.ones(call.end - call.start, call.end).bool()
            if call.corner:
                part.masked_fill_(square.triu(1)[:, None], -torch.inf)
            if call.open and self.open is not None:
                shown = square.tril(call.start)[:, None] & (part <= MASKED)
                unmasked = self._front(self.open.view(-1, self.n, self.n))[index]
                part.copy_(torch.where(shown, unmasked, part))
            if call.cut is not None and window < self.n:
                part[..., : max(0, call.end - window - call.cut)] = -torch.inf
        return made

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        t, n, packet = next(iter(args), None), self.n, func.overloadpacket
        if packet is ATEN.bmm and t.shape[1] == n in (t.shape[2], args[1].shape[2]):
            made = self._product(func, *args, scores=t.shape[2] != n)
            if t.shape[2] != n:
                self.raw, self.open = made, made.clone()
            return made
        softmax = packet in (ATEN._softmax, ATEN._safe_softmax)
        if softmax and t.shape[-2] == n <= t.shape[-1] < n + 2:  # a sink comes last
            return func(self._masked(t.flatten(0, -3)).view(t.shape), *args[1:], **kwargs or {})
        made = func(*args, **kwargs or {})
        used = self.raw is not None and any(a is self.raw for a in args)
        if used and made.numel() == self.raw.numel() and not (made <= MASKED).any():
            self.raw, self.open = made, made.clone()  # scaled, not masked yet
        return made


def _planned(form: Form, state: State) -> State:
    """Change the calls of every plan."""
    return {"plans": tuple(tuple(map(form.run, plan)) for plan in state["plans"])}


POSITIONS, MASKS = CACHE = Step("positions", _planned), Step("masks", _planned)
for _step in CACHE:
    _step.correct(lambda call: call)
POSITIONS.wrong("cache-position")(lambda call: replace(call, shift=-call.start))
MASKS.wrong("cache-mask-corner")(lambda call: replace(call, corner=True))
for _open in (  # for a single new token after others, for several, or for the prompt as well
    lambda call: 0 < call.start == call.end - 1,
    lambda call: call.start > 0,
    lambda call: True,
):
    MASKS.wrong("cache-window-forgotten")(lambda call, of=_open: replace(call, open=of(call)))
_EARLY = "it is cut to the window before the queries of a call have read it"
_FEWER = "it leaves one key fewer than the window"
for _detail, _left in (  # how many keys besides the window; a call of n tokens needs n - 1
    (_EARLY, lambda n, first: 0),
    (_EARLY, lambda n, first: 0 if first else n),
    (_EARLY, lambda n, first: n if first else 0),
    (_FEWER, lambda n, first: -1),
    (_FEWER, lambda n, first: n if first else -1),
    (_FEWER, lambda n, first: n - 2),
):
    MASKS.wrong("cache-window-cut", detail=_detail)(
        lambda call, left=_left: replace(call, cut=left(call.end - call.start, call.start == 0))
    )
