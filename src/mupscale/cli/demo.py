"""`mupscale demo`: what there is to see so far, in under a minute."""

import json
from dataclasses import asdict
from pathlib import Path

from mupscale.cli.theory import Json
from mupscale.errors import MissingExtraError

_DRAWS = 300


def demo(*, output: Path = Path("runs/demo"), as_json: Json = False) -> None:
    """Show the derived table, one derivation, a plan for an 8B model, and one experiment with a figure.

    Example: mupscale demo --output demo

    Parameters
    ----------
    output
        Folder for the figure and its data.
    """
    from mupscale.cli import paper, plan, theory

    if as_json:
        _as_json(output)
        return
    _heading("The paper's table, derived")
    theory.table()
    _heading("Why key and value projections get their own rate")
    theory.derive("kv", show_steps=True)
    _heading("A plan for Llama-3 8B, from a copy of width 512 with 8 blocks")
    try:
        plan.plan("llama-3-8b", base="width=512,depth=8")
    except MissingExtraError as error:
        print(f"left out: {error}")
    _heading("Repetition raises the spectral norm and leaves the expected one")
    paper.expected_norms(draws=_DRAWS, output=output)


def _heading(text: str) -> None:
    print(f"\n{text}\n{'─' * len(text)}")


def _as_json(output: Path) -> None:
    from mupscale.paper import expected_norms
    from mupscale.theory import derive, parameterization

    config = expected_norms.Config(draws=_DRAWS)
    draws = expected_norms.run(config)
    files = expected_norms.save(config, draws, output)
    data = {
        "table": parameterization().to_dict(),
        "derivation": derive("kv").to_dict(),
        "points": [asdict(point) for point in expected_norms.summarize(config, draws)],
        "files": [str(path) for path in files],
    }
    print(json.dumps(data, ensure_ascii=False, indent=2))
