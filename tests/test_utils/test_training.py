"""Training: seeded and apart from the global random state, measured, and left as it was found."""

import sys
from itertools import chain

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from helpers import error_of, random
from utils.training import History, accuracy, augment, fit, fit_batches, predict


def linear_model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))


def examples(b=20):
    """Images of 4 x 4 whose class is the largest of their first three pixels."""
    images = random(b, 1, 4, 4)
    return images, images.flatten(1)[:, :3].argmax(dim=1)


QUICK = {"epochs": 3, "batch_size": 8, "progress": False}


def weights(model):
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def same(ours, theirs):
    return torch.equal(ours, theirs)


# --- predict and accuracy


def test_predict_equals_one_call_of_the_model():
    model, (images, _) = linear_model(), examples()
    for batch_size in (1, 7, 20, 512):
        scores = predict(model, images, batch_size)
        torch.testing.assert_close(scores, model(images))
        assert not scores.requires_grad


def test_predict_puts_every_mode_back():
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(16, 3), nn.Dropout(0.5))
    images, _ = examples()
    model.train()
    model[1].eval()
    assert same(predict(model, images), predict(model, images)), "dropout is off"
    assert [m.training for m in model.modules()] == [True, True, False, True, True]
    model.eval()
    accuracy(model, examples())
    assert not any(m.training for m in model.modules())


def test_predict_of_a_model_without_parameters():
    assert predict(nn.Flatten(), torch.ones(3, 2, 2)).shape == (3, 4)


def test_accuracy_counts_right_answers():
    scores = torch.eye(3)[[0, 1, 2, 0]]
    assert accuracy(nn.Identity(), (scores, torch.tensor([0, 1, 2, 0]))) == 1
    assert accuracy(nn.Identity(), (scores, torch.tensor([0, 1, 1, 1]))) == 0.5
    assert accuracy(nn.Identity(), (scores, torch.tensor([1, 2, 0, 1])), batch_size=3) == 0


# --- augment


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def always(value):
    """Make every random amount the largest (1), the smallest (0) or none (0.5)."""

    def rand(*shape, generator=None, device=None):
        return torch.full(shape, value)

    return rand


@pytest.mark.parametrize("shape", [(3, 1, 8, 8), (2, 3, 5, 9), (1, 1, 1, 1)])
def test_augment_by_nothing_changes_nothing(shape):
    images = torch.rand(shape, generator=generator())
    same_images = augment(images, generator(), shift=0, degrees=0, zoom=0)
    torch.testing.assert_close(same_images, images, rtol=0, atol=1e-5)


def test_augment_by_whole_pixels_moves_whole_pixels(monkeypatch):
    images = torch.rand((2, 1, 5, 7), generator=generator())
    monkeypatch.setattr(torch, "rand", always(1.0))
    moved = augment(images, generator(), shift=2, degrees=0, zoom=0)
    expected = F.pad(images[:, :, 2:, 2:], (0, 2, 0, 2))  # the picture's far corner comes nearer
    torch.testing.assert_close(moved, expected, rtol=0, atol=1e-5)
    monkeypatch.setattr(torch, "rand", always(0.0))
    moved = augment(images, generator(), shift=2, degrees=0, zoom=0)
    expected = F.pad(images[:, :, :-2, :-2], (2, 0, 2, 0))
    torch.testing.assert_close(moved, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("height, width", [(5, 5), (5, 9), (9, 5)])
def test_augment_turns_without_stretching(height, width, monkeypatch):
    monkeypatch.setattr(torch, "rand", always(1.0))
    images = torch.zeros(1, 1, height, width)
    down, across = height // 2, width // 2
    images[0, 0, down - 2, across] = 1  # two pixels above the middle
    turned = augment(images, generator(), shift=0, degrees=90, zoom=0)
    expected = torch.zeros_like(images)
    expected[0, 0, down, across - 2] = 1  # two pixels left of it
    torch.testing.assert_close(turned, expected, rtol=0, atol=1e-5)


def test_augment_zooms_both_ways(monkeypatch):
    images = torch.zeros(1, 1, 9, 9)
    images[0, 0, 2:7, 2:7] = 1
    monkeypatch.setattr(torch, "rand", always(1.0))
    smaller = augment(images, generator(), shift=0, degrees=0, zoom=0.3)
    monkeypatch.setattr(torch, "rand", always(0.0))
    larger = augment(images, generator(), shift=0, degrees=0, zoom=0.3)
    assert smaller.sum() < images.sum() - 5 and larger.sum() > images.sum() + 5


def test_augment_keeps_range_type_and_input_and_treats_each_image_for_itself():
    images = torch.rand((8, 1, 8, 8), generator=generator())
    images[1:] = images[0]
    kept = images.clone()
    changed = augment(images, generator())
    assert changed.min() >= 0 and changed.max() <= 1
    assert changed.shape == images.shape and changed.dtype == images.dtype
    assert same(images, kept)
    distances = torch.cdist(changed.flatten(1), changed.flatten(1)) + torch.eye(8)
    assert distances.min() > 0.01, "equal images, different amounts"
    assert same(changed, augment(images, generator())), "the same seed, the same picture"
    assert not same(changed, augment(images, generator(1)))
    assert augment(images.double(), generator()).dtype == torch.float64


def test_augment_shifts_by_half_a_pixel_turns_by_12_degrees_and_zooms_by_a_tenth():
    images = torch.rand((8, 1, 8, 8), generator=generator())
    stated = augment(images, generator(), shift=0.5, degrees=12, zoom=0.1)
    assert same(augment(images, generator()), stated)


def test_augment_of_one_image_gets_its_fix():
    images = torch.rand(1, 8, 8)
    assert "images[None]" in error_of(lambda: augment(images, generator()))
    assert augment(images[None], generator()).shape == (1, 1, 8, 8)


# --- fit


def trained_by_hand(model, batches, warm_up, smoothing=0.0, momentum=True, **options):
    """Train with the loop written out; return each loss, and each norm before it is clipped."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5, **options)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1)
    if warm_up > 0.1:
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=0.1, total_steps=10, pct_start=warm_up, cycle_momentum=momentum
        )
    losses, norms = [], []
    for images, labels in batches:
        loss = F.cross_entropy(model(images), labels, label_smoothing=smoothing)
        optimizer.zero_grad()
        loss.backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses, norms


def test_fit_is_the_same_for_the_same_seed_and_leaves_the_global_state_alone():
    first, second = linear_model(), linear_model()
    torch.manual_seed(1)
    state = torch.get_rng_state()
    history = fit(first, examples(), examples(), **QUICK)
    assert same(torch.get_rng_state(), state)
    torch.rand(17)
    again = fit(second, examples(), examples(), **QUICK)
    assert same(weights(first), weights(second)) and history == again
    other = linear_model()
    fit(other, examples(), examples(), **QUICK, seed=1)
    assert not same(weights(first), weights(other))


def test_fit_measures_as_often_as_asked():
    def lengths(**options):
        history = fit(linear_model(), examples(), examples(), progress=False, **options)
        return len(history.loss), len(history.accuracy)

    assert lengths(epochs=1) == (1, 1)
    assert lengths(epochs=5) == (5, 1)
    assert lengths(epochs=5, measure_every=1) == (5, 5)
    assert lengths(epochs=5, measure_every=2) == (5, 3), "after 2, 4 and the last"
    assert lengths(epochs=4, measure_every=2) == (4, 2)


def test_fit_leaves_the_model_in_eval_with_the_measured_accuracy():
    model, test = linear_model(), examples(50)
    history = fit(model, examples(), test, **QUICK)
    assert isinstance(history, History) and not model.training
    assert history.accuracy[-1] == accuracy(model, test)
    assert all(isinstance(x, float) for x in history.loss + history.accuracy)


def test_fit_trains_in_train_mode_even_after_measuring():
    modes = []

    class Watch(nn.Module):
        def forward(self, x):
            modes.append(self.training)
            return x

    model = nn.Sequential(linear_model(), Watch()).eval()
    fit(model, examples(8), examples(8), epochs=2, batch_size=8, measure_every=1, progress=False)
    assert modes == [True, False, True, False]


def test_fit_sees_every_example_once_an_epoch_in_a_new_order():
    seen = []

    def watch(batch, _):
        seen.append(batch[:, 0, 0, 0].tolist())
        return batch

    images, labels = examples(20)
    fit(linear_model(), (images, labels), examples(), **QUICK, change=watch)
    assert [len(batch) for batch in seen] == 3 * [8, 8, 4]
    orders = [[*chain(*seen[start : start + 3])] for start in (0, 3, 6)]
    assert all(sorted(order) == sorted(images[:, 0, 0, 0].tolist()) for order in orders)
    assert orders[0] != orders[1] != orders[2]


def test_fit_leaves_its_data_alone():
    train, test = examples(), examples(5)
    fit(linear_model(), train, test, **QUICK)
    assert same(train[0], examples()[0]) and same(train[1], examples()[1])
    assert same(test[0], examples(5)[0])


@pytest.mark.parametrize("warm_up", [0, 0.1, 0.15, 0.3])
def test_fit_equals_the_loop_written_out(warm_up):
    """0.1 of ten steps is one step: no room for a rise, so the rate is constant there too."""
    images, labels = examples()
    images = images * 4  # so that some gradients are clipped and others are not
    ours, theirs = linear_model(), linear_model()
    history = fit(
        ours,
        (images, labels),
        examples(),
        epochs=10,
        batch_size=20,
        learning_rate=0.1,
        weight_decay=0.5,
        label_smoothing=0.2,
        warm_up=warm_up,
        change=None,
        progress=False,
    )
    losses, norms = trained_by_hand(theirs, 10 * [(images, labels)], warm_up, smoothing=0.2)
    assert min(norms) < 1 < max(norms)
    torch.testing.assert_close(history.loss, losses, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(weights(ours), weights(theirs), rtol=1e-4, atol=1e-4)


def test_a_schedule_gives_the_learning_rate_of_each_step():
    """Twenty examples in batches of 8 are three steps an epoch: six shares, never 1."""
    shares = []

    def watched(share):
        shares.append(share)
        return 0.5

    scheduled, constant = linear_model(), linear_model()
    options = {"epochs": 2, "batch_size": 8, "progress": False}
    fit(scheduled, examples(), examples(), **options, learning_rate=0.2, schedule=watched)
    fit(constant, examples(), examples(), **options, learning_rate=0.1, warm_up=0)
    assert shares[:6] == [step / 6 for step in range(6)]
    torch.testing.assert_close(weights(scheduled), weights(constant))
    still = linear_model()
    fit(still, examples(), examples(), **options, schedule=lambda share: float(share >= 1))
    assert same(weights(still), weights(linear_model())), "the last share that counts is below 1"


def test_the_loss_is_the_mean_over_examples_not_over_batches():
    model = linear_model()
    images, labels = examples(9)  # batches of 8 and 1
    expected = F.cross_entropy(model(images), labels).item()
    history = fit(
        model,
        (images, labels),
        examples(),
        epochs=1,
        batch_size=8,
        learning_rate=0.0,
        label_smoothing=0.0,
        change=None,
        progress=False,
    )
    assert history.loss == [pytest.approx(expected, rel=1e-5)]


def test_change_is_used_on_training_images_only_and_draws_from_the_seed():
    def drawn(seed):
        sizes, draws = [], []

        def blank(batch, gen):
            sizes.append(len(batch))
            draws.append(torch.rand(1, generator=gen).item())
            return torch.zeros_like(batch)

        fit(linear_model(), examples(20), examples(5), **QUICK, change=blank, seed=seed)
        assert sizes == 3 * [8, 8, 4]
        return draws

    assert len(set(drawn(0))) == 9, "new numbers for each batch"
    assert drawn(0) == drawn(0) and drawn(0) != drawn(1)


def test_progress_false_prints_nothing(capfd):
    fit(linear_model(), examples(), examples(), **QUICK)
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


def test_the_bar_never_goes_to_stdout(capfd, monkeypatch):
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    fit(linear_model(), examples(), examples(), **(QUICK | {"progress": True}))
    captured = capfd.readouterr()
    assert captured.out == "" and "epochs" in captured.err


@pytest.mark.parametrize(
    "epochs, line",
    [
        (1, "epochs 1\n"),
        (3, "epochs 1 2 3\n"),
        (25, "epochs 3 6 9 12 15 18 21 24 25\n"),
        (60, "epochs 6 12 18 24 30 36 42 48 54 60\n"),
    ],
)
def test_in_jupyter_the_epochs_are_a_line_that_is_stored(epochs, line, capfd, monkeypatch):
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    fit(linear_model(), examples(), examples(), **(QUICK | {"progress": True, "epochs": epochs}))
    captured = capfd.readouterr()
    assert captured.out == line and captured.err == ""


@pytest.mark.parametrize(
    "options, said",
    [
        ({"epochs": 0}, "epochs must be an integer of at least 1, got epochs=0"),
        ({"batch_size": 0}, "batch_size must be an integer of at least 1"),
        ({"epochs": 2.5}, "got epochs=2.5"),
        ({"warm_up": 1.0}, "got warm_up=1.0"),
        ({"warm_up": -0.1}, "got warm_up=-0.1"),
    ],
)
def test_fit_refuses_bad_numbers(options, said):
    options = {"progress": False} | options
    text = error_of(lambda: fit(linear_model(), examples(), examples(), **options))
    assert text.startswith("fit: ") and said in text


@pytest.mark.parametrize(
    "bad",
    [
        lambda x, y: (x[:0], y[:0]),
        lambda x, y: (x, y[:-1]),
        lambda x, y: (x, y[:, None]),
        lambda x, y: (x, y.float()),
        lambda x, y: (x, F.one_hot(y)),
    ],
)
def test_examples_must_belong_together(bad):
    images, labels = bad(*examples())
    model, good = linear_model(), examples()
    for where, call in [
        ("accuracy", lambda: accuracy(model, (images, labels))),
        ("fit", lambda: fit(model, (images, labels), good, progress=False)),
        ("fit", lambda: fit(model, good, (images, labels), progress=False)),
    ]:
        text = error_of(call)
        assert text.startswith(f"{where}: examples must be images (b, ...) and integer labels (b,)")
        assert f"images.shape={tuple(images.shape)}" in text
        assert f"labels.shape={tuple(labels.shape)}" in text


def test_predict_refuses_no_images_and_no_batch():
    model, (images, _) = linear_model(), examples()
    assert "images.shape=(0, 1, 4, 4)" in error_of(lambda: predict(model, images[:0]))
    assert "batch_size must be" in error_of(lambda: predict(model, images, 0))
    assert "batch_size must be" in error_of(lambda: accuracy(model, examples(), 0))


# --- fit_batches


def draw_examples(generator):
    """Draw eight images of 4 x 4; the class is the largest of their first three pixels."""
    images = torch.randn(8, 1, 4, 4, generator=generator)
    return images, images.flatten(1)[:, :3].argmax(dim=1)


def classes_loss(model, batch):
    images, labels = batch
    return F.cross_entropy(model(images), labels)


def train_on_batches(model, **options):
    options = {"steps": 12, "progress": False} | options
    return fit_batches(model, draw_examples, classes_loss, **options)


def test_fit_batches_learns_and_gives_the_loss_of_every_step():
    model = linear_model()
    history = train_on_batches(model, steps=150, learning_rate=0.05)
    assert isinstance(history, History) and not model.training
    assert len(history.loss) == 150 and all(isinstance(x, float) for x in history.loss)
    assert history.accuracy == history.measured == []
    assert sum(history.loss[-10:]) < 0.5 * sum(history.loss[:10])


@pytest.mark.parametrize("warm_up", [0, 0.1, 0.15, 0.3])
def test_fit_batches_equals_the_loop_written_out(warm_up):
    """0.1 of ten steps is one step: no room for a rise, so the rate is constant there too."""
    ours, theirs = linear_model(), linear_model()
    history = train_on_batches(
        ours,
        steps=10,
        learning_rate=0.1,
        weight_decay=0.5,
        betas=(0.8, 0.7),
        warm_up=warm_up,
        seed=3,
    )
    drawn = generator(3)
    batches = [draw_examples(drawn) for _ in range(10)]
    losses, norms = trained_by_hand(theirs, batches, warm_up, momentum=False, betas=(0.8, 0.7))
    assert max(norms) > 1, "so that clipping shows"
    torch.testing.assert_close(history.loss, losses, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(weights(ours), weights(theirs), rtol=1e-4, atol=1e-4)


def test_fit_batches_is_the_same_for_the_same_seed_and_leaves_the_global_state_alone():
    first, second, other = linear_model(), linear_model(), linear_model()
    torch.manual_seed(1)
    state = torch.get_rng_state()
    history = train_on_batches(first)
    assert same(torch.get_rng_state(), state)
    torch.rand(17)
    assert train_on_batches(second) == history
    assert same(weights(first), weights(second))
    train_on_batches(other, seed=1)
    assert not same(weights(first), weights(other))


def test_fit_batches_measures_in_eval_mode_as_often_as_asked():
    seen = []

    def measure(model):
        seen.append((model.training, torch.is_grad_enabled()))
        return torch.tensor(len(seen))

    class Watch(nn.Module):
        def forward(self, x):
            seen.append(self.training)
            return x

    model = nn.Sequential(linear_model(), Watch()).eval()
    history = train_on_batches(model, steps=5, measure=measure, measure_every=2)
    eval_mode = (False, False)
    assert seen == [True, True, eval_mode, True, True, eval_mode, True, eval_mode]
    assert len(history.measured) == 3 and all(isinstance(x, float) for x in history.measured)
    assert train_on_batches(linear_model(), steps=4, measure=lambda model: 7).measured == [7.0]


@pytest.mark.parametrize(
    "options, said",
    [
        ({"steps": 0}, "steps must be an integer of at least 1, got steps=0"),
        ({"warm_up": 1.0}, "got warm_up=1.0"),
        ({"learning_rate": 1e30, "warm_up": 0}, "loss must return one finite number, got nan"),
    ],
)
def test_fit_batches_refuses_bad_numbers(options, said):
    text = error_of(lambda: train_on_batches(linear_model(), **options))
    assert text.startswith("fit_batches: ") and said in text


def test_fit_batches_refuses_a_loss_for_each_example():
    def each(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

    text = error_of(lambda: fit_batches(linear_model(), draw_examples, each, steps=2))
    assert "one finite number" in text and "Take the mean over the batch" in text


def test_in_jupyter_the_steps_are_a_line_that_is_stored(capfd, monkeypatch):
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    train_on_batches(linear_model(), steps=25, progress=True)
    captured = capfd.readouterr()
    assert captured.out == "steps 3 6 9 12 15 18 21 24 25\n" and captured.err == ""
    train_on_batches(linear_model())
    assert capfd.readouterr().out == ""
