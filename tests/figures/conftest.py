import matplotlib as mpl
import pytest

from figures.style import style
from tests.figures.study import write_study


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    return write_study(tmp_path_factory.mktemp("study"))


@pytest.fixture
def drawing_style():
    """The house style, and matplotlib's settings as they were afterwards."""
    before = dict(mpl.rcParams)
    with style():
        yield
    assert dict(mpl.rcParams) == before
