"""The items of the paper: their presets, their headings, and that no number goes by another data set's name."""

import json

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest

import figures
from analysis.plugins import SettingError
from analysis.record import Runs
from figures.outputs import measured_on
from figures.paper import SCALES, choose, items, spelled
from tests.figures.study import LABEL, write_run


class Recorded:
    """A run as far as a heading asks."""

    def __init__(self, label):
        self.meta = {"data": {"label": label, "n_train": 40}}
        self.spec = {"model": {"name": "mlp", "hidden": [8], "activation": "tanh"}}


@pytest.fixture
def titled(monkeypatch):
    """Draws an item, and returns what stands at the head of its figure or figures."""
    seen = []
    monkeypatch.setattr(
        mpl.figure.Figure, "savefig", lambda figure, path, **_: seen.append(figure.get_suptitle().replace("\n", " "))
    )

    def heads(*arguments):
        seen.clear()
        figures.draw(*arguments)
        return seen[::2]

    return heads


def test_all_and_names_in_any_order_choose_items_in_the_papers_order():
    assert list(choose(["all"])) == list(choose(["all", "fig1"])) == list(items())
    assert list(choose(["table1", "fig2", "fig1", "fig2"])) == ["fig1", "fig2", "table1"]
    with pytest.raises(SettingError, match=r"item = 'fig4'.*accepted: all, fig1, .*figA20.*tableA2"):
        choose(["fig1", "fig4"])


def test_a_preset_belongs_to_a_scale():
    assert items()["fig1"].preset("laptop") == "mlp_dynamics_laptop"
    assert items()["figA8"].preset("paper") == "mlp_dynamics_cifar100_paper"
    assert items()["figA8"].preset("smoke") == items()["fig1"].preset("smoke")
    with pytest.raises(SettingError, match=r"scale = 'huge'.*accepted: smoke, laptop, paper"):
        items()["fig1"].preset("huge")


def test_titles_of_items_name_no_data_set():
    assert not any("cifar" in item.title.lower() for item in items().values())


def test_spelled():
    assert [spelled(name) for name in ("fig1", "figA20", "tableA2")] == ["Figure 1", "Figure A20", "Table A2"]


@pytest.mark.parametrize(
    ("label", "data", "said"),
    [
        ("digits (scikit-learn), label noise 0.2", "CIFAR-10", True),
        ("digits (scikit-learn)", "CIFAR-100", True),
        ("cifar10-jpeg", "CIFAR-10", False),
        ("CIFAR-10", "CIFAR-10", False),
        ("CIFAR-10, label noise 0.1", "CIFAR-10", False),
        ("CIFAR-10", "CIFAR-100", True),
        ("CIFAR-100", "CIFAR-10", True),
        ("CIFAR-100", "CIFAR-100", False),
        ("", "CIFAR-10", True),
    ],
)
def test_another_data_set_than_the_papers_is_said_to_be_another(label, data, said):
    item = items()["fig1"].model_copy(update={"data": data})
    words = measured_on([Recorded(label)], item, "smoke scale")
    assert words.startswith(f"{label}, 40 training samples, MLP 8 tanh; smoke scale")
    assert (f"in place of the paper's {data}" in words) == said


def test_one_foreign_run_among_others_is_enough_to_say_so():
    assert "in place of" in measured_on([Recorded("CIFAR-10"), Recorded("digits")], items()["fig1"])


@pytest.mark.parametrize("name", ["fig1", "fig2", "figA8"])
def test_the_heading_has_number_title_data_and_scale(name, runs, tmp_path, titled):
    (head,) = titled(name, runs, tmp_path, "smoke scale")
    assert head.startswith(f"{spelled(name)}. {items()[name].title} {LABEL}, 40 training samples, MLP 8 tanh")
    assert head.endswith(f"smoke scale, in place of the paper's {items()[name].data}")


def test_without_a_scale_none_is_claimed(runs, tmp_path, titled):
    (head,) = titled("fig1", runs, tmp_path)
    assert "scale" not in head
    assert LABEL in head


def test_several_figures_of_one_item_keep_what_tells_them_apart(tmp_path, titled):
    for k in (1, 3):
        write_run(tmp_path, "bulk_sgd", 0.1, 0, own={"k": k})
    heads = titled("figA5", Runs.open(tmp_path), tmp_path / "out", "paper scale")
    assert [head.split(" digits")[0] for head in heads] == ["Figure A5. BulkSGD, k = 1", "Figure A5. BulkSGD, k = 3"]


def test_the_heading_stays_clear_of_the_panels(runs, tmp_path, monkeypatch):
    overlaps = []

    def look(figure, path, **_):
        figure.draw_without_rendering()
        head = figure._suptitle.get_window_extent()
        overlaps.append(max(axes.get_tightbbox().y1 for axes in figure.axes) - head.y0)
        assert head.y1 <= figure.bbox.y1
        assert head.x0 >= 0
        assert head.x1 <= figure.bbox.x1

    monkeypatch.setattr(mpl.figure.Figure, "savefig", look)
    for name in ("fig1", "fig2", "fig3", "figA5", "table1"):
        figures.draw(name, runs, tmp_path, "smoke scale with steps=63")
    assert max(overlaps) <= 0


def test_scale_and_data_reach_the_sidecar_and_every_row_of_a_table(runs, tmp_path):
    path = figures.draw("table1", runs, tmp_path, "smoke scale")
    facts = json.loads(path.with_suffix(".json").read_text())
    source = f"{LABEL}, 40 training samples, MLP 8 tanh; smoke scale, in place of the paper's CIFAR-10"
    assert facts["scale"] == source
    assert facts["title"].endswith(source)
    assert source in facts["description"]
    table = pd.read_csv(path.with_suffix(".csv"))
    assert (table["measured_on"] == source).all()
    assert {"ours", "paper", "difference", "verdict"} <= set(table)


def test_methods_leave_out_what_the_paper_calls_otherwise(tmp_path):
    losses = {
        "CE": {"name": "ce"},
        "CalMO": {"name": "calmo", "lambda_r": 0.5, "lambda_s": 0.01},
        "Flat": {"name": "calmo", "lambda_r": 0.0, "lambda_s": 0.01},
        "Rob": {"name": "calmo", "lambda_r": 0.5, "lambda_s": 0.0},
        "label smoothing": {"name": "label_smoothing"},
        "focal loss": {"name": "focal"},
    }
    for seed, loss in enumerate(losses.values()):
        write_run(tmp_path, "sgd", 0.1, seed, loss=loss)
    names = dict(enumerate(losses))
    runs = Runs.open(tmp_path)
    for item, expected in {
        "figA15": {"CE", "CalMO"},
        "table2": {"CE", "Flat", "Rob", "CalMO"},
        "tableA1": {"CE", "CalMO"},
        "tableA2": {"CE", "CalMO", "label smoothing", "focal loss"},
    }.items():
        assert {names[run.spec["seed"]] for run in items()[item].runs(runs)} == expected
    with pytest.raises(SettingError, match=r"methods = \['CE', 'CalMO'\].*resnet_losses"):
        items()["figA15"].runs([run for run in runs if names[run.spec["seed"]] == "Flat"])


def test_scales_are_the_documented_ones():
    assert SCALES == ("smoke", "laptop", "paper")
    assert np.all([item.preset(scale) for item in items().values() for scale in SCALES])
