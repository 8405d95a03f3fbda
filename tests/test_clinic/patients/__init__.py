"""The bank of the clinic: sick modules of every kind, each written twice, and healthy ones.

A `Entry` builds a module, says how it is examined and what must be found. One file a part.
"""

from patients import (  # noqa: F401, each adds its patients
    absent_parts,
    arranged,
    asking,
    attention,
    blocks,
    caching,
    connections,
    convolved,
    crossing,
    declared,
    decoders,
    dropouts,
    embedding,
    followed,
    further,
    hand_norms,
    healthy,
    kindred,
    learning,
    loading,
    losses,
    many,
    masked_blocks,
    masks,
    modern,
    modern_blocks,
    needed,
    normed_inside,
    noticed,
    observed,
    pairs,
    parted,
    partly,
    planted,
    positions,
    relatives,
    shells,
    single_layers,
    stacks,
    strangers,
    structure,
    tokens_first,
    turned,
    unshifted,
    variants,
    windowed,
    windowed_blocks,
    wirings,
)
from patients.bank import CASES, SIZES, Entry
from patients.unknown import UNKNOWN

__all__ = ["CASES", "SIZES", "UNKNOWN", "Entry"]
