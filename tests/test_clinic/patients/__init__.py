"""The bank of the clinic: buggy modules, and correct ones that must stay healthy.

An `Entry` builds a module, says how it is examined and what must be found. One file a part.
"""

from patients import attention, crossing, healthy, masks, modern, projections  # noqa: F401
from patients.attention import UNKNOWN
from patients.bank import CASES, SIZES, Entry

__all__ = ["CASES", "SIZES", "UNKNOWN", "Entry"]
