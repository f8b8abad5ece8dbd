"""Sums of cells that come in blocks, with seed effects on whole blocks and on single cells.

Runs with the same seed and r start with the same weights, whatever rate the key/value heads get:
their losses, and to a lesser degree their optima, deviate together. So a cell's value is its mean,
plus the effect of the seed everywhere, in the block, and in the cell (a split plot; Scheffé 1959,
ch. 8). A comparison within a block is free of the block's effect, and much more precise than one
between blocks.

As in `contrasts`, variances are pooled only where seeds may lie equally far apart in every cell.
Elsewhere a sum of cells is one number for each seed, and these numbers give its error (`by_seed`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mupscale.analysis.contrasts import CellValue, seed_table

Array = NDArray[np.float64]


@dataclass(frozen=True)
class SeedBlocks:
    """Variances of one seed's values: of block means, and of cells within their block."""

    blocks: tuple[int, ...]
    "Cells in each block, in order."
    seeds: int
    between: float
    between_freedom: float
    within: float
    within_freedom: float
    apart: Array | None = None
    """Distances of the values (cells × seeds) from the means of their cells, if seeds do not lie
    equally far apart in every cell.
    """

    @staticmethod
    def of(
        blocks: Sequence[Sequence[CellValue]],
        recorded: tuple[float, float] = (0.0, 0.0),
        *,
        pooled: bool = True,
    ) -> "SeedBlocks | None":
        """None unless all cells have the same two or more seeds, and each variance a degree of
        freedom.

        `recorded` is a variance between blocks from earlier studies, with the degrees of freedom
        that it counts for. Nothing is pooled unless `pooled`.
        """
        cells = [cell for block in blocks for cell in block]
        seeds = sorted(cells[0].by_seed) if cells else []
        if len(seeds) < 2 or any(sorted(cell.by_seed) != seeds for cell in cells):
            return None
        tables = [
            np.array([[cell.by_seed[seed] for seed in seeds] for cell in block]) for block in blocks
        ]
        tables = [table - table.mean(axis=1, keepdims=True) for table in tables]
        freedom = sum(len(table) - 1 for table in tables) * (len(seeds) - 1)
        if not freedom:
            return None
        inside = sum(float(np.square(table - table.mean(axis=0)).sum()) for table in tables)
        means = np.array([table.mean(axis=0) for table in tables])
        apart = (len(blocks) - 1) * (len(seeds) - 1)
        squares = float(np.square(means - means.mean(axis=0)).sum())
        variance, counts = recorded
        between = (squares + variance * counts) / (apart + counts) if apart + counts else 0.0
        sizes = tuple(len(table) for table in tables)
        if not pooled:
            return SeedBlocks(sizes, len(seeds), 0.0, 1.0, 0.0, 1.0, np.concatenate(tables))
        found = seed_table(cells)
        alike = found is None or found.alike
        unlike = None if alike else np.concatenate(tables)
        return SeedBlocks(
            sizes, len(seeds), between, apart + counts, inside / freedom, freedom, unlike
        )

    def variance(self, weights: Array) -> tuple[Array, Array]:
        """Variance of each row's weighted sum of cells, with its degrees of freedom. The weights of
        a row must add up to 0.
        """
        ends = np.cumsum(self.blocks)
        parts = np.split(weights, ends[:-1], axis=1)
        totals = np.stack([part.sum(axis=1) for part in parts], axis=1)
        rest = sum(
            np.square(part - total[:, None] / part.shape[1]).sum(axis=1)
            for part, total in zip(parts, totals.T, strict=True)
        )
        inverse = 1 / np.array(self.blocks)
        # `between` contains the cells' variance in an average block mean. A block of one cell has
        # more of it in its mean, a block of many cells less.
        uneven = np.square(totals) @ (inverse - inverse.mean())
        own = np.maximum(rest + uneven, 0.0) * self.within / self.seeds
        shared = np.square(totals).sum(axis=1) * self.between / self.seeds
        total = own + shared
        squares = own**2 / self.within_freedom + (
            shared**2 / self.between_freedom if self.between_freedom else 0.0
        )
        return total, np.divide(
            total**2, squares, out=np.full_like(total, math.inf), where=squares > 0
        )

    def by_seed(self, weights: Array) -> tuple[Array, float] | None:
        """The same from the sum of each seed, with degrees of freedom; None if pooling is right."""
        if self.apart is None:
            return None
        squares = np.square(weights @ self.apart).sum(axis=1)
        return squares / (self.seeds - 1) / self.seeds, self.seeds - 1.0
