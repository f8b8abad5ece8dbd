import pytest

import mupscale as mu
from mupscale.recipes import Recipe
from mupscale.studies import Study
from mupscale.studies.measured import analysis_of
from tests.recipes.studies import DENSE, TINY


@pytest.fixture(scope="session")
def analysis():
    return analysis_of(Study.open(DENSE))


@pytest.fixture(scope="session")
def recipe(analysis) -> Recipe:
    """For a small Llama, under the rule that gives keys and values a rate of their own."""
    return mu.transfer(
        DENSE, to=TINY, rule="gqa-mup", analysis=analysis, run=mu.TargetRun(sequence=32)
    )
