"""The registry: the folder is the list, and a wrong name or setting answers with what there is."""

import pickle
import sys

import pytest

from analysis.plugins import Count, Counts, Plugin, Positive, Registry, SettingError, validate


class Shape(Plugin):
    """A thing with a size."""

    size: Positive = 1.0


@pytest.fixture
def registry(tmp_path, monkeypatch):
    folder = tmp_path / "shapes_of_a_test"
    folder.mkdir()
    head = "from tests.analysis.test_plugins import Shape\n"
    (folder / "__init__.py").write_text("")
    (folder / "circle.py").write_text(head + "class Circle(Shape):\n    sides: int = 0\n")
    (folder / "two.py").write_text(head + "class One(Shape): pass\nclass Two(Shape): pass\n")
    (folder / "_shared.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    yield Registry("shapes_of_a_test", Shape)
    for name in [name for name in sys.modules if name.startswith("shapes_of_a_test")]:
        del sys.modules[name]


def test_the_folder_is_the_list(registry):
    assert registry.names() == ["circle", "two"]
    circle = registry.build({"name": "circle", "size": 2}, "shape")
    assert circle.table() == {"name": "shapes_of_a_test.circle:Circle", "size": 2.0, "sides": 0}


def test_a_wrong_name_answers_with_what_there_is(registry):
    with pytest.raises(SettingError, match=r"shape\.name = 'square'.*circle, two"):
        registry.build({"name": "square"}, "shape")


def test_a_file_with_two_plugins_is_refused(registry):
    with pytest.raises(SettingError, match="no subclass of"):
        registry.get("two")


def test_a_class_elsewhere_must_be_of_the_kind(registry):
    with pytest.raises(SettingError, match="no subclass of"):
        registry.get("collections:OrderedDict")


def test_lists_become_tuples_and_numbers_stay_strict():
    class Net(Plugin):
        hidden: Counts = (1,)
        width: Count = 1

    assert validate(Net, {"hidden": [3, 4]}).hidden == (3, 4)
    for wrong in ({"hidden": ["3"]}, {"hidden": [0]}, {"width": 1.5}, {"width": True}, {"hidden": 3}):
        with pytest.raises(SettingError):
            validate(Net, wrong, "model")


def test_a_plugin_of_the_repository_is_named_by_its_file():
    from runners.optimizers.gd import Optimizer
    from runners.spec import OPTIMIZERS

    gd = OPTIMIZERS.build({"name": "gd", "lr": 0.1}, "optimizer")
    assert isinstance(gd, Optimizer)
    assert gd.name == "gd"
    again = pickle.loads(pickle.dumps(gd))
    assert again == gd
    assert again.table() == gd.table()
