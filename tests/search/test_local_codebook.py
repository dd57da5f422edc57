"""The codebook of LOPQ against loops, and in an index, its file and the tables of other tools."""

import numpy as np
import pytest
import torch

from combemb.search import exchange
from combemb.search.codebook import binary_codebook
from combemb.search.index import CodeIndex
from combemb.search.local_codebook import LocalCodebook
from combemb.search.metrics import code_retrieval
from combemb.search.ranking import mean_average_precision

H, V, m, K, d = 2, 4, 3, 8, 2


def make(seed=0):
    rng = np.random.default_rng(seed)
    centres, origins = rng.normal(size=(2, H, V, m * d))
    rotations = np.linalg.qr(rng.normal(size=(H, V, m * d, m * d)))[0]
    return LocalCodebook(2 * centres, 2 * centres + 0.3 * origins, rotations, rng.normal(size=(H, V, m, K, d)))


def vectors(n=50, seed=1):
    return 2 * torch.randn(n, H * m * d, generator=torch.Generator().manual_seed(seed))


def naive_code(book, z):
    code = []
    for part, x in enumerate(z.double().reshape(H, -1)):
        cell = int(torch.stack([(x - centre).square().sum() for centre in book.centres[part]]).argmin())
        turned = book.rotations[part, cell].double().T @ (x - book.origins[part, cell])
        code.append(cell)
        for i in range(m):
            words = book.words[part, cell, i]
            code.append(int((turned[i * d : (i + 1) * d] - words).square().sum(dim=1).argmin()))
    return code


def naive_vector(book, code):
    parts = []
    for part, (cell, *words) in enumerate(code.reshape(H, 1 + m).tolist()):
        turned = torch.cat([book.words[part, cell, i, word] for i, word in enumerate(words)]).double()
        parts.append(book.origins[part, cell] + book.rotations[part, cell].double() @ turned)
    return torch.cat(parts)


def test_codes_and_vectors_are_those_of_loops():
    book, z = make(), vectors()
    codes = book.encode(z)
    assert codes.tolist() == [naive_code(book, row) for row in z]
    decoded = book.decode(codes)
    torch.testing.assert_close(
        decoded.double(), torch.stack([naive_vector(book, code) for code in codes]), atol=1e-5, rtol=0
    )
    assert decoded.dtype == torch.float32
    assert len(codes[:, 0].unique()) > 2


def test_scores_are_squared_distances_to_decoded_vectors():
    book, queries = make(), vectors(seed=2)[:7]
    codes = book.encode(vectors())
    expected = -torch.stack([(q.double() - book.decode(codes).double()).square().sum(dim=1) for q in queries])
    torch.testing.assert_close(book.scores(queries, codes), expected, atol=1e-4, rtol=1e-5)


def test_scores_and_codes_do_not_depend_on_the_rest_of_a_call(monkeypatch):
    book, z = make(), vectors(300)
    codes, scores = book.encode(z), book.scores(z[:40], book.encode(z))
    assert torch.equal(book.scores(z[3:4], codes[5:6]), scores[3:4, 5:6])
    assert torch.equal(torch.cat([book.encode(row[None]) for row in z]), codes)
    assert torch.equal(torch.cat([book.decode(row[None]) for row in codes]), book.decode(codes))
    for name in ("CODES_AT_ONCE", "QUERIES_AT_ONCE"):
        monkeypatch.setattr(f"combemb.search.local_codebook.{name}", 7)
    assert torch.equal(book.encode(z), codes)
    assert torch.equal(book.scores(z[:40], codes), scores)
    assert book.scores(z[:0], codes).shape == (0, 300)
    assert book.scores(z[:2], codes[:0]).shape == (2, 0)


def test_scores_of_long_vectors_do_not_depend_on_other_queries():
    rng = np.random.default_rng(0)  # matrix products round differently for one row and for many
    centres, rotations = rng.normal(size=(2, 2, 48)), np.linalg.qr(rng.normal(size=(2, 2, 48, 48)))[0]
    book = LocalCodebook(centres, centres, rotations, rng.normal(size=(2, 2, 4, 4, 12)))
    z = rng.normal(size=(90, 96))
    codes = book.encode(z)
    scores = book.scores(z, codes)
    assert torch.equal(torch.cat([book.scores(row[None], codes) for row in z]), scores)


def test_cells_count_as_bits():
    book = make()
    assert book.sizes == (4, 8, 8, 8, 4, 8, 8, 8)
    assert book.bits == 2 * 2 + 2 * 3 * 3
    assert repr(book) == "LocalCodebook(22 bits: 2 parts, each 4 cells and 3 sets of 8 words, d=2)"


def test_it_is_copied():
    words = torch.zeros(1, 2, 1, 2, 1)
    book = LocalCodebook(torch.zeros(1, 2, 1), torch.zeros(1, 2, 1), torch.ones(1, 2, 1, 1), words)
    words += 1
    assert (book.words == 0).all()


def test_an_index_and_its_files_find_the_nearest(tmp_path):
    book, z, queries = make(), vectors(400), vectors(9, seed=3)
    index = CodeIndex(book)
    index.add(z[:300])
    index.add(z[300:])
    scores = book.scores(queries, book.encode(z)).numpy()
    order = np.argsort(-scores, axis=1, kind="stable")[:, :10]
    index.save(tmp_path / "index.safetensors")
    exchange.to_parquet(index, tmp_path / "index.parquet")
    loaded = CodeIndex.load(tmp_path / "index.safetensors", make())
    for found in (index, loaded, exchange.from_parquet(tmp_path / "index.parquet", make())):
        hits = found.search(queries, 10)
        assert np.array_equal(hits.ids, order)
        assert np.array_equal(hits.scores, np.take_along_axis(scores, order, axis=1))
    with pytest.raises(ValueError, match=r"was made with another codebook: LocalCodebook\(22 bits.*; index again"):
        CodeIndex.load(tmp_path / "index.safetensors", make(seed=1))
    with pytest.raises(ValueError, match=r"LocalCodebook\(22 bits.* is no product codebook, which FAISS needs"):
        exchange.to_faiss(index, tmp_path / "index.faiss")
    with pytest.raises(ValueError, match="another codebook"):
        index.merge(CodeIndex(binary_codebook(22)))


def test_metrics_are_those_of_all_scores():
    book, z, queries = make(), vectors(200), vectors(6, seed=4)
    targets, codes = np.arange(200) % 5, book.encode(z)
    found = code_retrieval(book, queries, codes, np.arange(6) % 5, targets)
    relevant = (np.arange(6) % 5)[:, None] == targets
    assert found.map == pytest.approx(mean_average_precision(book.scores(queries, codes), relevant), abs=1e-12)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"origins": (2, 4, 5)}, r"origins have shape \(2, 4, 5\); \(2, 4, 6\) centres need \(2, 4, 6\)"),
        ({"rotations": (2, 4, 6, 5)}, r"rotations have shape .* need \(2, 4, 6, 6\)"),
        ({"words": (2, 3, 3, 8, 2)}, r"words have shape .* need \(2, 4, 3, 8, 2\)"),
        ({"words": (2, 4, 4, 8, 1)}, "words of 4 sets with 1 numbers each do not fill parts of 6 numbers"),
        ({"words": (2, 4, 3, 6, 2)}, "6 words; use a power of two up to 256"),
    ],
)
def test_shapes_that_do_not_match_are_refused(wrong, message):
    shapes = {"centres": (2, 4, 6), "origins": (2, 4, 6), "rotations": (2, 4, 6, 6), "words": (2, 4, 3, 8, 2)}
    with pytest.raises(ValueError, match=message):
        LocalCodebook(**{name: np.zeros(shape) for name, shape in (shapes | wrong).items()})


def test_what_cannot_be_scored_says_why():
    book = make()
    with pytest.raises(ValueError, match=r"vectors of shape \(3, 5\) do not fit LocalCodebook.*\(N, 12\)"):
        book.encode(np.zeros((3, 5)))
    with pytest.raises(ValueError, match="not finite"):
        book.scores(np.full((1, 12), np.nan), book.encode(vectors()))
    with pytest.raises(ValueError, match=r"codes of set 0 span 4..4, but it has words 0..3 only"):
        book.decode(np.array([[4] + [0] * 7]))
