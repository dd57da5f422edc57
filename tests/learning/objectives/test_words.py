"""Words are k-means of every sub-space, from any start, and for any number of distinct sub-vectors."""

import torch

from combemb.learning.objectives.words import fit_words


def naive_step(x, words):
    """One iteration of k-means in each set, as loops."""
    codes = torch.empty(x.shape[:2], dtype=torch.long)
    found = words.clone()
    for m in range(x.shape[1]):
        for n in range(len(x)):
            codes[n, m] = torch.stack([(x[n, m] - word).square().sum() for word in words[m]]).argmin()
        for k in range(words.shape[1]):
            found[m, k] = x[codes[:, m] == k, m].mean(dim=0)
    return found, codes


def test_one_iteration_assigns_then_averages():
    x = torch.randn(80, 3, 2, generator=torch.Generator().manual_seed(0))
    start = x[:4].transpose(0, 1).contiguous()  # every word has an item
    words, codes = fit_words(x, 4, start=start, n_iterations=1)
    expected, expected_codes = naive_step(x, start)
    torch.testing.assert_close(words, expected)
    assert torch.equal(codes, expected_codes)


def test_words_stay_where_they_are_the_means():
    x = torch.randn(80, 3, 2, generator=torch.Generator().manual_seed(0))
    words, codes = fit_words(x, 4, seed=3)
    for m in range(3):
        means = torch.stack([x[codes[:, m] == k, m].mean(dim=0) for k in range(4)])
        torch.testing.assert_close(words[m], means)
    assert len({tuple(fit_words(x, 4, seed=seed)[0].flatten().tolist()) for seed in range(5)}) > 1


def test_the_first_word_fills_sets_with_few_distinct_sub_vectors():
    x = torch.arange(3.0).repeat(10)[:, None, None].expand(30, 2, 2).clone()
    x[:, 1] = 7
    words, codes = fit_words(x, 8)
    assert sorted(set(words[0, :, 0].tolist())) == [0, 1, 2]
    assert (words[1] == 7).all()
    assert (words[0, 3:] == words[0, 0]).all()
    assert torch.equal(words[torch.arange(2), codes], x)
    again, _ = fit_words(x, 8, start=words, n_iterations=1)
    assert sorted(set(again[0, :, 0].tolist())) == [0, 1, 2]
