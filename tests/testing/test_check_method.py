"""`check_method` names the promise that a broken method breaks; tests/learning/test_kinds.py has correct methods."""

import subprocess
import sys

import pytest

from combemb.methods.itq import ITQ
from combemb.testing import BrokenPromise, check_method, promises
from tests.learning.kinds import Head
from tests.testing import broken

CAUGHT = [
    (broken.Peeking, "labels_in_files", "with hidden labels and without a file differ in"),
    (broken.GlobalDice, "global_state", "random state of torch, numpy or Python has changed"),
    (broken.Unseeded, "seed_decides", "embeddings of two fits with seed=3 differ in 140 of 140 rows"),
    (broken.Deriving, "constructor_stores", "it also sets twice"),
    (broken.Littering, "constructor_stores", "it writes files"),
    (broken.Scaling, "data_unchanged", "the array before and after differ"),
    (broken.Shortened, "codes_or_none", "bits=12 were requested, the codebook has 8"),
    (broken.Undescribed, "settings_described", "iterations has no description"),
    (broken.Unchecked, "settings_checked", "should be raised"),
    (broken.Forgetful, "folder_gives_back", "embeddings of the fitted and the loaded method differ"),
    (broken.Crowded, "embedded_alone", "not close"),
    (broken.Late, "labels_needed", "is refused after run.json, diagnosis.json were written"),
    (broken.Demanding, "labelled_alone", "ValueError: all"),
    (broken.HalfCoded, "codes_or_none", "it has `encode` but is not a CodeMethod"),
    (broken.OneMore, "head", "n_novel_ is 4 with n_novel=3"),
    (broken.Raising, "embeddings", "KeyError: 'mean'"),
]


@pytest.mark.parametrize(("cls", "name", "how"), CAUGHT, ids=[cls.__name__ for cls, *_ in CAUGHT])
def test_a_broken_method_is_caught(cls, name, how):
    text = next(promise.text for promise in promises(cls) if promise.name == name)
    with pytest.raises(BrokenPromise) as caught:
        check_method(cls, only=[name])
    message = str(caught.value)
    assert message.startswith(f'{cls.__name__} breaks a promise: "{text}" ({name}): ')
    assert how in message
    assert caught.value.__cause__ is not None


def test_promises_have_names_of_their_own_and_texts():
    found = promises(ITQ)
    assert len({promise.name for promise in found}) == len(found) > 40
    assert all(len(promise.text) > 20 for promise in found)
    assert {promise.name for promise in promises(Head)} > {promise.name for promise in promises()}


def test_what_is_no_method_or_no_promise_is_refused():
    with pytest.raises(TypeError, match="subclass"):
        check_method(int)
    with pytest.raises(ValueError, match=r"no_such.*seed_decides"):
        check_method(ITQ, only=["no_such"])


def test_the_command_says_which_promise_is_broken():
    command = [sys.executable, "-m", "combemb.testing", "tests.testing.broken:Deriving"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    first, second, *_, last = done.stdout.splitlines()
    assert "settings_described" in first
    assert "Deriving breaks a promise" in second
    assert "Deriving keeps 46 of 48 promises" in last


def test_the_command_refuses_an_unknown_method():
    command = [sys.executable, "-m", "combemb.testing", "nope"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "there is no method 'nope'" in done.stderr
