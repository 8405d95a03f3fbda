"""Blocks that are no modules of their own: one part runs attentions and feed-forwards in turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import nn

from attention_clinic.engine.model_report import Row
from attention_clinic.engine.recording import Recording
from attention_clinic.engine.report import Report
from attention_clinic.engine.sites import Site, above, count, is_list, keeps
from attention_clinic.examine.model_rows import is_open, merged
from attention_clinic.examine.unlearned import without

ATTENTIONS = ("attention", "cross-attention")


def shells_of(
    sites: list[Site], parts: Mapping[str, nn.Module], recording: Recording
) -> dict[str, list[Site]]:
    """Return the parts that hold attentions outside of blocks, and layers beside them.

    Args:
        sites: all attentions.
        parts: of the model.
        recording: of its run.
    """
    found: dict[str, list[Site]] = {}
    for site in sites:
        around = (place for place in above(site.levels[-1]) if not is_list(parts[place]))
        found.setdefault(next(around, ""), []).append(site)
    for path, held in list(found.items()):
        inside = [site for site in sites if _is_in(site.levels[0], path)]
        more = count(parts[path]) - sum(count(parts[site.levels[0]]) for site in held)
        same = len({site.num_heads for site in held}) == 1
        alone = len(inside) == len(held) and all(site.block is None for site in held)
        if not (
            same and alone and more >= 2 and path in recording.calls and keeps(recording, path)
        ):
            del found[path]
    return found


def with_shell(rows: list[Row], places: list[str], found: Report | None) -> list[Row] | None:
    """Return the rows of a model with what was found in a part that holds some of their places.

    Args:
        rows: so far.
        places: of the part, and of those that do the same.
        found: in it, None where it could not be called.

    Returns:
        None where what was found says nothing, or something else than those rows.
    """
    inner = [
        row
        for row in rows
        if row.kind in ATTENTIONS
        and any(_is_in(at, place) for at in row.places for place in places)
    ]
    reports = [row.report for row in inner]
    named = [one for report in reports for one in report.explanations]
    whole = all(any(_is_in(at, place) for place in places) for row in inner for at in row.places)
    kept = [row for row in rows if row not in inner]
    kind = "block" if sum(len(row.places) for row in inner) <= 2 * len(places) else "blocks"
    if found is None or is_open(found) or (found.healthy and named) or not whole:
        return None
    if found.healthy:
        right = not any(map(is_open, reports))
        return [*kept, Row(kind, tuple(places), merged(found, reports) if right else found)]
    if any(map(is_open, reports)):
        return [*kept, Row(kind, tuple(places), found)]
    ids = {id for one in named for id in one.ids}
    if any(not ids <= {*one.ids} for one in found.explanations):
        return None
    left = without(found.explanations, ids) if ids else found.explanations
    found = replace(found, healthy=not left, explanations=left)
    return [*rows, Row(f"rest of {kind}", tuple(places), found)]


def _is_in(path: str, place: str) -> bool:
    return not place or path == place or path.startswith(f"{place}.")
