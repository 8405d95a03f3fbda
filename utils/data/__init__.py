"""What the chapters read: photographs, digits, captions, sentences, dates, scenes, shipped models.

The files: files, images, captions, grammar, dates, scenes, shipped.
"""

from utils.data.captions import (
    all_captions,
    caption_ids,
    caption_text,
    captioned_ids,
    draw_captions,
    held_out,
)
from utils.data.dates import date_forms, date_ids, date_vocabularies, fill_form, write_date
from utils.data.files import load_sentences, resource
from utils.data.grammar import RULE_SYMBOLS, Grammar, load_grammar, rule_sequences
from utils.data.images import (
    ANY_DIGIT,
    INK_LEVELS,
    PHOTO_NAMES,
    drawing_ids,
    load_digits,
    load_photos,
    on_canvas,
    random_corners,
)
from utils.data.scenes import cut_out, draw_scenes, make_scene
from utils.data.shipped import SHIPPED, load_shipped

__all__ = [
    "ANY_DIGIT",
    "INK_LEVELS",
    "PHOTO_NAMES",
    "RULE_SYMBOLS",
    "SHIPPED",
    "Grammar",
    "all_captions",
    "caption_ids",
    "caption_text",
    "captioned_ids",
    "cut_out",
    "date_forms",
    "date_ids",
    "date_vocabularies",
    "draw_captions",
    "draw_scenes",
    "drawing_ids",
    "fill_form",
    "held_out",
    "load_digits",
    "load_grammar",
    "load_photos",
    "load_sentences",
    "load_shipped",
    "make_scene",
    "on_canvas",
    "random_corners",
    "resource",
    "rule_sequences",
    "write_date",
]
