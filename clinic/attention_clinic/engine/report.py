"""What a diagnosis says: for people (`print`, JupyterLab) and for programs."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from html import escape
from textwrap import wrap
from typing import Any

PAGE = 84  # columns that a notebook shows without breaking a line
# a call or an index with what stands in it, one pair of brackets deep: not broken
CODE = re.compile(r"[\w.]+(\((?:[^()]|\([^()]*\))*\)|\[[^]]*\])|\([^()]*\)")
GLUE = "\N{NO-BREAK SPACE}"
# names that no style sheet around it knows, and no id of a bug is broken at its hyphen
STYLE = (
    "<style>.attention-clinic th, .attention-clinic td {text-align: left}"
    " .attention-clinic td b {white-space: nowrap}</style>"
)
NO_NUMBERS = "the output holds numbers: "  # what fails, before what it holds instead
WHETHER_SHOWN = "whether a mistake would show"  # all that is checked where none would
THREADS_SHOWN = 3  # in print; the report holds all
# what was asked for its truth lately and was false: the pytest plugin shows it whole
ASKED: deque[Any] = deque(maxlen=5)


@dataclass(frozen=True)
class Bug:
    """One known mistake.

    Args:
        id: its short name.
        words: what the code does, as the rest of a sentence.
        fix: what to write instead, one sentence.
        chapter: the chapter that explains it, two digits.
        threads: where it happened, as owner/repository#number or another place.
        seen: how it is found, when no output shows it; "" when it is found by its output.
        once: what must be repaired before the output can be compared; "" when nothing.
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
    """One other way to build a part, which is right too: another thing on purpose.

    Args:
        id: its short name.
        words: what the code does, as the rest of a sentence.
        models: where it is built so, as one would search for it.
        chapter: the chapter that explains it, two digits.
    """

    id: str
    words: str
    models: str
    chapter: str


@dataclass(frozen=True)
class Explanation:
    """One set of known mistakes that gives exactly what the module gives.

    Args:
        ids: one id, or several when only their combination explains the output.
        words: what the code does.
        fix: what to write instead.
        chapter: the chapter of the first id.
        threads: where it happened.
        difference: largest difference between this explanation's output and the module's.
        detail: what was found out beyond the words, such as the number that the scores are
            multiplied by; "" when there is nothing to add.
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
    """What `diagnose` and its relatives found; true in a test when it is healthy.

    Args:
        name: what was examined.
        healthy: True when it equals the reference and nothing else was found.
        explanations: the explanations, simplest first; several are alternatives that give the
            same output and cannot be told apart.
        failing: properties that do not hold, asked for when no explanation was found.
        checked: what was compared.
        untried: what could have been tried and was not.
        remarks: what is no mistake here and is one elsewhere.
        variants: what it does in another way than the attention of 2017, on purpose and right.
        stopped: the steps after which the search stopped, 0 when it went to its end.
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
    stopped: int = 0
    tolerance: float = field(default=1e-9, compare=False)

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the simplest explanation, () when there is none."""
        return self.explanations[0].ids if self.explanations else ()

    @property
    def verdict(self) -> str:
        """The first line: what the examination says, in a few words."""
        if self.healthy:
            ids = ", ".join(variant.id for variant in self.variants)
            return f"{self.name}: healthy{f', as a variant: {ids}' if ids else ''}"
        if self.explanations:
            return f"{self.name}: not equal to the reference"
        return f"{self.name}: not equal to the reference, and unexplained"

    @property
    def unnamed(self) -> str:
        """What is said where no mistake is named."""
        if without_numbers(self.failing):
            return "No number is left that could tell one mistake from another."
        if self.stopped:
            return (
                f"The search stopped after {self.stopped} steps. No mistake that was tried until "
                "then gives this output; effort=10 tries more."
            )
        if self.checked == (WHETHER_SHOWN,):
            return "No mistake was looked for, since none would show."
        return "No known mistake, alone or with a second one, gives this output."

    @property
    def kind(self) -> str:
        """One word: "healthy", "variant", "sick", or "unexplained"."""
        if self.healthy:
            return "variant" if self.variants else "healthy"
        return "sick" if self.explanations else "unexplained"

    def data(self) -> dict[str, Any]:
        """Return the report as plain dictionaries, lists and strings, for `json.dumps`."""
        return {
            "name": self.name,
            "kind": self.kind,
            "healthy": self.healthy,
            "explanations": [_told(explanation) for explanation in self.explanations],
            "variants": [variant.id for variant in self.variants],
            "remarks": [_told(remark) for remark in self.remarks],
            "failing": list(self.failing),
            "checked": list(self.checked),
            "untried": list(self.untried),
            "stopped": self.stopped,
        }

    def __bool__(self) -> bool:
        if not self.healthy:
            ASKED.append(self)
        return self.healthy

    def __repr__(self) -> str:
        """One line, for what a failing `assert diagnose(module, 8)` prints."""
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
            lines += self._told(explanation)
        for remark in self.remarks:
            lines += self._told(remark, "Remark: ")
        for variant in self.variants:
            lines += wrapped(f"  Variant: {variant.id}   {variant.words} ({variant.models})")
        if not self.healthy and not self.explanations:
            lines += wrapped(f"  {self.unnamed}")
            if not self.failing:
                lines.append("  Every property that could be tried holds.")
        for note in notes_of(self):
            lines += wrapped(f"  {note}")
        return "\n".join(lines)

    def _told(self, explanation: Explanation, kind: str = "") -> list[str]:
        """Return the lines of one explanation."""
        threads = ", ".join(explanation.threads[:THREADS_SHOWN])
        if len(explanation.threads) > THREADS_SHOWN:
            threads += f" and {len(explanation.threads) - THREADS_SHOWN} more"
        seen = f"   Seen in: {threads}" if threads else ""
        lines = wrapped(f"  {kind}{' + '.join(explanation.ids)}   {explanation.words}")
        for words in (
            explanation.detail,
            self.evidence(explanation),
            f"Fix: {explanation.fix}",
            f"Chapter {explanation.chapter}.{seen}",
        ):
            lines += wrapped(f"    {words}") if words else []
        return lines

    def evidence(self, explanation: Explanation) -> str:
        """Say how well the explanation is established, without digits that differ by machine."""
        if "exactly" not in explanation.evidence:
            return explanation.evidence
        return f"{explanation.evidence} (largest difference below {self.tolerance:.0e})"

    def _repr_html_(self) -> str:
        rows = []
        for explanation in (*self.explanations, *self.remarks):
            kind = "Remark: " if explanation in self.remarks else ""
            cells = (
                f"{kind}<b>{escape(' + '.join(explanation.ids))}</b>",
                escape(explanation.words)
                + (f"<br>{escape(explanation.detail)}" if explanation.detail else "")
                + f"<br><i>{escape(self.evidence(explanation))}</i>",
                escape(explanation.fix),
                escape(explanation.chapter),
                "<br>".join(_linked(thread) for thread in explanation.threads),
            )
            rows.append("".join(f"<td>{cell}</td>" for cell in cells))
        head = ""
        if rows:
            names = ("bug", "what the code does", "fix", "chapter", "seen in")
            head = "".join(f"<th>{name}</th>" for name in names)
        table = f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"
        notes = [f"Variant: {v.id}, {v.words} ({v.models})" for v in self.variants]
        notes += notes_of(self)
        listed = "".join(f"<li>{escape(note)}</li>" for note in notes)
        return (
            f"{STYLE}<div class='attention-clinic'><b>{escape(self.verdict)}</b>"
            f"{table if rows else ''}{f'<ul>{listed}</ul>' if listed else ''}</div>"
        )


def _told(explanation: Explanation) -> dict[str, Any]:
    """Return an explanation as plain values."""
    return {
        "ids": list(explanation.ids),
        "words": explanation.words,
        "detail": explanation.detail,
        "fix": explanation.fix,
        "chapter": explanation.chapter,
        "threads": list(explanation.threads),
    }


def without_numbers(failing: Sequence[str]) -> bool:
    """Say whether the output holds no number at all, by what fails."""
    return any(words.startswith(NO_NUMBERS) and "nothing but" in words for words in failing)


def notes_of(report: Any) -> list[str]:
    """Return what fails, what was checked and what was not tried, a line each.

    Args:
        report: with `failing`, `checked` and `untried`, of one part or of a model.
    """
    return [
        *(f"Fails: {words}" for words in report.failing),
        *(f"Checked: {words}" for words in report.checked),
        *(f"Not tried: {words}" for words in report.untried),
    ]


def wrapped(line: str) -> list[str]:
    """Break a line at spaces outside code; what continues it is indented two columns deeper."""
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


def _linked(thread: str) -> str:
    """Return owner/repository#number as a link, anything else as text."""
    place, _, number = thread.partition("#")
    if not number.isdigit() or place.count("/") != 1:
        return escape(thread)
    url = f"https://github.com/{place}/issues/{number}"
    return f'<a href="{escape(url)}">{escape(thread)}</a>'


def explain(
    bugs: Sequence[Bug], difference: float = 0.0, detail: str = "", what: str = "output"
) -> Explanation:
    """Make one explanation of one or several bugs.

    Args:
        bugs: the bugs that together give the output.
        difference: largest difference from the module's output.
        detail: what was found out beyond the words.
        what: the thing that they reproduce.
    """
    repairs = " and ".join(bug.once for bug in bugs if bug.once)
    evidence = f"reproduces your {what} exactly" + (f" once {repairs}" if repairs else "")
    if all(bug.seen for bug in bugs):
        evidence = "; ".join(dict.fromkeys(bug.seen for bug in bugs))
    return Explanation(
        ids=tuple(bug.id for bug in bugs),
        words="; and ".join(bug.words for bug in bugs),
        fix=" ".join(
            bug.fix if n == 0 else bug.fix[0].upper() + bug.fix[1:] for n, bug in enumerate(bugs)
        ),
        chapter=bugs[0].chapter,
        threads=tuple(dict.fromkeys(thread for bug in bugs for thread in bug.threads)),
        difference=difference,
        detail=detail,
        evidence=evidence,
    )


def likelier(first: Report, second: Report) -> Report:
    """Return the report with fewer mistakes, where nothing says which of two calls is meant."""
    if first.healthy or not (second.healthy or second.explanations):
        return first
    if "ignores-input" in second.ids:  # it was handed its tokens in another's place
        return first
    if second.healthy or not first.explanations or len(second.ids) < len(first.ids):
        return second
    if len(first.ids) < len(second.ids):
        return first
    return replace(first, explanations=(*first.explanations, *second.explanations))
