"""Weights that fit by shape and are wrong: how mine must be changed to give what theirs gives.

A form undoes a mistake: it takes the values of my model and returns those that it changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

from torch import Tensor

from attention_clinic.bugs.packing import PACKED, TURNING, Change, changed, each, if_wrong, listed
from attention_clinic.engine.forms import Form, Stage, State, bug
from attention_clinic.engine.loaded import (
    Values,
    fitted,
    kind,
    one_number,
    parts,
    pieces,
    rearranged,
)

# ------------------------------------------------------------------------- turned over

bug(
    "loading-transposed",
    "holds matrices turned over: rows and columns are exchanged, and being square they fit",
    "transpose them where they are loaded, by what the layer is (nn.Linear keeps (out, in), "
    "Conv1D of GPT-2 (in, out)), never by whether the shape fits.",
    "15",
    "vllm-project/vllm#44113",
    "lablup/mlxcel#926",
    "nntile/nntile#402",
)


MANY = 40  # matrices that are still tried one by one


def _squares(state: State) -> Iterator[Form]:
    found = {}
    for name, leaves in parts(state["values"]).items():
        for names in leaves.values():
            shape = state["values"][names[0]].shape
            if len(shape) == 2 and shape[0] == shape[1]:
                found[name] = names
    groups = list(found)
    few = len(groups) <= 6 and state.get("total", 0) == 1
    sizes = range(1, len(groups) + 1) if few else {1, len(groups)}
    for size in sorted(sizes) if groups else ():
        for chosen in combinations(groups, size):
            names = [n for group in chosen for n in found[group]]
            yield Form(each(names, lambda t: t.T), ("loading-transposed",), listed(names))
    every = [name for names in found.values() for name in names]
    for name in (
        every if state.get("total") == 1 and len(every) <= MANY else ()
    ):  # of one layer only
        yield Form(each([name], lambda t: t.T), ("loading-transposed",), name)


TURNED = Stage("turned", changed, found=if_wrong(_squares), forms=[Form(None)])

# --------------------------------------------------------------------------- exchanged

bug(
    "loading-exchanged",
    "holds weights of one part in another part of the same shape",
    "write the names of both models side by side, ours and theirs, and load by that table.",
    "15",
    "NVIDIA-NeMo/Megatron-Bridge#4200",
    "NVIDIA-NeMo/Speech#11951",
    "b4rtaz/distributed-llama#52",
)


def _exchanges(state: State) -> Iterator[Form]:
    values = state["values"]
    found = parts(values)

    def shape(name: str) -> tuple:
        leaves = found[name]
        return tuple((leaf, len(n), tuple(values[n[0]].shape)) for leaf, n in leaves.items())

    def moved(order: tuple[str, ...]) -> Change:
        def run(values: Values) -> dict[str, Tensor]:
            made = {}
            for here, there in zip(order, order[1:] + order[:1], strict=True):
                for leaf, names in found[here].items():
                    for own, other in zip(names, found[there][leaf], strict=True):
                        made[own] = values[other]
            return made

        return run

    names = list(found)
    for one, other in combinations(names, 2):
        if shape(one) == shape(other):
            yield Form(moved((one, other)), ("loading-exchanged",), f"{one} and {other}")
    for three in combinations(names, 3):
        beside = len({name.rpartition(".")[0] for name in three}) == 1
        if beside and len({shape(name) for name in three}) == 1:
            a, b, c = three
            for order in ((a, b, c), (a, c, b)):
                yield Form(moved(order), ("loading-exchanged",), ", ".join(three))


EXCHANGED = Stage("exchanged", changed, found=if_wrong(_exchanges), forms=[Form(None)])

# -------------------------------------------------------------------------- missing

bug(
    "loading-missing",
    "holds values that are not those of the other model: some tensors were never loaded, or twice",
    "load with strict=True and a table of names in which every tensor stands once; tie the head "
    "to the embedding where theirs is tied.",
    "15",
    "vllm-project/vllm#53020",
    "tinygrad/tinygrad#13796",
    "huggingface/transformers#43429",
    "huggingface/transformers#40253",
    "pytorch/examples#1029",
)


def _gaps(state: State) -> Iterator[Form]:
    values, theirs, owned = state["first"], state["theirs"], state["owners"]
    if not theirs:
        return
    claims: dict[str, int] = {}
    for name, others in owned.items():
        for other in () if one_number(values[name]) else others:
            claims[other] = claims.get(other, 0) + 1
    mine: dict[str, list[str]] = {}
    for name in owned:
        mine.setdefault(kind(name), []).append(name)
    open_kinds = [
        names
        for names in mine.values()
        if any(not owned[n] or (claims.get(owned[n][0], 0) > 1 and values[n].ndim) for n in names)
    ]
    offered: dict[str, list[str]] = {}
    held = pieces(theirs)
    for name in held:
        offered.setdefault(kind(name), []).append(name)

    def from_theirs(names: list[str]) -> Iterator[tuple[str, dict[str, Tensor]]]:
        unclaimed = sorted(offered.items(), key=lambda item: claims.get(item[1][0], 0))
        for other, others in unclaimed:
            if len(others) != len(names) or not any(
                owned[n] != [o] for n, o in zip(names, others, strict=True)
            ):
                continue
            pairs = [(values[n], held[o]) for n, o in zip(names, others, strict=True)]
            if any(
                not owned[n] and rearranged(*pair) for n, pair in zip(names, pairs, strict=True)
            ):
                continue  # they were loaded, and lie in another order
            ways = [list(fitted(held[o], values[n])) for n, o in zip(names, others, strict=True)]
            for number in range(min(map(len, ways))):
                yield other, {n: way[number] for n, way in zip(names, ways, strict=True)}

    together: dict[str, Tensor] = {}
    for names in open_kinds:
        for number, (other, made) in enumerate(from_theirs(names)):
            if number == 0:
                together.update(made)
            said = f"{listed(names)}; theirs is {other}"
            yield Form(lambda values, made=made: made, ("loading-missing",), said)
    if len(open_kinds) > 1 and together:
        said = listed(list(together))
        yield Form(lambda values: together, ("loading-missing",), said)


def _remembered(state: State) -> Iterator[Form]:
    """Find them once: they depend on what both models hold at first."""
    if "gaps" not in state["memory"]:
        state["memory"]["gaps"] = list(_gaps(state))
    return iter(state["memory"]["gaps"])


GAPS = Stage("gaps", changed, found=if_wrong(_remembered), forms=[Form(None)])

# ---------------------------------------------------------------- shifted by one, or by rows

bug(
    "loading-rows",
    "reads a table of positions from another row than theirs: some rows at its start are no places",
    "leave out the rows that stand before place 0: two in BART and OPT, padding_id + 1 in RoBERTa.",
    "15",
    "sbryngelson/ANEForge#257",
    "EleutherAI/gpt-neox#650",
)


def _shifts(state: State) -> Iterator[Form]:
    values = state["values"]
    norms = [n for n in values if values[n].ndim == 1 and n.endswith(("weight", "scale", "gamma"))]
    for step in (1, -1):
        yield Form(each(norms, lambda t, step=step: t + step), ("norm-offset",), "")
    for name, leaves in parts(values).items():
        for names in leaves.values():
            if "pos" in name.lower() + names[0].lower() and values[names[0]].ndim in (2, 3):
                for step in (-2, -1, 1, 2):

                    def rolled(t: Tensor, step: int = step) -> Tensor:
                        return t.roll(step, dims=-2)

                    yield Form(each(names, rolled), ("loading-rows",), f"by {abs(step)}")


SHIFTED = Stage("shifted", changed, found=if_wrong(_shifts), forms=[Form(None)])

# ------------------------------------------------------------------------- order of layers

bug(
    "loading-layers",
    "holds the layers in another order than theirs",
    "sort the names by the number of their layer: as text, layers.10 comes before layers.2.",
    "15",
    "b4rtaz/distributed-llama#52",
    "arcee-ai/mergekit#143",
)


def _orders(state: State) -> Iterator[Form]:
    groups: dict[str, list[list[str]]] = {}
    for name, names in parts(state["values"]).items():
        for own in names.values():
            if len(own) > 1 and name.count("*") == 1:
                groups.setdefault(name.partition("*")[0], []).append(own)
    for name, all_names in groups.items():
        count = max(map(len, all_names))
        as_text = sorted(range(count), key=str)
        back = [as_text.index(i) for i in range(count)]
        for order, said in (
            (as_text, "sorted as text"),
            (back, "sorted as text"),
            (list(range(count))[::-1], "the last one first"),
        ):

            def run(values: Values, order: list = order, all_names: list = all_names) -> dict:
                return {
                    names[i]: values[names[o]]
                    for names in all_names
                    if len(names) == len(order)
                    for i, o in enumerate(order)
                }

            if order != list(range(count)):
                yield Form(run, ("loading-layers",), f"{name}*: {said}")


LAYERS = Stage("layers", changed, found=if_wrong(_orders), forms=[Form(None)])

# --------------------------------------------------------- beside the weights: eps, activation


def _beside_weights(form: Form, state: State) -> State | None:
    return dict(form.run) if form.run is not None else {}


def _settings(state: State) -> Iterator[Form]:
    for eps in state["eps"]:
        yield Form({"new_eps": eps}, ("norm-eps",), f"theirs is {eps:g}")
    for bend in ("gelu", "gelu-tanh"):
        said = "theirs is exact" if bend == "gelu" else "theirs is the approximation"
        yield Form({"bend": bend}, ("gelu-tanh",), said)
    for bend in ("relu", "silu"):
        yield Form({"bend": bend}, ("activation-other",), f"theirs is {bend}")


SETTINGS = Stage("settings", _beside_weights, found=if_wrong(_settings), forms=[Form(None)])

LOADING: tuple[Any, ...] = (*(TURNED, EXCHANGED, PACKED, TURNING, GAPS, SHIFTED, LAYERS, SETTINGS),)
