"""Where the norms of a block stand: those that are missing, mixed or shared by their names."""

from __future__ import annotations

from torch import Tensor, nn

from attention_clinic.bugs.blocks import Meant
from attention_clinic.engine.patient import Patient
from attention_clinic.examine.between import PARTS
from attention_clinic.examine.leaves import is_no_norm, looks_like_a_norm
from attention_clinic.examine.streams import AROUND, BARE, CONTEXT, PRE, Half, Stream
from attention_clinic.examine.unit import Unit

Places = list[tuple[bool, bool, bool]]
POST, INSIDE = (False, False, True), (False, True, False)
ORDERS = {PRE: "pre-norm", POST: "post-norm", INSIDE: "norms of the parts",
          AROUND: "norms before and behind the parts", BARE: "no norms"}  # fmt: skip


class NormPlaces:
    """What is said of the norms of a block, and of its wiring.

    Args:
        patient: its copy.
        x: tokens that it takes.
        context: the context, or None.
        meant: what it is meant to be.

    Attributes:
        found: mistakes, with what is said of each.
        variants: what is otherwise on purpose.
        said: what was seen.
        odd: connections that are neither, in words.
        norms: the names of what norms returned.
        called: the paths of all that was called.
        beside: the paths of what makes other results of the block.
        untried: what is left out.
        deaf: whether what every attention returned is thrown away.
    """

    def __init__(self, patient: Patient, x: Tensor, context: Tensor | None, meant: Meant) -> None:
        self.patient, self.x, self.context, self.meant = patient, x, context, meant
        self.found: list[tuple[str, str]] = []
        self.variants: list[str] = []
        self.said: list[str] = []
        self.odd: list[str] = []
        self.norms: set[str] = set()
        self.called: set[str] = set()
        self.beside: set[str] = set()
        self.untried: list[str] = []
        self.deaf = False
        self.convolutions: list[Unit] = []  # beside a feed-forward
        self.again: list[str] = []  # parts that run in two places
        self.fed = ""  # the part that reads what it returned itself

    def order(
        self, way: tuple[Half, ...], kinds: list[str], scaled: bool
    ) -> tuple[bool, ...] | None:
        """Return where the norms stand, after naming those that stand elsewhere."""
        kept = [at for at, half in enumerate(way) if half.join != "dropped" or half.behind]
        if kept:  # a norm whose result is thrown away, too, says nothing of the others
            way, kinds = tuple(way[at] for at in kept), [kinds[at] for at in kept]
        places = [half.places for half in way]
        places = [BARE if kind == "conv" and place == INSIDE else place
                  for place, kind in zip(places, kinds, strict=True)]  # fmt: skip
        orders = list(dict.fromkeys(place for place in places if place != BARE))
        for place, kind in zip(places, kinds, strict=True):
            if place not in ORDERS:
                sides = ("before it", "behind it, inside of the sum", "behind the sum")
                at = " and ".join(
                    side for side, is_there in zip(sides, place, strict=True) if is_there
                )
                self.odd.append(f"the {PARTS[kind]} has norms {at}")
        if any(order not in ORDERS for order in orders):
            return None
        resting = self.resting_norms(way)
        held = self.patient.module.named_modules()
        chosen = [path for path, part in held if path in self.called and is_no_norm(path, part)]
        if not orders:
            if not scaled and not any(self._has_norms(half.unit) for half in way):
                self.found.append(("norm-missing", "there is none at all"))
            self.said.append(ORDERS[BARE])
            return None
        if AROUND in orders and {*orders} <= {AROUND, PRE, INSIDE} and resting:
            orders, places = [AROUND], self._halved(places, kinds, resting[0])
        if len(orders) > 1:
            named = {PRE: "before", POST: "behind", INSIDE: "on what it returns of",
                     AROUND: "around"}  # fmt: skip
            said = ", ".join(
                f"{named[place]} the {PARTS[kind]}"
                for place, kind in zip(places, kinds, strict=True)
                if place != BARE
            )
            if set(orders) in ({PRE, POST}, {PRE, INSIDE}, {POST, INSIDE}):
                self.found.append(("norm-mixed", said))
            else:
                self.odd.append(f"norms stand {said}")
        for half, place, kind in zip(way, places, kinds, strict=True):
            bare = place == BARE and kind != "conv"  # which may be a code of places, as in CPVT
            if bare and half.join != "dropped" and not self._has_norms(half.unit):
                said = f"{'after' if orders[0] == POST else 'before'} the {PARTS[kind]}"
                if chosen:  # ModernBERT's first layer, whose tokens were normalised before it
                    self.said.append(f"no norm {said}: {chosen.pop(0)} is nn.Identity")
                    continue
                said += f"; {resting[0]} is never called" if resting else ""
                self.found.append(("norm-missing", said))
        if len(orders) == 1:
            self.said.append(ORDERS[orders[0]])
            right = all(half.join != "doubled" for half in way)
            variants = {INSIDE: ["norm-of-part"], AROUND: ["sandwich-norm"]}
            self.variants += variants.get(orders[0], []) * right
        return orders[0] if len(orders) == 1 else None

    def _halved(self, places: Places, kinds: list[str], resting: str) -> Places:
        """Name the norms that a part lacks where others have both, and return whole places."""
        for place, kind in zip(places, kinds, strict=True):
            if place in (PRE, INSIDE):
                side = "before" if place == INSIDE else "behind"
                said = f"{side} the {PARTS[kind]}; {resting} is never called"
                self.found.append(("norm-missing", said))
        return [AROUND if place in (PRE, INSIDE) else place for place in places]

    def _has_norms(self, unit: Unit) -> bool:
        """Say whether norms as wide as the stream are called inside of a part."""
        width = self.x.shape[-1]
        return any(
            path in self.called
            and path not in self.norms
            and any(path.startswith(f"{own}.") for own in unit.paths)
            and looks_like_a_norm(path, part)
            and any(p.numel() == width for p in part.parameters())
            for path, part in self.patient.module.named_modules()
        )

    def _goes_with(self, norm: str) -> bool:
        """Say whether a norm stands in one module with a part that runs in two places itself."""
        around = norm.rpartition(".")[0]
        return bool(around) and any(name.startswith(f"{around}.") for name in self.again)

    def resting_norms(self, way: tuple[Half, ...]) -> list[str]:
        """Return the norms that were never called."""
        used = {norm.name for half in way for norm in half.norms}
        return [
            path
            for path, part in self.patient.module.named_modules()
            if path not in used | self.called and looks_like_a_norm(path, part)
        ]

    def name_shared(self, way: tuple[Half, ...], stream: Stream) -> None:
        """Name norms that stand in several places."""
        seen: dict[str, set[int]] = {}
        asked = [stream.norms[name] for name, read in stream.reads.items()
                 if name in stream.norms and CONTEXT in read]  # fmt: skip
        for norms in (*(half.norms for half in way), asked):
            for norm in norms:
                if isinstance(norm.run, nn.Module) and any(True for _ in norm.run.parameters()):
                    seen.setdefault(norm.name, set()).add(id(norm))
        shared = [
            name for name, calls in seen.items() if len(calls) > 1 and not self._goes_with(name)
        ]
        if shared:
            resting = self.resting_norms(way)
            said = f"{shared[0]} stands in {len(seen[shared[0]])} places"
            said += f", {' and '.join(resting)} is never called" if resting else ""
            self.found.append(("norm-shared", said))
