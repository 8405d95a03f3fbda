"""What is said of a module in which something does not learn, or never drops."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from torch import nn

from attention_clinic.bugs import BUGS, unused_dropout
from attention_clinic.engine.mentions import gathered, has_options, is_mentioned
from attention_clinic.engine.patient import Patient
from attention_clinic.engine.report import Explanation, Report, explain
from attention_clinic.examine.dry_parts import dry_parts
from attention_clinic.examine.leaves import looks_like_a_norm
from attention_clinic.examine.resting import drops_scores, drops_with_gradients, idle_dropouts

GREAT = 0.05  # an eps that no model has; dropouts begin there
IN_CALLS = "seen in calls; no more is understood"
NAMED = 3  # parameters that a report lists
OF_NUMBERS = {  # no layer stands unused because of these
    *("norm-bessel", "norm-formula", "norm-eps", "rms-mean", "rms-eps", "activation-other"),
    *("scale-embed", "scale-missing", "scale-other", "scale-after-softmax", "softmax-query"),
    *("softmax-heads", "softmax-batch", "mask-weak", "mask-tiny", "mask-multiply", "mask-added"),
    *("mask-inverted", "merge-no-transpose", "split-no-transpose", "dropout-eval"),
    *("dropout-unused", "dropout-scores", "mask-dropped", "context-mask-dropped", "merge-axes"),
    *("mask-positive", "mask-after-softmax", "mask-off-by-one", "mask-not-causal"),
    "mask-query-axis",
}
UNUSED = {"part-unused", "parameter-unused", "norm-missing", "norm-shared", "out-unused"}


@dataclass(frozen=True)
class Learned:
    """What gets no gradient though it could, or could not get one.

    Args:
        cut: what moves the output, and whose gradient does not say so.
        unused: parameters that move nothing and get none.
        own: whether the graph holds functions with a backward of their own.
        read: those of the unused that the run read.
        silent: whether something of the cut gets no gradient at all, or the cut was heard.
        lost: parameters of the cut that get no gradient of anything that is returned.
        still: weights that choose, and whose gradient is 0.
        asked: whether the code asked its data, and may go on as they say.
        choosing: parameters that are behind the answers.
    """

    cut: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    own: bool = False
    read: frozenset[str] = frozenset()
    silent: bool = False
    lost: tuple[str, ...] = ()
    still: tuple[str, ...] = ()
    asked: bool = False
    choosing: frozenset[str] = frozenset()


def both(first: Learned, second: Learned) -> Learned:
    """Return what holds while evaluating and while training."""
    cut = tuple(name for name in first.cut if name in second.cut)
    unused = tuple(name for name in first.unused if name in second.unused)
    own, silent = first.own or second.own, first.silent and second.silent
    lost = tuple(name for name in first.lost if name in second.lost)
    still = tuple(name for name in first.still if name in second.still)
    asked, choosing = first.asked or second.asked, first.choosing | second.choosing
    read = first.read | second.read
    return Learned(cut, unused, own, read, silent, lost, still, asked, choosing)


def told(
    report: Report, patient: Patient, found: Learned, trained: set[str], parameters: bool
) -> Report:
    """Say what was found."""
    more: list[tuple[str, str]] = []
    if found.cut and found.own:
        words = f"the gradient is the derivative: not of {listed(list(found.cut))}"
        return replace(report, healthy=False, failing=(*report.failing, words))
    if found.cut and (report.healthy or found.silent):
        inner = [name for name in found.cut if name]
        words = [
            *["what comes in"] * ("" in found.cut),
            *[listed(inner) if set(inner) < trained else "every parameter"] * bool(inner),
        ]
        more.append(("graph-cut", f"no gradient, or not all of it, reaches {' and '.join(words)}"))
    unused = [name for name in found.unused if not _is_cut_too(name, found.cut)]
    if found.cut and found.silent:  # what is read may be multiplied by 0, and then cut
        unused = [name for name in unused if name not in found.read]
    unused = [name for name in unused if patient.module.get_parameter(name).numel()]
    groups = list(gathered(unused, trained)) if parameters else []
    waiting = [path for path, _ in groups if _waits_for_tokens(path, patient.module)]
    if waiting:
        said = f"experts that got no token: {listed(waiting)}"
        report = replace(report, untried=(*report.untried, said))
    for path, names in groups:
        if path in waiting:
            continue
        read = any(name in found.read for name in names)
        layer = path not in names and not _is_list(path, patient.module)
        words = f"what {path} returns is thrown away" if read else f"{path} is never "
        words += "" if read else "called" if layer else "read"
        id = "part-unused" if layer else "parameter-unused"
        right = report.healthy or ({*report.ids} <= OF_NUMBERS and bool(report.ids))
        if not right and not _stands_out(report, patient, path, names, read):
            continue
        mentioned = not read and is_mentioned(path, patient.module)
        listed_only = found.asked and path.rpartition(".")[2].isdigit()
        if not found.choosing.isdisjoint(names) if read else listed_only:
            words = f"what {path} is for: numbers of the run say what comes next"
            report = replace(report, untried=(*report.untried, words))
        elif mentioned and layer and has_options(patient.module, patient.given):
            report = replace(report, untried=(*report.untried, f"what {path} is for"))
        elif mentioned:
            remark = explain([BUGS[id]], detail=f"{words} here: right where an option uses it")
            report = replace(report, remarks=(*report.remarks, remark))
        else:
            more.append((id, words))
    if found.still:
        words = f"{listed(found.still)} only chooses: what it gives as a weight is always the same"
        more.append(("parameter-unused", words))
    return and_more(report, more)


def lost_alone(report: Report, found: Learned | None) -> Report:
    """Say of a module that nothing explains what moves its output and gets no gradient at all.

    Whatever the module is, nothing there learns. What gets some may be cut on purpose elsewhere.
    """
    if found is None or found.own or not found.lost:
        return report
    made = explain([BUGS["graph-cut"]], detail=f"no gradient reaches {listed(found.lost)}")
    return replace(report, explanations=(replace(made, evidence=IN_CALLS),))


def with_great_eps(report: Report, patient: Patient) -> Report:
    """Say which norms add an eps to the variance that is no small number."""
    great = {}
    for path, part in patient.module.named_modules():
        said = [getattr(part, name, None) for name in ("eps", "e", "epsilon", "variance_epsilon")]
        numbers = [eps for eps in said if type(eps) in (float, int) and eps >= GREAT]
        if numbers and looks_like_a_norm(path, part):
            great[path] = numbers[0]
    if not great or not (report.healthy or {"norm-bessel", "rms-eps"} >= {*report.ids} > set()):
        return report
    words = f"eps of {listed(list(great))} is {next(iter(great.values())):g}"
    return and_more(report, [("norm-eps", f"{words}: is another argument in its place?")])


def never_dropping(report: Report, patient: Patient, run: Callable[[], object]) -> Report:
    """Say which dropout is built and never called, taken and never read, or called on the scores.

    Only where the report gives reasons at all.
    """
    asked = report.healthy or report.explanations
    if asked and drops_scores(patient.module, run):
        report = and_more(report, [("dropout-scores", "")])
    dropping = {"dropout-unused", "dropout-eval", "layers-in-forward"} & set(report.ids)
    declared = asked and not dropping and unused_dropout(patient.module) is not None
    if declared and drops_with_gradients(patient.module, run):
        words = "it drops wherever gradients are wanted, and does not ask self.training"
        untried = tuple(words for words in report.untried if not words.startswith("dropout"))
        return replace(and_more(report, [("dropout-eval", words)]), untried=untried)
    if not asked or dropping - {"dropout-eval"}:
        return report
    idle, dry = idle_dropouts(patient.module, run), dry_parts(patient.module, run)
    never = [f"nothing drops by {listed(list(idle))}"] * (bool(idle) and not all(idle.values()))
    never += [f"{path} takes {name}, and nothing reads it" for path, name in dry.items()][:NAMED]
    if never:
        return and_more(report, [("dropout-unused", "; ".join(never))])
    if idle and not dropping:
        words = f"nothing drops by {listed(list(idle))}: right where another dropout is meant to do"
        remark = explain([BUGS["dropout-unused"]], detail=f"{words} its work")
        return replace(report, remarks=(*report.remarks, remark))
    return report


def and_more(report: Report, more: list[tuple[str, str]]) -> Report:
    """Return a report with further mistakes, each with what is said of it."""
    if not more:
        return report
    ids, detail = [id for id, _ in more], "; ".join(words for _, words in more)
    explanations = tuple(_with(one, ids, detail) for one in report.explanations)
    if not explanations:
        explanations = (explain([BUGS[id] for id in dict.fromkeys(ids)], detail=detail),)
    return replace(report, healthy=False, explanations=explanations)


def _with(one: Explanation, ids: list[str], detail: str) -> Explanation:
    """Return an explanation with more mistakes."""
    bugs = [BUGS[id] for id in dict.fromkeys((*one.ids, *ids))]
    said = "; ".join(filter(None, (one.detail, detail)))
    return replace(explain(bugs, one.difference, said), evidence=one.evidence)


def _is_cut_too(name: str, cut: Sequence[str]) -> bool:
    """Say whether a bias moves nothing, as that of keys, in a layer whose weight was cut off."""
    return name.endswith("bias") and f"{name.removesuffix('bias')}weight" in cut


def _stands_out(report: Report, patient: Patient, path: str, names: list[str], read: bool) -> bool:
    """Say whether a part that stands unused is named beside what a sick module is called."""
    wide = [n for n in names if patient.module.get_parameter(n).ndim > 1]
    alone = path not in names and _looks_up(path, patient.module)
    if UNUSED & set(report.ids) or read or (len(wide) < 3 and not alone):
        return False
    return not is_mentioned(path, patient.module)


def _looks_up(path: str, module: nn.Module) -> bool:
    """Say whether a part only looks ids up in tables, which is no work of a layer that is sick."""
    inner = [one for one in module.get_submodule(path).modules() if not any(one.children())]
    return bool(inner) and all(isinstance(one, nn.Embedding | nn.Dropout) for one in inner)


def _waits_for_tokens(path: str, module: nn.Module) -> bool:
    """Say whether a part is one of several experts, of whom a router chooses for each token."""
    around = path.rpartition(".")[0]
    if not around or not isinstance(module.get_submodule(around), nn.ModuleList):
        return False
    experts, owner = module.get_submodule(around), around.rpartition(".")[0]
    inner = module.get_submodule(owner).modules()
    return any(isinstance(one, nn.Linear) and one.out_features == len(experts) for one in inner)


def _is_list(path: str, module: nn.Module) -> bool:
    """Say whether a part holds parameters, and nobody can call it."""
    return isinstance(module.get_submodule(path), nn.ParameterList | nn.ParameterDict)


def without(
    explanations: Sequence[Explanation], dropped: Collection[str]
) -> tuple[Explanation, ...]:
    """Return what explanations are without some ids, () where one of them names nothing else.

    Args:
        explanations: of a report.
        dropped: ids that are no mistakes there.
    """
    left: dict[tuple[str, ...], Explanation] = {}
    for one in explanations:
        ids = tuple(id for id in one.ids if id not in dropped)
        if not ids:
            return ()
        made = explain([BUGS[id] for id in ids], one.difference)
        left.setdefault(ids, replace(made, detail=one.detail, evidence=one.evidence))
    return tuple(left.values())


def listed(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    shown = [name or "what comes in" for name in names[:NAMED]]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")
