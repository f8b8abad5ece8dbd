"""A plan for another batch and length: every value, the betas, files and what is printed."""

import pytest
import torch

import mupscale as mu
from mupscale.errors import NotDerivedError, OptionError, PlanMismatchError
from mupscale.models import GPT, GPTConfig
from mupscale.theory import RULES, RunSize

SMALL, LARGE = (
    RunSize(2_048, 614_400),
    RunSize(8_192, 9_830_400),
)  # 4 times the batch, 16 the tokens
CONFIG = GPTConfig(width=64, depth=2, n_heads=4, n_kv_heads=2, vocabulary=256, context=32)


def planned(run: str, optimizer: str = "adamw", **options) -> tuple[GPT, mu.Plan]:
    model = GPT(CONFIG)
    rule = RULES["gqa-mup"].with_(run=run)
    return model, mu.plan(model, base={"width": 32}, rule=rule, optimizer=optimizer, **options)


@pytest.mark.parametrize(
    ("run", "lr", "decay", "eps", "betas"),
    [
        ("sde", 2.0, 2.0, 0.5, (0.6, 0.8)),
        ("completed-p", 0.5, 0.5, 2.0, (0.975, 0.9875)),
        ("hyperp", 2 * 16**-0.32, 1.0, 1.0, (0.9, 0.95)),
        ("lr=1/D, beta2=B", 1 / 16, 1.0, 1.0, (0.9, 0.8)),
    ],
)
def test_every_group_gets_its_factors(run: str, lr: float, decay: float, eps: float, betas):
    model, plain = planned(run)
    plan = plain.with_run(base=SMALL, target=LARGE)
    base = {"lr": 2**-7, "weight_decay": 0.1, "eps": 1e-8, "betas": (0.9, 0.95)}
    before, after = (one.param_groups(model, **base) for one in (plain, plan))
    for one, other in zip(before, after, strict=True):
        assert other["lr"] == pytest.approx(one["lr"] * lr)
        assert other["weight_decay"] == pytest.approx(one["weight_decay"] * decay)
        assert other["eps"] == pytest.approx(one["eps"] * eps)
        assert other["betas"] == pytest.approx(betas)
    optimizer = torch.optim.AdamW(after)
    assert "betas" in plan.verify(optimizer, **base).checked
    with pytest.raises(PlanMismatchError, match="lr"):
        plan.verify(torch.optim.AdamW(before), **base)


def test_independent_decay_grows_with_the_batch():
    """Per step: four times at four times the batch; torch multiplies by the rate."""
    model, plain = planned("sde", decay="independent")
    plan = plain.with_run(base=SMALL, target=LARGE)
    values = {"lr": 2**-7, "weight_decay": 1e-3}
    for one, other in zip(*(p.param_groups(model, **values) for p in (plain, plan)), strict=True):
        shrinks = [group["lr"] * group["weight_decay"] for group in (one, other)]
        assert shrinks[1] == pytest.approx(4 * shrinks[0])


def test_it_is_kept_in_files_shown_and_compared():
    _, plain = planned("sde")
    plan = plain.with_run(base=SMALL, target=LARGE)
    assert mu.Plan.from_json(plan.to_json()) == plan
    text = " ".join(plan.to_text().split())
    assert "from 614,400 tokens in batches of 2,048 to 9,830,400 tokens in batches of 8,192" in text
    assert "learning rate × 2, weight decay × 2, epsilon × 0.5, 1 - β1 × 4, 1 - β2 × 4" in text
    assert "plan.with_run applies that" in " ".join(plain.to_text().split())
    assert any("run" in str(one) for one in plain.diff(plan))


def test_a_plan_without_it_has_the_same_file_as_before():
    _, plain = planned("none")
    assert "run" not in plain.to_dict()
    assert "with_run" not in plain.to_text()


def test_momentum_changes_with_the_batch():
    model, plain = planned("sde", "momentum")
    plan = plain.with_run(base=SMALL, target=LARGE)
    groups = plan.param_groups(model, lr=0.1, momentum=0.95)
    assert all(group["momentum"] == pytest.approx(0.8) for group in groups)
    assert groups[0]["lr"] == pytest.approx(16 * plain.param_groups(model, lr=0.1)[0]["lr"])
    with pytest.raises(OptionError, match=r"momentum=0\.9"):
        plan.param_groups(model, lr=0.1)


def test_what_cannot_be_done_says_why():
    _, plain = planned("none")
    with pytest.raises(OptionError, match="does not cover batch and length"):
        plain.with_run(base=SMALL, target=LARGE)
    model, noisy = planned("sde")
    twice = noisy.with_run(base=SMALL, target=LARGE)
    with pytest.raises(OptionError, match="already for another run"):
        twice.with_run(base=SMALL, target=LARGE)
    far = noisy.with_run(base=SMALL, target=RunSize(2_048 * 64, 1e9))
    with pytest.raises(OptionError, match="is no moving average"):
        far.param_groups(model, lr=0.1)
    with pytest.raises(NotDerivedError, match="no derivation for muon"):
        planned("sde", "muon")[1].with_run(base=SMALL, target=LARGE)


def test_four_times_the_batch_trains_alike_while_noise_dominates():
    """Independent of the formulas: one weight vector, gradients that are mostly noise."""
    model, plain = planned("sde")
    torch.manual_seed(0)
    ends: list[float] = []
    for plan, batch in ((plain, 1), (plain.with_run(base=SMALL, target=LARGE), 4)):
        group = plan.param_groups(model, lr=2**-10, betas=(0.98, 0.99), eps=1e-8)[0]
        weight = torch.nn.Parameter(torch.ones(20_000))
        kept = {key: group[key] for key in ("lr", "weight_decay", "eps", "betas")}
        optimizer = torch.optim.AdamW([{"params": [weight], **kept}])
        for _ in range(800 // batch):
            weight.grad = weight.detach() + 20 / batch**0.5 * torch.randn_like(weight)
            optimizer.step()
        ends.append(float((weight.detach() ** 2).mean()))
    assert ends[0] < 0.97
    assert ends[1] == pytest.approx(ends[0], rel=0.02)
