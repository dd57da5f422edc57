"""What our own methods promise beyond the contract, which has to suit deterministic methods and other codebooks too."""

import pytest
import torch

from combemb import methods
from tests.blobs import blobs

BLOBS = blobs(4, 2, n_each=20, D=16)
SMALL = {"combemb": {"bits": 12, "epochs": 3, "batch_size": 64, "check": False}, "itq": {"bits": 12}}
RANDOM = SMALL | {"opq": {"bits": 12, "iterations": 2}, "lopq": {"bits": 12}}


@pytest.mark.parametrize("name", RANDOM)
def test_another_seed_gives_another_model(name):
    first, other = (methods.get(name)(**RANDOM[name], seed=seed).fit(BLOBS.x, BLOBS.labels) for seed in (3, 4))
    assert not all(torch.equal(tensor, other.state()[key]) for key, tensor in first.state().items())


@pytest.mark.parametrize("name", SMALL)
def test_encoding_undoes_decoding_exactly(name):
    model = methods.get(name)(**SMALL[name]).fit(BLOBS.x, BLOBS.labels)
    codes = model.encode(BLOBS.x)
    assert torch.equal(model.codebook.encode(model.codebook.decode(codes)), codes)


def test_as_many_epochs_are_logged_as_were_asked_for():
    model = methods.get("combemb")(**SMALL["combemb"]).fit(BLOBS.x, BLOBS.labels)
    assert [record["epoch"] for record in model.log_] == [1, 2, 3]
