"""The report of a diagnosis: for people (`print`, JupyterLab) and for programs."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from textwrap import wrap
from typing import Any

PAGE = 84  # columns that a notebook shows without breaking a line
# a call or an index, one pair of brackets deep: never broken across lines
CODE = re.compile(r"[\w.]+(\((?:[^()]|\([^()]*\))*\)|\[[^]]*\])|\([^()]*\)")
GLUE = "\N{NO-BREAK SPACE}"
THREADS_SHOWN = 3  # in print; the report holds all
# reports that were false in a condition: the pytest plugin prints the last ones whole
ASKED: deque[Any] = deque(maxlen=5)


@dataclass(frozen=True)
class Bug:
    """One known mistake.

    Args:
        id: its short name.
        words: what the code does, as the rest of a sentence.
        fix: what to write instead, one sentence.
        chapter: the chapter that explains it, two digits.
        threads: where it happened, as owner/repository#number or a link.
        seen: the evidence for a bug that the output does not show; "" for all others.
        once: what must be fixed before the output can be compared; "" if nothing.
    """

    id: str
    words: str
    fix: str
    chapter: str
    threads: tuple[str, ...]
    seen: str = ""
    once: str = ""


@dataclass(frozen=True)
class Variant:
    """A correct part that is built differently from the original Transformer, on purpose.

    Args:
        id: its short name.
        words: what the code does, as the rest of a sentence.
        models: well-known models that build it this way.
        chapter: the chapter that explains it, two digits.
    """

    id: str
    words: str
    models: str
    chapter: str


@dataclass(frozen=True)
class Explanation:
    """One set of known mistakes that gives exactly the output of the module.

    Args:
        ids: one id, or several when only their combination explains the output.
        words: what the code does.
        fix: what to write instead.
        chapter: the chapter of the first id.
        threads: where it happened.
        difference: largest difference between this explanation's output and the module's.
        detail: a fact beyond the words, such as the factor of the scores; "" for none.
        evidence: how the explanation was established.
    """

    ids: tuple[str, ...]
    words: str
    fix: str
    chapter: str
    threads: tuple[str, ...]
    difference: float = 0.0
    detail: str = ""
    evidence: str = "reproduces your output exactly"


@dataclass(frozen=True, repr=False)
class Report:
    """What `diagnose` or another tool found; true in a condition when it is healthy.

    Args:
        name: what was examined.
        healthy: True when it equals the reference and nothing else was found.
        explanations: the explanations, simplest first; several are alternatives that give the
            same output and cannot be told apart.
        failing: properties that do not hold; tested when there is no explanation.
        checked: what was compared.
        untried: inputs that could have been tried, but were not.
        remarks: facts that are mistakes elsewhere, but not here.
        variants: correct differences from the attention of the original Transformer.
        program: steps and values that were read off a run of an attention, () for none.
        tolerance: the largest difference that counts as equal.
    """

    name: str
    healthy: bool
    explanations: tuple[Explanation, ...] = ()
    failing: tuple[str, ...] = ()
    checked: tuple[str, ...] = ()
    untried: tuple[str, ...] = ()
    remarks: tuple[Explanation, ...] = ()
    variants: tuple[Variant, ...] = ()
    program: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    tolerance: float = field(default=1e-9, compare=False)

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the simplest explanation, () when there is none."""
        return self.explanations[0].ids if self.explanations else ()

    @property
    def verdict(self) -> str:
        """The first line of the report."""
        if self.healthy:
            ids = ", ".join(variant.id for variant in self.variants)
            return f"{self.name}: healthy{f', as a variant: {ids}' if ids else ''}"
        if self.explanations:
            return f"{self.name}: not equal to the reference"
        return f"{self.name}: not equal to the reference, and unexplained"

    @property
    def kind(self) -> str:
        """One word: "healthy", "variant", "buggy", or "unexplained"."""
        if self.healthy:
            return "variant" if self.variants else "healthy"
        return "buggy" if self.explanations else "unexplained"

    def data(self) -> dict[str, Any]:
        """Return the report as plain dictionaries, lists and strings, for `json.dumps`."""
        return {
            "name": self.name,
            "kind": self.kind,
            "healthy": self.healthy,
            "explanations": [asdict(explanation) for explanation in self.explanations],
            "variants": [variant.id for variant in self.variants],
            "remarks": [asdict(remark) for remark in self.remarks],
            **{name: list(getattr(self, name)) for name in ("failing", "checked", "untried")},
        }

    def __bool__(self) -> bool:
        if not self.healthy:
            ASKED.append(self)
        return self.healthy

    def __repr__(self) -> str:
        """One line, for the message of a failing `assert diagnose(module, 8)`."""
        found = "; or ".join(f"{' + '.join(e.ids)}. Fix: {e.fix}" for e in self.explanations)
        fails = "; ".join(f"fails: {words}" for words in self.failing)
        return f"<{'. '.join(filter(None, (self.verdict, found, fails)))}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def __str__(self) -> str:
        lines = [self.verdict]
        for number, explanation in enumerate(self.explanations):
            if number:
                lines.append("  or, which gives the same output:")
            lines += self._lines(explanation)
        for remark in self.remarks:
            lines += self._lines(remark, "Remark: ")
        for variant in self.variants:
            lines += wrapped(f"  Variant: {variant.id}   {variant.words} ({variant.models})")
        if not self.healthy and not self.explanations:
            lines.append("  No known mistake gives this output.")
            if not self.failing:
                lines.append("  Every property that could be tried holds.")
        notes = (("Fails", self.failing), ("Checked", self.checked), ("Not tried", self.untried))
        for kind, words in ((kind, words) for kind, said in notes for words in said):
            lines += wrapped(f"  {kind}: {words}")
        return "\n".join(lines)

    def _lines(self, explanation: Explanation, kind: str = "") -> list[str]:
        """Return the lines of one explanation."""
        threads = ", ".join(explanation.threads[:THREADS_SHOWN])
        if len(explanation.threads) > THREADS_SHOWN:
            threads += f" and {len(explanation.threads) - THREADS_SHOWN} more"
        seen = f"   Seen in: {threads}" if threads else ""
        lines = wrapped(f"  {kind}{' + '.join(explanation.ids)}   {explanation.words}")
        said = [explanation.detail, self.evidence(explanation), f"Fix: {explanation.fix}"]
        for words in filter(None, (*said, f"Chapter {explanation.chapter}.{seen}")):
            lines += wrapped(f"    {words}")
        return lines

    def evidence(self, explanation: Explanation) -> str:
        """Return the evidence, without digits that differ between machines."""
        if "exactly" not in explanation.evidence:
            return explanation.evidence
        return f"{explanation.evidence} (largest difference below {self.tolerance:.0e})"


def wrapped(line: str) -> list[str]:
    """Break a line at spaces outside code; continuation lines are indented by two more."""
    indent = " " * (len(line) - len(line.lstrip()))
    lines = wrap(
        CODE.sub(lambda found: found[0].replace(" ", GLUE), line.strip()),
        PAGE,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(GLUE, " ") for line in lines]


def fewest_mistakes(reports: Sequence[Report]) -> Report:
    """Return the best of the reports on several ways to call one module."""
    return min(reports, key=lambda r: (not r.healthy, not r.explanations, len(r.ids)))


def explain(
    bugs: Sequence[Bug], difference: float = 0.0, detail: str = "", what: str = "output"
) -> Explanation:
    """Make one explanation of bugs that together reproduce what the module gives."""
    repairs = " and ".join(bug.once for bug in bugs if bug.once)
    evidence = f"reproduces your {what} exactly" + (f" once {repairs}" if repairs else "")
    if all(bug.seen for bug in bugs):
        evidence = "; ".join(dict.fromkeys(bug.seen for bug in bugs))
    return Explanation(
        ids=tuple(bug.id for bug in bugs),
        words="; and ".join(bug.words for bug in bugs),
        fix=" ".join((bugs[0].fix, *(bug.fix[0].upper() + bug.fix[1:] for bug in bugs[1:]))),
        chapter=bugs[0].chapter,
        threads=tuple(dict.fromkeys(thread for bug in bugs for thread in bug.threads)),
        difference=difference,
        detail=detail,
        evidence=evidence,
    )
