"""Codebooks turn vectors into codes, codes into vectors, and score codes against queries (Eq. 9)."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal, Protocol, get_args

import numpy as np
import torch
from torch import Tensor

from combemb.search.joined import Joined, largest_sums
from combemb.system.arrays import Array, to_numpy, to_tensor
from combemb.system.errors import require

Metric = Literal["cosine", "inner", "l2"]

WORD_COUNTS = (2, 4, 8, 16)  # whole bits per set, at most the 4 bits that fast scan reads
CODES_AT_ONCE = 4_096  # rows in the work space of `encode` and `scores`; more were slower
QUERIES_AT_ONCE = 256  # queries in the work space of `scores`


class Codebook(Protocol):
    """What search, metrics and discovery need of a method's codes; `ProductCodebook` is the usual one.

    `encode(decode(codes))` may differ from `codes`. The score of a code must not depend on the other codes and queries
    of a call, so that equal codes always tie.
    """

    sizes: tuple[int, ...]  # the number of values that each column of a code takes, at most 256
    bits: int  # the length of a code

    def encode(self, z: Array) -> Tensor:
        """Return the codes (N, M) uint8 of vectors (N, D)."""

    def decode(self, codes: Array) -> Tensor:
        """Return the vectors (N, D) float32 that codes (N, M) stand for."""

    def scores(self, queries: Array, codes: Array) -> Tensor:
        """Score codes (N, M) for queries (Q, D): (Q, N) float64, larger = nearer."""

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that define the codebook: two with equal states give equal codes and scores."""


class ProductCodebook:
    """Codebook of M sets of words: a code names one word of each set, and their scores are added (Eq. 9).

    It lives on the CPU: codes are stored and searched there, and scores need float64, which MPS lacks.

    Parameters
    ----------
    words : array or tensor (M, K, d), or a sequence of M of them (K_m, d)
        The words of each set, copied as float32. A set has 2, 4, 8 or 16 words.
    metric : {"cosine", "inner", "l2"}
        The score of a word w for a query's sub-vector q, larger = nearer: "cosine" is q . w with q scaled to unit
        length and w as it is; "inner" is q . w; "l2" is -|q - w|^2. Under "cosine" a zero sub-vector counts as the
        first axis, so that for d = 1 it is the sign with sign(0) = +1.

    Examples
    --------
    >>> codebook = binary_codebook(bits=3)
    >>> codebook
    ProductCodebook(3 bits: 3 sets of 2 words, d=1, cosine)
    >>> codebook.encode(np.array([[0.3, -2.0, 0.0]]))
    tensor([[1, 0, 1]], dtype=torch.uint8)
    """

    def __init__(self, words: Array | Sequence[Array], metric: Metric = "cosine") -> None:
        if metric not in get_args(Metric):
            raise ValueError(f"metric {metric!r} is unknown; choose one of {', '.join(get_args(Metric))}")
        sets = _word_sets(words)
        self.metric: Metric = metric
        self.sizes: tuple[int, ...] = tuple(len(w) for w in sets)
        self.bits: int = sum(size.bit_length() - 1 for size in self.sizes)
        self._sizes_differ = len(set(self.sizes)) > 1
        word = torch.arange(max(self.sizes)).expand(len(sets), -1)  # (M, K)
        # Places beyond a set's own words repeat its first word; the first maximum wins, so they are never chosen.
        self._origin = torch.where(word < torch.tensor(self.sizes)[:, None], word, 0)  # (M, K)
        self.words: Tensor = torch.stack([w[origin] for w, origin in zip(sets, self._origin, strict=True)])  # (M, K, d)

    def encode(self, z: Array) -> Tensor:
        """Return the nearest word of each set, the first one in a tie: z (N, M*d) to codes (N, M) uint8."""
        self._check_vectors(z)
        codes = torch.empty(len(z), len(self.sizes), dtype=torch.uint8)
        for start in range(0, len(z), CODES_AT_ONCE):
            some = slice(start, start + CODES_AT_ONCE)
            codes[some] = self.table(z[some]).argmax(dim=2)
        return codes

    def decode(self, codes: Array) -> Tensor:
        """Return the words side by side: codes (N, M) to vectors (N, M*d) float32."""
        index = torch.from_numpy(checked_codes(codes, self.sizes)).long()
        return self.words[torch.arange(len(self.sizes)), index].flatten(1)

    def table(self, queries: Array) -> Tensor:
        """Return the score of each word of each set: queries (Q, M*d) to (Q, M, K) float32."""
        self._check_vectors(queries)
        words = self.words.numpy()
        with np.errstate(all="ignore"):  # overflow is refused below
            q = _real_array(queries).reshape(-1, len(self.sizes), words.shape[2])  # (Q, M, d)
            q = (_unit(q) if self.metric == "cosine" else q).astype(np.float32)
            if self.metric == "l2":  # differences first: |q|^2 - 2 q.w + |w|^2 loses digits far from the origin
                table = np.stack([-np.square(q - w).sum(axis=2) for w in words.transpose(1, 0, 2)], axis=2)
            else:
                table = np.matmul(q.transpose(1, 0, 2), words.transpose(0, 2, 1)).transpose(1, 0, 2)
        is_finite = bool(np.isfinite(table).all())
        require(is_finite, "vectors hold values that are not finite, or so large that scores exceed float32; fix them")
        if self._sizes_differ:
            # A matrix product may round equal columns differently, so a repeated word takes the score of the first.
            table = np.take_along_axis(table, self._origin.numpy()[None], axis=2)
        return torch.from_numpy(table)

    def scores(self, queries: Array, codes: Array) -> Tensor:
        """Score codes (N, M) for queries (Q, M*d): (Q, N) float64, larger = nearer (Eq. 9).

        Table entries are added one set after the other, in the same order for every code: equal codes get bitwise
        equal scores.
        """
        table, columns = self.table(queries).numpy(), checked_codes(codes, self.sizes)
        joined = Joined(self.sizes, words=256) if largest_sums(table)[1] else None  # fewer numbers to add
        columns = joined.join(columns) if joined else columns
        scores = np.zeros((len(table), len(columns)))
        for first in range(0, len(table), QUERIES_AT_ONCE):
            rows = slice(first, first + QUERIES_AT_ONCE)
            entries = joined.tables(table[rows]) if joined else table[rows].astype(np.float64)
            for start in range(0, len(columns), CODES_AT_ONCE):
                some = slice(start, start + CODES_AT_ONCE)
                block = scores[rows, some]
                for m, words in enumerate(columns[some].T.astype(np.intp)):
                    block += entries[:, m].take(words, axis=1, mode="clip")  # "raise" is slower, and nothing to check
        return torch.from_numpy(scores)

    def state(self) -> dict[str, Tensor]:
        """Return the words, the size of each set, and the number of the metric in the order of `Metric`."""
        metric = get_args(Metric).index(self.metric)
        return {"words": self.words, "sizes": torch.tensor(self.sizes), "metric": torch.tensor(metric)}

    def __eq__(self, other: object) -> bool:
        return same_codebook(self, other) if isinstance(other, ProductCodebook) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # equality looks at tensors, which may be written to

    def __repr__(self) -> str:
        sets = [f"{count} set{'s' * (count > 1)} of {size}" for size, count in Counter(self.sizes).items()]
        form = f"{' and '.join(sets)} words, d={self.words.shape[2]}, {self.metric}"
        return f"ProductCodebook({self.bits} bits: {form})"

    def _check_vectors(self, z: Array) -> None:
        M, _, d = self.words.shape
        shape = tuple(np.shape(z))
        if len(shape) != 2 or shape[1] != M * d:
            raise ValueError(f"vectors of shape {shape} do not fit {self}; give (N, M*d) = (N, {M * d})")


def binary_codebook(bits: int, asymmetric: bool = False) -> ProductCodebook:
    """Return the codebook of binary hashing: one set per bit, with the words -1 (code 0) and +1 (code 1).

    Its scores are exactly bits - 2 * hamming(sign(query), code), or query . code if asymmetric. The codes are the same
    except for numbers that are exactly zero, which become +1, and -1 if asymmetric.

    Parameters
    ----------
    bits : length of a code
    asymmetric : whether queries keep their real values, so that bits far from zero count more and few codes tie

    Returns
    -------
    ProductCodebook
    """
    require(bits >= 1, f"bits={bits}; a binary code needs at least 1 bit")
    words = torch.tensor([[-1.0], [1.0]]).expand(bits, 2, 1)
    return ProductCodebook(words, metric="inner" if asymmetric else "cosine")


def checked_codes(codes: Array, sizes: Sequence[int]) -> np.ndarray:
    """Return codes (N, M) as a uint8 array; raise a ValueError unless column m holds integers below sizes[m]."""
    found = to_tensor(codes)
    if found.dtype == torch.bool or found.is_floating_point() or found.is_complex():
        raise ValueError(f"codes are {found.dtype}; give integers (uint8), or call encode() on vectors first")
    if found.ndim != 2 or found.shape[1] != len(sizes):
        raise ValueError(f"codes of shape {tuple(found.shape)} do not fit {len(sizes)} sets; give (N, M={len(sizes)})")
    if len(found):
        low, high = found.amin(dim=0).tolist(), found.amax(dim=0).tolist()
        for m, size in enumerate(sizes):
            if low[m] < 0 or high[m] >= size:
                raise ValueError(f"codes of set {m} span {low[m]}..{high[m]}, but it has words 0..{size - 1} only")
    return np.asarray(found.to(torch.uint8).numpy())


def same_codebook(one: Codebook, other: Codebook) -> bool:
    """Whether two codebooks are of one class and have equal states."""
    return type(one) is type(other) and same_state(one.state(), other.state())


def same_state(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two states, of tensors or arrays, have equal names, types and values."""
    if one.keys() != other.keys():
        return False
    pairs = [(to_numpy(one[name]), to_numpy(other[name])) for name in one]
    return all(a.dtype == b.dtype and np.array_equal(a, b, equal_nan=True) for a, b in pairs)


def _word_sets(words: Array | Sequence[Array]) -> list[Tensor]:
    """Return float32 copies of the word sets, each (K_m, d) with K_m allowed, d shared and every value finite."""
    if getattr(words, "ndim", 3) != 3:
        raise ValueError(f"words have shape {tuple(np.shape(words))}; give (M, K, d) or M arrays (K_m, d)")
    sets = [_real(w).to(torch.float32, copy=True) for w in words]
    shapes = [tuple(w.shape) for w in sets]
    if not sets or any(len(shape) != 2 or shape[1] == 0 or shape[1] != shapes[0][-1] for shape in shapes):
        raise ValueError(f"word sets have shapes {shapes[:4]}; give one or more, each (K_m, d) with the same d > 0")
    for m, w in enumerate(sets):
        if len(w) not in WORD_COUNTS:
            raise ValueError(f"set {m} has {len(w)} words; a set has 2, 4, 8 or 16 so that a code fills whole bits")
        if not w.isfinite().all():
            raise ValueError(f"set {m} holds words that are not finite in float32; check what they were made from")
    return sets


def _real(values: Array) -> Tensor:
    """Return a CPU tensor of real numbers; half precision becomes float32, other types stay."""
    tensor = to_tensor(values)
    require(not tensor.is_complex(), "values are complex; give real numbers")
    return tensor.float() if tensor.is_floating_point() and tensor.dtype != torch.float64 else tensor


def _real_array(values: Array) -> np.ndarray:
    """Return an array of real numbers, as `_real` returns a tensor."""
    is_ready = isinstance(values, np.ndarray) and values.dtype in (np.float32, np.float64)
    return np.asarray(values) if is_ready else np.asarray(_real(values).numpy())


def _unit(q: np.ndarray) -> np.ndarray:
    """Scale sub-vectors (Q, M, d) to unit length; zero ones become the first axis. Exactly the sign for d = 1."""
    q = q if q.dtype.kind == "f" else q.astype(np.float32)
    largest = np.abs(q).max(axis=2, keepdims=True)
    scaled: np.ndarray = q / largest  # so that squares stay inside the float range
    scaled /= np.sqrt(np.square(scaled).sum(axis=2, keepdims=True))
    if not largest.all():
        scaled[largest[..., 0] == 0] = np.eye(1, q.shape[2])[0]
    return scaled
