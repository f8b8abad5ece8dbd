"""What a probe measures, against exact singular values and hooks of our own."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import nn

from mupscale import plan
from mupscale.checks.probe import Probe, Setup, run_probe
from mupscale.checks.statistics import random_coherence
from mupscale.data import Batches, open_corpus
from mupscale.errors import DimensionError, NonFiniteError, OptionError
from mupscale.models import GPT, GPTConfig
from mupscale.theory import rule_named

SHAPE = GPTConfig(
    width=48, depth=2, n_heads=4, head_dim=16, n_kv_heads=4, vocabulary=256, context=64
)
SETUP = Setup(batch=2, sequence=32, lr=2**-10)


def build(n_kv_heads: int = 4, depth: int = 2, width: int = 48) -> GPT:
    return GPT(SHAPE.resized(width=width, depth=depth, n_kv_heads=n_kv_heads, n_heads=4))


def probe(**changes) -> Probe:
    """Changes are fields of the run or of its setup."""
    own = {k: changes.pop(k) for k in ("build", "name", "value") if k in changes}
    setup = dataclasses.replace(changes.pop("setup", SETUP), **{"base": 4, "steps": 2} | changes)
    one = Probe(build, "n_kv_heads", 2, 3, rule_named("gqa-mup"), setup)
    return dataclasses.replace(one, **own)


@pytest.fixture(scope="module")
def measured():
    return run_probe(probe())


def remember(record: dict, name: str):
    def hook(_, inputs, output):
        record[name] = inputs[0].detach(), output.detach()

    return hook


@pytest.fixture(scope="module")
def by_hand():
    """The same two steps with torch alone: weights before and after each, and inputs and outputs of
    every matrix.
    """
    model = build(n_kv_heads=2)
    made = plan(model, base=build(n_kv_heads=4), rule="gqa-mup")
    made.initialize_(model, std=0.02, seed=3)
    optimizer = torch.optim.AdamW(
        made.param_groups(model, lr=2**-10, eps=1e-12, betas=(0.9, 0.999)), fused=True
    )
    inputs, targets = Batches(open_corpus("python-stdlib"), batch=2, sequence=32, seed=3).at(0)
    weights, seen = [], []
    for _ in range(3):
        record: dict[str, tuple] = {}
        handles = [
            module.register_forward_hook(remember(record, name))
            for name, module in model.named_modules()
            if isinstance(module, nn.Linear)
            or (name.startswith("blocks.") and name.count(".") == 1)
        ]
        loss = model(inputs, targets)
        loss.backward()
        for handle in handles:
            handle.remove()
        weights.append({name: p.detach().clone() for name, p in model.named_parameters()})
        seen.append((record, loss.item()))
        optimizer.step()
        optimizer.zero_grad()
    return weights, seen


def matrices(run):
    return [
        (k, name)
        for k, name in enumerate(run["parts"]["name"])
        if run["parts"]["kind"][k] == "matrix"
    ]


class TestNormsAgreeWithExactOnes:
    def test_of_every_step(self, measured, by_hand):
        weights, _ = by_hand
        for k, name in matrices(measured):
            for step in (1, 2):
                change = weights[step][name] - weights[step - 1][name]
                exact = float(torch.linalg.matrix_norm(change.double(), 2))
                assert measured["series"]["step"][step - 1][k] == pytest.approx(exact, rel=6e-3)
                exact = float(torch.linalg.matrix_norm(change.double()))
                assert measured["series"]["step_frobenius"][step - 1][k] == pytest.approx(
                    exact, rel=1e-4
                )

    def test_of_all_steps_together(self, measured, by_hand):
        weights, _ = by_hand
        for k, name in matrices(measured):
            exact = float(
                torch.linalg.matrix_norm((weights[2][name] - weights[0][name]).double(), 2)
            )
            assert measured["series"]["moved"][0][k] == pytest.approx(exact, rel=2.1e-2)

    def test_at_the_start(self, measured, by_hand):
        weights, _ = by_hand
        for k, name in matrices(measured):
            exact = float(torch.linalg.matrix_norm(weights[0][name].double(), 2))
            assert measured["parts"]["start"][k] == pytest.approx(exact, rel=6e-3)

    def test_rows_in_use_of_a_table(self, measured, by_hand):
        weights, _ = by_hand
        k = measured["parts"]["role"].index("embedding")
        change = weights[1]["tokens.weight"] - weights[0]["tokens.weight"]
        rows = change[change.abs().amax(dim=1) > 0]
        assert 5 < len(rows) < 256
        lengths = torch.linalg.vector_norm(rows, dim=1)
        assert measured["series"]["step"][0][k] == pytest.approx(
            float(lengths.square().mean().sqrt()), rel=1e-4
        )


class TestActivations:
    def test_are_those_of_the_forward_pass(self, measured, by_hand):
        weights, seen = by_hand
        for k, name in matrices(measured):
            path = name.removesuffix(".weight")
            (x0, h0), (x1, h1) = seen[0][0][path], seen[1][0][path]
            dw = weights[1][name] - weights[0][name]
            # 64 tokens are the whole batch here, so nothing is sampled away.
            for column, tensor in (
                ("h", h1),
                ("dh", h1 - h0),
                ("dw_x", x0 @ dw.T),
                ("w_dx", (x1 - x0) @ weights[1][name].T),
            ):
                expected = float(tensor.square().mean().sqrt())
                assert measured["series"][column][0][k] == pytest.approx(expected, rel=2e-3), (
                    column,
                    name,
                )

    def test_the_two_terms_are_the_change(self, by_hand):
        """The identity that the two columns rest on: x before the step, W after it."""
        weights, seen = by_hand
        name = "blocks.1.attention.k_proj.weight"
        (x0, h0), (x1, h1) = (seen[t][0][name.removesuffix(".weight")] for t in (0, 1))
        two = x0 @ (weights[1][name] - weights[0][name]).T + (x1 - x0) @ weights[1][name].T
        assert torch.allclose(two, h1 - h0, atol=1e-6)

    def test_maps_and_stream(self, measured, by_hand):
        _, seen = by_hand
        record = seen[0][0]

        def rms(tensor):
            return float(tensor.square().mean().sqrt())

        stream = [
            rms(record["blocks.0"][0]),
            rms(record["blocks.0"][1]),
            rms(record["blocks.1"][1]),
        ]
        assert measured["maps"]["stream"][0] == pytest.approx(stream, rel=1e-4)
        attention = rms(record["blocks.1.attention.o_proj"][1]) / rms(
            record["blocks.1.attention.q_proj"][0]
        )
        assert measured["maps"]["attention"][0][1] == pytest.approx(attention, rel=1e-4)
        mlp = rms(record["blocks.0.mlp.down_proj"][1]) / rms(record["blocks.0.mlp.up_proj"][0])
        assert measured["maps"]["mlp"][0][0] == pytest.approx(mlp, rel=1e-4)
        assert len(measured["maps"]["block"]) == 3  # before the first step, and after each


def test_losses_are_those_of_the_same_training(measured, by_hand):
    assert measured["losses"] == pytest.approx([loss for _, loss in by_hand[1]], rel=1e-4)


def test_the_same_probe_gives_the_same_numbers(measured):
    assert run_probe(probe()) == measured


def test_dimensions_and_predictions_are_the_models(measured):
    assert (measured["r"], measured["width"], measured["depth"]) == (2, 48, 2)
    k = measured["parts"]["name"].index("blocks.0.attention.k_proj.weight")
    one = {name: column[k] for name, column in measured["parts"].items()}
    assert (one["n_out"], one["n_in"], one["repetitions"], one["layer"]) == (32, 48, 2, 0)
    wanted = 0.02 * (math.sqrt(48) + math.sqrt(32))
    assert one["wanted"] == pytest.approx(wanted, rel=1e-4)
    a = 48 / 64
    factor = (1 + math.sqrt(2 * a)) / (1 + math.sqrt(a))
    assert one["predicted_step"] == pytest.approx(2**-10 * factor * math.sqrt(48 * 32), rel=1e-4)


@pytest.mark.parametrize("shape", [(64, 64), (16, 256)])
def test_noise_has_the_coherence_that_is_said_of_it(shape):
    noise = torch.randn(40, *shape, generator=torch.Generator().manual_seed(0))
    kappa = torch.linalg.matrix_norm(noise, 2) / torch.linalg.matrix_norm(noise)
    assert float(kappa.mean()) == pytest.approx(random_coherence(*shape), rel=0.04)


def test_hooked_multipliers_count_and_stored_numbers_alone_do_not():
    """A readout with its factor in a hook has the effect of one with the factor folded in, and the
    same norms.
    """

    def planner(multipliers):
        return lambda model, base: plan(model, base=base, multipliers=multipliers)

    wide = {"name": "width", "value": 96, "base": 48, "steps": 1}
    folded, hooked = (run_probe(probe(planner=planner(kind), **wide)) for kind in ("fold", "hook"))
    assert folded["losses"] == pytest.approx(hooked["losses"], rel=1e-4)
    k = folded["parts"]["role"].index("readout")
    for run in (folded, hooked):
        assert run["parts"]["start"][k] == pytest.approx(run["parts"]["wanted"][k], rel=0.1)
    assert folded["parts"]["start"][k] == pytest.approx(hooked["parts"]["start"][k], rel=1e-3)
    assert folded["series"]["step"][0][k] == pytest.approx(hooked["series"]["step"][0][k], rel=1e-2)


def test_dropout_is_off():
    def noisy(n_kv_heads):
        model = build(n_kv_heads)
        model.tokens.register_forward_hook(
            lambda module, _, out: nn.functional.dropout(out, 0.5, module.training)
        )
        return model

    assert run_probe(probe(build=noisy, steps=1)) == run_probe(probe(steps=1))


def test_the_wanted_start_is_theorys_whatever_the_plan_does():
    def halved(model, base):
        made = plan(model, base=base)
        small = {
            name: dataclasses.replace(p, init_std=p.init_std / 2)
            for name, p in made.parameters.items()
        }
        return dataclasses.replace(made, parameters=small)

    right, wrong = (
        run_probe(probe(steps=1))["parts"],
        run_probe(probe(steps=1, planner=halved))["parts"],
    )
    assert wrong["wanted"] == right["wanted"]
    k = right["role"].index("key")
    assert wrong["predicted_start"][k] == pytest.approx(right["predicted_start"][k] / 2, rel=1e-4)
    assert wrong["start"][k] == pytest.approx(right["start"][k] / 2, rel=1e-2)


class TestBadInput:
    def test_no_model(self):
        with pytest.raises(
            OptionError, match=r"build\(n_kv_heads=2\) returned a value of type int. Return an"
        ):
            run_probe(probe(build=lambda n_kv_heads: n_kv_heads))

    def test_diverged(self):
        def broken(model, batch):
            return model(batch.inputs).mean() * math.inf

        with pytest.raises(
            NonFiniteError,
            match=r"at step 0 of build\(n_kv_heads=2\), seed 3: it diverged",
        ):
            run_probe(probe(loss=broken))

    def test_vocabulary(self):
        with pytest.raises(
            DimensionError,
            match="the data hold the token 300, but the model's vocabulary is 256",
        ):
            run_probe(probe(data=np.full(200, 300)))

    def test_meta_buffers(self):
        def lost(n_kv_heads):
            model = build(n_kv_heads)
            model.register_buffer("table", torch.empty(3, device="meta"))
            return model

        with pytest.raises(
            OptionError, match="on the meta device, with buffers that only the model can compute"
        ):
            run_probe(probe(build=lost))

    @pytest.mark.parametrize(
        ("setting", "value"), [("lr", 0), ("lr", math.nan), ("std", -1.0), ("batch", 0)]
    )
    def test_setup(self, setting, value):
        with pytest.raises((OptionError, DimensionError), match=rf"{setting}={value} must be"):
            Setup(**{setting: value})


def test_a_model_on_meta_without_buffers_is_given_memory():
    def lean(n_kv_heads):
        with torch.device("meta"):
            return build(n_kv_heads)

    assert run_probe(probe(build=lean, steps=1))["losses"] == run_probe(probe(steps=1))["losses"]


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "lion", "muon", "adam"])
def test_other_optimizers_are_stepped_and_predicted(optimizer):
    run = run_probe(probe(setup=dataclasses.replace(SETUP, optimizer=optimizer), steps=1))
    assert all(value > 0 for value in run["parts"]["predicted_step"])
    assert all(value > 0 for value in run["series"]["step"][0])
