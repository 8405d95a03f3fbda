"""`diagnose_block` for blocks with a context or masks: every part in its place, one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import Any

from torch import Tensor, nn

from attention_clinic.bugs import ATTENTION
from attention_clinic.bugs.blocks import Parts
from attention_clinic.bugs.caps import CAP
from attention_clinic.bugs.decoder import LAYER, PLACES, RIGHT, Attending
from attention_clinic.bugs.feeds import ACTIVATIONS
from attention_clinic.bugs.hiding import USE
from attention_clinic.bugs.masks import RULE, has_empty
from attention_clinic.bugs.orders import AROUND, INSIDE, SIDE_BY_SIDE
from attention_clinic.engine.arguments import Tables
from attention_clinic.engine.crossing import Sides
from attention_clinic.engine.forms import Form, Found, State, simplest, walk
from attention_clinic.engine.openings import Opening
from attention_clinic.engine.patient import same
from attention_clinic.engine.weighing import WholeScores
from attention_clinic.engine.weights import Silent, Source, sources_of
from attention_clinic.examine.around import CROSS, Around, Question, called
from attention_clinic.examine.block import Block, gap_between
from attention_clinic.examine.held import feed_of, scales_of
from attention_clinic.examine.mask_argument import allowed
from attention_clinic.examine.matching import Probe

ORDER_WORDS = {
    True: "pre-norm",
    False: "post-norm",
    INSIDE: "norms of the parts",
    SIDE_BY_SIDE: "parts side by side",
    AROUND: "norms before and behind the parts",
}


class Layer(Block):
    """The examination of one block, part by part.

    Args:
        asked: what is asked of it.
        call: how to call it, or None.
    """

    takes_masks = True

    def __init__(self, asked: Question, call: Callable[..., Any] | None = None) -> None:
        patient, around, causal = asked.patient, asked.around, asked.causal
        super().__init__(patient, asked.x, asked.num_heads, asked.meant, causal)
        self.around, self.now = around, Around(around.context)
        self.keys = None if around.context is None else around.context.shape[1]
        self.time_first, patient.time_first = patient.time_first, False
        self.user_call, patient.call = call, self.call
        self.silences: dict[frozenset[str], Tensor] = {}
        self.is_causal = bool(causal)
        self.kinds = RIGHT[2] if around.context is None else RIGHT[3]

    def call(self, module: nn.Module, x: Tensor) -> object:
        """Call the copy with what stands around now."""
        now = self.now
        if self.user_call is not None:
            given = [now.context] if self.around.context is not None else []
            if now.mask is not None or now.context_mask is not None:
                given += [now.mask] + [now.context_mask] * (self.around.context is not None)
            return self.user_call(module, x, *given)
        if self.time_first:
            context = None if now.context is None else now.context.transpose(0, 1)
            turned = Around(context, now.mask, now.context_mask)
            result = called(module, x.transpose(0, 1), turned, *self.beside())
            result = result if isinstance(result, Tensor) else result[0]
            return result.transpose(0, 1)
        return called(module, x, now, *self.beside())

    def beside(self) -> tuple[Sides | None, Tables | None, Opening | None]:
        """What a call needs to know of the patient."""
        return self.patient.sides, self.patient.tables, self.patient.opening

    def parts(self, heard: set[str]) -> Parts | str:
        """Find feed-forward, norms and both attentions; return the name of what is missing."""
        sources = sources_of(self.patient.module)
        fed = feed_of(sources, self.e)
        if fed is None:
            return "feed-forward"
        self.fed = fed
        rest = [s for s in sources if all(s is not own for own in fed.sources)]
        groups = self.groups(rest)
        if groups is None:
            return "two attentions"
        self.held = {"feed": fed.sources, **groups}
        self.attending = {}
        for kind, own in groups.items():
            width = self.around.context.shape[-1] if kind == "cross" else self.e
            read = self.reader(own, width)
            if read is None:
                self.check_heads()
                return f"projections of the {kind}-attention"
            self.attending[kind] = Attending(*read)
        known = [name for name in ACTIVATIONS if name in heard] or list(ACTIVATIONS)
        one = self.attending["self"]
        norms = self.norms(called_only=True)
        if len(norms) not in (*range(len(self.kinds) + 1), 2 * len(self.kinds)):
            return f"{len(self.kinds)} norms"
        found = norms, one.reader, one.readings, fed, known, self.norm_kind, self.known()
        return Parts(*found, scales_of(self.patient.module, self.e))

    def groups(self, sources: list[Source]) -> dict[str, list[Source]] | None:
        """Tell the weights of both attentions apart, None when they cannot be told apart."""
        if len(self.kinds) == 2:
            return {"self": sources}
        paths = [source.name.split(".") for source in sources]
        common = len(list(takewhile(lambda names: len(set(names)) == 1, zip(*paths, strict=False))))
        keys = [path[common] if common < len(path) else "" for path in paths]
        if len(set(keys)) != 2:
            keys = ["cross" if CROSS.search(source.name.lower()) else "self" for source in sources]
        names = list(dict.fromkeys(keys))
        if len(names) != 2:
            return None
        split = {name: [s for s, key in zip(sources, keys, strict=True) if key == name]
                 for name in names}  # fmt: skip
        crossed = self.crossed(split) or next((n for n in names if CROSS.search(n)), names[1])
        other = next(name for name in names if name != crossed)
        return {"self": split[other], "cross": split[crossed]}

    def crossed(self, split: dict[str, list[Source]]) -> str | None:
        """Return the attention without which the context is not heard, None when there is none."""
        deaf = []
        for name, own in split.items():
            heard = []
            with Silent.of(own):
                for context in (self.now.context, self.now.context.flip(-1)):
                    self.now = Around(context)
                    heard.append(self.run(self.x))
            self.now = Around(self.around.context)
            if same(*heard):
                deaf.append(name)
        return deaf[0] if len(deaf) == 1 else None

    def silenced(self, kinds: frozenset[str]) -> Tensor:
        """Run the copy with some parts that return 0."""
        if kinds not in self.silences:
            with Silent.of([source for kind in kinds for source in self.held[kind]]):
                self.silences[kinds] = self.run(self.x)
        return self.silences[kinds]

    def state(self, x: Tensor, context: Tensor | None, parts: Parts, silence: bool) -> State:
        """Return what the stages begin with."""
        rule = Probe(x, x, causal=self.is_causal).causal_rule()
        free = {"mask": None, "causal": None, "right": None, "right_has_empty": False}
        return {
            **{"x": x, "stream": x, "context": context, "parts": parts, "meant": self.meant},
            **{"attending": self.attending, "right_kinds": self.kinds, "stages": ATTENTION},
            "rules": {
                "self": {**free, "causal": rule, "right": rule, "right_has_empty": has_empty(rule)},
                "cross": free,
            },
            **{"must_be_causal": self.causal is True, "near": self.near, "causal": rule},
            **{"silenced": self.silenced if silence else None, "attentions": {}, "fixed": {}},
            "activation": "",
        }

    def search(self, parts: Parts) -> dict[tuple[str, ...], Found]:
        """Return the ways with the fewest mistakes that give the output."""
        self.found_parts = parts
        self.others = [(*self.other, self.now.context)]
        if self.now.context is not None:
            other = self.patient.tokens(*self.now.context.shape, seed=8)
            self.now = Around(other)
            self.others.append((self.x, self.run(self.x), other))
            self.now = Around(self.around.context)

        def difference(made: State) -> float | None:
            if not self.near(made["stream"], self.y):
                return None
            if not all(self.again(made, *other) for other in self.others):
                return None
            return gap_between(made["stream"], self.y)

        # who hides the future may be no more than a mixer of samples
        cases = [self.hides_future, False] if self.causal is None else [self.causal]
        for self.is_causal in dict.fromkeys(cases):
            state = self.state(self.x, self.now.context, parts, silence=True)
            found = simplest(LAYER, state, difference, self.most, self.least)
            if found:
                break
        return found

    def again(self, made: State, x: Tensor, y: Tensor, context: Tensor | None) -> bool:
        """Say whether what was found gives the output of another call."""
        state = {**self.state(x, context, self.found_parts, silence=False), **fixed(made)}
        ways = walk(LAYER, state, state["total"], chosen(made))
        return any(self.near(other["stream"], y) for _, other in ways)

    def with_masks(
        self, found: dict[tuple[str, ...], Found]
    ) -> tuple[dict[tuple[str, ...], Found], tuple[str, ...]]:
        """Keep what explains the block with masks too, adding mistakes of the masks."""
        around = self.around
        if not found or (around.mask is None and around.context_mask is None):
            return found, ()
        b, n, _ = self.x.shape
        masks = {"self": None, "cross": None}
        if around.mask is not None:
            masks["self"] = allowed(around.mask, b, n)
        if around.context is not None and around.context_mask is not None:
            masks["cross"] = allowed(around.context_mask, b, n, keys=around.context.shape[1])
        calls = []
        for x, _, context in [(self.x, None, around.context), *self.others]:
            self.now = Around(context, around.mask, around.context_mask)
            calls.append((x, self.run(x), context))
        self.now = Around(around.context)
        words = " and ".join(
            f"{name} that blocks {int((~mask).sum())} of {mask.numel()} places"
            for name, mask in (("a mask", masks["self"]), ("a mask of the context", masks["cross"]))
            if mask is not None
        )
        for more in range(3):
            kept: dict[tuple[str, ...], Found] = {}
            for way in found.values():
                ways = [self.masked(way, more, masks, *call) for call in calls]
                shared = set(ways[0]).intersection(*ways[1:])
                kept |= {ids: found for ids, found in ways[0].items() if ids in shared}
            if more and any("softmax-query" in ids for ids in kept) and self.cancels():
                return found, (f"with {words}, which the softmax over the queries cancels",)
            if kept:
                return kept, (f"with {words}",)
        return {}, (f"with {words}",)

    def cancels(self) -> bool:
        """Say whether the masks reach the scores, and change nothing of what comes out."""
        heard, made = [], []
        for now in (self.around, Around(self.around.context)):
            self.now = now
            with WholeScores() as scores:
                made.append(self.run(self.x))
            heard.append(scores.heard)
        return same(*made) and not all(map(same, *heard))

    def masked(
        self,
        way: Found,
        more: int,
        masks: dict[str, Tensor | None],
        x: Tensor,
        y: Tensor,
        context: Tensor | None,
    ) -> dict[tuple[str, ...], Found]:
        """Return the ways with so many more mistakes, of the masks, that give the output."""
        made = {**way.state, "forms": way.path.forms}
        state = self.state(x, context, self.found_parts, silence=False)
        state |= fixed(made, free=(CAP.name, RULE.name, USE.name))
        rules = {}
        for kind, rule in state["rules"].items():
            right = RULE.reference.run(masks[kind], rule["causal"])
            rules[kind] = {**rule, "mask": masks[kind], "right": right}
            rules[kind]["right_has_empty"] = has_empty(right)
        state |= {"rules": rules, "total": state["total"] + more}
        kept = {}
        for path, other in walk(LAYER, state, state["total"], chosen(made)):
            if path.ids not in kept and self.near(other["stream"], y):
                kept[path.ids] = Found(path, other, 0.0)
        return kept

    def what(self, state: State) -> str:
        """Say what was compared."""
        heads = f"{self.h} head{'s' * (self.h > 1)}"
        crossed = ""
        if self.around.context is not None:
            crossed = f" and cross-attention (context {self.around.context.shape[-1]} wide)"
        attention = (
            f"self-attention{crossed} with {heads}" if crossed else f"attention with {heads}"
        )
        causal = ", causal" if state["causal"] is not None else ""
        order, eps = ORDER_WORDS[state["first"]], f"eps {state['eps']:g}"
        return f"residuals; {order}; {eps}; {state['activation']}; {attention}{causal}"

    def failing(self) -> Iterator[str]:
        """Yield the properties that do not hold."""
        yield from super().failing()
        if self.around.context is None:
            return
        self.now = Around(self.patient.tokens(*self.around.context.shape, seed=23))
        deaf = same(self.run(self.x), self.y)
        self.now = Around(self.around.context.flip(1))
        moved = gap_between(self.run(self.x), self.y)
        self.now = Around(self.around.context)
        if deaf:
            yield "the context is heard: another one gives the same output"
        elif moved > 1e3 * self.patient.tolerance * (1 + self.y.abs().max().item()):
            yield "the order of the context does not matter: permuted, it gives another output"


def fixed(made: State, free: tuple[str, ...] = ()) -> State:
    """Return what a search begins with that is to find the same way for another call.

    Args:
        made: what the way made.
        free: the stages of attention that may be another way.
    """
    ways = {}
    for kind, (reading, forms) in made["attentions"].items():
        pairs = zip(ATTENTION, forms, strict=True)
        own = {s.name: [form] for s, form in pairs if s.name not in free}
        ways[kind] = (reading, own)
    total = sum(len(form.mistakes(made)) for form in made["forms"])
    return {"fixed": {**ways, "feed": made["activation"]}, "total": total}


def chosen(made: State) -> dict[str, list[Form]]:
    """Return the forms of a way, but for the places, whose forms are found anew."""
    pairs = zip(LAYER, made["forms"], strict=True)
    return {stage.name: [form] for stage, form in pairs if stage not in PLACES}
