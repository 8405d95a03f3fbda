"""Captions of three words, and digits that are changed as their captions say (chapter 18)."""

import torch
from torch import Tensor

from utils.data.images import ANY_DIGIT, DIGIT, INK_LEVELS
from utils.validation import check_shape

INKS = ("thin", "dark")
NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
POSES = ("leaning left", "leaning right", "high", "low")
WORDS = (INKS, NAMES, POSES)  # what each of the three words of a caption may be
# The ids of `drawing_ids` keep their meaning: levels of ink, ten names, and a word that says
# nothing. The inks and the poses come after them.
FIRST_IDS = torch.tensor([ANY_DIGIT + 1, INK_LEVELS, ANY_DIGIT + 1 + len(INKS)])
POWERS = torch.tensor([2.0, 0.5])  # of the ink: thin, dark
LEAN = torch.tensor([-2, -1, -1, 0, 0, 1, 1, 2])  # columns by which each row moves to the right
SQUEEZED = torch.tensor([0, 1, 2, 4, 5, 6])  # rows whose means with the next rows are kept


def all_captions() -> Tensor:
    """Return the 80 combinations of an ink, a name and a pose.

    >>> caption_text(all_captions()[0])
    'a thin zero, leaning left'

    Shape:
        result  (80, 3), int64: indices into `INKS`, `NAMES` and `POSES`

    Source: chapter 18.
    """
    return torch.cartesian_prod(*(torch.arange(len(words)) for words in WORDS))


def held_out(captions: Tensor) -> Tensor:
    """Return which combinations are kept out of training: a third of them.

    Every pair of words occurs in at least one of the other combinations.

    Shape:
        captions  (b, 3), indices as `all_captions` gives them
        result    (b,), bool

    Raises: ValueError for captions of another shape, or an index that is not in the lists.
    Source: chapter 18.
    """
    _check_captions("held_out", captions, least=0)
    return captions.sum(dim=1) % 3 == 0


def caption_text(caption: Tensor) -> str:
    """Write a caption as text.

    >>> caption_text(torch.tensor([1, 3, 3])), caption_text(torch.tensor([-1, 7, 0]))
    ('a dark three, low', 'a seven, leaning left')

    Shape:
        caption  (3,), integers; -1 for a word that is left out

    Raises: ValueError for a caption of another shape, or an index that is not in the lists.
    Source: chapter 18.
    """
    _check_captions("caption_text", caption[None])
    ink, name, pose = (
        words[index] if index >= 0 else None
        for words, index in zip(WORDS, caption.tolist(), strict=True)
    )
    return " ".join(filter(None, ["a", ink, name or "digit"])) + (f", {pose}" if pose else "")


def caption_ids(captions: Tensor) -> Tensor:
    """Turn captions into ids of words.

    Shape:
        captions  (b, 3), integers; -1 for a word that is left out
        result    (b, 3), int64: inks 28 and 29, names 17 to 26, poses 30 to 33, or `ANY_DIGIT`

    Raises: ValueError for captions of another shape, or an index that is not in the lists.
    Source: chapter 18.
    """
    _check_captions("caption_ids", captions)
    return torch.where(captions < 0, ANY_DIGIT, captions + FIRST_IDS)


def draw_captions(images: Tensor, captions: Tensor) -> Tensor:
    """Change digits as their captions say: first the pose, then the ink.

    A digit that leans has its rows moved sideways by up to 2 pixels. One that is high or low is
    squeezed to 6 rows, at the top or at the bottom. Thin ink is squared, dark ink is its root.

    Args:
        images: digits of 8 x 8 pixels, as `load_digits` gives them.
        captions: one for each image; the name of the digit changes nothing.

    Shape:
        images    (b, 1, 8, 8), from 0 to 1
        captions  (b, 3), indices; -1 for a word that is left out, which changes nothing
        result    (b, 1, 8, 8), from 0 to 1

    Raises: ValueError for images or captions of another shape, or an index not in the lists.
    Source: chapter 18.
    """
    fix = "Take those of load_digits."
    check_shape("draw_captions", "images", images, "b c H W", fix, c=1, H=DIGIT, W=DIGIT)
    _check_captions("draw_captions", captions, b=len(images))
    digits, columns, blank = images[:, 0], torch.arange(DIGIT), images.new_zeros(len(images), 2, 8)
    squeezed = (digits[:, SQUEEZED] + digits[:, SQUEEZED + 1]) / 2  # (b, 6, 8)
    posed = [digits]  # for -1, then for each pose
    for lean in (LEAN, -LEAN):
        source = columns - lean[:, None]  # (8, 8): the column that each pixel comes from
        leaning = digits.gather(2, source.clamp(0, DIGIT - 1).expand_as(digits))
        posed.append(leaning * ((source >= 0) & (source < DIGIT)))
    posed += [torch.cat([squeezed, blank], dim=1), torch.cat([blank, squeezed], dim=1)]
    chosen = torch.stack(posed)[captions[:, 2] + 1, torch.arange(len(images))]  # (b, 8, 8)
    powers = torch.cat([torch.ones(1), POWERS])[captions[:, 0] + 1]
    return (chosen ** powers[:, None, None])[:, None]


def captioned_ids(pictures: Tensor, captions: Tensor) -> Tensor:
    """Write pictures as sequences: three words, then 64 pixels row by row.

    Shape:
        pictures  (b, 1, 8, 8), from 0 to 1
        captions  (b, 3), integers; -1 for a word that is left out
        result    (b, 67), int64: `caption_ids`, then levels of ink from 0 to 16

    Raises: ValueError for pictures of another shape, or not one caption for each.
    Source: chapter 18.
    """
    fix = "Take those of draw_captions."
    check_shape("captioned_ids", "pictures", pictures, "b c H W", fix, c=1, H=DIGIT, W=DIGIT)
    _check_captions("captioned_ids", captions, b=len(pictures))
    ink = (pictures * (INK_LEVELS - 1)).round().long().flatten(1)  # (b, 64)
    return torch.cat([caption_ids(captions), ink], dim=1)


def _check_captions(where: str, captions: Tensor, least: int = -1, b: int | None = None) -> None:
    """Refuse captions that are not three indices into the lists of words."""
    fix = "A row is the indices of an ink, a name and a pose, as in all_captions()."
    check_shape(where, "captions", captions, "b w", fix, b=b, w=3)
    sizes = torch.tensor([len(words) for words in WORDS])
    wrong = ((captions < least) | (captions >= sizes)).any(dim=1).nonzero()
    if len(wrong):
        raise ValueError(
            f"{where}: captions must be indices from {least} to {(sizes - 1).tolist()}, got "
            f"{captions[wrong[0, 0]].tolist()}. {fix}"
        )
