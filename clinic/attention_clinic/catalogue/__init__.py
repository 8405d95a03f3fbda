"""The catalogue: each bug with its words, its fix, where it happened, its rule and its code.

To add a bug, enter it with `bug(...)` next to the step that it changes, and its wrong form with
`@STEP.wrong(id, rule)`. A form that is correct and different on purpose is a variant:
`variant(...)` and `@STEP.variant(id, rule)`. See CONTRIBUTING.md of the clinic.
"""

# ruff: noqa: F401, I001, the order of the catalogue is that of the parts
from attention_clinic.catalogue import projections, scores, masks, joining, rotary, norms, blocks
from attention_clinic.catalogue import embedding, training
from attention_clinic.catalogue.forms import BUGS, VARIANTS, bug, variant

__all__ = ["BUGS", "VARIANTS", "bug", "variant"]
