"""On Hugging Face models a probe measures what exact singular values and hooks of our own say, and
the verdicts hold.

By hand, a matrix is what its module does to the unit vectors: whatever stores it transposed, fuses
it with others or multiplies it, in the model's own code or by a plan's hook, is in that.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import mupscale
from mupscale.checks import Setup, coordinate_check
from mupscale.checks.probe import Planner, Probe, run_probe
from mupscale.data import Batches, open_corpus
from mupscale.engines import Local
from mupscale.planning import Plan
from mupscale.targets.families import Family
from mupscale.theory import rule_named

SIZES = (
    "hidden_size=64,intermediate_size=96,num_hidden_layers=2,num_attention_heads=4,"
    "num_key_value_heads=2,vocab_size=256"
)
LLAMA, QWEN3, GEMMA2 = (f"hf:{kind},{SIZES},head_dim=16" for kind in ("llama", "qwen3", "gemma2"))
PHI3 = f"hf:phi3,{SIZES},pad_token_id=none"
PHI = f"hf:phi,{SIZES},resid_pdrop=0.0"
MIXTRAL = f"hf:mixtral,{SIZES},head_dim=16,num_local_experts=4"
FALCON = (
    "hf:falcon,hidden_size=64,num_hidden_layers=2,num_attention_heads=4,num_kv_heads=2,new_decoder_architecture=true,"
    "vocab_size=256"
)
GPT2 = (
    "hf:gpt2,n_embd=64,n_head=4,n_layer=2,vocab_size=256,n_positions=64,"
    "resid_pdrop=0.0,embd_pdrop=0.0,attn_pdrop=0.0"
)
SEED = 3
SETUP = Setup(batch=1, sequence=64, lr=2**-10)  # all tokens are looked at: a trace holds 64

Rows = Mapping[str, list[int]]
"""Which outputs of a module belong to a role; an empty list for all."""


def separate(o: str = "o_proj") -> dict[str, Rows]:
    return {
        "self_attn.q_proj": {"query": []},
        "self_attn.k_proj": {"key": []},
        "self_attn.v_proj": {"value": []},
        f"self_attn.{o}": {"attention_output": []},
    }


def span(*ends: tuple[int, int]) -> list[int]:
    return [k for start, stop in ends for k in range(start, stop)]


GATED: dict[str, Rows] = {
    "mlp.gate_proj": {"mlp_in": []},
    "mlp.up_proj": {"mlp_in": []},
    "mlp.down_proj": {"mlp_out": []},
}


@dataclass(frozen=True)
class Case:
    """A model at one value of what is varied, and where its matrices are, by hand."""

    family: str
    name: str
    value: int
    base: int
    block: Mapping[str, Rows]
    blocks: str
    embedding: str
    attention: tuple[str, str]
    """The modules in a block that take the input and give the output."""
    mlp: tuple[str, str]
    readout: str | None = "lm_head"
    planner: Planner | None = None

    def plan(self, model: nn.Module, base: nn.Module) -> Plan:
        return self.planner(model, base) if self.planner else mupscale.plan(model, base=base)

    def places(self) -> Iterator[tuple[str, str, list[int]]]:
        """Module, role and outputs of each matrix."""
        for layer in range(2):
            for inside, rows in self.block.items():
                yield from (
                    (f"{self.blocks}.{layer}.{inside}", role, outputs)
                    for role, outputs in rows.items()
                )
        if self.readout:
            yield self.readout, "readout", []


def hooked(model: nn.Module, base: nn.Module) -> Plan:
    return mupscale.plan(model, base=base, multipliers="hook")


CASES = {
    "llama over r": Case(
        LLAMA,
        "n_kv_heads",
        1,
        4,
        separate() | GATED,
        "model.layers",
        "model.embed_tokens",
        ("self_attn.q_proj", "self_attn.o_proj"),
        ("mlp.gate_proj", "mlp.down_proj"),
    ),
    "qwen3 over width": Case(
        QWEN3,
        "width",
        128,
        64,
        separate() | GATED,
        "model.layers",
        "model.embed_tokens",
        ("self_attn.q_proj", "self_attn.o_proj"),
        ("mlp.gate_proj", "mlp.down_proj"),
    ),
    "gemma2 over width (post-norms, tied, scaled embedding)": Case(
        GEMMA2,
        "width",
        128,
        64,
        separate() | GATED,
        "model.layers",
        "model.embed_tokens",
        ("self_attn.q_proj", "post_attention_layernorm"),
        ("mlp.gate_proj", "post_feedforward_layernorm"),
        None,
    ),
    "phi3 over r (fused, hooks on rows)": Case(
        PHI3,
        "n_kv_heads",
        1,
        4,
        {
            "self_attn.o_proj": {"attention_output": []},
            "self_attn.qkv_proj": {
                "query": span((0, 64)),
                "key": span((64, 80)),
                "value": span((80, 96)),
            },
            "mlp.gate_up_proj": {"mlp_in": []},
            "mlp.down_proj": {"mlp_out": []},
        },
        "model.layers",
        "model.embed_tokens",
        ("self_attn.qkv_proj", "self_attn.o_proj"),
        ("mlp.gate_up_proj", "mlp.down_proj"),
    ),
    "falcon over r (fused group by group, hooks on rows, tied)": Case(
        FALCON,
        "n_kv_heads",
        2,
        4,
        {
            "self_attention.query_key_value": {
                "query": span((0, 32), (64, 96)),
                "key": span((32, 48), (96, 112)),
                "value": span((48, 64), (112, 128)),
            },
            "self_attention.dense": {"attention_output": []},
            "mlp.dense_h_to_4h": {"mlp_in": []},
            "mlp.dense_4h_to_h": {"mlp_out": []},
        },
        "transformer.h",
        "transformer.word_embeddings",
        ("self_attention.query_key_value", "self_attention.dense"),
        ("mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
        None,
    ),
    "gpt2 over width (transposed, fused, biases, tied)": Case(
        GPT2,
        "width",
        128,
        64,
        {
            "attn.c_attn": {
                "query": span((0, 128)),
                "key": span((128, 256)),
                "value": span((256, 384)),
            },
            "attn.c_proj": {"attention_output": []},
            "mlp.c_fc": {"mlp_in": []},
            "mlp.c_proj": {"mlp_out": []},
        },
        "transformer.h",
        "transformer.wte",
        ("attn.c_attn", "attn.c_proj"),
        ("mlp.c_fc", "mlp.c_proj"),
        None,
    ),
    "phi over width with hooks (one on the input of a biased readout)": Case(
        PHI,
        "width",
        128,
        64,
        separate("dense") | {"mlp.fc1": {"mlp_in": []}, "mlp.fc2": {"mlp_out": []}},
        "model.layers",
        "model.embed_tokens",
        ("self_attn.q_proj", "self_attn.dense"),
        ("mlp.fc1", "mlp.fc2"),
        planner=hooked,
    ),
}


@dataclass(frozen=True)
class Moment:
    """A model between two steps: what each module does to unit vectors, and what passed through
    it.
    """

    matrices: dict[str, Tensor]
    biases: dict[str, Tensor]
    tokens: Tensor
    """(vocabulary, width): what the embedding gives for each token."""
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    weights: dict[str, Tensor]


class ByHand:
    """One step with torch alone."""

    def __init__(self, case: Case) -> None:
        self.case, build = case, Family(case.family)
        self.model: Any = build(**{case.name: case.value})
        made = case.plan(self.model, build(**{case.name: case.base}))
        made.initialize_(self.model, std=SETUP.std, seed=SEED)
        self.modules = dict(self.model.named_modules())
        groups = made.param_groups(self.model, lr=SETUP.lr, eps=1e-12, betas=SETUP.betas)
        optimizer = torch.optim.AdamW(groups)
        self.batch = Batches(open_corpus("python-stdlib"), batch=1, sequence=64, seed=SEED).at(0)
        self.before = self.moment()
        optimizer.step()
        optimizer.zero_grad()
        self.after = self.moment()

    def moment(self) -> Moment:
        inputs: dict[str, Tensor] = {}
        outputs: dict[str, Tensor] = {}
        handles: list[Any] = []
        for path, module in self.modules.items():
            handles += [
                module.register_forward_pre_hook(self._keep(inputs, path), prepend=True),
                module.register_forward_hook(
                    lambda m, x, y, path=path: self._keep(outputs, path)(m, (y,))
                ),
            ]
        cross_entropy(
            self.model(self.batch.inputs).logits.flatten(0, 1), self.batch.targets.flatten()
        ).backward()
        for handle in handles:
            handle.remove()
        with torch.no_grad():
            matrices, biases = {}, {}
            for path, _, _ in self.case.places():
                units = torch.eye(inputs[path].shape[1])
                biases[path] = self.modules[path](torch.zeros_like(units[:1]))
                matrices[path] = (self.modules[path](units) - biases[path]).T
            tokens = self.modules[self.case.embedding](torch.arange(256))
        weights = {name: tensor.detach().clone() for name, tensor in self.model.named_parameters()}
        return Moment(matrices, biases, tokens, inputs, outputs, weights)

    @staticmethod
    def _keep(kept: dict[str, Tensor], path: str) -> Any:
        def hook(_: nn.Module, values: tuple[Any, ...]) -> None:
            first = values[0] if values else None
            first = first[0] if isinstance(first, tuple) else first
            if isinstance(first, Tensor) and first.is_floating_point():
                kept.setdefault(
                    path, first.detach().flatten(0, -2).clone()
                )  # Falcon adds to it in place

        return hook


def rms(tensor: Tensor) -> float:
    return float(tensor.double().square().mean().sqrt())


def exact(matrix: Tensor) -> float:
    return float(torch.linalg.matrix_norm(matrix.double(), 2))


@dataclass(frozen=True)
class Measured:
    case: Case
    run: Mapping[str, Any]
    hand: ByHand

    def pairs(self) -> Iterator[tuple[dict[str, Any], str, Tensor | slice]]:
        """Each matrix that the probe measured, with the module and the outputs in which we look for
        it.
        """
        found = list(self.case.places())
        for part in parts(self.run):
            if part["kind"] == "matrix":
                module = part["name"].removesuffix(".weight")
                outputs = next(
                    rows for path, role, rows in found if (path, role) == (module, part["role"])
                )
                yield part, module, torch.tensor(outputs) if outputs else slice(None)


def parts(run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What a run says of each part, with the numbers of its only step."""
    return [
        {key: column[k] for key, column in run["parts"].items()}
        | {key: column[0][k] for key, column in run["series"].items()}
        for k in range(len(run["parts"]["name"]))
    ]


@pytest.fixture(scope="module", params=CASES)
def measured(request) -> Measured:
    case = CASES[request.param]
    setup = dataclasses.replace(SETUP, steps=1, base=case.base, planner=case.planner)
    one = Probe(Family(case.family), case.name, case.value, SEED, rule_named("gqa-mup"), setup)
    return Measured(case, run_probe(one), ByHand(case))


class TestMeasuredAsByHand:
    def test_every_matrix_is_found_with_its_role_and_size(self, measured):
        expected = {(f"{module}.weight", role) for module, role, _ in measured.case.places()}
        assert {
            (p["name"], p["role"]) for p in parts(measured.run) if p["kind"] == "matrix"
        } == expected
        for part, module, rows in measured.pairs():
            assert (part["n_out"], part["n_in"]) == tuple(
                measured.hand.before.matrices[module][rows].shape
            )

    def test_initial_norms_are_exact_ones_of_multiplier_times_weight(self, measured):
        for part, module, rows in measured.pairs():
            matrix = measured.hand.before.matrices[module][rows]
            assert part["start"] == pytest.approx(exact(matrix), rel=5e-3), part["name"]
            assert part["start_frobenius"] == pytest.approx(float(matrix.norm()), rel=1e-4)
            assert part["start"] == pytest.approx(part["predicted_start"], rel=0.15)

    def test_norms_of_the_step_are_exact_ones(self, measured):
        for part, module, rows in measured.pairs():
            step = (measured.hand.after.matrices[module] - measured.hand.before.matrices[module])[
                rows
            ]
            assert part["step"] == pytest.approx(exact(step), rel=6e-3), part["name"]
            assert part["step_frobenius"] == pytest.approx(float(step.norm()), rel=1e-3)

    def test_rows_of_the_embedding_have_the_constant_that_the_model_puts_on_them(self, measured):
        (part,) = (p for p in parts(measured.run) if p["role"] == "embedding")
        before, after = measured.hand.before.tokens, measured.hand.after.tokens
        moved = (after - before).norm(dim=1) > 0
        assert part["name"] == f"{measured.case.embedding}.weight"
        assert part["start"] == pytest.approx(rms(before[moved]) * part["n_out"] ** 0.5, rel=1e-3)
        assert part["step"] == pytest.approx(
            rms((after - before)[moved]) * part["n_out"] ** 0.5, rel=1e-3
        )

    def test_changes_of_the_outputs_are_those_by_the_weight_and_by_the_input(self, measured):
        before, after = measured.hand.before, measured.hand.after
        for part, module, rows in measured.pairs():
            x, dx = before.inputs[module], after.inputs[module] - before.inputs[module]
            W, dW = (
                after.matrices[module][rows],
                (after.matrices[module] - before.matrices[module])[rows],
            )
            h, dh = (
                after.outputs[module][:, rows],
                (after.outputs[module] - before.outputs[module])[:, rows],
            )
            bias = (after.biases[module] - before.biases[module])[:, rows]
            assert rms(dh - (x @ dW.T + dx @ W.T + bias)) < 1e-3 * rms(dh)
            for name, expected in (("h", h), ("dh", dh), ("dw_x", x @ dW.T), ("w_dx", dx @ W.T)):
                assert part[name] == pytest.approx(rms(expected), rel=2e-3), (
                    name,
                    part["name"],
                    part["role"],
                )

    @pytest.mark.parametrize("name", ["attention", "mlp"])
    def test_maps_begin_and_end_where_the_branch_does(self, measured, name):
        first, last = getattr(measured.case, name)
        for moment, ratios in zip(
            (measured.hand.before, measured.hand.after), measured.run["maps"][name], strict=True
        ):
            paths = [f"{measured.case.blocks}.{layer}." for layer in range(2)]
            expected = [
                rms(moment.outputs[path + last]) / rms(moment.inputs[path + first])
                for path in paths
            ]
            assert ratios == pytest.approx(expected, rel=1e-3)

    def test_blocks_and_the_stream(self, measured):
        blocks = [f"{measured.case.blocks}.{layer}" for layer in range(2)]
        for k, moment in enumerate((measured.hand.before, measured.hand.after)):
            stream = [
                rms(moment.inputs[blocks[0]]),
                *(rms(moment.outputs[block]) for block in blocks),
            ]
            assert measured.run["maps"]["stream"][k] == pytest.approx(stream, rel=1e-3)
            assert measured.run["maps"]["block"][k] == pytest.approx(
                [stream[1] / stream[0], stream[2] / stream[1]], rel=1e-3
            )

    def test_theory_has_the_step_of_a_gain_to_the_digit(self, measured):
        """Adam's first step is of one size in every entry, folded factors and gains stored as 1 + w
        included.
        """
        gains = [part for part in parts(measured.run) if part["role"] == "gain"]
        assert gains
        for part in gains:
            assert part["step"] == pytest.approx(part["predicted_step"], rel=1e-3), part["name"]


class TestExperts:
    def test_they_are_judged_by_roles_of_their_own(self):
        result = checked(MIXTRAL, {"width": [64, 128]}, "gqa-mup", seeds=2)
        for role in ("expert_in", "expert_out", "router"):
            assert result.finding("update", role).verdict is not None
            assert abs(result.finding("start", role).flatness.slope.value) < 0.1

    def test_a_stack_has_the_root_mean_square_of_its_norms(self):
        setup = dataclasses.replace(SETUP, steps=1, base=64)
        one = Probe(Family(MIXTRAL), "width", 128, SEED, rule_named("gqa-mup"), setup)
        case = Case(
            MIXTRAL, "width", 128, 64, {}, "model.layers", "model.embed_tokens", ("", ""), ("", "")
        )
        hand, found = (
            ByHand(case),
            [p for p in parts(run_probe(one)) if p["role"].startswith("expert")],
        )
        assert {(p["role"], p["n_out"], p["n_in"]) for p in found} == {
            ("expert_in", 384, 128),
            ("expert_out", 128, 192),
        }
        for part in found:
            step = (hand.after.weights[part["name"]] - hand.before.weights[part["name"]]).double()
            norms = torch.linalg.matrix_norm(step, 2)
            assert len(norms) == 4
            assert part["step"] == pytest.approx(rms(norms), rel=6e-3)


def checked(
    family: str, vary: dict[str, list[int]], rule: str, seeds: int = 4
) -> mupscale.checks.CheckResult:
    setup = Setup(batch=1, sequence=128, lr=2**-16)
    return coordinate_check(
        Family(family), vary, rule=rule, seeds=seeds, steps=1, setup=setup, engine=Local(workers=0)
    )


HEADS = {"n_kv_heads": [16, 8, 4, 2]}
THIN = (
    "hidden_size=256,intermediate_size=128,num_hidden_layers=2,num_attention_heads=16,"
    "num_key_value_heads=16"
)


class TestVerdicts:
    @pytest.mark.parametrize(
        "family",
        [
            f"hf:llama,{THIN},head_dim=16,vocab_size=256",
            f"hf:phi3,{THIN},vocab_size=256,pad_token_id=none",
        ],
    )
    def test_without_the_factor_keys_and_values_fail_over_r_by_theorys_slope_and_nothing_else(
        self, family
    ):
        result = checked(family, HEADS, "complete-p")
        failed = [(one.statistic, one.role) for one in result.judged if one.verdict == "fail"]
        assert result.verdict == "fail"
        assert failed == [("update", "key"), ("update", "value")]
        for role in ("key", "value"):
            one = result.finding("update", role)
            assert one.predicted is not None
            assert one.predicted < -0.25
            assert abs(one.flatness.slope.value - one.predicted) < 0.1

    def test_with_it_nothing_fails(self):
        result = checked(f"hf:llama,{THIN},head_dim=16,vocab_size=256", HEADS, "gqa-mup")
        assert result.verdict != "fail"
        for role in ("query", "key", "value"):
            assert abs(result.finding("update", role).flatness.slope.value) < 0.1
