"""The paper's figure of spectral and expected norm: repetition raises only the spectral norm.

For each r, many draws of a Gaussian matrix W (n/r × n). The effective matrix, W⊕, stacks it r
times. Both norms are divided by σ√n, so that the expected one is 1 for every r. One input per draw:
averaging over inputs would remove the growing spread, √(r/2n), which is the figure's second
message. The paper does not state its width; ours is 384.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import sympy
import torch

from mupscale import norms, records, reports
from mupscale.errors import DimensionError, OptionError
from mupscale.paper.claims import Claim, decided
from mupscale.paper.experiment import (
    QUIETLY,
    Cost,
    Execution,
    Experiment,
    Findings,
    Scale,
    refuse_empty,
)
from mupscale.text import text_table
from mupscale.theory import estimates, formulas
from mupscale.theory.formulas import Expr
from mupscale.theory.units import KeyValue

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DRAWS = "expected-norms.jsonl"
_AT_ONCE = 8_000_000
"""Entries per batch of draws: 32 MB of float32."""


@dataclass(frozen=True)
class Config:
    """What is drawn. `repetitions` are those that 12 heads allow, as in the paper's experiments."""

    width: int = 384
    repetitions: tuple[int, ...] = (1, 2, 3, 4, 6, 12)
    draws: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.draws < 2:
            raise OptionError(f"draws={self.draws} has no spread. Use at least 2.")
        if not 0 <= self.seed < 2**63:
            raise OptionError(f"seed={self.seed} is out of range. Use 0 to 2^63 - 1.")
        if not self.repetitions:
            raise OptionError("repetitions is empty. Use, for example, 1,2,4.")
        if len(set(self.repetitions)) < len(self.repetitions):
            raise DimensionError(f"repetitions={self.repetitions} has a duplicate. Remove it.")
        for repetitions in self.repetitions:
            KeyValue(self.width, repetitions)


@dataclass(frozen=True)
class Draw:
    """One draw: both norms of W⊕ over σ√n."""

    r: int
    draw: int
    spectral: float
    expected: float


@dataclass(frozen=True)
class NormPoint:
    """The draws at one r: mean and standard deviation (ddof 1), and theory's mean."""

    norm: str
    r: int
    width: int
    draws: int
    mean: float
    sd: float
    theory: float


def run(config: Config, report: Callable[[int, int], None] = QUIETLY.report) -> list[Draw]:
    """All draws."""
    generator, draws = torch.Generator().manual_seed(config.seed), list[Draw]()
    for r in config.repetitions:
        for batch in _batches(config, r, generator):
            draws += batch
            report(len(draws), config.draws * len(config.repetitions))
    return draws


def _batches(config: Config, r: int, generator: torch.Generator) -> Iterator[list[Draw]]:
    n, rows = config.width, config.width // r
    most = max(1, _AT_ONCE // (n * rows))
    for start in range(0, config.draws, most):
        count = min(most, config.draws - start)
        W = torch.randn(count, rows, n, generator=generator)
        x = torch.randn(count, n, 1, generator=generator)
        # ‖W⊕‖ = √r‖W‖ and ‖W⊕x‖ = √r‖Wx‖ exactly (lemma 1), so the stack itself need not be built.
        scale = (r / n) ** 0.5
        spectral = norms.spectral_norm(W, "gram").value * scale
        expected = (W @ x).norm(dim=(1, 2)) / x.norm(dim=(1, 2)) * scale
        pairs = zip(spectral.tolist(), expected.tolist(), strict=True)
        yield [Draw(r, start + k, *pair) for k, pair in enumerate(pairs)]


def summarize(config: Config, draws: Sequence[Draw]) -> list[NormPoint]:
    """Mean and spread at each r, with the closed forms of `theory`."""
    points: list[NormPoint] = []
    for norm in ("spectral", "expected"):
        for r in config.repetitions:
            values = np.array([getattr(draw, norm) for draw in draws if draw.r == r])
            theory = float(_theory(norm).subs(formulas.r, r))
            mean, sd = float(values.mean()), float(values.std(ddof=1))
            points.append(NormPoint(norm, r, config.width, len(values), mean, sd, theory))
    return points


def _theory(norm: str) -> Expr:
    """The mean that theory predicts, in r."""
    n_out, n_in = KeyValue(formulas.n, formulas.r).shape()
    sigma = 1 / sympy.sqrt(n_in)
    spectral = norm == "spectral"
    own = estimates.bai_yin(sigma, n_out, n_in) if spectral else estimates.expected(sigma, n_out)
    return formulas.tidy(estimates.repeated(own, formulas.r))


def _figure(config: Config, points: Sequence[NormPoint]) -> "Figure":
    labels = {"spectral": "spectral norm ‖W⊕‖", "expected": "expected operator norm ‖W⊕‖$_E$"}
    bands: list[reports.Band] = []
    for norm, label in labels.items():
        own = [p for p in points if p.norm == norm]
        columns = ([getattr(p, name) for p in own] for name in ("r", "mean", "sd", "theory"))
        theory = f"theory: {formulas.inline(_theory(norm))}"
        bands.append(reports.Band(label, *columns, theory_label=theory))
    return reports.draw_bands(
        bands,
        x_label="repetitions r of each key/value head",
        y_label="norm / (σ√n)",
        title=f"n = {config.width}, {config.draws} draws, one input each; band: ±1 sd",
    )


SIZES: Mapping[Scale, Config] = {"cpu": Config(), "paper": Config(width=768)}
"""The paper draws 1000 matrices and states no width: 768 is that of its models."""


class ExpectedNorms(Experiment):
    """Random draws; nothing is trained."""

    name = "expected-norms"

    def cost(self, scale: Scale, workers: int) -> Cost | None:
        return None

    def run(self, scale: Scale, folder: Path, how: Execution = QUIETLY) -> None:
        self.run_with(SIZES[scale], folder, how.report)

    def run_with(self, config: Config, folder: Path, report: Callable[[int, int], None]) -> None:
        records.write_rows(folder / _DRAWS, run(config, report))

    def findings(self, scale: Scale, folder: Path) -> Findings:
        return self.findings_with(SIZES[scale], folder)

    def findings_with(self, config: Config, folder: Path) -> Findings:
        refuse_empty(folder, _DRAWS)
        rows, _ = records.read_lines(folder / _DRAWS)
        points = summarize(config, [Draw(**row) for row in rows])
        figure, stem = _figure(config, points), folder / "expected-norms"
        table = reports.save_csv([vars(point) for point in points], stem.with_suffix(".csv"))
        paths = (folder / _DRAWS, table, *reports.save_figure(figure, stem))
        data = {"config": vars(config), "points": [vars(point) for point in points]}
        return Findings(tuple(_lines(points)), tuple(_claims(points)), paths, data)

    def dry_run(self, scale: Scale) -> Iterator[str]:
        config = SIZES[scale]
        yield f"{config.draws} matrices of width {config.width} for each r in {config.repetitions}"


def _lines(points: Sequence[NormPoint]) -> Iterator[str]:
    head = ("norm", "r", "mean", "sd", "theory")
    rows = [
        (p.norm, str(p.r), *(f"{value:.4f}" for value in (p.mean, p.sd, p.theory))) for p in points
    ]
    yield text_table(head, rows, right=head[1:])
    yield f"norms over σ√n, {points[0].draws} draws each, sd over draws (ddof 1)"


def _claims(points: Sequence[NormPoint]) -> Iterator[Claim]:
    """Means must be within 4 % (spectral: theory is a limit) and 2 % of theory, the spread within
    5 % and its own noise.
    """
    spectral, expected = (
        [point for point in points if point.norm == norm] for norm in ("spectral", "expected")
    )
    first, last = expected[0], expected[-1]
    draws = sum(point.draws for point in expected)
    for own, allowed, says in (
        (spectral, 0.04, "The spectral norm of the repeated matrix grows as 1 + √r"),
        (expected, 0.02, "The expected operator norm of the repeated matrix stays at 1"),
    ):
        off = max(abs(point.mean / point.theory - 1) for point in own)
        span = f"for r = {first.r} to {last.r} at n = {first.width}"
        seen = f"means at most {off:.1%} from theory, {span}"
        verdict = decided(off < allowed, True)
        yield Claim(ExpectedNorms.name, "arithmetic", says, seen, draws, verdict)
    ratios = [point.sd / (point.r / 2 / point.width) ** 0.5 for point in expected]
    allowed = 0.05 + 3 / (2 * first.draws) ** 0.5
    verdict = decided(all(abs(ratio - 1) < allowed for ratio in ratios), True)
    words = f"its sd over draws is {min(ratios):.2f} to {max(ratios):.2f} times √(r/2n)"
    says = "Its spread grows with r"
    yield Claim(ExpectedNorms.name, "arithmetic", says, words, draws, verdict)


EXPERIMENT = ExpectedNorms()
