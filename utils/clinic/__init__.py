"""The clinic: name the bug that passes every shape check (chapter 08).

Read the files in this order: catalogue (the known mistakes, each beside the right code), report,
patient (a copy that can be called), weights (which parameter is what), search, attention
(`diagnose`), properties, embedding, block, loss.
"""

from utils.clinic.attention import diagnose
from utils.clinic.block import diagnose_block
from utils.clinic.catalogue import BUGS
from utils.clinic.embedding import diagnose_embedding, diagnose_positions
from utils.clinic.loss import diagnose_loss
from utils.clinic.report import Bug, Explanation, Report

__all__ = [
    "BUGS",
    "Bug",
    "Explanation",
    "Report",
    "diagnose",
    "diagnose_block",
    "diagnose_embedding",
    "diagnose_loss",
    "diagnose_positions",
]
