"""Numbers followed back to the layers that made them, and forth to what a module returns.

Each number is followed back through all that is done to it alone (activations, norms, factors, a
softmax), so that it does not matter how queries and keys are bent, and how products are written.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attention_clinic.engine.tape import Event
from attention_clinic.examine.account import Account
from attention_clinic.examine.behind import Ends
from attention_clinic.examine.judging import Said
from attention_clinic.examine.scoring import Unknown
from attention_clinic.examine.shells import doubled_shells, shells_of
from attention_clinic.examine.subject import Subject
from attention_clinic.examine.written import PRODUCTS, Run

FACTORS = {"mul", "div", "alias", "detach", "native_dropout"}
CLOSE = 1e-6


@dataclass(frozen=True)
class Walk:
    """Numbers that were followed back to what made them.

    Args:
        ids: where they come from, in the same order.
        names: of the operations on the way.
        own: whether no operation got anything of tokens but the numbers themselves.
        softmax: ids, for each number, of those that share a softmax with it; None for none.
    """

    ids: Tensor
    names: frozenset[str]
    own: bool = True
    softmax: Tensor | None = None


def walk(run: Run, ids: Tensor, within: frozenset[str] | set[str] = frozenset()) -> Walk:
    """Follow numbers back through everything that is done to each by itself.

    Args:
        run: what was written down.
        ids: of any shape.
        within: the names of the operations that may stand on the way; empty for any.
    """
    names: set[str] = set()
    own, softmax = True, None
    for _ in range(30):
        makers = run.makers(ids)
        if any(number < 0 for number in makers):
            break
        events = [run.tape.events[number] for number in makers]
        if any(e.name in (*PRODUCTS, "convolution") or e.name != events[0].name for e in events):
            break
        if within and events[0].name not in within:
            break
        if events[0].name == "add" and all(_is_bias(run, event) for event in events):
            break
        back = torch.full((run.tape.count,), -1)
        group = torch.full((run.tape.count,), -1)
        for event in events:
            main = _main(run, event)
            if main is None:
                return Walk(ids, frozenset(names), own, softmax)
            back[event.out.flatten()] = main.expand(event.out.shape).flatten()
            others = [t for t in event.read() if t is not main and run.depends(t)]
            own = own and not others
            if event.name == "_softmax":
                first = event.out.select(event.args[1], 0).unsqueeze(event.args[1])
                group[event.out] = first.expand(event.out.shape)
        if events[0].name == "_softmax":
            softmax = group[ids]
        names.add(events[0].name)
        ids = back[ids]
    return Walk(ids, frozenset(names), own, softmax)


def _is_bias(run: Run, event: Event) -> bool:
    """Say whether a bias is added to what a layer made, which is then its result."""
    main = _main(run, event)
    if main is None or sum(run.depends(t) for t in event.read()) > 1:
        return False
    names = {run.tape.events[m].name if m >= 0 else "" for m in run.makers(main)}
    return names <= {*PRODUCTS, "convolution"}


def _main(run: Run, event: Event) -> Tensor | None:
    """Return the ids of what an operation changes number by number, None where it does not."""
    tensors = [t for t in event.read() if run.depends(t)]
    whole = [t for t in tensors if t.shape == event.out.shape]
    if not whole or event.name in ("sum", "mean", "cumsum", "amax", "max"):
        return None
    return whole[0]


def token_axis(run: Run, ids: Tensor) -> int | None:
    """Return the axis of (s, r, c) along which each number is made of one token, each another."""
    token, sample = run.token[ids], run.sample[ids]
    if bool((token < 0).any() or (sample < 0).any() or (sample != sample[:, :1, :1]).any()):
        return None
    for axis, other in ((1, 2), (2, 1)):
        first = token.select(other, 0)
        same = bool((token == first.unsqueeze(other)).all())
        if same and all(len(row.unique()) == len(row) for row in first) and first.shape[1] > 1:
            return axis
    return None


@dataclass(frozen=True)
class End:
    """What becomes of what heads mixed.

    Args:
        mixed: ids of what was mixed as the output layer reads it, (slots, i, d).
        read: ids of what that layer read for each token, (b, n, f).
        made: ids of what it made, (b, n, e); what is returned where there is no such layer.
        layer: whether there is one.
    """

    mixed: Tensor
    read: Tensor
    made: Tensor
    layer: bool

    def account(
        self, run: Run, h: int, sides: tuple[Tensor, Tensor, Tensor], scores: Tensor, steps: list
    ) -> Account:
        """Return the account of an attention that ends so."""
        b, n = run.y.shape[:2]
        ends = Ends(self.read, self.layer)
        return Account(run, b, n, h, (0, n), *sides, scores, steps, self.mixed, ends)


@dataclass(frozen=True)
class Told:
    """What a run says of a module.

    Args:
        names: of the variants.
        said: the mistakes.
        words: what stands around.
        layer: whether there is an output layer.
        causal: whether no token sees later ones.
    """

    names: tuple[str, ...]
    said: Said
    words: str
    layer: bool
    causal: bool = False


def end_of(run: Run, mixed: Tensor) -> End | None:
    """Return what becomes of what heads mixed, but for factors; None for anything else.

    Args:
        run: what was written down.
        mixed: ids, (slots, i, d).
    """
    ours = torch.zeros(run.tape.count, dtype=torch.bool)
    ours[mixed.flatten()] = True
    ahead = torch.full((run.tape.count,), -1)
    layers: list[tuple[Tensor, Tensor]] = []
    for number, event in enumerate(run.tape.events):
        if event.name not in PRODUCTS or not run.used[number]:
            continue
        read, weight = event.args[PRODUCTS[event.name] :][:2]
        several = weight.ndim == 3 and not bool((weight == weight[:1]).all())
        if read.numel() > mixed.numel() or not run.depends(read) or several:
            continue
        back = walk(run, read, FACTORS).ids
        if bool(ours[back].all()):
            ahead[back.flatten()] = read.flatten()
            layers.append((read.flatten(0, -2), event.out.flatten(0, -2)))
    if not layers:
        back = walk(run, run.y, FACTORS).ids
        ahead[back.flatten()] = run.y.flatten()
        ends = run.y.numel() == mixed.numel() and not bool((ahead[mixed] < 0).any())
        return End(ahead[mixed], run.y, run.y, False) if ends else None
    if bool((ahead[mixed] < 0).any()) or sum(read.numel() for read, _ in layers) != mixed.numel():
        return None
    laid = _laid(run, *(torch.cat(each) for each in zip(*layers, strict=True)))
    return None if laid is None else End(ahead[mixed], *laid, True)


def _laid(run: Run, read: Tensor, made: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return what output layers read, (b, n, f), and their results, laid out by them."""
    # a number of the result of a layer stands in some row; what follows keeps it
    row = torch.full((run.tape.count,), -1)
    row[made] = torch.arange(len(made))[:, None].expand(made.shape)
    for event in run.tape.events:
        held = [t for t in event.read() if bool((row[t] >= 0).any())]
        if held and event.name not in (*PRODUCTS, "convolution"):
            labels = row[held[0]]
            if labels.shape == event.out.shape:
                row[event.out] = torch.where(row[event.out] < 0, labels, row[event.out])
    ends = row[run.y]
    if bool((ends < 0).any()) or bool((ends != ends[..., :1]).any()):
        return None
    rows = ends[..., 0]
    return read[rows], made[rows]


def around(subject: Subject, run: Run, x: Tensor, end: End, sides: list[Tensor]) -> str:
    """Return what stands around, in words; `Unknown` where something else does.

    Args:
        subject: the module.
        run: what was written down.
        x: tokens, (b, n, e).
        end: what becomes of what heads mixed.
        sides: ids of what the layers of queries, keys and values made.
    """
    out, y = run.values[end.made], run.values[run.y]
    inner = _read_by(run, sides)
    module, e = subject.patient.module, x.shape[2]
    for shell in (*shells_of(module, e), *doubled_shells(module, e)):
        if shell.ids or shell.residual == "query" or shell.variants:
            continue
        entered = shell.enter(x).double().flatten(0, 1)
        if shell.residual and out.shape != x.shape:
            continue
        ends = shell.leave(out, x)
        if ends.shape != y.shape:
            continue
        if any(bool((one - one[:1]).abs().max() > CLOSE) for one in _by_layer(run, end, ends - y)):
            continue
        if all(_is_of(entered, t) for t in inner):
            return shell.name
    raise Unknown


def _by_layer(run: Run, end: End, t: Tensor) -> list[Tensor]:
    """Return numbers of the tokens, (b, n, e), by the layer that made their results, (t, e)."""
    maker = run.producer[end.made[..., 0]]
    return [t[maker == number] for number in maker.unique()]


def made_of_layers(run: Run, ids: Tensor) -> bool:
    """Say whether layers made these numbers of tokens, perhaps with factors."""
    makers = run.makers(walk(run, ids, FACTORS).ids)
    return all(number >= 0 and run.tape.events[number].name in PRODUCTS for number in makers)


def _is_of(tokens: Tensor, read: Tensor) -> bool:
    """Say whether a layer read these tokens (t, e), or some of them, in any order."""
    if read.ndim != 2 or read.shape[1] != tokens.shape[1]:
        return False
    near = (read[:, None] - tokens[None]).abs().amax(-1).amin(dim=1)
    return bool(near.max() <= CLOSE)


def _read_by(run: Run, sides: list[Tensor]) -> list[Tensor]:
    """Return what the layers read that made queries, keys and values, each once."""
    found: dict[int, Tensor] = {}
    for ids in sides:
        for number in run.makers(ids):
            read = _layer(run, number, 4)
            if read is None:
                raise Unknown
            found[int(read.flatten()[0])] = run.values[read]
    return list(found.values())


def _layer(run: Run, number: int, deep: int) -> Tensor | None:
    """Return ids of what a layer read; random features are made of what another layer made."""
    if number < 0:
        return None
    event = run.tape.events[number]
    if event.name == "add" and deep:  # a bias by itself
        main = _main(run, event)
        makers = [] if main is None else run.makers(main)
        return _layer(run, makers[0], deep - 1) if len(makers) == 1 else None
    if event.name not in PRODUCTS:
        return None
    place = PRODUCTS[event.name]
    tensors = [t for t in event.args[place : place + 2] if run.depends(t)]
    if len(tensors) != 1:
        return None
    read = tensors[0]
    back = walk(run, read)
    makers = run.makers(back.ids)
    inner = [run.tape.events[m].name for m in makers if m >= 0]
    if deep and len(makers) == 1 and inner and inner[0] in PRODUCTS and back.names <= FACTORS:
        held = run.tape.events[makers[0]]
        if sum(run.depends(t) for t in held.args[PRODUCTS[held.name] :][:2]) == 1:
            return _layer(run, makers[0], deep - 1)
    return read.flatten(0, -2)
