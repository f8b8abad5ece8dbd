"""The paper's two tables of models, computed and compared with the print; and the batch rule of its
text, which differs.

The printed rows are data here, in every column. The computed ones follow from the shape and the
tokens per parameter.
"""

from collections.abc import Iterator, Mapping

from mupscale.models import BATCH_CONSTANTS, BatchRule, table_row
from mupscale.paper.claims import Claim
from mupscale.paper.experiment import PrintedCell, PrintedTable, equal_cells
from mupscale.text import text_table

COLUMNS = (
    "params (M)", "non-embd (M)", "width", "depth", "heads", "head size", "KV heads", "KV reps",
    "TPP", "tokens", "sequences", "batch (tokens)", "batch (sequences)", "iterations",
)  # fmt: skip
PRINTED: Mapping[str, tuple[float, ...]] = {
    "kvr_1": (125.55, 80.62, 768, 7, 12, 64, 1, 12, 10, 806200000, 98413, 262144, 32, 3075),
    "kvr_2": (126.23, 81.31, 768, 7, 12, 64, 2, 6, 10, 813100000, 99255, 262144, 32, 3102),
    "kvr_3": (126.92, 82, 768, 7, 12, 64, 3, 4, 10, 820000000, 100098, 262144, 32, 3128),
    "kvr_4": (127.61, 82.69, 768, 7, 12, 64, 4, 3, 10, 826900000, 100940, 262144, 32, 3154),
    "kvr_6": (128.99, 84.06, 768, 7, 12, 64, 6, 2, 10, 840600000, 102612, 262144, 32, 3207),
    "kvr_12": (133.12, 88.19, 768, 7, 12, 64, 12, 1, 10, 881900000, 107654, 270336, 33, 3262),
    "jwd-small": (48.82, 26.38, 384, 4, 6, 64, 6, 1, 3, 79140000, 9661, 81920, 10, 966),
    "jwd-medium": (125.96, 81.07, 768, 6, 12, 64, 12, 1, 3, 243210000, 29689, 147456, 18, 1649),
    "jwd-large": (237.17, 177.31, 1024, 10, 16, 64, 16, 1, 3, 531930000, 64933, 212992, 26, 2497),
}
"""As the paper prints them (its kvr_t_1 is our kvr_1). Parameters are in millions."""


def cells_of(name: str, rule: BatchRule = "table") -> list[PrintedCell]:
    """The row of a model, cell by cell, with the batch by one of the two constants.

    >>> [cell.column for cell in cells_of("kvr_12") if not cell.equal]
    []
    """
    row = table_row(name, rule)
    budget = row.budget
    computed = (
        row.total_parameters / 1e6, row.non_embedding_parameters / 1e6, row.width, row.depth,
        row.n_heads, row.head_dim, row.n_kv_heads, row.repetitions, row.tokens_per_parameter,
        budget.tokens, budget.sequences, budget.batch_tokens, budget.batch_sequences,
        budget.iterations,
    )  # fmt: skip
    cells: list[PrintedCell] = []
    for column, *both in zip(COLUMNS, PRINTED[name], computed, strict=True):
        # To the digit that the paper prints: hundredths of a million parameters.
        digits = 2 if column.endswith("(M)") else 0
        printed, ours = (f"{value:.{digits}f}" for value in both)
        cells.append(PrintedCell(name, column, printed, ours, printed == ours))
    return cells


_SHAPE = 8
"""Columns that describe the shape; the others describe the budget."""


class Configurations(PrintedTable):
    name = "configurations"
    head = ("model", "column", "printed", "computed", "equal")

    def cells(self, rule: BatchRule = "table") -> list[PrintedCell]:
        return [cell for name in PRINTED for cell in cells_of(name, rule)]

    def lines(self) -> Iterator[str]:
        """The rows as computed, in two tables, with every difference from the print."""
        rows, after = self.rows(), _SHAPE + 1
        shapes, budgets = [row[:after] for row in rows], [[row[0], *row[after:]] for row in rows]
        yield from text_table(["", *COLUMNS[:_SHAPE]], shapes, right=COLUMNS).splitlines()
        yield ""
        head = ["", *COLUMNS[_SHAPE:], "as printed?"]
        yield from text_table(head, budgets, right=COLUMNS).splitlines()
        for cell in self.cells():
            if not cell.equal:
                yield f"{cell.row}: {cell.difference}"

    def claims(self) -> list[Claim]:
        """What the tables and the text say."""
        cells = self.cells()
        wrong = {cell.row for cell in cells if not cell.equal}
        rows = f"{len(PRINTED) - len(wrong)} of {len(PRINTED)} rows"
        tables = Claim(
            experiment=self.name,
            kind="arithmetic",
            says="The two tables of models: parameters, tokens, batch and iterations of nine "
            "models",
            seen=f"{rows}, {equal_cells(cells)} equal to the printed digit, with a batch of "
            f"{BATCH_CONSTANTS['table']:g}·√tokens, rounded up",
            runs=0,
            verdict="disagrees" if wrong else "agrees",
        )
        batches = [cell for cell in self.cells("printed") if cell.column == "batch (sequences)"]
        equal = sum(cell.equal for cell in batches)
        ratios = [int(cell.ours) / int(cell.printed) for cell in batches]
        text = Claim(
            experiment=self.name,
            kind="arithmetic",
            says=f"The batch is {BATCH_CONSTANTS['printed']}·√tokens sequences of 8192",
            seen=f"gives {equal} of the {len(batches)} batches that the paper's own tables print: "
            f"{min(ratios):.2f} to {max(ratios):.2f} of them, rounded up",
            runs=0,
            verdict="agrees" if equal == len(batches) else "disagrees",
        )
        return [tables, text]


EXPERIMENT = Configurations()
