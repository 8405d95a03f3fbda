"""Who hands queries, keys and values over to an attention of a block: the tokens or the context."""

from __future__ import annotations

from inspect import signature

from attention_clinic.engine.wiring import Place, Slot
from attention_clinic.examine.unit import Unit

SIDES = {
    (True, True, False): ("cross-queries", "cross-values"),
    (True, False, True): ("cross-queries", "cross-keys"),
    (True, False, False): ("cross-swapped",),
    (False, True, False): ("cross-values",),
    (False, False, True): ("cross-keys",),
}


def _three(unit: Unit) -> list[tuple[Place, Slot]]:
    """Return who takes queries, keys and values, [] where a part has no such three."""
    found = [(place, slot) for place, slots in unit.entries.items() for slot in slots]
    if len(found) != 3 or unit.asked is None:
        return []
    names = [_name(unit, place, slot) if len(unit.entries) == 1 else place[0].rpartition(".")[2]
             for place, slot in found]  # fmt: skip
    letters = [next((a for a in str(name).lower() if a in "qkv"), "") for name in names]
    if sorted(letters) == ["k", "q", "v"]:
        found = [found[letters.index(letter)] for letter in "qkv"]
    return found


def _name(unit: Unit, place: Place, slot: Slot) -> str:
    """Return the name of an argument, which may have been handed over by its number."""
    module = next((step.module for step in unit.steps if step.place == place), None)
    if isinstance(slot, str) or module is None:
        return str(slot)
    names = list(signature(module.forward).parameters)
    return names[slot] if slot < len(names) else str(slot)


def sides_taken(unit: Unit) -> tuple[str, ...]:
    """Return the mistakes of who hands queries, keys and values over, where they stand apart."""
    three = _three(unit)
    return SIDES.get(tuple(unit.entries[place][slot] for place, slot in three), ())


def usual(unit: Unit) -> dict[Place, dict[Slot, bool]]:
    """Return the entries of a part as they should be: the context gives keys and values."""
    crossed = dict(zip(_three(unit), (False, True, True), strict=True))
    return {
        place: {slot: crossed[place, slot] for slot in slots}
        for place, slots in unit.entries.items()
    }
