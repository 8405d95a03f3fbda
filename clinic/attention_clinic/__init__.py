"""The clinic: name the bug that passes every shape check.

`capture` records a run of a module, `attention` and `blocks` read a program off it, `catalogue`
holds each bug with its rule and its wrong form, `behaviour` measures what one run does not show.
The other files are the tools for embeddings, positions, losses, loaded weights, caches and models.
"""

from attention_clinic.attention.tool import assert_healthy, diagnose
from attention_clinic.blocks.tool import diagnose_block
from attention_clinic.caching import diagnose_cache
from attention_clinic.catalogue import BUGS, VARIANTS
from attention_clinic.embedding import diagnose_embedding
from attention_clinic.loading import diagnose_loading
from attention_clinic.losses import diagnose_loss
from attention_clinic.models.tool import ModelReport, Row, diagnose_model
from attention_clinic.positions import diagnose_positions
from attention_clinic.report import Bug, Explanation, Report, Variant

__all__ = [
    "BUGS",
    "VARIANTS",
    "Bug",
    "Explanation",
    "ModelReport",
    "Report",
    "Row",
    "Variant",
    "assert_healthy",
    "diagnose",
    "diagnose_block",
    "diagnose_cache",
    "diagnose_embedding",
    "diagnose_loading",
    "diagnose_loss",
    "diagnose_model",
    "diagnose_positions",
]
