"""The clinic: name the bug that passes every shape check (chapter 08).

Read the files in this order: catalogue (the known mistakes, each beside the right code), report,
patient (a copy that can be called), weights (which parameter is what), search, attention
(`diagnose`), properties, embedding, block, loss.
"""

from attention_clinic.attention import diagnose
from attention_clinic.block import diagnose_block
from attention_clinic.catalogue import BUGS
from attention_clinic.embedding import diagnose_embedding, diagnose_positions
from attention_clinic.loss import diagnose_loss
from attention_clinic.report import Bug, Explanation, Report
from attention_clinic.testing import assert_healthy

__all__ = [
    "BUGS",
    "Bug",
    "Explanation",
    "Report",
    "assert_healthy",
    "diagnose",
    "diagnose_block",
    "diagnose_embedding",
    "diagnose_loss",
    "diagnose_positions",
]
