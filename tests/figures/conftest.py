import matplotlib as mpl
import pytest

import figures
from figures.style import style
from tests.figures.study import write_study


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    return write_study(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="session")
def report_page(runs, tmp_path_factory):
    """The path of the report on the study."""
    return figures.report(runs, tmp_path_factory.mktemp("page"))


@pytest.fixture
def drawing_style():
    """The house style, and matplotlib's settings as they were afterwards."""
    before = dict(mpl.rcParams)
    with style():
        yield
    assert dict(mpl.rcParams) == before
