"""Checks of models that do not take tokens, and of what starts at zero: against norms that are
taken by hand.
"""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu

from mupscale import Reading, plan
from mupscale.checks import Setup, coordinate_check, curves
from mupscale.checks.probe import Probe, run_probe
from mupscale.checks.statistics import STATISTICS, by_step, map_by_step
from mupscale.engines import Local
from mupscale.errors import DimensionError, OptionError
from mupscale.theory import rule_named
from tests.foreign.packages import whisper

WORDS = 250
HERE = Local(workers=0)


class Branch(nn.Module):
    """A depthwise filter along the places, and two matrices, of which the second starts at zero."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.filter = nn.Conv1d(width, width, 3, padding=1, groups=width)
        self.enter, self.leave = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        nn.init.zeros_(self.leave.weight)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.filter(self.norm(x).transpose(1, 2)).transpose(1, 2)
        return x + self.leave(gelu(self.enter(mixed)))


class Images(nn.Module):
    """Patches of 4 × 4, a class token, positions, branches, and a readout of the class token."""

    def __init__(self, width: int, depth: int = 2) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.token = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.places = nn.Parameter(0.02 * torch.randn(1, 5, width))
        self.blocks = nn.ModuleList(Branch(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(dim=1))


def build(width: int = 32, depth: int = 2) -> Images:
    torch.manual_seed(0)
    return Images(width, depth)


def batch(seed: int) -> dict[str, Tensor]:
    """Images of one colour each, so that patches have few directions."""
    generator = torch.Generator().manual_seed(seed)
    colours = torch.randn(16, 3, 1, 1, generator=generator)
    noise = 0.1 * torch.randn(16, 3, 8, 8, generator=generator)
    return {"images": colours + noise, "labels": torch.randint(0, 10, (16,), generator=generator)}


def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return cross_entropy(model(batch["images"]), batch["labels"])


READING = Reading(inputs=(torch.randn(2, 3, 8, 8),))
SETUP = Setup(lr=2**-10)


def probe(make=build, reading=READING, value=64, **changes) -> Probe:
    options = {"data": batch, "loss": loss, "base": 32, "steps": 3} | changes
    setup = dataclasses.replace(SETUP, **options)
    return Probe(make, "width", value, 1, rule_named("gqa-mup"), setup, reading)


@pytest.fixture(scope="module")
def measured():
    return run_probe(probe())


@pytest.fixture(scope="module")
def by_hand():
    """The same three steps with torch alone: weights before and after each."""
    model = build(width=64)
    made = plan(model, base=build(), reading=READING)
    made.initialize_(model, std=0.02, seed=1)
    model.eval()
    optimizer = torch.optim.AdamW(made.param_groups(model, lr=2**-10, eps=1e-12), fused=True)
    weights = [{name: p.detach().clone() for name, p in model.named_parameters()}]
    for _ in range(3):
        loss(model, batch(1)).backward()
        optimizer.step()
        optimizer.zero_grad()
        weights.append({name: p.detach().clone() for name, p in model.named_parameters()})
    return weights


def of(run, statistic, name):
    return [row[run["parts"]["name"].index(name)] for row in run["series"][statistic]]


class TestTablesOfAnyShape:
    """One row of n_out numbers for each input: a pixel of a patch, a place, a tap of a filter."""

    @pytest.mark.parametrize(
        ("name", "axis"),
        [("patches.weight", 0), ("token", 2), ("places", 2), ("blocks.1.filter.weight", 0)],
    )
    def test_are_measured_by_the_length_of_a_row(self, measured, by_hand, name, axis):
        k = measured["parts"]["name"].index(name)
        assert measured["parts"]["kind"][k] == "table"
        steps = [after[name] - before[name] for before, after in itertools.pairwise(by_hand)]
        lengths = [float(step.square().sum(dim=axis).mean().sqrt()) for step in steps]
        assert of(measured, "step", name) == pytest.approx(lengths, rel=1e-4)
        start = float(by_hand[0][name].square().sum(dim=axis).mean().sqrt())
        assert measured["parts"]["start"][k] == pytest.approx(start, rel=1e-4)
        assert measured["parts"]["wanted"][k] == pytest.approx(0.02 * math.sqrt(64), rel=1e-4)

    def test_a_filter_behind_zeros_is_measured_over_all_its_rows(self, measured):
        """At the first step nothing in front of a projection of zeros has a gradient."""
        assert of(measured, "step", "blocks.0.filter.weight")[0] == 0
        assert min(of(measured, "step", "blocks.0.filter.weight")[1:]) > 0


class TestWhatStartsAtZero:
    def test_is_measured_against_the_size_that_theory_asks_for(self, measured, by_hand):
        update = by_step(measured, STATISTICS["update"], "branch_output")
        assert len(update) == 3
        wanted = 0.02 / math.sqrt(2) * (math.sqrt(128) + math.sqrt(64))
        for step, value in enumerate(update):
            norms = [
                float(torch.linalg.matrix_norm(by_hand[step + 1][name] - by_hand[step][name], 2))
                for name in ("blocks.0.leave.weight", "blocks.1.leave.weight")
            ]
            assert value == pytest.approx(math.sqrt(math.prod(norms)) / wanted, rel=1e-2)

    def test_what_stands_in_front_counts_from_the_first_step_that_moves_it(self, measured):
        assert of(measured, "step", "blocks.0.enter.weight")[0] == 0
        values = by_step(measured, STATISTICS["update"], "mlp_in")
        assert len(values) == 2
        assert min(values) > 0

    def test_a_map_that_gives_nothing_counts_from_the_first_step_that_it_gives_something(
        self, measured
    ):
        rows = measured["maps"]["mlp"]
        assert rows[0] == [0, 0]
        ratios = map_by_step(measured, "mlp")
        assert ratios == pytest.approx([2 * math.sqrt(math.prod(row)) for row in rows[1:]])

    def test_what_never_moves_has_no_numbers(self, measured):
        still = {
            name: [0.0 for _ in row]
            for name, row in zip("abc", measured["series"]["step"], strict=True)
        }
        run = measured | {"series": measured["series"] | {"step": list(still.values())}}
        assert by_step(run, STATISTICS["update"], "mlp_in") == []


def over_width(rule):
    return coordinate_check(
        build,
        {"width": [64, 128, 256]},
        rule=rule,
        seeds=4,
        steps=2,
        data=batch,
        loss=loss,
        reading=READING,
        engine=HERE,
    )


class TestVerdicts:
    def test_the_plan_does_not_fail_and_every_role_is_judged(self):
        result = over_width("gqa-mup")
        assert result.verdict != "fail"
        assert result.unjudged == ()
        judged = {one.role for one in result.judged if one.statistic == "update"}
        assert {"embedding", "position", "depthwise", "mlp_in", "readout"} <= judged
        assert {one.steps for one in curves(result, "update") if one.role == "mlp_in"} == {(2,)}
        assert {one.steps for one in curves(result, "update") if one.role == "embedding"} == {
            (1, 2)
        }

    def test_standard_parametrization_fails(self):
        assert over_width("sp").verdict == "fail"


class TestStreams:
    def test_of_two_stacks_are_put_one_behind_the_other(self):
        """What happens between them, here a factor of 3, is no growth of either."""

        class Stack(nn.Module):
            def __init__(self, width: int, depth: int) -> None:
                super().__init__()
                self.blocks = nn.ModuleList(Branch(width) for _ in range(depth))

            def forward(self, x: Tensor) -> Tensor:
                for block in self.blocks:
                    x = block(x)
                return 3 * x

        class Two(Images):
            def __init__(self, width: int, depth: int) -> None:
                super().__init__(width, depth)
                self.blocks = nn.ModuleList()
                self.encoder, self.decoder = Stack(width, depth), Stack(width, depth)

            def forward(self, images: Tensor) -> Tensor:
                x = self.patches(images).flatten(2).transpose(1, 2)
                x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.places
                return self.head(self.norm(self.decoder(self.encoder(x))).mean(dim=1))

        def two(width):
            torch.manual_seed(0)
            return Two(width, 2)

        run = run_probe(probe(two, steps=1))
        course = run["maps"]["stream"][1]
        assert len(course) == 5
        blocks = run["maps"]["block"][1]
        assert course[-1] / course[0] == pytest.approx(math.prod(blocks), rel=1e-3)

    def test_where_blocks_are_lists_of_layers_are_seen_at_their_norms(self):
        class Listed(Images):
            def __init__(self, width: int, depth: int) -> None:
                super().__init__(width, depth)
                self.blocks = nn.ModuleList(
                    nn.ModuleList([block.norm, block.enter, block.leave]) for block in self.blocks
                )

            def forward(self, images: Tensor) -> Tensor:
                x = (
                    self.patches(images).flatten(2).transpose(1, 2)
                    + self.places[:, 1:]
                    + self.token
                )
                for norm, enter, leave in self.blocks:
                    x = x + leave(gelu(enter(norm(x))))
                return self.head(self.norm(x).mean(dim=1))

        def listed(width):
            torch.manual_seed(0)
            return Listed(width, 3)

        run = run_probe(probe(listed, steps=1))
        assert [len(row) for row in run["maps"]["stream"]] == [4, 4]
        # Branches start at zero: the stream goes through unchanged.
        assert run["maps"]["block"][0] == pytest.approx([1, 1, 1])
        assert run["maps"]["block"][1] != pytest.approx([1, 1, 1], rel=1e-6)


class TestEncoderDecoders:
    """Self-attention and cross-attention of a block are two maps, each from its own input to its
    own output.
    """

    @pytest.mark.filterwarnings("ignore")
    def test_every_attention_is_a_map(self):
        def speech(width):
            torch.manual_seed(0)
            return whisper(width, depth=1)

        def listen(model, batch):
            features, tokens = batch
            logits = model(
                input_features=features, decoder_input_ids=tokens, use_cache=False
            ).logits
            return cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())

        def sounds(seed):
            generator = torch.Generator().manual_seed(seed)
            return torch.randn(2, 8, 64, generator=generator), torch.randint(
                3, 200, (2, 10), generator=generator
            )

        run = run_probe(probe(speech, Reading(), value=32, steps=1, data=sounds, loss=listen))
        model = speech(32)
        plan(model, base=speech(32)).initialize_(model, std=0.02, seed=1)
        record: dict[tuple[str, int], float] = {}
        attentions = (
            "encoder.layers.0.self_attn",
            "decoder.layers.0.self_attn",
            "decoder.layers.0.encoder_attn",
        )
        for name in attentions:
            attention = model.model.get_submodule(name)
            attention.k_proj.register_forward_hook(sizes_into(record, name, 0))
            attention.out_proj.register_forward_hook(sizes_into(record, name, 1))
        with torch.no_grad():
            listen(model.eval(), sounds(1))
        ratios = [record[name, 1] / record[name, 0] for name in attentions]
        assert run["maps"]["attention"][0] == pytest.approx(ratios, rel=1e-3)
        assert len(run["maps"]["mlp"][0]) == 2


def sizes_into(record, name, which):
    """Root mean squares of what a module takes (0) or gives (1)."""

    def hook(_, inputs, output):
        record[name, which] = float((inputs[0], output)[which].square().mean().sqrt())

    return hook


class TestBadInput:
    def test_batches_of_ones_own_without_a_loss(self):
        with pytest.raises(OptionError, match="Give loss= for them too"):
            coordinate_check(build, {"width": [32, 64]}, data=batch)

    def test_images_without_a_loss(self):
        with pytest.raises(
            OptionError, match=r"no token embedding, .* Give data=, a function of the seed"
        ):
            run_probe(probe(data="python-stdlib", loss=None))


class Segments(nn.Module):
    """A second, small table beside that of the words."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.words, self.segments = nn.Embedding(WORDS, width), nn.Embedding(2, width)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.words(tokens) + self.segments(torch.zeros_like(tokens))))


class Bottleneck(nn.Module):
    """A branch through four features at any width, as an adapter has it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(WORDS, width), nn.LayerNorm(width)
        self.down, self.up = nn.Linear(width, 4, bias=False), nn.Linear(4, width, bias=False)
        self.head = nn.Linear(width, WORDS, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        return self.head(self.norm(x + self.up(gelu(self.down(self.norm(x))))))


def test_a_side_that_does_not_grow_is_measured_against_the_spectral_target():
    """The initial norm of 4 × n stays, the target √(4/n) falls: a right update falls with it, by
    n^-0.5.
    """

    def bottleneck(width):
        torch.manual_seed(0)
        return Bottleneck(width)

    result = coordinate_check(
        bottleneck,
        {"width": [64, 128, 256]},
        seeds=3,
        steps=2,
        setup=Setup(batch=2, sequence=64),
        engine=HERE,
    )
    for role in ("mlp_in", "branch_output"):
        one = result.finding("update", role)
        assert one.label == "‖ΔW‖/√(n_out/n_in)"
        assert one.predicted == pytest.approx(0, abs=1e-3)
        assert one.flatness.slope.value == pytest.approx(0, abs=0.1)
        assert result.finding("update", "embedding").label == "‖ΔW‖/‖W0‖"
    step = result.finding("step", "mlp_in").flatness.slope.value
    weight = result.finding("weight", "mlp_in").flatness.slope.value
    assert step - weight == pytest.approx(-0.5, abs=0.15)


def test_the_largest_table_is_the_vocabulary():
    def segments(width):
        return Segments(width)

    def run(data):
        setup = dataclasses.replace(SETUP, base=16, steps=1, data=data)
        return run_probe(Probe(segments, "width", 32, 1, rule_named("mup"), setup))

    assert len(run("python-stdlib")["losses"]) == 2
    with pytest.raises(DimensionError, match="the token 251, but the model's vocabulary is 250"):
        run(np.full(1000, 251))


def test_another_batch_is_another_check(tmp_path):
    """A folder that was begun with one kind of batch is not continued with another."""

    def other(seed):
        return batch(seed + 100)

    def run(data):
        coordinate_check(
            build,
            {"width": [32, 64]},
            seeds=2,
            steps=1,
            data=data,
            loss=loss,
            reading=READING,
            engine=HERE,
            folder=tmp_path,
        )

    run(batch)
    with pytest.raises(OptionError):
        run(other)
