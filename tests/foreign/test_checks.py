"""The coordinate check on a few of these models: images, an adapter, an encoder-decoder. The drill
has them all.
"""

import pytest

import mupscale as mu
from mupscale.checks import Setup
from mupscale.engines import Local
from tests.foreign.cases import CASES
from tests.foreign.judging import planned
from tests.foreign.training import OTHER, training

# transformers, timm and diffusers warn about themselves
pytestmark = pytest.mark.filterwarnings("ignore")

SETUP = Setup(batch=2, sequence=64)


def over_width(name, rule, widths):
    case, how = CASES[name], training(name)
    plan = planned(case, case.model(width=64, depth=1), case.model(width=32, depth=1))
    return mu.coordinate_check(
        lambda width: case.model(width=width, depth=1),
        {"width": widths},
        rule=rule,
        seeds=2,
        steps=2,
        setup=SETUP,
        data=how.data,
        loss=how.loss,
        reading=plan.reading,
        engine=Local(workers=0),
    )


@pytest.mark.parametrize("name", ["timm's ViT", "peft's LoRA", "t5"])
def test_the_plan_does_not_fail_and_standard_parametrization_does(name):
    result = over_width(name, "gqa-mup", [64, 128, 256])
    assert result.verdict != "fail", result
    assert result.unjudged == ()
    assert all(abs(one.flatness.slope.value) < 0.2 for one in result.judged), result
    assert over_width(name, "sp", [64, 256]).verdict == "fail"


def test_only_the_adapter_of_frozen_weights_is_judged():
    result = over_width("peft's LoRA", "gqa-mup", [64, 128])
    assert {one.role for one in result.judged} == {"low_rank_down", "low_rank_up"}


def test_batches_are_of_models_that_there_are():
    assert set(OTHER) <= set(CASES)
