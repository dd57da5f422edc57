"""Codebook: what turns codes into vectors and scores them against queries, one form for every method (Eq. 9)."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from combemb.search.joined import Joined

Metric = Literal["cosine", "inner", "l2"]
Array = Tensor | npt.NDArray[Any]

WORD_COUNTS = (2, 4, 8, 16)  # whole bits per set, at most the 4 bits that fast scan reads
CHUNK = 4_096  # rows that `encode` and `scores` hold in work space at a time; larger was slower
QUERIES = 256  # that `scores` holds in work space at a time


class Codebook:
    """Words (M, K, d) that turn codes into vectors; every method's codes are of this kind (Eq. 9).

    `metric` says how near a query's sub-vector q^m is to a word w, larger = nearer: "cosine" q^m . w with q^m scaled to
    unit length and w as it is, "inner" q^m . w, "l2" -|q^m - w|^2. A zero sub-vector counts as the first axis under
    "cosine", so that for d = 1 it is the sign with sign(0) = +1.

    Everything lives on the CPU: codes are stored and searched there, and scores need float64, which MPS lacks.

    >>> codebook = binary_codebook(bits=3)
    >>> codebook
    Codebook(3 bits: 3 sets of 2 words, d=1, cosine)
    >>> codebook.encode(np.array([[0.3, -2.0, 0.0]]))
    tensor([[1, 0, 1]], dtype=torch.uint8)
    """

    def __init__(self, words: Array | Sequence[Array], metric: Metric = "cosine") -> None:
        """Copy the words: (M, K, d), or M arrays (K_m, d) when the sets differ in size; K_m is 2, 4, 8 or 16."""
        if metric not in get_args(Metric):
            raise ValueError(f"metric {metric!r} is unknown; choose one of {', '.join(get_args(Metric))}")
        sets = _word_sets(words)
        self.metric: Metric = metric
        self.sizes: tuple[int, ...] = tuple(len(w) for w in sets)
        word = torch.arange(max(self.sizes)).expand(len(sets), -1)  # (M, K)
        # Places beyond a set's own words repeat its first word; the first maximum wins, so they are never chosen.
        self._source = torch.where(word < torch.tensor(self.sizes)[:, None], word, 0)  # (M, K)
        self.words: Tensor = torch.stack([w[source] for w, source in zip(sets, self._source, strict=True)])  # (M, K, d)

    @property
    def bits(self) -> int:
        """Length of a code: the sum of log2 K_m."""
        return sum(size.bit_length() - 1 for size in self.sizes)

    @property
    def nbytes(self) -> int:
        """What a code takes in an index: 4 bits for as many neighbouring sets as have 16 words together."""
        return Joined(self.sizes).nbytes

    def encode(self, z: Array) -> Tensor:
        """Return the nearest word of each set, the first one in a tie: z (N, M*d) to codes (N, M) uint8."""
        self._check_vectors(z)
        codes = torch.empty(len(z), len(self.sizes), dtype=torch.uint8)
        for start in range(0, len(z), CHUNK):
            codes[start : start + CHUNK] = self.table(z[start : start + CHUNK]).argmax(dim=2)
        return codes

    def decode(self, codes: Array) -> Tensor:
        """Return the words side by side: codes (N, M) to vectors (N, M*d) float32."""
        index = self._checked_codes(codes)
        return self.words[torch.arange(len(self.sizes)), index].flatten(1)

    def table(self, queries: Array) -> Tensor:
        """Return how near each sub-vector is to each word of its set: queries (Q, M*d) to (Q, M, K) float32."""
        self._check_vectors(queries)
        words = self.words.numpy()
        with np.errstate(all="ignore"):  # what overflows is refused below
            q = _tensor(queries).numpy().reshape(-1, len(self.sizes), words.shape[2])  # (Q, M, d)
            q = (_unit(q) if self.metric == "cosine" else q).astype(np.float32)
            if self.metric == "l2":  # differences first: |q|^2 - 2 q.w + |w|^2 loses digits far from the origin
                table = np.stack([-np.square(q - w).sum(axis=2) for w in words.transpose(1, 0, 2)], axis=2)
            else:
                table = np.matmul(q.transpose(1, 0, 2), words.transpose(0, 2, 1)).transpose(1, 0, 2)
        if not np.isfinite(table).all():
            raise ValueError(
                "vectors hold values that are not finite, or so large that scores go beyond float32; remove or repair "
                "those rows"
            )
        if len(set(self.sizes)) > 1:
            # A matrix product may round equal columns differently, so a repeated word takes over its source's value.
            table = np.take_along_axis(table, self._source.numpy()[None], axis=2)
        return torch.from_numpy(table)

    def scores(self, queries: Array, codes: Array) -> Tensor:
        """Score codes (N, M) for queries (Q, M*d): (Q, N) float64, larger = nearer (Eq. 9).

        The result is that of adding table entries one set after the other, in the same order for every code: equal
        codes get bitwise equal scores wherever they stand, and ties stay ties.
        """
        table, columns = self.table(queries).numpy(), self.checked(codes)
        if _adds_without_rounding(table):  # fewer numbers to add
            joined = Joined(self.sizes, words=256)
            columns = joined.join(columns)
        else:
            joined = None
        scores = np.zeros((len(table), len(columns)))
        for first in range(0, len(table), QUERIES):
            rows = slice(first, first + QUERIES)
            entries = joined.tables(table[rows]) if joined else table[rows].astype(np.float64)
            for start in range(0, len(columns), CHUNK):
                block = scores[rows, start : start + CHUNK]
                for m, words in enumerate(columns[start : start + CHUNK].T.astype(np.intp)):
                    block += entries[:, m].take(words, axis=1, mode="clip")  # "raise" is slower, and nothing to check
        return torch.from_numpy(scores)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Codebook):
            return NotImplemented
        return (self.metric, self.sizes) == (other.metric, other.sizes) and torch.equal(self.words, other.words)

    __hash__ = None  # type: ignore[assignment]  # equality looks at tensors, which may be written to

    def __repr__(self) -> str:
        sets = [f"{count} set{'s' * (count > 1)} of {size}" for size, count in Counter(self.sizes).items()]
        return f"Codebook({self.bits} bits: {' and '.join(sets)} words, d={self.words.shape[2]}, {self.metric})"

    def checked(self, codes: Array) -> npt.NDArray[np.uint8]:
        """Codes (N, M) as uint8, once every entry is known to name a word; ValueError else."""
        tensor = _tensor(codes)
        self._check_codes(tensor)
        found: npt.NDArray[np.uint8] = tensor.to(torch.uint8).numpy()
        return found

    def _check_vectors(self, z: Array) -> None:
        M, _, d = self.words.shape
        shape = tuple(np.shape(z))
        if len(shape) != 2 or shape[1] != M * d:
            raise ValueError(f"vectors of shape {shape} do not fit {self}; give (N, M*d) = (N, {M * d})")

    def _checked_codes(self, codes: Array) -> Tensor:
        """Codes as an index (N, M) int64, once every entry is known to name a word."""
        found = _tensor(codes)
        self._check_codes(found)
        return found.long()

    def _check_codes(self, found: Tensor) -> None:
        if found.dtype == torch.bool or found.is_floating_point():
            raise ValueError(f"codes are {found.dtype}; give integers (uint8), or call encode() on vectors first")
        if found.ndim != 2 or found.shape[1] != len(self.sizes):
            raise ValueError(f"codes of shape {tuple(found.shape)} do not fit {self}; give (N, M={len(self.sizes)})")
        if len(found) == 0:
            return
        low, high = found.amin(dim=0).tolist(), found.amax(dim=0).tolist()
        for m, size in enumerate(self.sizes):
            if low[m] < 0 or high[m] >= size:
                raise ValueError(f"codes of set {m} span {low[m]}..{high[m]}, but it has words 0..{size - 1} only")


def binary_codebook(bits: int) -> Codebook:
    """Return the codebook of binary hashing: one set per bit, its words -1 (code 0) and +1 (code 1).

    Its scores are bits - 2 * hamming(sign(query), code), exactly.
    """
    if bits < 1:
        raise ValueError(f"bits={bits}; a binary code needs at least 1 bit")
    return Codebook(torch.tensor([[-1.0], [1.0]]).expand(bits, 2, 1), metric="cosine")


def _word_sets(words: Array | Sequence[Array]) -> list[Tensor]:
    """Float32 copies of the word sets, each (K_m, d) with K_m allowed, d shared and every value finite."""
    if getattr(words, "ndim", 3) != 3:
        raise ValueError(f"words have shape {tuple(np.shape(words))}; give (M, K, d) or M arrays (K_m, d)")
    sets = [_tensor(w).to(torch.float32, copy=True) for w in words]
    shapes = [tuple(w.shape) for w in sets]
    if not sets or any(len(shape) != 2 or shape[1] == 0 or shape[1] != shapes[0][-1] for shape in shapes):
        raise ValueError(
            f"word sets have shapes {shapes[:4]}; give at least one set, each (K_m, d) with the same d > 0"
        )
    for m, w in enumerate(sets):
        if len(w) not in WORD_COUNTS:
            raise ValueError(f"set {m} has {len(w)} words; a set has 2, 4, 8 or 16 so that a code fills whole bits")
        if not w.isfinite().all():
            raise ValueError(f"set {m} holds words that are not finite in float32; check what they were made from")
    return sets


def _tensor(values: Array) -> Tensor:
    """A CPU tensor that shares memory where it can; float64 and integers keep their type, other floats get float32."""
    if isinstance(values, np.ndarray):
        values = np.require(values, requirements=["C", "W"])  # torch warns of read-only arrays, refuses reversed ones
    tensor = torch.as_tensor(values).detach().cpu()
    if tensor.is_complex():
        raise ValueError("values are complex; give real numbers")
    return tensor.float() if tensor.is_floating_point() and tensor.dtype != torch.float64 else tensor


def _adds_without_rounding(table: npt.NDArray[np.float32]) -> bool:
    """Whether entries (Q, M, K) of one query, one from each set, add up in float64 exactly, in whatever order.

    All are multiples of the last place of the smallest one, and so is any sum of theirs: it is exact as long as it is
    less than 2^53 of these.
    """
    size = np.abs(table)
    total = size.max(axis=2, initial=0).sum(axis=1, dtype=np.float64)  # (Q,), what no sum exceeds
    smallest = size.min(axis=(1, 2), initial=2.0**100, where=size > 0)
    return bool(np.all(total <= 2.0**52 * np.spacing(smallest, dtype=np.float32).astype(np.float64)))


def _unit(q: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Sub-vectors (Q, M, d) at unit length; zero ones become the first axis. Exactly the sign for d = 1."""
    q = q if q.dtype.kind == "f" else q.astype(np.float32)
    largest = np.abs(q).max(axis=2, keepdims=True)
    scaled: npt.NDArray[Any] = q / largest  # so that squares stay inside the float range
    scaled /= np.sqrt(np.square(scaled).sum(axis=2, keepdims=True))
    if not largest.all():
        scaled[largest[..., 0] == 0] = np.eye(1, q.shape[2])[0]
    return scaled
