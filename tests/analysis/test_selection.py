"""Model selection: the step that numbers counted by hand say, and never by what test samples say."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from analysis.calibration import nll
from analysis.plugins import SettingError
from analysis.record import Run, Writer
from analysis.selection import RECORDED_AS_CROSS_ENTROPY, Selection, read, rule_of, select, validation_loss, window
from runners.loop import train
from runners.losses import LOSSES, LogitLoss
from runners.probes.examples import example_columns
from tests.analysis.record_samples import header
from tests.runners.conftest import small_spec

STEPS, K = 12, 3
LABELS = {"validation": np.arange(9) % K, "test": np.arange(15) % K}


def logits(split):
    """[steps, n, K]; from one step to the next without a trend."""
    return np.random.default_rng(len(split)).normal(size=(STEPS, len(LABELS[split]), K)) * 2


def write(path, loss="ce", examples_every=1, splits=("validation", "test"), **columns):
    """Scalars at every step with ``columns`` beside the losses, samples at every ``examples_every``-th."""
    with Writer.create(path, header(path.name, loss={"name": loss})) as writer:
        for split in splits:
            writer.static(f"labels_{split}", labels=LABELS[split])
        for step in range(STEPS):
            row = {name: values[step] for name, values in columns.items()}
            for split in splits:
                z = logits(split)[step]
                row[f"accuracy_{split}"] = (z.argmax(1) == LABELS[split]).mean()
                if step % examples_every == 0:
                    writer.append(f"examples_{split}", step, **example_columns(z, LABELS[split]))
            writer.append("scalars", step, **row)
    return Run.open(path)


def cross_entropy(split="validation"):
    z, y = logits(split), LABELS[split]
    p = np.exp(z) / np.exp(z).sum(-1, keepdims=True)
    return -np.log(p[:, np.arange(len(y)), y]).mean(-1)


def test_best_is_the_least_recorded_loss_of_a_run_with_cross_entropy(tmp_path):
    losses = np.array([9, 8, 7, 1, 5, 4, 3, 2, 3, 4, 5, 6.0])
    run = write(tmp_path / "run", loss_validation=losses)
    assert select(run, range(STEPS)) == Selection(3, "best")
    assert select(run, [0, 5, 6, 9]) == Selection(6, "best")
    assert select(run, [9, 0, 6], "last") == Selection(9, "last")
    value, selection = read(run, "accuracy")
    assert selection == (3, "best")
    assert value == (logits("test")[3].argmax(1) == LABELS["test"]).mean()
    assert read(run, "accuracy", rule="last")[0] == (logits("test")[-1].argmax(1) == LABELS["test"]).mean()


@pytest.mark.parametrize("loss", ["label_smoothing", "focal", "mse"])
def test_cross_entropy_chooses_whatever_the_training_loss(tmp_path, loss):
    """The run's own validation loss would choose step 0."""
    run = write(tmp_path / "run", loss=loss, loss_validation=np.arange(STEPS) + 1.0)
    np.testing.assert_allclose(validation_loss(run), cross_entropy(), rtol=1e-6)
    np.testing.assert_allclose(validation_loss(run), nll(logits("validation"), LABELS["validation"]), rtol=1e-6)
    assert select(run, range(STEPS)) == Selection(int(cross_entropy().argmin()), "best")
    assert cross_entropy().argmin() != 0


def test_losses_recorded_as_cross_entropy_are_those_that_need_more_than_logits():
    beyond = [name for name in LOSSES.names() if not issubclass(LOSSES.get(name), LogitLoss)]
    assert set(beyond) | {"ce"} == set(RECORDED_AS_CROSS_ENTROPY)
    assert {LOSSES.get(name).output for name in beyond} == {"ce"}


@pytest.mark.parametrize("loss", [*RECORDED_AS_CROSS_ENTROPY, "label_smoothing", "mse"])
def test_of_a_real_run_the_validation_loss_is_cross_entropy_of_its_logits(tmp_path, loss):
    spec = small_spec(
        "sgd",
        dataset={"name": "digits", "train_size": 60, "validation_size": 50, "test_size": 40},
        loss={"name": loss},
        probes={"examples": {}, "logits": {}},
        steps=4,
    )
    run = Run.open(train(spec, tmp_path))
    z, y = run.column("logits_validation", "logits"), run.labels("validation")
    np.testing.assert_allclose(validation_loss(run), nll(z, y), rtol=1e-5)
    recorded = run.metric("loss_validation")
    assert np.allclose(recorded, nll(z, y), rtol=1e-5) == (loss in RECORDED_AS_CROSS_ENTROPY)


def test_without_a_validation_split_best_is_last_and_says_so(tmp_path):
    run = write(tmp_path / "run", splits=("test",))
    assert select(run, [3, 7, 5]) == Selection(7, "last")
    assert read(run, "ece")[1] == (STEPS - 1, "last")
    # A loss of another function than cross-entropy, and no samples to compute it from, is no validation loss.
    other = write(tmp_path / "other", loss="focal", splits=("test",), loss_validation=np.arange(STEPS) + 1.0)
    assert select(other, range(STEPS)).rule == "last"


def test_losses_that_are_not_finite_choose_nothing(tmp_path):
    losses = np.array([np.nan, 5, np.nan, 4, np.inf, -np.inf, np.nan, 3, 3, 9, np.inf, np.nan])
    run = write(tmp_path / "run", splits=("test",), loss_validation=losses)
    assert select(run, range(STEPS)) == Selection(7, "best")
    assert select(run, [0, 2, 4, 11]) == Selection(11, "last")


def test_accuracy_and_ece_are_of_one_network_where_samples_are_rarer_than_scalars(tmp_path):
    losses = np.array([9, 8, 7, 6, 5, 0, 4, 3, 2, 9, 9, 9.0])
    run = write(tmp_path / "run", examples_every=4, loss_validation=losses)
    assert read(run, "ece")[1] == read(run, "accuracy")[1] == (8, "best")
    assert read(run, "ece", rule="last")[1] == read(run, "accuracy", rule="last")[1] == (8, "last")
    scarce = write(
        tmp_path / "scarce", examples_every=4, loss_validation=losses, brier_test=np.where(losses, np.nan, 1)
    )
    # A value that no such step has is read where it is.
    assert read(scarce, "brier") == (1, Selection(5, "best"))


def test_what_cannot_be_read_is_one_sentence(tmp_path):
    run = write(tmp_path / "run")
    with pytest.raises(SettingError, match=r"rule = 'first'; accepted: 'best', 'last'"):
        select(run, [0], "first")
    with pytest.raises(SettingError, match="no recorded step"):
        select(run, [])
    with pytest.raises(SettingError, match="no stream examples_train"):
        read(run, "ece", "train")
    with pytest.raises(SettingError, match="metric 'accuracy', split 'test': run memory has no value of it"):
        read(Recorded(np.ones(3), np.full(3, np.nan)), "accuracy")


class Recorded(Run):
    """A run of three series that lives in memory."""

    id = "memory"
    streams = ()
    spec: dict = {"loss": {"name": "ce"}}  # noqa: RUF012

    def __init__(self, validation, test):
        self.series = {"loss_validation": validation, "accuracy": test}

    def metric(self, name, split="train", **options):
        return pd.Series(self.series[name]).dropna()


finite = st.floats(-1e6, 1e6)


@given(arrays(float, 20, elements=finite), arrays(float, 20, elements=finite), st.permutations(range(20)))
def test_test_values_never_move_the_choice(validation, test, order):
    value, selection = read(Recorded(validation, test), "accuracy")
    assert validation[selection.step] == validation.min()
    assert value == test[selection.step]
    assert read(Recorded(validation, test[list(order)]), "accuracy")[1] == selection


def test_words_of_selections():
    best, last = Selection(3, "best"), Selection(9, "last")
    assert [rule_of(found) for found in ([], [best, best], [last], [last, best])] == [
        "",
        "best",
        "last",
        "best or last",
    ]
    assert window([best]) == "step of least validation loss"
    assert window([best, last]) == "step of least validation loss or last step, no validation loss"
