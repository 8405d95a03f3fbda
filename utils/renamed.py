"""Names of version 1.0: each still works and warns with the new name. Version 1.2 drops this file.

Nothing else in `utils` knows of it: a module gets its old names when it is imported.
"""

import re
import sys
from collections.abc import Callable
from functools import partial, wraps
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any
from warnings import warn_explicit

# Modules that are gone: where to look for a name that is not in the table below.
MODULES = {
    "utils.checkpoints": "utils.hub.checkpoints",
    "utils.grammar": "utils.data.grammar",
    "utils.images": "utils.data",
    "utils.modes": "utils.training",
    "utils.pretrained": "utils.hub.pretrained",
    "utils.scenes": "utils.data.scenes",
    "utils.small_models": "utils.data",
}
# Functions, classes and constants: old -> new.
NAMES = {
    "utils.attention.Cache": "builtins.object",  # any class with `length` and `update` serves
    "utils.boxes.corners": "utils.boxes.box_cxcywh_to_xyxy",
    "utils.boxes.generalized_overlap": "utils.boxes.generalized_box_iou",
    "utils.boxes.overlap": "utils.boxes.box_iou",
    "utils.detection.DETECTION_MODEL": "utils.data.SHIPPED['detection']",
    "utils.detection.NOTHING": "utils.detection.NO_OBJECT_WEIGHT",
    "utils.detection.load_detection_model": "utils.data.load_shipped('detection')",
    "utils.detection.match": "utils.detection.hungarian_match",
    "utils.generation.speculate": "utils.generation.speculative_generate",
    "utils.images.RESOURCES": "utils.data.files.RESOURCES",
    "utils.language_model.ANY_DIGIT": "utils.data.ANY_DIGIT",
    "utils.language_model.DRAWING_MODEL": "utils.data.SHIPPED['drawing']",
    "utils.language_model.INK_LEVELS": "utils.data.INK_LEVELS",
    "utils.language_model.drawing_ids": "utils.data.drawing_ids",
    "utils.language_model.load_drawing_model": "utils.data.load_shipped('drawing')",
    "utils.masking.check_mask": "utils.validation.check_mask",
    "utils.modern_decoder.rotate": "utils.modern_decoder.apply_rotary",
    "utils.modes.evaluating": "utils.training.eval_mode",
    "utils.positions.ID_TYPES": "utils.validation.ID_TYPES",
    "utils.positions.TokenEmbedding": "utils.embedding.TokenEmbedding",
    "utils.scenes.Targets": "utils.boxes.Targets",
    "utils.seeing.class_shares": "utils.seeing.class_token_attention",
    "utils.seeing.without_heads": "utils.seeing.ablate_heads",
    "utils.shapes.check_positive": "utils.validation.check_positive",
    "utils.shapes.check_shape": "utils.validation.check_shape",
    "utils.small_models.CANVAS_MODEL": "utils.data.SHIPPED['canvas']",
    "utils.small_models.DATE_MODEL": "utils.data.SHIPPED['date']",
    "utils.small_models.DIGIT": "utils.data.images.DIGIT",
    "utils.small_models.RULES_MODEL": "utils.data.SHIPPED['rules']",
    "utils.small_models.SENTENCE_MODEL": "utils.data.SHIPPED['sentence']",
    "utils.small_models.load_canvas_model": "utils.data.load_shipped('canvas')",
    "utils.small_models.load_date_model": "utils.data.load_shipped('date')",
    "utils.small_models.load_rules_model": "utils.data.load_shipped('rules')",
    "utils.small_models.load_sentence_model": "utils.data.load_shipped('sentence')",
    "utils.small_models.rule_texts": "utils.data.rule_sequences",
    "utils.text.load_sentences": "utils.data.load_sentences",
    "utils.text.train_pieces": "utils.text.train_bpe",
    "utils.vision_transformer.DIGITS_MODEL": "utils.data.SHIPPED['digits']",
    "utils.vision_transformer.load_digits_model": "utils.data.load_shipped('digits')",
}
# Keyword arguments: function, or method of a class -> old and new.
ARGUMENTS = {
    "utils.boxes.Found.__new__": {"sure": "score"},
    "utils.detection.detection_loss": {"scores": "logits", "nothing": "no_object_weight"},
    "utils.detection.detections": {"scores": "logits"},
    "utils.detection.hungarian_match": {"scores": "logits"},
    "utils.detection.match_costs": {"scores": "logits"},
    "utils.detection.set_loss": {"scores": "logits", "nothing": "no_object_weight"},
    "utils.embedding.TokenEmbedding.forward": {"places": "positions"},
    "utils.generation.next_probabilities": {"scores": "logits"},
    "utils.language_model.LanguageModel.__init__": {"tied": "tie_weights"},
    "utils.modern_decoder.GroupedQueryAttention.__init__": {"base": "rope_theta"},
    "utils.modern_decoder.ModernBlock.__init__": {"base": "rope_theta"},
    "utils.modern_decoder.ModernDecoder.__init__": {"base": "rope_theta", "tied": "tie_weights"},
    "utils.modern_decoder.apply_rotary": {"base": "rope_theta"},
}
# Attributes and methods: class -> old and new.
ATTRIBUTES = {
    "utils.boxes.Found": {"sure": "score"},
    "utils.cache.KeyValueCache": {"extend": "update", "keep": "reorder", "cut": "crop"},
    "utils.modern_decoder.GroupedQueryAttention": {"base": "rope_theta"},
}
# Methods that take a cache: of a class of one's own, too, whose `update` was called `extend`.
TAKE_A_CACHE = (
    "utils.attention.MultiHeadAttention.forward",
    "utils.modern_decoder.GroupedQueryAttention.forward",
)
ON_THE_WAY = ("utils", "torch", "importlib")


def install() -> None:
    """Let the old names be found, from the next import on."""
    sys.meta_path.insert(0, _Finder())


class _Finder:
    """Make the modules that are gone, and give the others their old names once they are there."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name in MODULES:
            return ModuleSpec(name, self)
        entries = [*NAMES, *ARGUMENTS, *ATTRIBUTES, *TAKE_A_CACHE]
        spec = None
        if any(entry.startswith(f"{name}.") for entry in entries) and name.count(".") == 1:
            spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (execute(module), _keep_old_names(module))
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        _warn(module.__name__, MODULES[module.__name__])
        module.__getattr__ = partial(_find, module.__name__)


def _keep_old_names(module: ModuleType) -> None:
    """Give a module its old names, its functions their old arguments, its classes the rest."""
    start = f"{module.__name__}."
    module.__getattr__ = partial(_find, module.__name__)
    for old in (*ARGUMENTS, *TAKE_A_CACHE):
        if old.startswith(start):
            *owner, name = old.removeprefix(start).split(".")
            place = getattr(module, owner[0]) if owner else module
            call = getattr(place, name)
            names = ARGUMENTS.get(old)
            new = _with_old_arguments(old, call, names) if names else _with_old_caches(call)
            setattr(place, name, new)
    for kind, names in ATTRIBUTES.items():
        if kind.startswith(start):
            for old, new in names.items():
                setattr(getattr(module, kind.removeprefix(start)), old, _alias(kind, old, new))


def _find(module: str, name: str) -> Any:
    """Return what an old name of a module means."""
    new = NAMES.get(f"{module}.{name}")
    if new is not None:
        _warn(f"{module}.{name}", new)
        return resolve(new)
    if module in MODULES and not name.startswith("__"):
        return getattr(import_module(MODULES[module]), name)
    raise AttributeError(f"module {module!r} has no attribute {name!r}")


def resolve(new: str) -> Any:
    """Return what a new name of the table means: an object, an entry, or a function to call.

    Args:
        new: such as "utils.boxes.box_iou" or "utils.data.load_shipped('digits')".
    """
    path, bracket, argument = re.fullmatch(r"([\w.]+)(?:([(\[])'(\w+)'[)\]])?", new).groups()
    module, _, name = path.rpartition(".")
    found = getattr(import_module(module), name)
    if bracket:
        return found[argument] if bracket == "[" else partial(found, argument)
    return found


def _with_old_arguments(where: str, call: Callable, names: dict[str, str]) -> Callable:
    @wraps(call)
    def renamed(*args: Any, **kwargs: Any) -> Any:
        for old, new in names.items():
            if old in kwargs:
                _warn(f"{old}= of {where}", f"{new}=")
                kwargs[new] = kwargs.pop(old)
        return call(*args, **kwargs)

    return renamed


def _with_old_caches(forward: Callable) -> Callable:
    @wraps(forward)
    def renamed(*args: Any, **kwargs: Any) -> Any:
        cache = kwargs.get("cache", args[-1])
        if not hasattr(cache, "update") and hasattr(cache, "extend"):
            kind = type(cache)
            _warn(f"{kind.__name__}.extend", f"{kind.__name__}.update")
            kind.update = kind.extend
        return forward(*args, **kwargs)

    return renamed


def _alias(kind: str, old: str, new: str) -> property:
    def get(self: Any) -> Any:
        _warn(f"{kind}.{old}", f"{kind}.{new}")
        return getattr(self, new)

    def put(self: Any, value: Any) -> None:
        _warn(f"{kind}.{old}", f"{kind}.{new}")
        setattr(self, new, value)

    return property(get, put)


def _warn(old: str, new: str) -> None:
    """Warn at the line of the notebook that uses the old name, not at a line on the way here."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals["__name__"].partition(".")[0] in ON_THE_WAY:
        frame = frame.f_back
    warn_explicit(
        f"{old} is now {new}. Write the new name.",
        DeprecationWarning,
        frame.f_code.co_filename,
        frame.f_lineno,
        frame.f_globals["__name__"],
        frame.f_globals.setdefault("__warningregistry__", {}),
    )
