"""A codebook: decoding undoes encoding, scores are decoded products, binary scores count differing bits."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from combemb.search.codebook import Metric, ProductCodebook, binary_codebook, same_state
from combemb.search.joined import largest_sums

METRICS: tuple[Metric, ...] = ("cosine", "inner", "l2")
SIZES = [(2,) * 5, (4,) * 5, (8,) * 5, (16,) * 5, (2, 16, 4, 8, 2)]


def unit_words(sizes: tuple[int, ...], d: int = 12, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.nn.functional.normalize(torch.randn(size, d, generator=generator), dim=1) for size in sizes]


def random_codes(sizes: tuple[int, ...], n: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randint(size, (n,), generator=generator) for size in sizes], dim=1).to(torch.uint8)


def random_queries(n: int, width: int, seed: int = 2) -> torch.Tensor:
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed))


def naive_table(codebook: ProductCodebook, queries: torch.Tensor) -> np.ndarray:
    """The nearness of every sub-vector to every word, as loops in float64."""
    words = codebook.words.double().numpy()
    M, K, d = words.shape
    table = np.zeros((len(queries), M, K))
    for i, query in enumerate(queries.double().numpy()):
        for m in range(M):
            part = query[m * d : (m + 1) * d]
            if codebook.metric == "cosine":
                part = part / np.linalg.norm(part) if np.linalg.norm(part) > 0 else np.eye(d)[0]
            for k in range(K):
                word = words[m, k]
                table[i, m, k] = -np.sum((part - word) ** 2) if codebook.metric == "l2" else part @ word
    return table


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("sizes", SIZES)
def test_encoding_undoes_decoding(sizes, metric):
    codebook = ProductCodebook(unit_words(sizes), metric)
    codes = random_codes(sizes, 200)
    assert codes.unique(dim=0).shape[0] > 20
    torch.testing.assert_close(codebook.encode(codebook.decode(codes)), codes, rtol=0, atol=0)


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.sampled_from([2, 4, 8, 16]), min_size=1, max_size=6).map(tuple),
    scale=st.floats(1e-30, 1e30),
    seed=st.integers(0, 2**32 - 1),
)
def test_cosine_codes_do_not_depend_on_the_length_of_the_vectors(sizes, scale, seed):
    codebook = ProductCodebook(unit_words(sizes, seed=seed), "cosine")
    codes = random_codes(sizes, 20, seed)
    assert torch.equal(codebook.encode(codebook.decode(codes) * scale), codes)


@pytest.mark.parametrize("sizes", SIZES)
def test_decoding_sets_words_side_by_side(sizes):
    words = unit_words(sizes, d=3)
    codes = random_codes(sizes, 10)
    expected = torch.stack([torch.cat([words[m][c] for m, c in enumerate(row)]) for row in codes.tolist()])
    assert torch.equal(ProductCodebook(words).decode(codes), expected)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("sizes", SIZES)
def test_table_and_codes_equal_the_naive_loops(sizes, metric):
    codebook = ProductCodebook(unit_words(sizes, d=3), metric)
    queries = random_queries(40, 3 * len(sizes))
    queries[0] = 0.0
    expected = naive_table(codebook, queries)
    assert codebook.table(queries).dtype == torch.float32
    np.testing.assert_allclose(codebook.table(queries), expected, atol=1e-5)
    np.testing.assert_array_equal(codebook.encode(queries)[1:], expected[1:].argmax(axis=2))


def test_l2_keeps_its_digits_far_from_the_origin():
    words = torch.tensor([[[1000.0, 1000.0], [1000.0, 1000.125]]])
    table = ProductCodebook(words, "l2").table(words[0])
    assert table.tolist() == [[[0.0, -(0.125**2)]], [[-(0.125**2), 0.0]]]


@pytest.mark.parametrize("sizes", SIZES)
def test_scores_are_products_with_decoded_codes(sizes):
    codes, queries = random_codes(sizes, 60), random_queries(7, 12 * len(sizes))
    unit = torch.nn.functional.normalize(queries.double().unflatten(1, (-1, 12)), dim=2).flatten(1)
    for metric, q in {"cosine": unit, "inner": queries.double()}.items():
        codebook = ProductCodebook(unit_words(sizes), metric)
        scores, expected = codebook.scores(queries, codes), q @ codebook.decode(codes).double().T
        assert scores.dtype == torch.float64
        torch.testing.assert_close(scores, expected, rtol=0, atol=1e-5)
        distinct = codes.unique(dim=0)
        nearest = codebook.scores(queries, distinct).argsort(dim=1, descending=True)
        assert torch.equal(nearest, (q @ codebook.decode(distinct).double().T).argsort(dim=1, descending=True))


def test_l2_scores_are_squared_distances_to_decoded_codes():
    codebook = ProductCodebook(unit_words((4,) * 5), "l2")
    codes, queries = random_codes((4,) * 5, 60), random_queries(7, 60)
    expected = -(torch.cdist(queries.double(), codebook.decode(codes).double()) ** 2)
    torch.testing.assert_close(codebook.scores(queries, codes), expected, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("metric", METRICS)
def test_equal_codes_get_bitwise_equal_scores(metric, monkeypatch):
    monkeypatch.setattr("combemb.search.codebook.CODES_AT_ONCE", 13)
    codebook = ProductCodebook(unit_words((4,) * 6), metric)
    distinct, queries = random_codes((4,) * 6, 9), random_queries(5, 72)
    copies = torch.arange(50) % 9
    assert torch.equal(codebook.scores(queries, distinct[copies]), codebook.scores(queries, distinct)[:, copies])


@pytest.mark.parametrize("spread", [0, 12])
@given(sizes=st.lists(st.sampled_from([2, 4, 8, 16]), min_size=1, max_size=12), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=50, deadline=None)
def test_scores_are_added_in_float64_in_the_order_of_the_sets(sizes, spread, seed):
    """Bit by bit, also where the magnitudes of the words are so far apart that another order would round otherwise."""
    rng = np.random.default_rng(seed)
    codebook = ProductCodebook(
        [rng.normal(size=(K, 1)) * 10.0 ** rng.uniform(-spread, 0, (K, 1)) for K in sizes], "inner"
    )
    queries = rng.normal(size=(3, len(sizes)))
    codes = np.stack([rng.integers(0, K, 20) for K in sizes], axis=1)
    table = codebook.table(queries).double().numpy()
    expected = np.zeros((3, 20))
    for m in range(len(sizes)):
        expected += table[:, m][:, codes[:, m]]
    assert np.array_equal(codebook.scores(queries, codes), expected)


def test_what_adds_up_without_rounding():
    ones = np.ones((1, 4, 2), np.float32)
    bounds, is_exact = largest_sums(ones)
    assert (bounds.tolist(), is_exact) == ([4.0], True)
    assert largest_sums(np.zeros_like(ones))[1]
    apart = ones.copy()
    apart[0, 0, 0] = 2.0**-20
    assert largest_sums(apart)[1]
    apart[0, 0, 0] = 2.0**-40
    assert not largest_sums(apart)[1]
    apart[0, 0, 0] = 0.0
    assert largest_sums(apart)[1]


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), spread=st.integers(0, 45))
def test_sums_that_count_as_exact_are(seed, spread):
    rng = np.random.default_rng(seed)
    table = rng.choice([-1, 1], (2, 5, 3)) * np.ldexp(
        rng.uniform(0.5, 1, (2, 5, 3)), rng.integers(-spread, 1, (2, 5, 3))
    )
    table = table.astype(np.float32)
    bounds, is_exact = largest_sums(table)
    sums = [[Fraction(0)]] * 2
    for m in range(5):
        sums = [[a + Fraction(float(b)) for a in sums[q] for b in table[q, m]] for q in range(2)]
    for own, bound in zip(sums, bounds.tolist(), strict=True):
        assert max(map(abs, own)) <= Fraction(bound)
    assert not is_exact or all(Fraction(float(value)) == value for own in sums for value in own)
    assert is_exact or spread > 24


@settings(max_examples=60, deadline=None)
@given(data=st.data(), bits=st.integers(1, 24))
def test_binary_scores_count_differing_bits(data, bits):
    entry = st.sampled_from([0.0, -0.0, 1e-40, -1e-40, 0.3, -2.0, 1e30, -1e30])
    queries = np.array(data.draw(st.lists(st.lists(entry, min_size=bits, max_size=bits), min_size=1, max_size=4)))
    codes = np.array(data.draw(st.lists(st.lists(st.integers(0, 1), min_size=bits, max_size=bits), min_size=1)))
    sign = queries >= 0  # sign(0) = +1
    hamming = (sign[:, None] != codes[None].astype(bool)).sum(axis=2)
    codebook = binary_codebook(bits)
    np.testing.assert_array_equal(codebook.scores(queries, codes), bits - 2 * hamming)
    np.testing.assert_array_equal(codebook.encode(queries), sign)


def test_binary_codebook_has_words_of_minus_one_and_one():
    codebook = binary_codebook(12)
    assert codebook.words.shape == (12, 2, 1)
    assert codebook.bits == 12
    assert codebook.decode(torch.tensor([[0, 1] * 6])).tolist() == [[-1.0, 1.0] * 6]


@pytest.mark.parametrize("metric", METRICS)
def test_words_that_only_fill_up_a_smaller_set_are_never_chosen(metric):
    sizes = (2, 16, 4, 2)
    codebook = ProductCodebook(unit_words(sizes, d=7), metric)
    queries = random_queries(5000, 28)
    assert codebook.words.shape == (4, 16, 7)
    assert torch.equal(codebook.words[0, 2:], codebook.words[0, :1].expand(14, -1))
    assert codebook.encode(queries).amax(dim=0).tolist() == [size - 1 for size in sizes]
    table = codebook.table(queries)
    assert torch.equal(table[:, 0, 2:], table[:, 0, :1].expand(-1, 14))


def test_the_first_of_equally_near_words_is_chosen():
    word = torch.tensor([1.0, 2.0])
    for metric in METRICS:
        assert ProductCodebook([torch.stack([-word, word, word, word])], metric).encode(word[None]).item() == 1


def test_chunks_do_not_show(monkeypatch):
    codebook, z = ProductCodebook(unit_words((4, 8))), random_queries(1000, 24)
    codes = codebook.encode(z)
    scores = codebook.scores(z[:3], codes)
    monkeypatch.setattr("combemb.search.codebook.CODES_AT_ONCE", 64)
    assert torch.equal(codebook.encode(z), codes)
    assert torch.equal(codebook.scores(z[:3], codes), scores)


def test_no_rows_give_no_rows():
    codebook = ProductCodebook(unit_words((4, 8)))
    none = torch.empty(0, 24)
    assert codebook.encode(none).shape == (0, 2)
    assert codebook.decode(codebook.encode(none)).shape == (0, 24)
    assert codebook.scores(none, codebook.encode(none)).shape == (0, 0)


def test_arrays_and_tensors_of_any_number_type_are_equal_and_unchanged():
    words = np.stack([w.numpy() for w in unit_words((4, 4))])
    codebook = ProductCodebook(words)
    z = random_queries(30, 24)
    array = z.numpy().astype(np.float64)[::-1]  # reversed and read-only: torch takes neither as it is
    array.flags.writeable = False
    before = array.copy()
    assert torch.equal(codebook.encode(array).flip(0), codebook.encode(z.clone().requires_grad_()))
    np.testing.assert_array_equal(array, before)
    codes = codebook.encode(z)
    assert torch.equal(codebook.decode(codes.numpy().astype(np.int32)), codebook.decode(codes))
    words[:] = 0.0
    assert torch.equal(codebook.words[0], unit_words((4, 4))[0])


def test_equality_looks_at_words_sizes_and_metric():
    words = unit_words((4, 4))
    filled = [torch.cat([words[0][:2], words[0][:1], words[0][:1]]), words[1]]
    assert ProductCodebook(words) == ProductCodebook(torch.stack(words))
    assert ProductCodebook(words) != ProductCodebook(words, "inner")
    assert ProductCodebook(words) != ProductCodebook(words[:1])
    assert ProductCodebook(filled) != ProductCodebook([words[0][:2], words[1]])
    assert ProductCodebook(words) != "a codebook"
    states = [ProductCodebook(words, metric).state() for metric in METRICS]
    assert [same_state(states[0], other) for other in states] == [True, False, False]
    assert not same_state(states[0], {**states[0], "words": states[0]["words"].double()})
    assert not same_state(states[0], {"words": states[0]["words"]})


def test_the_name_tells_bits_sets_and_metric():
    assert repr(ProductCodebook(unit_words((4,) * 12))) == "ProductCodebook(24 bits: 12 sets of 4 words, d=12, cosine)"
    mixed = ProductCodebook(unit_words((2, 16, 16), d=2), "l2")
    assert repr(mixed) == "ProductCodebook(9 bits: 1 set of 2 and 2 sets of 16 words, d=2, l2)"
    assert mixed.sizes == (2, 16, 16)
    assert mixed.bits == 9


def test_global_random_state_is_left_alone():
    before = torch.get_rng_state()
    codebook = ProductCodebook(unit_words((4, 4)))
    codebook.scores(random_queries(3, 24), random_codes((4, 4), 5))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (torch.eye(3).expand(2, 3, 3), "set 0 has 3 words; a set has 2, 4, 8 or 16"),
        ([torch.eye(2), torch.eye(2)[:1]], "set 1 has 1 words"),
        (torch.eye(32)[None], "set 0 has 32 words"),
        (torch.eye(4), r"words have shape \(4, 4\); give \(M, K, d\)"),
        (np.ones((2, 4, 3, 1)), r"words have shape \(2, 4, 3, 1\)"),
        ([torch.ones(2, 3), torch.ones(2, 4)], r"\[\(2, 3\), \(2, 4\)\]; give .* the same d"),
        ([torch.ones(2)], "each .K_m, d."),
        (torch.ones(2, 4, 0), "the same d > 0"),
        ([], "give one or more"),
        (torch.full((1, 2, 2), torch.nan), "set 0 holds words that are not finite"),
        (np.full((1, 2, 2), 1e300), "set 0 holds words that are not finite in float32"),
        (np.full((1, 2, 2), 1j), "complex"),
    ],
)
def test_words_that_make_no_codebook(words, message):
    with pytest.raises(ValueError, match=message):
        ProductCodebook(words)


def test_unknown_metric_lists_the_choices():
    with pytest.raises(ValueError, match="'dot' is unknown; choose one of cosine, inner, l2"):
        ProductCodebook(torch.ones(1, 2, 2), "dot")  # type: ignore[arg-type]


def test_a_binary_codebook_needs_a_bit():
    with pytest.raises(ValueError, match="bits=0"):
        binary_codebook(0)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        (torch.ones(5, 23), r"shape \(5, 23\) do not fit .*; give \(N, M\*d\) = \(N, 24\)"),
        (torch.ones(0, 23), r"shape \(0, 23\)"),
        (torch.ones(24), r"shape \(24,\)"),
        (torch.full((2, 24), torch.nan), "not finite"),
        (np.full((2, 24), np.inf), "not finite"),
    ],
)
def test_vectors_that_do_not_fit(vectors, message, metric):
    codebook = ProductCodebook(unit_words((4, 4)), metric)
    for call in (codebook.encode, codebook.table, lambda q: codebook.scores(q, random_codes((4, 4), 3))):
        with pytest.raises(ValueError, match=message):
            call(vectors)


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        (torch.zeros(3, 3, dtype=torch.uint8), r"shape \(3, 3\) do not fit .*; give \(N, M=2\)"),
        (torch.zeros(2, dtype=torch.uint8), r"shape \(2,\)"),
        (torch.zeros(3, 2), r"codes are torch.float32; give integers"),
        (torch.zeros(3, 2, dtype=torch.bool), "codes are torch.bool"),
        (torch.tensor([[0, 4], [2, 0]]), r"codes of set 0 span 0..2, but it has words 0..1 only"),
        (np.array([[1, -1]]), r"codes of set 1 span -1..-1, but it has words 0..3 only"),
    ],
)
def test_codes_that_name_no_word(codes, message):
    codebook = ProductCodebook(unit_words((2, 4)))
    for call in (codebook.decode, lambda c: codebook.scores(random_queries(1, 24), c)):
        with pytest.raises(ValueError, match=message):
            call(codes)


def test_asymmetric_binary_scores_are_dot_products():
    z = np.random.default_rng(0).normal(size=(30, 12))
    hamming, real = binary_codebook(12), binary_codebook(12, asymmetric=True)
    codes = hamming.encode(z)
    assert torch.equal(real.encode(z), codes)
    assert torch.equal(real.decode(codes), hamming.decode(codes))
    expected = z.astype(np.float32).astype(np.float64) @ hamming.decode(codes).double().numpy().T
    np.testing.assert_allclose(real.scores(z, codes), expected, atol=1e-12)
    assert len(real.scores(z, codes).unique()) > 20 * len(hamming.scores(z, codes).unique())
    assert real != hamming
