"""A model whose forward pass cannot be followed, next to a base whose can."""

from dataclasses import replace

import mupscale as mu
from mupscale.reading import read
from tests.planning.models import model_and_base


def test_it_takes_from_the_base_which_norms_end_its_branches():
    model, base = (read(one) for one in model_and_base("olmo2 (post-norm)"))
    assert model.depth != base.depth
    normed = {fact.normed_by for fact in model.parameters.values() if fact.normed_by}
    assert len(normed) == 2 * model.depth
    unseen = {
        name: replace(fact, normed_by=None, output=False) for name, fact in model.parameters.items()
    }
    blind = replace(model, parameters=unseen, final_gain=None, not_followed="no inputs")
    assert mu.plan(blind, base=base).parameters == mu.plan(model, base=base).parameters
