"""The codebook of LOPQ: cells of a multi-index, and words for the residuals in the axes of each cell."""

import numpy as np
import torch
from torch import Tensor

from combemb.search.codebook import checked_codes
from combemb.system.arrays import Array, to_numpy, to_tensor
from combemb.system.errors import require

CODES_AT_ONCE = 4_096  # rows in the work space of `encode` and `scores`
QUERIES_AT_ONCE = 256  # queries in the work space of `scores`


class LocalCodebook:
    """Codebook of H parts of a vector; the code of a part is the nearest of V cells, then m words of its residual.

    A part x of a vector stands for o_v + R_v (w_1, ..., w_m): its cell v has the nearest centre c_v, and w_i is the
    word nearest to sub-vector i of R_v^T (x - o_v), among the K words of the cell. A code lists the cell and the m
    words of the first part, then those of the next. Scores are -||q - decode(code)||^2; rotations keep distances, so
    that they are added from one table for each cell.

    Parameters
    ----------
    centres : array or tensor (H, V, h)
        The centres c_v of the cells of each part.
    origins : (H, V, h)
        The points o_v that residuals refer to: the means of the cells' items.
    rotations : (H, V, h, h)
        Orthogonal matrices R_v, their columns the axes of a cell.
    words : (H, V, m, K, d) with m d = h
        The words of each cell, in its axes.
    """

    def __init__(self, centres: Array, origins: Array, rotations: Array, words: Array) -> None:
        given = (to_tensor(part).to(torch.float32, copy=True) for part in (centres, origins, rotations, words))
        self.centres, self.origins, self.rotations, self.words = given
        H, V, h = self.centres.shape
        m, K, d = self.words.shape[2:]
        shapes = {"origins": (H, V, h), "rotations": (H, V, h, h), "words": (H, V, m, K, h // m)}
        for name, shape in shapes.items():
            found = tuple(getattr(self, name).shape)
            require(found == shape, f"{name} have shape {found}; {(H, V, h)} centres need {shape}")
        require(m * d == h, f"words of {m} sets with {d} numbers each do not fill parts of {h} numbers")
        for name, size in (("cells", V), ("words", K)):
            require(size in (1, 2, 4, 8, 16, 32, 64, 128, 256), f"{size} {name}; use a power of two up to 256")
        self.sizes: tuple[int, ...] = (V, *[K] * m) * H
        self.bits: int = sum(size.bit_length() - 1 for size in self.sizes)

    def encode(self, z: Array) -> Tensor:
        """Return the nearest cell of each part and the nearest words in it: z (N, H*h) to codes (N, H*(1+m)) uint8."""
        parts = self._parts(z)
        H, _, m = self.words.shape[:3]
        codes = np.empty((len(parts), H, 1 + m), np.uint8)
        for start in range(0, len(parts), CODES_AT_ONCE):
            some = slice(start, start + CODES_AT_ONCE)
            for part in range(H):
                codes[some, part] = self._encode(parts[some, part], part)
        return torch.from_numpy(codes.reshape(len(parts), -1))

    def decode(self, codes: Array) -> Tensor:
        """Return the vectors that codes (N, H*(1+m)) stand for, (N, H*h) float32."""
        found = torch.from_numpy(checked_codes(codes, self.sizes)).long().unflatten(1, (len(self.centres), -1))
        part, cell = torch.arange(len(self.centres)), found[..., 0]  # (H,), (N, H)
        sets = torch.arange(self.words.shape[2])
        words = self.words[part[:, None], cell[..., None], sets, found[..., 1:]].flatten(2)  # (N, H, h)
        decoded = self.origins[part, cell].double()
        for axis in range(words.shape[2]):  # in one order of adding, whatever else is decoded
            decoded += words[..., axis, None].double() * self.rotations[part, cell, :, axis]
        return decoded.flatten(1).float()

    def table(self, queries: Array) -> np.ndarray:
        """Return minus the squared distance to each word of each cell: (Q, H*h) to (Q, H, V, m, K) float64."""
        parts = self._parts(queries)
        H, V, m, K, _ = self.words.shape
        table = np.empty((len(parts), H, V, m, K))
        for part, cell in np.ndindex(H, V):
            table[:, part, cell] = -self._distances(parts[:, part], part, cell)
        is_finite = bool(np.isfinite(table).all())
        require(is_finite, "vectors hold values that are not finite, or so large that scores overflow; fix them")
        return table

    def scores(self, queries: Array, codes: Array) -> Tensor:
        """Return -||q - decode(code)||^2 for queries (Q, H*h) and codes (N, H*(1+m)): (Q, N) float64.

        Table entries are added one set after the other, in the same order for every code: equal codes get bitwise
        equal scores.
        """
        H, _, m, K, _ = self.words.shape
        columns = checked_codes(codes, self.sizes).reshape(-1, H, 1 + m).astype(np.intp)
        places = columns[..., :1] * (m * K) + np.arange(m) * K + columns[..., 1:]  # (N, H, m) in the table of a part
        scores = np.zeros((len(queries), len(places)))
        for first in range(0, len(scores), QUERIES_AT_ONCE):
            rows = slice(first, first + QUERIES_AT_ONCE)
            table = self.table(queries[rows]).reshape(-1, H, self.words.shape[1] * m * K)
            for start in range(0, len(places), CODES_AT_ONCE):
                some = slice(start, start + CODES_AT_ONCE)
                for part, i in np.ndindex(H, m):
                    scores[rows, some] += table[:, part].take(places[some, part, i], axis=1)
        return torch.from_numpy(scores)

    def state(self) -> dict[str, Tensor]:
        """Return centres, origins, rotations and words."""
        return {name: getattr(self, name) for name in ("centres", "origins", "rotations", "words")}

    def __repr__(self) -> str:
        H, V, m, K, d = self.words.shape
        return f"LocalCodebook({self.bits} bits: {H} parts, each {V} cells and {m} sets of {K} words, d={d})"

    def _parts(self, z: Array) -> np.ndarray:
        """Return vectors as parts (N, H, h) float64."""
        H, _, h = self.centres.shape
        shape = tuple(np.shape(z))
        if len(shape) != 2 or shape[1] != H * h:
            raise ValueError(f"vectors of shape {shape} do not fit {self}; give (N, D) = (N, {H * h})")
        return to_numpy(z).astype(np.float64).reshape(-1, H, h)

    def _encode(self, x: np.ndarray, part: int) -> np.ndarray:
        """Return the cell and the words (n, 1 + m) of x (n, h)."""
        centres = self.centres[part].numpy().astype(np.float64)
        cells = np.stack([np.square(x - centre).sum(axis=1) for centre in centres], axis=1).argmin(axis=1)
        codes = np.empty((len(x), 1 + self.words.shape[2]), np.uint8)
        codes[:, 0] = cells
        for cell in np.unique(cells):
            rows = cells == cell
            codes[rows, 1:] = self._distances(x[rows], part, int(cell)).argmin(axis=2)
        return codes

    def _distances(self, x: np.ndarray, part: int, cell: int) -> np.ndarray:
        """Return squared distances of x (n, h) to the words of a cell, in its axes: (n, m, K)."""
        residual = x - self.origins[part, cell].numpy()
        turned = np.zeros_like(residual)
        for column, axes in zip(residual.T, self.rotations[part, cell].numpy().astype(np.float64), strict=True):
            turned += column[:, None] * axes  # a matrix product would round differently for other numbers of rows
        words = self.words[part, cell].numpy().transpose(1, 0, 2)  # (K, m, d)
        sub_vectors = turned.reshape(len(x), *words.shape[1:])
        return np.stack([np.square(sub_vectors - word).sum(axis=2) for word in words], axis=2)
