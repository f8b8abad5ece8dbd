"""Transfer to a model with names of its own: the study knows what its proxies are, the target has
its own file.
"""

import pytest

import mupscale as mu
from mupscale.errors import UnreadableModelError
from mupscale.recipes.swept import swept_under
from mupscale.studies import Study
from mupscale.targets import resolve
from tests.odd.copying import HERE, copied
from tests.odd.model import build
from tests.recipes.studies import written

SAID = mu.Reading.load(HERE / "mupscale.toml")
RUN = {
    "run": mu.TargetRun(tokens=1e6, sequence=32),
    "base": mu.TunedBase(weight_decay=0.1, std=0.1),
}


@pytest.fixture
def study(tmp_path) -> Study:
    """Two widths whose best rate is 2^-6."""
    config = {
        "name": "odd",
        "seeds": [1, 2, 3],
        "vary": {"width": [16, 32]},
        "space": {"lr": ["2^-8", "2^-4"]},
        "search": {"method": "grid"},
        "trainer": {"function": "tests.odd.model:train", "target": "tests.odd.model:build"},
        "reading": SAID.to_dict(),
    }
    trials = [
        {
            "cell": f"gqa-mup.width-{width}",
            "rule": "gqa-mup",
            "variant": {"width": width},
            "seed": seed,
            "params": {"lr": 2.0**power},
            "loss": 2 + 0.1 * (power + 6) ** 2 + 0.001 * seed * power,
            "tokens": 1000,
            "steps": 10,
            "step": 10,
        }
        for width in (16, 32)
        for power in (-8, -7, -6, -5, -4)
        for seed in (1, 2, 3)
    ]
    return written(tmp_path / "study", config, trials)


def test_the_proxies_have_the_sizes_that_their_roles_give(study):
    swept = swept_under(study, "gqa-mup")
    assert [(one.shape.width, one.shape.r, one.shape.d_ff) for one in swept.variants] == [
        (16, 2, 32),
        (32, 2, 64),
    ]
    block = 2 * 32 * 32 + 2 * 16 * 32 + 2 * 32 * 64 + 2 * 32 + 64
    assert swept.variants[1].shape.parameters == 2 * block + 32 + 256 * 32
    assert swept.base == {"width": 16, "depth": 2, "r": 2, "inner": 16, "d_ff": 32}


def test_a_target_by_name_brings_the_file_beside_it(study, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = f"{copied(tmp_path)}:build,width=64"
    for to in (name, resolve(name)):
        made = mu.transfer(study, to=to, **RUN).plan
        assert made.reading == SAID
        assert made.parameters["storeys.0.talk.beta.weight"].lr == 1 / 4
    with pytest.raises(UnreadableModelError):
        mu.transfer(study, to=name, reading=mu.Reading(), **RUN)


def test_a_model_takes_the_reading_that_is_given(study):
    with pytest.raises(UnreadableModelError):
        mu.transfer(study, to=build(width=64), **RUN)
    made = mu.transfer(study, to=build(width=64), reading=SAID, **RUN).plan
    assert made.reading == SAID
    by_hand = mu.plan(build(width=64), base=build(width=16), reading=SAID)
    for name, one in by_hand.parameters.items():
        same = made.parameters[name]
        assert (same.role, same.lr, same.init_std, same.eps) == (
            one.role,
            one.lr,
            one.init_std,
            one.eps,
        )
