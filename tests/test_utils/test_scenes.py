"""Scenes: every digit lies where its box says, and nowhere else."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import error_of
from utils.boxes import box_cxcywh_to_xyxy, box_iou
from utils.data import cut_out, draw_scenes, load_digits, make_scene

DIGITS = load_digits()[1]


def pixels_of(boxes, size):
    """The boxes as a mask of pixels (t, size, size)."""
    inside = torch.zeros(len(boxes), size, size, dtype=torch.bool)
    for n, (left, top, right, bottom) in enumerate(
        (box_cxcywh_to_xyxy(boxes) * size).round().int().tolist()
    ):
        inside[n, top:bottom, left:right] = True
    return inside


def test_cut_out_leaves_no_blank_margin():
    digit = torch.zeros(8, 8)
    digit[2:7, 3:5] = torch.arange(1, 11).view(5, 2)
    assert torch.equal(cut_out(digit), digit[2:7, 3:5])
    digit[4, 3:5] = 0  # a gap inside stays
    assert cut_out(digit).shape == (5, 2)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.booleans())
def test_the_box_is_the_smallest_that_holds_the_ink(seed, apart):
    generator = torch.Generator().manual_seed(seed)
    images, targets = draw_scenes(DIGITS, [1, 2, 3, 0], generator, apart=apart)
    assert images.shape == (4, 1, 32, 32) and images.min() >= 0 and images.max() <= 1
    for image, (labels, boxes) in zip(images[:, 0], targets, strict=True):
        assert labels.dtype == torch.int64 and labels.shape == (len(boxes),)
        inside = pixels_of(boxes, 32)
        assert not image[~inside.any(dim=0)].any(), "no ink outside of the boxes"
        if apart:
            assert inside.sum(dim=0).max() <= 1
            for own in inside:
                rows, columns = (own & (image > 0)).nonzero().unbind(1)
                box_rows, box_columns = own.nonzero().unbind(1)
                assert rows.min() == box_rows.min() and rows.max() == box_rows.max()
                assert columns.min() == box_columns.min() and columns.max() == box_columns.max()


def test_counts_and_sizes():
    generator = torch.Generator().manual_seed(0)
    counts = [0, 1, 2, 3] * 20
    images, targets = draw_scenes(DIGITS, counts, generator)
    assert [len(target.labels) for target in targets] == counts
    assert not images[::4].any()
    heights = torch.cat([target.boxes[:, 3] for target in targets]) * 32
    assert heights.min() >= 7 and heights.max() <= 12 and heights.std() > 1
    places = torch.cat([target.boxes[:, :2] for target in targets])
    assert (places.std(dim=0) > 0.15).all()
    assert torch.cat([target.labels for target in targets]).unique().tolist() == list(range(10))


def test_a_seed_means_the_same_and_another_one_not():
    def drawn(seed):
        return draw_scenes(DIGITS, [2, 3], torch.Generator().manual_seed(seed))[0]

    assert torch.equal(drawn(1), drawn(1)) and not torch.equal(drawn(1), drawn(2))


def test_what_finds_no_place_is_left_out():
    _, targets = draw_scenes(DIGITS, [40], torch.Generator().manual_seed(0))
    assert 3 < len(targets[0].labels) < 20
    _, targets = draw_scenes(DIGITS, [40], torch.Generator().manual_seed(0), apart=False)
    assert len(targets[0].labels) == 40
    boxes = targets[0].boxes
    assert (box_iou(boxes[:, None], boxes).fill_diagonal_(0) > 0).any()


def test_where_digits_overlap_the_darker_ink_is_seen():
    ink = torch.full((4, 3), 0.5), torch.full((2, 2), 0.8)
    picture, target = make_scene(ink, [7, 1], [(1, 2), (3, 4)], size=10)
    assert picture[0, 1, 2] == 0.5 and picture[0, 3, 4] == 0.8 and picture[0, 4, 5] == 0.8
    assert picture.sum() == pytest.approx(10 * 0.5 + 4 * 0.8)
    assert target.labels.tolist() == [7, 1]
    torch.testing.assert_close(
        box_cxcywh_to_xyxy(target.boxes[0]), torch.tensor([0.2, 0.1, 0.5, 0.5])
    )
    torch.testing.assert_close(
        box_cxcywh_to_xyxy(target.boxes[1]), torch.tensor([0.4, 0.3, 0.6, 0.5])
    )


INK = torch.ones(4, 3)


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda: cut_out(torch.zeros(8, 8)), "cut_out: a digit must have ink"),
        (lambda: cut_out(torch.ones(1, 8, 8)), "digit must have shape (H, W)"),
        (lambda: make_scene([INK], [1], []), "1 inks, 1 labels and 0 places"),
        (lambda: make_scene([INK], [1], [(-1, 0)]), "places=(-1, 0)"),
        (lambda: make_scene([INK], [1], [(0, 30)]), "places=(0, 30)"),
        (lambda: make_scene([INK], [1], [(0, 0)], size=0), "size must be"),
        (lambda: draw_scenes((DIGITS[0][0], DIGITS[1]), [1], torch.Generator()), "load_digits"),
        (lambda: draw_scenes(DIGITS, [1], torch.Generator(), zoom=(2, 1)), "zoom=(2, 1)"),
        (lambda: draw_scenes(DIGITS, [1], torch.Generator(), size=10), "fit into 10 pixels"),
    ],
)
def test_bad_input(call, said):
    assert said in error_of(call)
