"""`diagnose_embedding` and `diagnose_positions`: patches, their projection, positions."""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from attention_clinic.catalogue import BUGS
from attention_clinic.patient import Patient, check_positive, first_tensor, undisturbed
from attention_clinic.report import Report, explain
from attention_clinic.weights import Source, sources_of

Size = int | tuple[int, int]

# id of the bug (None: right), what it adds to the words, the code: images (b, c, H, W) -> (b, n, p)
CUTS: list[tuple[str | None, str, Callable]] = []


def _cut(id: str | None, detail: str = "") -> Callable:
    def enter(run: Callable) -> Callable:
        CUTS.append((id, detail, run))
        return run

    return enter


@_cut(None)
def cut(images: Tensor, ph: int, pw: int) -> Tensor:
    return rearrange(images, "b c (gh ph) (gw pw) -> b (gh gw) (c ph pw)", ph=ph, pw=pw)


def _patterned(pattern: str) -> Callable:
    def run(images: Tensor, ph: int, pw: int) -> Tensor:
        return rearrange(images, f"b c (gh ph) (gw pw) -> b {pattern}", ph=ph, pw=pw)

    return run


for _pattern in (
    "(gh gw) (ph pw c)", "(gh gw) (c pw ph)", "(gh gw) (pw ph c)", "(gh gw) (ph c pw)",
    "(gw gh) (c ph pw)", "(gw gh) (ph pw c)", "(gw gh) (c pw ph)",
):  # fmt: skip
    _cut("patch-order", f"it is laid out as {_pattern}")(_patterned(_pattern))


@_cut("patch-view")
def cut_view(images: Tensor, ph: int, pw: int) -> Tensor:
    b, c, _, _ = images.shape
    return images.reshape(b, -1, c * ph * pw)


@_cut("patch-view", "with the channels last")
def cut_view_channels_last(images: Tensor, ph: int, pw: int) -> Tensor:
    b, c, _, _ = images.shape
    return rearrange(images, "b c H W -> b (H W c)").reshape(b, -1, c * ph * pw)


@_cut("patch-channel-mix")
def cut_unfold_flat(images: Tensor, ph: int, pw: int) -> Tensor:
    b, c, _, _ = images.shape
    unfolded = images.unfold(2, ph, ph).unfold(3, pw, pw)  # (b, c, gh, gw, ph, pw)
    return unfolded.reshape(b, -1, c * ph * pw)


@_cut("patch-channel-mix", "F.unfold returns (b, p, n): it needs a transpose, not a view")
def cut_unfold_untransposed(images: Tensor, ph: int, pw: int) -> Tensor:
    unfolded = F.unfold(images, (ph, pw), stride=(ph, pw))  # (b, p, n)
    return unfolded.reshape(images.shape[0], unfolded.shape[2], unfolded.shape[1])


def diagnose_embedding(
    module: nn.Module | Callable,
    image_size: Size,
    patch_size: Size,
    in_channels: int = 3,
    *,
    inverse: Callable | None = None,
    call: Callable | None = None,
) -> Report:
    """Compare a patch embedding, or a function that cuts patches, with the course's own.

    Args:
        module: maps images to tokens, with or without class token and positions, or to patches.
        image_size: side of the images in pixels, or (height, width).
        patch_size: side of a patch in pixels, or (height, width).
        in_channels: channels of the images, c.
        inverse: a function that should put the patches together again.
        call: how to call the module: call(module, images).

    Shape:
        images  (b, c, H, W)
        result  (b, n, e), (b, n + 1, e), or patches (b, n, c * ph * pw)

    Returns:
        A `Report`: print it, or ask for `healthy` and `explanations`.

    Raises:
        ValueError: patches that do not tile the image, or an exception inside the module.
    """
    sizes, (ph, pw) = _pair("image_size", image_size), _pair("patch_size", patch_size)
    gh, gw = _grid(sizes, (ph, pw))
    with undisturbed():
        return _Embedding(module, sizes, (ph, pw), gh * gw, in_channels, inverse, call).report()


def _pair(name: str, size: Size) -> tuple[int, int]:
    """Return a size as (height, width)."""
    height, width = size if isinstance(size, tuple | list) and len(size) == 2 else (size, size)
    check_positive("diagnose_embedding", **{name: height})
    check_positive("diagnose_embedding", **{name: width})
    return height, width


def _grid(image: tuple[int, int], patch: tuple[int, int]) -> tuple[int, int]:
    """Return the number of patches down and across."""
    if image[0] % patch[0] or image[1] % patch[1]:
        height, width = ([n for n in range(1, side + 1) if side % n == 0] for side in image)
        raise ValueError(
            f"diagnose_embedding: patches must tile the image, got patch_size={patch} for an image "
            f"of {image[0]} x {image[1]} pixels. "
            f"Pick the patch height from {height} and the width from {width}, or crop the image."
        )
    return image[0] // patch[0], image[1] // patch[1]


class _Embedding:
    """One examination."""

    def __init__(self, module, sizes, patch, n, channels, inverse, call):
        self.original, self.sizes, self.patch, self.n = module, sizes, patch, n
        self.channels, self.inverse, self.call = channels, inverse, call
        self.patient = Patient("diagnose_embedding", module, call or (lambda m, x: m(x)))
        if not self.patient.is_module:
            self.patient.dtype = torch.float64

    def images(self, b: int, seed: int = 0) -> Tensor:
        return self.patient.tokens(b, self.channels, *self.sizes, seed=seed)

    def start(self) -> tuple[Tensor, Tensor, list[str]]:
        """Return images, the output and what the parameters show; find the batch that runs."""
        ids, tensors = [], {}
        if self.patient.is_module:
            tensors = dict(self.original.named_parameters())
            for name, part in self.original.named_modules():
                for key, value in vars(part).items():
                    # a buffer or a parameter would lie in a dictionary of its own
                    if isinstance(value, Tensor) and value.requires_grad:
                        ids.append("param-plain-tensor")
                        tensors[f"{name}.{key}"] = value
        batches = [
            t.shape[0]
            for t in tensors.values()
            if t.ndim == 3 and t.shape[0] > 1 and t.shape[1] in (1, self.n, self.n + 1)
        ]
        b = next(size for size in (3, 4, 5) if size not in batches)
        first = None
        for size in (b, *batches):
            try:
                images = self.images(size)
                y = self.patient.run(images)
            except Exception as error:
                first = first or error
                continue
            if size in batches and first is not None:
                ids.append("param-batch-size")
            return images, y, list(dict.fromkeys(ids))
        raise self.patient.complain(first, (b, self.channels, *self.sizes)) from first

    def report(self) -> Report:
        images, y, ids = self.start()
        name = self.patient.name
        checked = ["cutting", "order inside a patch"]
        evidence = {
            "param-plain-tensor": "found among the attributes",
            "param-batch-size": "runs with one batch size only",
        }
        if y.ndim == 4 or y.ndim != 3 or y.shape[0] != images.shape[0]:
            raise ValueError(
                f"diagnose_embedding: {name} must return (b, n, e), got a result of shape "
                f"{tuple(y.shape)}. Say how to call it: call=lambda module, images: ..."
            )
        if self.inverse is not None:
            checked.append("the way back")
            ids += self.way_back(images, y)
            evidence["unpatch-order"] = "unpatchify(patchify(x)) is not x"
        found = {}
        for total in range(3):
            for more, detail, difference in self.candidates(images, y, total):
                if more not in found and difference <= self.patient.tolerance * (
                    1 + y.abs().max().item()
                ):
                    found[more] = (detail, difference)
            if found:
                break
        if y.shape[1] == self.n + 1:
            checked.append("class token")
        if any(True for _ in self.tables(y.shape[-1])):
            checked.append("positions")
        if not found:
            explanations = [explain([BUGS[id]], evidence=evidence[id]) for id in ids]
            failing = tuple(self.failing(images, y))
            return Report(name, False, tuple(explanations), failing, (", ".join(checked),))
        if () in found and not ids:
            return Report(name, True, checked=(", ".join(checked),))
        explanations = []
        for more, (detail, difference) in found.items():
            bugs = [BUGS[id] for id in (*ids, *more)]
            how = "reproduces your output exactly"
            if ids and not more:
                how = "; ".join(evidence[id] for id in ids)
            explanations.append(explain(bugs, difference, detail, how))
        return Report(name, False, tuple(explanations), checked=(", ".join(checked),))

    def way_back(self, images: Tensor, patches: Tensor) -> list[str]:
        """Return unpatch-order when the inverse does not give the images."""
        try:
            back = first_tensor(self.inverse(patches.clone()))
        except Exception as error:
            raise self.patient.complain(error, tuple(patches.shape)) from error
        same = back.shape == images.shape and torch.allclose(back, images, atol=1e-9)
        return [] if same else ["unpatch-order"]

    # ------------------------------------------------------------------------- the parts

    def sources(self) -> list[Source]:
        return sources_of(self.patient.module) if self.patient.is_module else []

    def projections(self, e: int) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Yield weight (e, p) and bias; first none at all, for a function that only cuts."""
        p = self.channels * self.patch[0] * self.patch[1]
        if self.patient.is_module:
            for part in self.patient.module.modules():
                if isinstance(part, nn.Conv2d) and tuple(part.kernel_size) == self.patch:
                    yield part.weight.flatten(1), part.bias
        for source in self.sources():
            for form in source.forms:
                weight = source.weight if form == "oi" else source.weight.mT
                if tuple(weight.shape) == (e, p):
                    yield weight, source.bias
        if e == p:
            yield torch.eye(p, dtype=self.patient.dtype), None

    def tensors(self) -> dict[str, Tensor]:
        """Return everything that could be a class token or a table of positions."""
        if not self.patient.is_module:
            return {}
        found = dict(self.patient.module.named_parameters())
        for prefix, part in self.patient.module.named_modules():
            kept = {**vars(part), **part._buffers}
            for name, value in kept.items():
                if isinstance(value, Tensor) and value.is_floating_point():
                    found[f"{prefix}.{name}"] = value.detach().to(self.patient.dtype)
        return found

    def class_tokens(self, e: int) -> Iterator[Tensor]:
        """Yield class tokens as (1 or b, 1, e)."""
        for tensor in self.tensors().values():
            if (
                tensor.shape[-1:] == (e,)
                and tensor.ndim > 1
                and all(size == 1 for size in tensor.shape[1 if tensor.ndim == 3 else 0 : -1])
            ):
                yield tensor.reshape(-1, 1, e)
        for name, tensor in self.tensors().items():
            if tensor.shape == (e,) and ("cls" in name or "class" in name):
                yield tensor.reshape(1, 1, e)

    def tables(self, e: int) -> Iterator[Tensor]:
        """Yield tables of positions as (1 or b, rows, e)."""
        weights = {id(weight) for weight, _ in self.projections(e)}
        for tensor in self.tensors().values():
            if id(tensor) in weights or tensor.shape[-1:] != (e,):
                continue
            if tensor.ndim == 2 and tensor.shape[0] >= self.n:
                yield tensor[None]
            elif tensor.ndim == 3 and tensor.shape[1] >= self.n:
                yield tensor
            elif tensor.ndim == 3 and tensor.shape[0] >= self.n and tensor.shape[1] == 1:
                yield tensor.transpose(0, 1)

    def norms(self, width: int) -> list[nn.Module | None]:
        """Return nothing and the norms of this width that stand inside the module."""
        if not self.patient.is_module:
            return [None]
        return [None] + [
            part
            for part in self.patient.module.modules()
            if isinstance(part, nn.LayerNorm) and part.normalized_shape == (width,)
        ]

    def candidates(
        self, images: Tensor, y: Tensor, total: int
    ) -> Iterator[tuple[tuple[str, ...], str, float]]:
        """Yield ids, detail and difference of every combination with so many mistakes."""
        e, extra = y.shape[-1], y.shape[1] - self.n
        if extra not in (0, 1):
            return
        for id, detail, run in CUTS:
            if (id is not None) > total:
                continue
            patches = run(images, *self.patch)
            for weight, bias in self.projections(e):
                for before in self.norms(patches.shape[-1]):
                    inside = patches if before is None else before(patches)
                    projected = inside @ weight.T
                    projected = projected if bias is None else projected + bias
                    flat = projected.mT.reshape(projected.shape)
                    note = "the map (b, e, gh, gw) is viewed as (b, n, e)"
                    shuffled = ("patch-channel-mix", note, flat)
                    for other, note, tokens in ((None, "", projected), shuffled):
                        here = [(i, d) for i, d in ((id, detail), (other, note)) if i]
                        if len(here) > total:
                            continue
                        for after in self.norms(e):
                            tokens_after = tokens if after is None else after(tokens)
                            for more, words, made in self.completed(tokens_after, extra):
                                ids = tuple(i for i, _ in here) + more
                                if len(ids) == total:
                                    text = "; ".join(filter(None, [*(d for _, d in here), words]))
                                    yield ids, text, (made - y).abs().max().item()

    def completed(
        self, tokens: Tensor, extra: int
    ) -> Iterator[tuple[tuple[str, ...], str, Tensor]]:
        """Add the class token and positions in right and wrong ways."""
        b, n, e = tokens.shape

        def fits(t: Tensor) -> bool:
            return t.shape[0] in (1, b)

        heads: list[Tensor | None] = [None]
        if extra:
            heads = [t.expand(b, -1, -1) for t in self.class_tokens(e) if fits(t)]
        for head in heads:
            joined = tokens if head is None else torch.cat([head, tokens], dim=1)
            yield (), "", joined
            for table in self.tables(e):
                rows = table.shape[1]
                if fits(table) and rows >= n + extra:
                    yield (), "", joined + table[:, : n + extra]
                if not fits(table):
                    continue
                for row in range(rows):
                    yield ("pos-one-row",), f"row {row}", joined + table[:, row : row + 1]
                if table.shape[0] == 1 and rows >= b:
                    yield ("pos-batch-axis",), "", joined + table[0, :b, None]
                if head is not None:
                    for start in range(min(2, rows - n + 1)):
                        placed = tokens + table[:, start : start + n]
                        yield ("pos-before-cls",), "", torch.cat([head, placed], dim=1)
                    if table.shape[0] == 1 and rows >= b:
                        placed = tokens + table[0, :b, None]
                        yield (
                            ("pos-before-cls", "pos-batch-axis"),
                            "",
                            torch.cat([head, placed], dim=1),
                        )
                    placed = tokens + table[:, :1]
                    yield ("pos-before-cls", "pos-one-row"), "", torch.cat([head, placed], dim=1)

    def failing(self, images: Tensor, y: Tensor) -> Iterator[str]:
        """Yield the properties that do not hold."""
        if not y.isfinite().all():
            yield "the output holds numbers: it has NaN or infinity"
            return
        if torch.equal(y, self.patient.run(self.images(len(images), seed=3))):
            yield "the output depends on the images"
            return
        ph, pw = self.patch
        one = images.clone()
        one[:, :, :ph, :pw] += 1.0
        moved = (self.patient.run(one) - y).abs().amax(dim=(0, 2)) > 1e-9
        if moved.sum() != 1:
            yield "one patch makes one token: changing a patch changes other tokens"


# ------------------------------------------------------------------------------- fixed positions


def diagnose_positions(positions: Tensor | Callable, embed_dim: int = 16) -> Report:
    """Compare a table of sines and cosines with the one of the 2017 paper.

    Args:
        positions: the table, or a function of (number of tokens, embed_dim) that makes it.
        embed_dim: the even width with which a function is called.

    Shape:
        positions  (n, e) or (1, n, e)

    Returns:
        A `Report`: print it, or ask for `healthy` and `explanations`.

    Raises:
        ValueError: a table of another rank.
    """
    name, ids = "positions", []
    with undisturbed(), torch.no_grad():
        table = positions
        if not isinstance(positions, Tensor):
            name = getattr(positions, "__name__", type(positions).__name__)
            table = positions(11, embed_dim)
            try:
                positions(11, embed_dim + 1)
            except Exception as error:
                if not refused(error, positions):
                    ids.append("sincos-odd")
    table = table.detach().cpu().double().squeeze(0) if isinstance(table, Tensor) else table
    if not isinstance(table, Tensor) or table.ndim != 2 or min(table.shape) < 2:
        got = tuple(table.shape) if isinstance(table, Tensor) else type(table).__name__
        raise ValueError(
            f"diagnose_positions: the table must have shape (n, e) or (1, n, e), got {got}. "
            "Pass the table itself, or a function of n and embed_dim."
        )
    # tables are mostly made in single precision, where an angle of n is off by n * 6e-8
    limit = 1e-6 * max(10, len(table))
    found = [
        other
        for other, made in _tables(*table.shape)
        if made.shape == table.shape and (made - table).abs().max() <= limit
    ]
    checked = ("sines and cosines, place by place",) + (
        ("an odd width",) if callable(positions) else ()
    )
    if not found and (table - table[:1]).abs().max() <= limit:
        found = ["sincos-same"]
    evidence = "reproduces your table exactly"
    explanations = []
    if found and found[0] is not None:
        ids.insert(0, found[0])
    if ids:
        if ids == ["sincos-odd"]:
            evidence = "fails with an odd embed_dim"
        explanations = [explain([BUGS[id] for id in ids], evidence=evidence)]
    failing = () if table.isfinite().all() else ("the table holds numbers: it has NaN or infinity",)
    return Report(
        name, not ids and bool(found), tuple(explanations), failing, checked, tolerance=limit
    )


def refused(error: Exception, function: Callable) -> bool:
    """Say whether a function refuses its input itself, by an assert or a raise of its own."""
    line = error.__traceback__
    while line.tb_next is not None:
        line = line.tb_next
    own = getattr(inspect.unwrap(function), "__globals__", None)
    code = linecache.getline(line.tb_frame.f_code.co_filename, line.tb_lineno).strip()
    stated = code.startswith(("assert", "raise")) or isinstance(error, AssertionError)
    return stated and line.tb_frame.f_globals is own


def _tables(n: int, e: int) -> Iterator[tuple[str | None, Tensor]]:
    """Yield the right table and the wrong ones."""
    places = torch.arange(n, dtype=torch.float64)[:, None]
    pairs = torch.arange(0, e, 2, dtype=torch.float64)
    angles = places / 10000 ** (pairs / e)
    right = torch.zeros(n, e, dtype=torch.float64)
    right[:, 0::2] = angles.sin()
    right[:, 1::2] = angles.cos()[:, : e // 2]
    yield None, right
    if e % 2 == 0:
        yield "sincos-halves", torch.cat([angles.sin(), angles.cos()], dim=1)
        yield "sincos-halves", torch.cat([angles.cos(), angles.sin()], dim=1)
        half = e // 2
        if half > 1:  # the spacing of the first reference implementation
            steps = torch.arange(half, dtype=torch.float64) / (half - 1)
            spaced = places / 10000**steps
            yield "sincos-halves", torch.cat([spaced.sin(), spaced.cos()], dim=1)
