"""The clinic: name the bug that passes every shape check.

`engine` knows patients, weights, the search and reports; `bugs` is the catalogue, each mistake
beside the right code; `examine` holds the tools, one file a part. Imports run in this order.
"""

from attention_clinic.bugs import BUGS, VARIANTS
from attention_clinic.engine.model_report import ModelReport, Row
from attention_clinic.engine.report import Bug, Explanation, Report, Variant
from attention_clinic.examine.attention import diagnose
from attention_clinic.examine.cache import diagnose_cache
from attention_clinic.examine.embedding import diagnose_embedding
from attention_clinic.examine.loading import diagnose_loading
from attention_clinic.examine.loss import diagnose_loss
from attention_clinic.examine.model import diagnose_model
from attention_clinic.examine.positions import diagnose_positions
from attention_clinic.examine.whole_block import diagnose_block
from attention_clinic.testing import assert_healthy

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
