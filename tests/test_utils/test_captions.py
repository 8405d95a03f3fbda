"""Captions and the pictures that they describe; the model that draws after them."""

import pytest
import torch

from helpers import error_of
from utils.data import (
    ANY_DIGIT,
    INK_LEVELS,
    SHIPPED,
    all_captions,
    caption_ids,
    caption_text,
    captioned_ids,
    draw_captions,
    drawing_ids,
    held_out,
    load_digits,
    load_shipped,
)
from utils.data.captions import INKS, LEAN, NAMES, POSES
from utils.generation import generate

LEFT, RIGHT, HIGH, LOW = range(4)


def one(ink=-1, name=-1, pose=-1):
    return torch.tensor([[ink, name, pose]])


def test_a_third_is_held_out_and_every_pair_of_words_is_not():
    captions = all_captions()
    assert len(captions.unique(dim=0)) == len(INKS) * len(NAMES) * len(POSES) == 80
    held = held_out(captions)
    assert held.sum() == 27
    for a, b in ((0, 1), (0, 2), (1, 2)):
        pairs, seen = (part[:, [a, b]].unique(dim=0) for part in (captions, captions[~held]))
        assert torch.equal(pairs, seen)


def test_captions_as_text():
    assert caption_text(one(0, 7, LEFT)[0]) == "a thin seven, leaning left"
    assert caption_text(one(1, 3)[0]) == "a dark three"
    assert caption_text(one()[0]) == "a digit"
    assert len({caption_text(caption) for caption in all_captions()}) == 80


def test_ids_of_captions_agree_with_those_of_drawings():
    ids = caption_ids(all_captions())
    assert [sorted(set(column)) for column in ids.T.tolist()] == [
        [28, 29],
        list(range(INK_LEVELS, ANY_DIGIT)),
        [30, 31, 32, 33],
    ]
    assert ids.max() + 1 == SHIPPED["caption"]["vocab_size"]
    assert (caption_ids(one()) == ANY_DIGIT).all()
    _, (images, labels) = load_digits()
    captions = torch.stack([-torch.ones_like(labels), labels, -torch.ones_like(labels)], dim=1)
    assert torch.equal(
        captioned_ids(images, captions)[:, [1, *range(3, 67)]], drawing_ids(images, labels)
    )


def test_no_word_no_change():
    images = torch.rand(3, 1, 8, 8)
    assert torch.equal(draw_captions(images, one(name=4).expand(3, -1)), images)


def test_thin_ink_is_squared_and_dark_ink_is_its_root():
    images = torch.rand(3, 1, 8, 8)
    assert torch.allclose(draw_captions(images, one(0).expand(3, -1)), images.square())
    assert torch.allclose(draw_captions(images, one(1).expand(3, -1)), images.sqrt())


@pytest.mark.parametrize(("pose", "sign"), [(LEFT, 1), (RIGHT, -1)])
def test_a_column_of_ink_leans(pose, sign):
    image = torch.zeros(1, 1, 8, 8)
    image[..., 3] = 1
    leaning = draw_captions(image, one(pose=pose))[0, 0]
    assert torch.equal(leaning.sum(dim=1), torch.ones(8))
    assert torch.equal(leaning.argmax(dim=1), 3 + sign * LEAN)
    assert (leaning[0].argmax() < leaning[7].argmax()) == (pose == LEFT), "the top goes there"


def test_ink_that_leans_out_is_lost_and_does_not_come_back():
    image = torch.zeros(1, 1, 8, 8)
    image[0, 0, :, 0] = 1
    leaning = draw_captions(image, one(pose=LEFT))[0, 0]
    assert torch.equal(leaning.sum(dim=1), (LEAN >= 0).float())


def test_high_and_low_are_the_same_six_rows():
    images = torch.rand(4, 1, 8, 8)
    high, low = (draw_captions(images, one(pose=pose).expand(4, -1)) for pose in (HIGH, LOW))
    assert torch.equal(high[:, :, :6], low[:, :, 2:])
    assert not high[:, :, 6:].any() and not low[:, :, :2].any()
    assert torch.allclose(high[:, :, 3], images[:, :, 4:6].mean(dim=2))


def test_each_picture_has_its_own_caption():
    captions = all_captions()
    images = torch.rand(80, 1, 8, 8)
    together = draw_captions(images, captions)
    for n in range(0, 80, 7):
        assert torch.equal(
            together[n : n + 1], draw_captions(images[n : n + 1], captions[n : n + 1])
        )


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: caption_ids(torch.zeros(2, 2, dtype=int)),
            "caption_ids: captions must have shape",
        ),
        (lambda: caption_ids(one(2)), "from -1 to [1, 9, 3], got [2, -1, -1]"),
        (lambda: caption_text(one(pose=4)[0]), "caption_text: captions must be indices"),
        (lambda: held_out(one(0, 3)), "held_out: captions must be indices from 0"),
        (lambda: draw_captions(torch.zeros(1, 8, 8), one()), "draw_captions: images"),
        (lambda: draw_captions(torch.zeros(2, 1, 8, 8), one()), "(b=2, w=3)"),
        (lambda: captioned_ids(torch.zeros(1, 1, 10, 10), one()), "captioned_ids: pictures"),
    ],
)
def test_bad_input(call, said):
    assert said in error_of(call)


def test_the_caption_model_draws_what_was_held_out():
    captions = all_captions()[held_out(all_captions())].repeat_interleave(4, dim=0)
    ids = caption_ids(captions)
    drawn = generate(load_shipped("caption"), ids, 64, top_p=0.95, seed=0)[:, 3:]
    assert drawn.max() < INK_LEVELS
    rows = drawn.reshape(-1, 8, 8).float()
    poses = captions[:, 2]
    assert rows[poses == HIGH][:, 6:].mean() < 0.2 and rows[poses == LOW][:, :2].mean() < 0.2
    columns = torch.arange(8.0)
    parts = rows[:, :3], rows[:, 5:]  # upper and lower rows: where the middle of their ink is
    upper, lower = ((part @ columns).sum(1) / part.sum((1, 2)).clamp(min=1) for part in parts)
    slant = lower - upper
    assert slant[poses == LEFT].mean() > 1 and slant[poses == RIGHT].mean() < -1
    inked = rows.mean(dim=(1, 2))
    assert inked[captions[:, 0] == 1].mean() > 1.3 * inked[captions[:, 0] == 0].mean()
