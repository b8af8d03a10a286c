"""Losses, calibrators and ensembles in one table, against numpy on the logits; and what an experiment asks for."""

import json

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

from analysis.after import FILE, After
from analysis.methods import METRICS, compare_methods, method, scores, settings_without
from analysis.plugins import SettingError
from analysis.recalibration import fit
from analysis.record import Run, Runs, Writer
from tests.analysis.calibration_cases import random_logits
from tests.analysis.record_samples import header

K, STEPS = 4, (0, 5, 10, 15)
SIZES = {"validation": 60, "test": 90}
BEST = 10
CALMO = {"name": "calmo", "lambda_r": 0.5, "lambda_s": 0.01}


def labels(split):
    return np.random.default_rng(SIZES[split]).integers(0, K, SIZES[split])


def logits(seed, split, step):
    random = np.random.default_rng([seed, SIZES[split], step])
    signal = 0.1 * step * np.eye(K)[labels(split)]
    return (2.5 * (signal + random.normal(size=(SIZES[split], K)))).astype(np.float32)


def write(folder, seed=0, lr=0.1, splits=("validation", "test"), steps=STEPS, best=BEST, **spec):
    name = f"{len(list(folder.glob('*')))}"
    settings = {"seed": seed, "optimizer": {"name": "sgd", "lr": lr}, **spec}
    with Writer.create(folder / name, header(name, **settings)) as writer:
        for split in splits:
            writer.static(f"labels_{split}", labels=labels(split))
        for step in range(0, 20, 5):
            # Least at `best`, but a test loss that is least elsewhere.
            writer.append("scalars", step, loss_validation=1.0 + abs(step - best), loss_test=float(step))
            if step in steps:
                for split in splits:
                    writer.append(f"logits_{split}", step, logits=logits(seed, split, step))
    return Run.open(folder / name)


def by_hand(p, y):
    """Accuracy, ECE with 15 bins, NLL and Brier score of probabilities, by loops."""
    confidence, correct = p.max(1), p.argmax(1) == y
    ece = 0.0
    for b in range(15):
        inside = (confidence > b / 15) & (confidence <= (b + 1) / 15)
        if inside.any():
            ece += inside.mean() * abs(correct[inside].mean() - confidence[inside].mean())
    nll = -np.mean([np.log(row[label]) for row, label in zip(p, y, strict=True)])
    brier = np.mean([((row - np.eye(K)[label]) ** 2).sum() for row, label in zip(p, y, strict=True)])
    return {"accuracy": correct.mean(), "ece": ece, "nll": nll, "brier": brier}


def temperature_by_hand(z, y):
    """Minimises the NLL over the temperature by scipy's bounded search."""

    def loss(log_t):
        return -log_softmax(z / np.exp(log_t), axis=1)[np.arange(len(y)), y].mean()

    return np.exp(minimize_scalar(loss, bounds=(-4, 4), method="bounded", options={"xatol": 1e-10}).x)


@pytest.fixture
def seeds(tmp_path):
    for seed in range(3):
        write(tmp_path, seed)
    return Runs.open(tmp_path)


def row(table, name):
    found = table.frame[table.frame["method"] == name]
    assert len(found) == 1
    return found.iloc[0]


def test_each_row_is_what_numpy_makes_of_the_logits(seeds):
    table = compare_methods(seeds, ["temperature"], ensemble=True)
    assert list(table.frame["method"]) == ["CE", "CE + temperature", "CE ensemble of 3"]
    y = labels("test")
    plain = [by_hand(softmax(logits(seed, "test", BEST).astype(float), axis=1), y) for seed in range(3)]
    scaled = []
    for seed in range(3):
        t = temperature_by_hand(logits(seed, "validation", BEST).astype(float), labels("validation"))
        scaled.append(by_hand(softmax(logits(seed, "test", BEST) / t, axis=1), y))
    for name, values in (("CE", plain), ("CE + temperature", scaled)):
        found = row(table, name)
        for metric in METRICS:
            numbers = [value[metric] for value in values]
            assert found[metric] == pytest.approx(np.mean(numbers), abs=1e-6), (name, metric)
            assert found[f"{metric}_std"] == pytest.approx(np.std(numbers, ddof=1), abs=1e-6), (name, metric)
        assert found["values"] == 3
        assert found["selection"] == "best"
    together = sum(softmax(logits(seed, "test", BEST).astype(float), axis=1) for seed in range(3)) / 3
    found = row(table, "CE ensemble of 3")
    for metric, value in by_hand(together, y).items():
        assert found[metric] == pytest.approx(value, abs=1e-9), metric
        assert np.isnan(found[f"{metric}_std"])
    assert found["values"] == 1
    assert (found["optimizer"], found["lr"], found["setting"]) == ("sgd", 0.1, "")


def test_every_member_is_read_at_its_own_step(tmp_path):
    for seed, best in enumerate((5, 15)):
        write(tmp_path, seed, best=best)
    table = compare_methods(Runs.open(tmp_path), ensemble=True)
    p = [softmax(logits(seed, "test", best).astype(float), axis=1) for seed, best in enumerate((5, 15))]
    assert row(table, "CE ensemble of 2")["nll"] == pytest.approx(by_hand(np.mean(p, axis=0), labels("test"))["nll"])
    last = compare_methods(Runs.open(tmp_path), ensemble=True, rule="last")
    p = [softmax(logits(seed, "test", 15).astype(float), axis=1) for seed in range(2)]
    assert row(last, "CE ensemble of 2")["nll"] == pytest.approx(by_hand(np.mean(p, axis=0), labels("test"))["nll"])
    assert set(last.frame["selection"]) == {"last"}


def test_the_step_is_chosen_among_those_with_logits(tmp_path):
    run = write(tmp_path, steps=(0, 15), best=5)
    found = row(compare_methods([run]), "CE")
    # Validation loss is 6 at step 0 and 11 at step 15; step 5 has no logits.
    assert found["nll"] == pytest.approx(
        by_hand(softmax(logits(0, "test", 0).astype(float), axis=1), labels("test"))["nll"]
    )


def test_a_calibrator_sees_validation_only(tmp_path):
    run = write(tmp_path)
    fitted = fit("isotonic", logits(0, "validation", BEST), labels("validation"))
    expected = scores(fitted(logits(0, "test", BEST)), labels("test"), from_logits=False)
    found = row(compare_methods([run], ["isotonic"]), "CE + isotonic")
    assert {metric: found[metric] for metric in METRICS} == pytest.approx(expected)


def test_an_infinite_loss_is_reported_as_such_without_a_spread(tmp_path):
    """Isotonic regression gives classes probability 0 to which no validation sample belonged."""
    z, y = random_logits(700, scale=3.0)
    for seed in range(2):
        with Writer.create(tmp_path / str(seed), header(str(seed), seed=seed)) as writer:
            for split, part in (("validation", slice(300)), ("test", slice(300, None))):
                writer.static(f"labels_{split}", labels=y[part])
                writer.append(f"logits_{split}", 0, logits=z[part])
    found = row(compare_methods(Runs.open(tmp_path), ["isotonic"]), "CE + isotonic")
    assert found["nll"] == np.inf
    assert np.isnan(found["nll_std"])
    assert found["brier_std"] == 0


def test_settings_are_rows_of_their_own_and_say_what_differs(tmp_path):
    for seed in range(2):
        write(tmp_path, seed)
        write(tmp_path, seed, lr=0.2)
        write(tmp_path, seed, loss=CALMO)
        write(tmp_path, seed, loss={**CALMO, "lambda_r": 0.0})
        for gamma in (1.0, 2.0):
            write(tmp_path, seed, loss={"name": "focal", "gamma": gamma})
    table = compare_methods(Runs.open(tmp_path), ensemble=True)
    names = table.frame["method"].tolist()
    assert [names.count(one) for one in ("CE", "CalMO", "Flat", "focal loss", "focal loss ensemble of 2")] == [
        2,
        1,
        1,
        2,
        2,
    ]
    assert sorted(table.frame.loc[table.frame["method"] == "CE", "lr"]) == [0.1, 0.2]
    assert set(table.frame.loc[table.frame["method"] == "CE", "setting"]) == {""}
    assert set(table.frame.loc[table.frame["method"] == "focal loss", "setting"]) == {
        "loss.gamma = 1.0",
        "loss.gamma = 2.0",
    }


def test_an_ensemble_holds_no_network_twice(tmp_path):
    write(tmp_path, 0)
    write(tmp_path, 0, probes={"logits": {"every": 5}})
    write(tmp_path, 1)
    table = compare_methods(Runs.open(tmp_path), ensemble=True)
    assert table.frame["method"].tolist() == ["CE", "CE ensemble of 2"]
    assert row(table, "CE")["values"] == 2


def test_settings_with_one_seed_have_no_ensemble_and_it_is_said(tmp_path):
    table = compare_methods([write(tmp_path)], ensemble=True)
    assert table.frame["method"].tolist() == ["CE"]
    assert np.isnan(table.frame["ece_std"].item())
    assert "No ensemble of 1 of 1 settings" in table.summary()


def test_an_ensemble_is_never_worse_than_its_mean_member(seeds):
    """NLL and the Brier score are convex in the probabilities (Jensen)."""
    frame = compare_methods(seeds, ensemble=True).frame.set_index("method")
    for metric in ("nll", "brier"):
        assert frame.loc["CE ensemble of 3", metric] <= frame.loc["CE", metric]


def test_without_validation_the_last_step_is_used_and_said(tmp_path):
    with Writer.create(tmp_path / "a", header("a")) as writer:
        writer.static("labels_test", labels=labels("test"))
        for step in STEPS:
            writer.append("logits_test", step, logits=logits(0, "test", step))
    table = compare_methods([Run.open(tmp_path / "a")])
    assert row(table, "CE")["selection"] == "last"
    assert "1 at the last step" in table.summary()


def test_what_cannot_be_compared_is_one_sentence(tmp_path):
    with pytest.raises(SettingError, match="there are none"):
        compare_methods([])
    (tmp_path / "a").mkdir()
    run = write(tmp_path / "a", splits=("test",))
    with pytest.raises(SettingError, match=r"run 0 has no stream logits_validation.*probes\.logits.*validation_size"):
        compare_methods([run], ["temperature"])
    assert len(compare_methods([run]).frame) == 1
    with pytest.raises(SettingError, match="no such entry in recalibration"):
        compare_methods([run], ["temperatur"])
    with pytest.raises(SettingError, match="fit_split = report_split = 'test'"):
        compare_methods([run], fit_split="test")
    (tmp_path / "b").mkdir()
    without = write(tmp_path / "b", steps=())
    with pytest.raises(SettingError, match=r"run 0 has no stream logits_test; its streams are scalars"):
        compare_methods([without])
    (tmp_path / "c").mkdir()
    write(tmp_path / "c", 0)
    other = write(tmp_path / "c", 1)
    other_labels = np.roll(labels("test"), 1)
    np.savez(other.path / "labels_test.npz", labels=other_labels)
    with pytest.raises(SettingError, match="runs 0 and 1 have different test samples"):
        compare_methods(Runs.open(tmp_path / "c"), ensemble=True)


def test_the_same_samples_on_both_sides_are_refused(tmp_path):
    with Writer.create(tmp_path / "a", header("a")) as writer:
        for split in ("validation", "test"):
            writer.static(f"labels_{split}", labels=labels("test"))
            writer.append(f"logits_{split}", 0, logits=logits(0, "test", 0))
    with pytest.raises(SettingError, match="samples that the fit has not seen"):
        compare_methods([Run.open(tmp_path / "a")], ["temperature"])


def test_names_of_losses(tmp_path):
    tables = {"CE": {"name": "ce"}, "CalMO": CALMO, "Rob": {**CALMO, "lambda_s": 0}, "mixup": {"name": "mixup"}}
    for name, loss in tables.items():
        assert method(write(tmp_path, loss=loss)) == name
    one, other = write(tmp_path, 0), write(tmp_path, 1, device="cuda")
    assert settings_without(one, "seed") == settings_without(other, "seed")
    assert settings_without(one) != settings_without(other)


def test_what_an_experiment_asks_for_travels_beside_its_runs(tmp_path):
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
    runs = [write(tmp_path / "x"), write(tmp_path / "x", 1), write(tmp_path / "y")]
    assert not After.of(runs)
    After.from_dict({"calibrators": ["temperature", {"name": "histogram", "bins": 5}]}).save(tmp_path / "x")
    After.from_dict({"ensemble": True, "calibrators": ["temperature"]}).save(tmp_path / "y")
    assert After.of(runs) == After(ensemble=True, calibrators=("temperature", {"name": "histogram", "bins": 5}))
    assert After.of(runs[:1]).ensemble is False
    assert len(Runs.open(tmp_path)) == 3
    After().save(tmp_path / "x")
    assert not (tmp_path / "x" / FILE).exists()
    (tmp_path / "y" / FILE).write_text("{")
    with pytest.raises(SettingError, match=r"after\.json: cannot be read"):
        After.of(runs)
    (tmp_path / "y" / FILE).write_text(json.dumps({"calibrators": ["gone"]}))
    with pytest.raises(SettingError, match=r"after\.json\.calibrators.*'gone'.*temperature"):
        After.of(runs)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (True, ["after", "True", "table"]),
        ({"ensembles": True}, ["after.ensembles", "unknown setting", "ensemble, calibrators"]),
        ({"ensemble": 3}, ["after.ensemble", "3", "boolean"]),
        ({"calibrators": "temperature"}, ["after.calibrators", "'temperature'", "tuple"]),
        ({"calibrators": ["temperatur"]}, ["after.calibrators", "temperatur", "accepted: beta"]),
        ({"calibrators": [{"name": "histogram", "bins": 0}]}, ["after.calibrators.bins", "0"]),
    ],
)
def test_a_mistake_in_after_is_one_sentence(table, words):
    with pytest.raises(SettingError) as caught:
        After.from_dict(table)
    for word in words:
        assert word in str(caught.value)
