"""The photographs and the digits: shape, range, order, and the same split every time."""

import numpy as np
import pytest
import torch
from sklearn import datasets

from helpers import error_of
from utils.data import PHOTO_NAMES, load_digits, load_photos, resource


def test_photos_are_the_stored_pixels_channels_first():
    photos = load_photos()
    stored = np.load(resource("test_images.npy"), allow_pickle=False)
    assert photos.shape == (6, 3, 96, 96) and len(PHOTO_NAMES) == 6
    assert stored.shape == (6, 96, 96, 3) and stored.dtype == np.uint8
    assert photos.dtype == torch.float32 and photos.is_contiguous()
    assert 0 <= photos.min() < 0.1 and 0.9 < photos.max() <= 1
    for photo, channel, row, column in [(0, 0, 0, 1), (5, 2, 95, 3), (3, 1, 40, 60)]:
        expected = stored[photo, row, column, channel] / 255
        assert photos[photo, channel, row, column].item() == pytest.approx(expected)


def test_photos_differ_from_one_another():
    flat = load_photos().flatten(1)
    assert (torch.cdist(flat, flat) + 1e9 * torch.eye(6)).min() > 10


def test_each_load_is_a_fresh_tensor():
    load_photos().zero_()
    assert load_photos().max() > 0.9


def test_no_pickle_is_ever_opened(tmp_path, monkeypatch):
    np.save(tmp_path / "test_images.npy", np.array([{"any": "object"}]), allow_pickle=True)
    monkeypatch.setattr("utils.data.files.RESOURCES", tmp_path)
    with pytest.raises(ValueError, match="allow_pickle=False"):
        load_photos()


def test_a_missing_resource_says_what_to_do():
    text = error_of(lambda: resource("no_such_file.npy"))
    assert "name='no_such_file.npy'" in text and "pip install -e ." in text
    assert "/" not in text.replace("resources/", ""), "no path of this machine"


def test_digits_shapes_and_range():
    (train_x, train_y), (test_x, test_y) = load_digits()
    assert train_x.shape == (1437, 1, 8, 8) and train_y.shape == (1437,)
    assert test_x.shape == (360, 1, 8, 8) and test_y.shape == (360,)
    for x, y in [(train_x, train_y), (test_x, test_y)]:
        assert x.dtype == torch.float32 and y.dtype == torch.int64
        assert x.min() == 0 and x.max() == 1
        torch.testing.assert_close(x * 16, (x * 16).round())


def test_digits_are_those_of_scikit_learn_each_in_one_part():
    digits = datasets.load_digits()
    (train_x, train_y), (test_x, test_y) = load_digits()
    ours = torch.cat([train_x, test_x]).flatten(1) * 16
    labelled = torch.cat([ours, torch.cat([train_y, test_y])[:, None]], dim=1)
    theirs = np.concatenate([digits.data, digits.target[:, None]], axis=1)
    assert sorted(map(tuple, labelled.tolist())) == sorted(map(tuple, theirs.tolist()))


def test_digits_split_is_stratified_and_fixed():
    (train_x, train_y), (_, test_y) = load_digits()
    shares = test_y.bincount() / (test_y.bincount() + train_y.bincount())
    assert ((shares - 0.2).abs() < 0.005).all()
    torch.manual_seed(1)
    np.random.seed(1)
    torch.testing.assert_close(load_digits()[0][0], train_x, rtol=0, atol=0)
    assert train_y[:8].tolist() != sorted(train_y[:8].tolist()), "shuffled"
