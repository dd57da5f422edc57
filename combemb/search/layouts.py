"""How an index stores the codes of a codebook: products for FAISS's fast scan, any others as they are."""

import numpy as np

from combemb.search.codebook import Codebook, ProductCodebook
from combemb.search.fast_scan import FastScan, pack
from combemb.search.full_scan import FullScan
from combemb.search.joined import Joined
from combemb.system.arrays import Array, to_numpy
from combemb.system.errors import require


class ProductLayout:
    """Neighbouring sets are joined into 4-bit numbers, and queries become tables of word scores."""

    value_bits = 4  # of a column of the stored codes

    def __init__(self, codebook: ProductCodebook, n_threads: int):
        self.codebook, self.n_threads, self.joined = codebook, n_threads, Joined(codebook.sizes)
        self.n_columns = self.joined.n_sets
        self.join, self.split = self.joined.join, self.joined.split

    def prepare(self, queries: Array) -> np.ndarray:
        """Return the table of word scores, (Q, M, K) float32."""
        return self.codebook.table(queries).numpy()

    def scan(self, codes: np.ndarray) -> FastScan:
        """Return a scan of distinct joined codes (n, M')."""
        return self.stored_scan(pack(codes), len(codes))

    def stored_scan(self, stored: np.ndarray, n_codes: int) -> FastScan:
        """Return the scan whose attribute `stored` this is."""
        return FastScan(self.joined, stored, n_codes, self.n_threads)


class PlainLayout:
    """Codes are copied and queries stay as they are."""

    value_bits = 8

    def __init__(self, codebook: Codebook):
        self.codebook, self.n_columns = codebook, len(codebook.sizes)

    def join(self, codes: np.ndarray) -> np.ndarray:
        """Return a copy of the codes, which may be the caller's own."""
        return codes.copy()

    split = join

    def prepare(self, queries: Array) -> np.ndarray:
        """Return the queries as an array (Q, D)."""
        found = to_numpy(queries)
        require(found.ndim == 2, f"queries have shape {found.shape}; give (Q, D)")
        return found

    def scan(self, codes: np.ndarray) -> FullScan:
        """Return a scan of distinct codes (n, M)."""
        return FullScan(self.codebook, codes)

    def stored_scan(self, stored: np.ndarray, _: int) -> FullScan:
        """Return the scan whose attribute `stored` this is."""
        return FullScan(self.codebook, stored)


Layout = ProductLayout | PlainLayout
Scan = FastScan | FullScan


def layout_of(codebook: Codebook, n_threads: int) -> Layout:
    """Choose the layout for a codebook; `n_threads` are those of fast scan."""
    return ProductLayout(codebook, n_threads) if isinstance(codebook, ProductCodebook) else PlainLayout(codebook)
