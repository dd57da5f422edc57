"""What an index is made of: joined sets, the layout of fast scan, groups of equal codes, ids."""

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from combemb.search import fast_scan
from combemb.search.codebook import ProductCodebook
from combemb.search.fast_scan import FastScan
from combemb.search.groups import Groups
from combemb.search.ids import Ids, read_ids
from combemb.search.joined import Joined

SIZES = st.lists(st.sampled_from([2, 4, 8, 16]), min_size=1, max_size=9)


def empty(n_sets, n_threads):
    return FastScan(ProductCodebook(np.zeros((n_sets, 16, 1))), n_threads)


@given(SIZES, st.integers(0, 2**32 - 1))
@settings(max_examples=100, deadline=None)
def test_joined_codes_split_into_what_they_were(sizes, seed):
    rng = np.random.default_rng(seed)
    codes = np.stack([rng.integers(0, K, size=20) for K in sizes], axis=1).astype(np.uint8)
    joined = Joined(tuple(sizes))
    together = joined.join(codes)
    assert together.max() < 16
    assert np.array_equal(joined.split(together), codes)
    table = rng.normal(size=(3, len(sizes), max(sizes))).astype(np.float32)
    tables = joined.tables(table)
    for n in range(joined.n_sets):
        mine = np.flatnonzero(joined.of_set == n).tolist()
        expected = sum(table[:, m][:, codes[:, m]].astype(np.float64) for m in mine)
        np.testing.assert_allclose(tables[:, n][:, together[:, n]], expected, rtol=1e-12)
        assert np.prod([sizes[m] for m in mine]) <= 16


@pytest.mark.parametrize(
    ("sizes", "n_sets"),
    [((4,) * 24, 12), ((2,) * 48, 12), ((16,) * 12, 12), ((8,) * 16, 16), ((4,) * 6, 3), ((2, 8), 1)],
)
def test_a_stored_code_takes_its_bits(sizes, n_sets):
    assert Joined(sizes).n_sets == n_sets


@given(st.integers(1, 20), st.integers(1, 200), st.integers(1, 3), st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_codes_come_back_from_the_layout(n_sets, n, n_threads, seed):
    codes = np.random.default_rng(seed).integers(0, 16, (n, n_sets)).astype(np.uint8)
    scan = empty(n_sets, n_threads).of(codes)
    rows = np.random.default_rng(seed).integers(0, n, 15)
    assert np.array_equal(scan.codes(rows), codes[rows])
    assert np.array_equal(empty(n_sets, 1).of_stored(scan.stored, n).codes(np.arange(n)), codes)


@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize("n_sets", [1, 3, 6, 18])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_what_fast_scan_leaves_out_is_below_what_it_says(n_sets, n_threads, scale, monkeypatch):
    monkeypatch.setattr(fast_scan, "MIN_BLOCKS_PER_SHARE", 64)
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 16, (9_000, n_sets)).astype(np.uint8)
    table = (scale * rng.normal(size=(5, n_sets, 16)) * rng.random((5, n_sets, 1)) - 3 * scale).astype(np.float32)
    scan = empty(n_sets, n_threads).of(codes)
    assert len(scan.shares) == n_threads
    rows, scores, beyond = scan.nearest(table, 40)
    for q in range(5):
        sums = sum(table[q, m, codes[:, m]].astype(np.float64) for m in range(n_sets))
        assert len(set(rows[q].tolist())) >= 40
        np.testing.assert_array_equal(scores[q], sums[rows[q]])
        assert np.delete(sums, rows[q]).max() <= beyond[q] < sums.max() + np.ptp(table)


@given(
    st.integers(1, 20),
    st.sampled_from([1, 2, 3, 15, 255]),
    st.integers(1, 200),
    st.integers(1, 5),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=100, deadline=None)
def test_groups_are_those_of_a_dictionary(n_sets, most, n, at_most, seed):
    codes = np.random.default_rng(seed).integers(0, 1 + most, (n, n_sets)).astype(np.uint8)
    numbers: dict[bytes, int] = {}
    expected = [numbers.setdefault(bytes(row), len(numbers)) for row in codes]
    members = [[i for i in range(n) if expected[i] == g] for g in range(len(numbers))]
    groups, firsts = Groups.of(codes, 4 if most < 16 else 8)
    everyone = np.arange(len(numbers))
    assert groups.n_groups == len(numbers)
    assert firsts.tolist() == groups.first(everyone).tolist() == [own[0] for own in members]
    assert groups.sizes(everyone).tolist() == [len(own) for own in members]
    assert groups.of_entries().tolist() == expected
    owner, entry = groups.entries(everyone, at_most)
    assert [sorted(entry[owner == g].tolist()) for g in everyone] == [own[:at_most] for own in members]


def test_different_codes_take_no_memory_for_groups():
    codes = np.random.default_rng(0).integers(0, 16, (20_000, 12)).astype(np.uint8)
    codes[-1] = codes[3]
    groups, _ = Groups.of(codes, 4)
    assert sum(array.nbytes for array in groups.arrays().values()) < 100
    assert groups.sizes(np.array([2, 3, 4])).tolist() == [1, 2, 1]


# Ids

FORMS = {
    "list": lambda ids: ids,
    "array": np.array,
    "objects": lambda ids: np.array(ids, dtype=object),
    "Arrow": pa.array,
    "chunks": lambda ids: pa.chunked_array([ids[:2], ids[2:]]),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("names", [[5, -3, 2**40, 7], ["b", "é", "", "a/b c"]], ids=["ints", "strings"])
def test_ids_are_found_by_name_and_by_row(form, names):
    ids = Ids(np.empty(0, np.int64)).extended(FORMS[form](names), 4)
    assert ids[np.array([[2, 0], [1, 3]])].tolist() == [[names[2], names[0]], [names[1], names[3]]]
    assert ids.rows(FORMS[form](names[::-1])).tolist() == [3, 2, 1, 0]
    assert ids.rows(["nobody"] if isinstance(names[0], str) else [6]).tolist() == [-1]
    assert ids.rows([6] if isinstance(names[0], str) else ["nobody"]).tolist() == [-1]
    assert ids.take(np.array([3, 1]))[np.arange(2)].tolist() == [names[3], names[1]]


def test_strings_keep_every_character():
    names = ["a", "a\0", 2 * "long " * 3_000]
    assert Ids(np.empty(0, np.int64)).extended(names, 3)[np.arange(3)].tolist() == names


def test_ids_left_out_count_on():
    ids = Ids(np.empty(0, np.int64)).extended(None, 3).extended([10, 5], 2).extended(None, 2)
    assert ids.values.tolist() == [0, 1, 2, 10, 5, 11, 12]
    assert ids.rows(torch.tensor([12, 5])).tolist() == [6, 4]
    with pytest.raises(ValueError, match="the ids of this index are strings; give ids"):
        Ids(np.empty(0, np.int64)).extended(["a"], 1).extended(None, 1)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), unique=True, min_size=1), st.data())
@settings(max_examples=100, deadline=None)
def test_numbers_are_found_whatever_their_order(names, data):
    ids = Ids(np.empty(0, np.int64)).extended(names, len(names))
    wanted = data.draw(st.lists(st.sampled_from(names) | st.integers(-(2**63), 2**63 - 1)))
    expected = [names.index(name) if name in names else -1 for name in wanted]
    assert ids.rows(np.array(wanted, dtype=np.int64)).tolist() == expected


def test_numbers_end_at_64_bits():
    with pytest.raises(ValueError, match="beyond 64 signed bits"):
        read_ids(np.array([2**63], dtype=np.uint64))
    with pytest.raises(ValueError, match="the largest id is 9223372036854775807, none is left above it"):
        Ids(np.empty(0, np.int64)).extended([2**63 - 1], 1).extended(None, 1)
