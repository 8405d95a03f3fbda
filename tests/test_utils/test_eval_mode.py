"""Eval mode for a moment: every part of every model is put back, whatever happens."""

import pytest
from torch import nn

from utils.training import eval_mode


def model_in_many_modes():
    model = nn.Sequential(nn.Dropout(0.5), nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 2)))
    model.train()
    model[1].eval()
    model[1][0].train()
    return model


def modes(*models):
    return [module.training for model in models for module in model.modules()]


def test_every_part_is_in_eval_mode_inside_and_as_before_afterwards():
    model, other = model_in_many_modes(), model_in_many_modes().eval()
    before = modes(model, other)
    with eval_mode(model, other):
        assert not any(modes(model, other))
    assert modes(model, other) == before
    assert True in before and False in before


def test_a_part_that_two_models_share_is_put_back():
    shared = nn.Dropout(0.5).train()
    first, second = nn.Sequential(shared), nn.Sequential(shared, nn.Linear(2, 2)).train()
    with eval_mode(first, second):
        assert not any(modes(first, second))
    assert all(modes(first, second))


def test_modes_are_put_back_after_an_exception():
    model = model_in_many_modes()
    before = modes(model)
    with pytest.raises(KeyError), eval_mode(model):
        raise KeyError
    assert modes(model) == before


def test_inside_another_one():
    model = model_in_many_modes()
    before = modes(model)
    with eval_mode(model):
        with eval_mode(model):
            pass
        assert not any(modes(model)), "the inner one puts eval mode back"
    assert modes(model) == before


def test_no_model_is_no_error():
    with eval_mode():
        pass
