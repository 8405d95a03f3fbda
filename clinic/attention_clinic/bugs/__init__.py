"""The catalogue: each bug with its words, its fix, where it happened, and its code.

To add a bug, enter it with `bug(...)` beside the stage that it changes, and its code under it with
`@STAGE.wrong(id)`: the search tries it alone and together with the mistakes of other stages. Two
patients in tests/test_clinic/patients show that it is found. A second form under the same id is
another way to make the same mistake. A form that is another thing on purpose is a variant: entered
with `variant(...)` and `@STAGE.variant(id)`, it is right, and the report calls it by its name.

The forms of attention work for a row of readings at once (axis r), because the search does not
know which weight is which: queries are (r, b, n, h * d) before and (r, b, h, n, d) after the split.
"""

# ruff: noqa: I001, the order of the catalogue is that of the stages
from attention_clinic.bugs.projections import SPLIT, TOKENS, Setting
from attention_clinic.bugs.crossing import SIDES
from attention_clinic.bugs.asking import ASK, BEND
from attention_clinic.bugs.query_norms import QUERY_NORM, QueryNorms, Scale
from attention_clinic.bugs.rotary import EARLY, TURN, Turning, with_values
from attention_clinic.bugs.groups import SHARE
from attention_clinic.bugs.lengths import PLACES, Places
from attention_clinic.bugs.scores import SCALE, SCORES
from attention_clinic.bugs.distances import DISTANCES, DISTANT_VALUES
from attention_clinic.bugs.caps import CAP, Caps
from attention_clinic.bugs.relatives import LINEAR, TALK_AFTER, TALK_BEFORE, Mixer
from attention_clinic.bugs.biases import BIAS
from attention_clinic.bugs.masks import RULE
from attention_clinic.bugs.hiding import USE
from attention_clinic.bugs.softmax import MIX, SOFTMAX
from attention_clinic.bugs.differences import DIFFERENCE, NORMED
from attention_clinic.bugs.joining import MERGE
from attention_clinic.bugs.gates import BENDS, GATE, Opener
from attention_clinic.bugs.followed import FOLLOWED
from attention_clinic.bugs.behaviour import (
    Built,
    Made,
    dropout_kept,
    dropout_taken,
    globals_read,
    unused_dropout,
)
from attention_clinic.bugs.patches import EMBEDDING
from attention_clinic.bugs.positions import POSITIONS
from attention_clinic.bugs.blocks import BLOCK
from attention_clinic.bugs.wirings import FEED_FORMS, NORM_FORMS
from attention_clinic.bugs.stacks import STACK
from attention_clinic.bugs.models import MODELS
from attention_clinic.bugs.losses import LOSS
from attention_clinic.bugs.caching import CACHE
from attention_clinic.bugs.loading import LOADING
from attention_clinic.engine.forms import BUGS, VARIANTS

ATTENTION = (
    *(SIDES, BEND, TOKENS, ASK, EARLY, SPLIT, QUERY_NORM, TURN, SHARE),
    *(PLACES, LINEAR, SCORES, DISTANCES, SCALE),
    *(CAP, TALK_BEFORE, BIAS, RULE, USE, SOFTMAX, TALK_AFTER, DIFFERENCE, MIX),
    *(DISTANT_VALUES, NORMED, MERGE, GATE),
)

__all__ = [
    "ATTENTION",
    "BENDS",
    "BLOCK",
    "BUGS",
    "CACHE",
    "EMBEDDING",
    "FEED_FORMS",
    "FOLLOWED",
    "LOADING",
    "LOSS",
    "MODELS",
    "NORM_FORMS",
    "POSITIONS",
    "STACK",
    "VARIANTS",
    "Built",
    "Caps",
    "Made",
    "Mixer",
    "Opener",
    "Places",
    "QueryNorms",
    "Scale",
    "Setting",
    "Turning",
    "dropout_kept",
    "dropout_taken",
    "globals_read",
    "unused_dropout",
    "with_values",
]
