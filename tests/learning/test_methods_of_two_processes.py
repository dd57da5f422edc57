"""Every deep method learns in two processes what it learns in one that has the whole batch."""

from pathlib import Path
from typing import Any

import pytest
import torch

from combemb import methods
from combemb.learning.deep import DeepMethod
from combemb.system import processes
from combemb.system.team import Team
from tests.teams import together
from tests.toy_methods import toy_data

N_STEPS = 50  # compared; differences of the last bits grow until they change a choice, such as that of a pair
BATCH = 64
VARIANTS: dict[str, dict[str, Any]] = {
    "ssah, no adversary": {"adversary": False},
    "dtc, averages": {"variant": "te"},
    "cnnh, classes": {"class_weight": 1.0},
}
OWN: dict[str, dict[str, Any]] = {
    "ssdh": {"hidden": 0},  # no dropout, which differs between processes
    "dtc": {"labelled_share": 0.25},  # of 64, a number that two can share
}
NAMES = [name for name in methods.names() if issubclass(methods.get(name), DeepMethod)] + [*VARIANTS]

Curve = list[dict[str, float]]


def curve(_: Team, variant: str) -> tuple[Curve, dict[str, torch.Tensor]]:
    """The loss terms of every step, and the fitted tensors."""
    name = variant.partition(",")[0]
    cls: Any = methods.get(name)
    own = {**cls.trial_settings, **OWN.get(name, {}), **VARIANTS.get(variant, {})}
    own |= {"bits": 12} if hasattr(cls, "bits") else {"n_novel": 2}
    own["epochs"] = 17 if cls.uses_unlabelled else 25
    method = cls(**{"device": "cpu", "check": False, "batch_size": BATCH, **own})
    found: Curve = []
    step = method.step

    def recorded(*given: Any) -> Any:
        terms = step(*given)
        found.append({name: float(processes.mean(term.detach())) for name, term in terms.items()})
        return terms

    method.step = recorded
    method.fit(*toy_data(), progress=False)
    return found, method.state()


@pytest.mark.parametrize("variant", NAMES)
def test_two_processes_have_the_loss_curve_of_one(tmp_path: Path, variant: str) -> None:
    of_two = together(tmp_path, 2, curve, variant)
    assert all(isinstance(found, tuple) for found in of_two), of_two
    (first, state), (second, other) = of_two
    assert first == second
    assert state.keys() == other.keys()
    assert [name for name in state if not torch.equal(state[name], other[name])] == []
    expected, _ = curve(Team(), variant)
    assert len(first) == len(expected) >= N_STEPS
    for step, (found, wanted) in enumerate(zip(first[:N_STEPS], expected[:N_STEPS], strict=True)):
        assert found == pytest.approx(wanted, rel=1e-4, abs=1e-4), step
    losses = [sum(terms.values()) for terms in expected]
    assert max(losses) - min(losses) > 0.01, "it hardly learned, so there was nothing to compare"
