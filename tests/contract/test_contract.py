"""Every method keeps every promise of `combemb.testing`; and what holds for the methods together."""

from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from combemb import methods
from combemb.testing import Trial, promises
from combemb.testing.trial import make_toy

NAMES = methods.names()
CASES = [
    pytest.param(name, promise, id=f"{name}-{promise.name}")
    for name in NAMES
    for promise in promises(methods.get(name))
]


@pytest.fixture(scope="module")
def trial_of():
    """One trial of each method, whose fits its promises share."""
    with ExitStack() as stack:
        yield cache(lambda name: stack.enter_context(Trial(methods.get(name))))


@pytest.mark.parametrize(("name", "promise"), CASES)
def test_promise(name, promise, trial_of):
    promise.verify(trial_of(name))


def test_the_list_of_methods_is_the_list_of_files():
    folder = Path(methods.__file__).parent
    assert sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__") == NAMES
    assert {"combemb", "itq"} <= set(NAMES)
    for name in NAMES:
        assert methods.get(name).__module__ == f"combemb.methods.{name}"
    with pytest.raises(ValueError, match=r"combemb.*itq"):
        methods.get("base")


def test_a_run_folder_belongs_to_its_method(tmp_path):
    toy = make_toy(n_views=1)
    methods.get("itq")(bits=12).fit(toy.x, toy.labels, folder=tmp_path / "run")
    for other in set(NAMES) - {"itq"}:
        with pytest.raises(ValueError, match=f"itq.*{other}"):
            methods.get(other).load(tmp_path / "run")
