"""Where keys and values are not shared, a plan gives what microsoft/mup gives; where the two
differ, by exactly what.

mup keeps the readout's factor in the forward pass (MuReadout), so most of these plans do too:
multipliers="hook".
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

import mupscale
from mupscale.theory import RULES

mup = pytest.importorskip("mup")

VOCABULARY = 40
CONTEXT = 8
HIDDEN = {"layers.*.weight": "hidden"}

# What mup does: it scales lr-coupled decay, which the paper's "vanilla μP" does not, and leaves
# epsilon alone.
AS_MUP = RULES["mup"].with_(decay="scaled")

OPTIMIZERS = {
    "sgd": (mup.MuSGD, torch.optim.SGD),
    "adam": (mup.MuAdam, torch.optim.Adam),
    "adamw": (mup.MuAdamW, torch.optim.AdamW),
}


# An epsilon that counts beside the gradients.
TRAINED = {
    "sgd": {"lr": 0.2, "weight_decay": 0.02, "momentum": 0.9},
    "adam": {"lr": 0.02, "weight_decay": 0.0, "eps": 1e-4},
    "adamw": {"lr": 0.02, "weight_decay": 0.1, "eps": 1e-4},
}


@dataclass(frozen=True)
class Shape:
    width: int
    heads: int
    kv_heads: int
    d_ff: int
    head_dim: int = 8


class Perceptron(nn.Module):
    """The MLP of mup's examples, with its first layer as the lookup that it is for tokens."""

    def __init__(
        self, shape: Shape, readout: type[nn.Linear] = nn.Linear, *, bias: bool = False
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, shape.width)
        self.layers = nn.ModuleList(nn.Linear(shape.width, shape.width) for _ in range(2))
        self.readout = readout(shape.width, VOCABULARY, bias=bias)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        for layer in self.layers:
            x = functional.relu(layer(x))
        return self.readout(x)


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        inner, shared = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.shape = shape
        self.norm1, self.norm2 = nn.LayerNorm(shape.width), nn.LayerNorm(shape.width)
        self.q_proj = nn.Linear(shape.width, inner)
        self.k_proj = nn.Linear(shape.width, shared)
        self.v_proj = nn.Linear(shape.width, shared)
        self.o_proj = nn.Linear(inner, shape.width)
        self.fc1 = nn.Linear(shape.width, shape.d_ff)
        self.fc2 = nn.Linear(shape.d_ff, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        q, k, v = (
            part(y).unflatten(-1, (-1, self.shape.head_dim)).transpose(1, 2)
            for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        k, v = (
            part.repeat_interleave(self.shape.heads // self.shape.kv_heads, dim=1)
            for part in (k, v)
        )
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o_proj(y.transpose(1, 2).flatten(2))
        return x + self.fc2(functional.gelu(self.fc1(self.norm2(x))))


class Transformer(nn.Module):
    """A pre-norm transformer with biases, learned positions and an untied readout."""

    def __init__(self, shape: Shape, readout: type[nn.Linear] = nn.Linear) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, shape.width)
        self.positions = nn.Embedding(CONTEXT, shape.width)
        self.layers = nn.ModuleList(Block(shape) for _ in range(2))
        self.norm = nn.LayerNorm(shape.width)
        self.readout = readout(shape.width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[-1]]
        for layer in self.layers:
            x = layer(x)
        return self.readout(self.norm(x))


@dataclass(frozen=True)
class Case:
    """A model at two shapes. Every dimension that is to scale differs between them, which is how
    mup finds out.
    """

    make: Callable[..., nn.Module]
    base: Shape
    target: Shape
    roles: Mapping[str, str] | None = field(default=None, hash=False)

    @cache  # noqa: B019 (the cases are constants)
    def plan(self, optimizer: str, **settings: Any) -> mupscale.Plan:
        settings = {"rule": AS_MUP, "multipliers": "hook"} | settings
        return mupscale.plan(
            self.make(self.target),
            base=self.make(self.base),
            optimizer=optimizer,
            roles=self.roles,
            **settings,
        )

    def with_base_shapes(self) -> nn.Module:
        """The target as mup wants it. The delta has other dimensions wherever the base may grow."""
        base = self.base
        wider = replace(
            base,
            width=2 * base.width,
            heads=2 * base.heads,
            kv_heads=2 * base.kv_heads,
            d_ff=2 * base.d_ff,
        )
        model, base, delta = (
            self.make(shape, mup.MuReadout) for shape in (self.target, self.base, wider)
        )
        return mup.set_base_shapes(model, base, delta=delta)


# A ratio of 3, whose root and inverse are no short binary fractions. Width, heads and d_ff grow
# together.
CASES = {
    "mlp": Case(Perceptron, Shape(32, 4, 4, 128), Shape(96, 12, 12, 384), roles=HIDDEN),
    "transformer": Case(Transformer, Shape(32, 4, 4, 128), Shape(96, 12, 12, 384)),
    "transformer, the same r = 2 in both": Case(
        Transformer, Shape(32, 4, 2, 128), Shape(96, 12, 6, 384)
    ),
}
# Width × 3, heads × 6, d_ff × 10.
UNEVEN = Case(Transformer, Shape(32, 3, 3, 64), Shape(96, 18, 18, 640))

every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
every_optimizer = pytest.mark.parametrize("optimizer", OPTIMIZERS)


def groups_by_name(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, dict[str, Any]]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {names[id(p)]: group for group in optimizer.param_groups for p in group["params"]}


def their_groups(
    case: Case, optimizer: str, lr: float = 1.0, weight_decay: float = 1.0
) -> dict[str, dict[str, Any]]:
    model = case.with_base_shapes()
    return groups_by_name(
        model, OPTIMIZERS[optimizer][0](model.parameters(), lr=lr, weight_decay=weight_decay)
    )


def our_groups(
    case: Case, plan: mupscale.Plan, lr: float = 1.0, weight_decay: float = 1.0
) -> dict[str, dict[str, Any]]:
    model = case.make(case.target)
    plan.attach_(model)
    groups = plan.param_groups(model, lr=lr, weight_decay=weight_decay)
    return groups_by_name(model, OPTIMIZERS[plan.optimizer][1](groups))


def of_all(groups: dict[str, dict[str, Any]], field: str) -> dict[str, float]:
    return {name: group[field] for name, group in groups.items()}


def decayed(plan: mupscale.Plan, groups: dict[str, dict[str, Any]]) -> dict[str, float]:
    return {
        name: group["weight_decay"] for name, group in groups.items() if plan.parameters[name].drawn
    }


def to_rounding(values: dict[str, float]) -> Any:
    """Equal but for the last bit: mup rounds the ratio and the quotient, a plan rounds once."""
    return pytest.approx(values, rel=4e-16, abs=0)


class TestRatesAndDecay:
    @every_case
    @every_optimizer
    def test_every_parameter_has_the_rate_of_mup(self, case, optimizer):
        mine = our_groups(case, case.plan(optimizer))
        assert len(set(of_all(mine, "lr").values())) == 2, "hidden matrices and the rest"
        assert of_all(mine, "lr") == to_rounding(of_all(their_groups(case, optimizer), "lr"))

    @every_case
    @pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
    def test_every_matrix_has_the_decay_of_mup(self, case, optimizer):
        plan = case.plan(optimizer)
        mine, theirs = our_groups(case, plan), their_groups(case, optimizer)
        assert len(set(decayed(plan, mine).values())) == 2
        assert decayed(plan, mine) == to_rounding(decayed(plan, theirs))

    @pytest.mark.parametrize("rule", ["complete-p", "gqa-mup"])
    @every_case
    def test_the_rules_that_scale_decay_give_it_too(self, case, rule):
        plan = case.plan("adamw", rule=rule)
        mine, theirs = our_groups(case, plan), their_groups(case, "adamw")
        assert of_all(mine, "lr") == to_rounding(of_all(theirs, "lr"))
        assert decayed(plan, mine) == to_rounding(decayed(plan, theirs))

    @every_case
    def test_independent_decay_is_theirs_over_the_base_rate(self, case):
        """mup has no such mode; torch is handed λ0/η, which is mup's λ for the base decay λ0/η0."""
        plan = case.plan("adamw", decay="independent")
        mine = our_groups(case, plan, lr=2**-7, weight_decay=2**-10)
        theirs = their_groups(case, "adamw", lr=2**-7, weight_decay=2**-10 / 2**-7)
        assert decayed(plan, mine) == to_rounding(decayed(plan, theirs))

    def test_adam_is_steered_by_fan_in_alone_however_the_dimensions_grow(self):
        plan = UNEVEN.plan("adamw")
        mine, theirs = our_groups(UNEVEN, plan), their_groups(UNEVEN, "adamw")
        assert len(set(of_all(mine, "lr").values())) == 4, (
            "width, heads × head_dim, d_ff and the rest"
        )
        assert of_all(mine, "lr") == to_rounding(of_all(theirs, "lr"))
        assert decayed(plan, mine) == to_rounding(decayed(plan, theirs))


class TestConventions:
    """Differences that are meant, each with its size."""

    @every_case
    @every_optimizer
    def test_mup_decays_gains_and_biases_and_a_plan_does_not(self, case, optimizer):
        """CompleteP leaves them undecayed (Dey et al. 2025); mup decays them like embeddings."""
        plan = case.plan(optimizer)
        mine, theirs = our_groups(case, plan), their_groups(case, optimizer)
        vectors = [name for name, parameter in plan.parameters.items() if not parameter.drawn]
        assert vectors
        assert {mine[name]["weight_decay"] for name in vectors} == {0.0}
        assert {theirs[name]["weight_decay"] for name in vectors} == {
            theirs["tokens.weight"]["weight_decay"]
        }

    @every_case
    def test_the_papers_vanilla_mup_does_not_scale_decay_and_mup_does(self, case):
        plan = case.plan("adamw", rule="mup")
        mine, theirs = our_groups(case, plan), their_groups(case, "adamw")
        assert of_all(mine, "lr") == to_rounding(of_all(theirs, "lr"))
        assert set(decayed(plan, mine).values()) == {1.0}
        assert set(decayed(plan, theirs).values()) == {1.0, 3.0}

    @pytest.mark.parametrize("case", [*CASES.values(), UNEVEN], ids=[*CASES, "uneven"])
    def test_decay_inside_adams_gradient_keeps_its_share_of_it_and_mups_grows_with_width(
        self, case
    ):
        """MuAdam treats Adam's L2 like AdamW's decay. Gradients shrink like 1/n, so λW must too,
        relative to that.
        """
        plan = case.plan("adam")
        assert plan.decay == "l2"
        mine, theirs = our_groups(case, plan), their_groups(case, "adam")
        ratio = case.target.width / case.base.width
        assert decayed(plan, mine) == to_rounding(
            {n: value / ratio for n, value in decayed(plan, theirs).items()}
        )
        coupled = case.plan("adam", decay="lr_coupled")
        assert decayed(coupled, our_groups(case, coupled)) == to_rounding(decayed(coupled, theirs))

    def test_under_sgd_mup_takes_gradients_by_fan_out_and_a_plan_by_the_embedding_width(self):
        """mup has entries of 1/fan_out, a plan 1/n: one and the same while d_ff and heads grow in
        proportion to n.

        Where they do not, a first matrix (into heads or d_ff) and its bias differ by how much
        faster those grow.
        """
        plan = UNEVEN.plan("sgd")
        mine, theirs = our_groups(UNEVEN, plan), their_groups(UNEVEN, "sgd")
        beyond_width = {"q_proj": 6 / 3, "k_proj": 6 / 3, "v_proj": 6 / 3, "fc1": 10 / 3}
        factors = {name: beyond_width.get(name.split(".")[-2], 1.0) for name in mine}
        assert set(factors.values()) == {1.0, 6 / 3, 10 / 3}
        rescaled = {name: group["lr"] * factors[name] for name, group in mine.items()}
        assert rescaled == to_rounding(of_all(theirs, "lr"))
        rescaled = {name: value / factors[name] for name, value in decayed(plan, mine).items()}
        assert rescaled == to_rounding(decayed(plan, theirs))

    @every_case
    def test_mup_does_not_scale_epsilon_and_complete_p_does_as_gradients_shrink(self, case):
        assert {group["eps"] for group in their_groups(case, "adamw").values()} == {1e-8}
        assert {p.eps for p in case.plan("adamw").parameters.values()} == {1.0}
        assert {p.eps for p in case.plan("adamw", rule="complete-p").parameters.values()} == {1 / 3}


class TestDisagreements:
    """Where a plan once differed from mup, and mup was right."""

    def test_a_bias_of_the_logits_does_not_grow_and_keeps_its_rate(self):
        """Its gradient is that of the logits, of the same size at every width."""
        case = replace(CASES["mlp"], make=partial(Perceptron, bias=True))
        theirs = their_groups(case, "sgd")
        assert theirs["readout.bias"]["lr"] == 1
        assert of_all(our_groups(case, case.plan("sgd")), "lr") == to_rounding(of_all(theirs, "lr"))

    def test_a_gain_over_one_head_does_not_grow_and_keeps_its_rate(self):
        """All heads share it, so that its gradient adds up over them: H · 1/n, of the same size at
        every width.
        """

        def make(shape: Shape, readout: type[nn.Linear] = nn.Linear) -> nn.Module:
            model = Transformer(shape, readout)
            for layer in model.layers:
                layer.q_norm = nn.RMSNorm(shape.head_dim)
            return model

        case = replace(CASES["transformer"], make=make)
        theirs = their_groups(case, "sgd")
        assert theirs["layers.0.q_norm.weight"]["lr"] == 1
        assert of_all(our_groups(case, case.plan("sgd")), "lr") == to_rounding(of_all(theirs, "lr"))

    def test_a_first_layer_that_is_linear_is_an_embedding_of_its_outputs(self):
        """The MLP of mup's examples as it stands there: Linear(pixels, width)."""

        def make(shape: Shape, readout: type[nn.Linear] = nn.Linear) -> nn.Module:
            model = Perceptron(shape, readout)
            model.tokens = nn.Linear(VOCABULARY, shape.width, bias=False)
            return model

        roles = {"tokens.weight": "embedding", "readout.weight": "readout", **HIDDEN}
        case = replace(CASES["mlp"], make=make, roles=roles)
        mine, theirs = our_groups(case, case.plan("sgd")), their_groups(case, "sgd")
        assert of_all(mine, "lr") == to_rounding(of_all(theirs, "lr"))


class TestInitialization:
    @staticmethod
    @torch.no_grad()
    def std(init: Callable[[Tensor], Any], tensor: Tensor) -> float:
        """The std that a tensor is drawn with: what it holds, over standard normal numbers of the
        same seed.
        """
        torch.manual_seed(0)
        init(tensor)
        torch.manual_seed(0)
        return float(tensor.norm() / torch.empty_like(tensor).normal_().norm())

    @pytest.mark.parametrize("init", ["normal_", "xavier_normal_", "kaiming_normal_"])
    @pytest.mark.parametrize("case", [*CASES.values(), UNEVEN], ids=[*CASES, "uneven"])
    def test_every_matrix_is_drawn_as_mup_draws_it_target_over_base(self, case, init):
        draw = getattr(mup.init, init)
        wide = case.with_base_shapes().double()
        narrow = mup.set_base_shapes(case.make(case.base, mup.MuReadout).double(), None)
        for name, parameter in case.plan("adamw").parameters.items():
            if parameter.drawn:
                factor = self.std(draw, wide.get_parameter(name)) / self.std(
                    draw, narrow.get_parameter(name)
                )
                assert parameter.init_std == pytest.approx(factor, rel=1e-12), name

    @every_case
    def test_what_set_base_shapes_makes_of_torchs_own_initialization(self, case):
        """torch draws linear layers with 1/√fan_in, the readout too: mup multiplies that by
        √(n/n_base), to stay put.

        Biases of linear layers, drawn by torch, are multiplied likewise; a plan starts them at
        zero.
        """
        torch.manual_seed(0)
        scaled = case.with_base_shapes().state_dict()
        torch.manual_seed(0)
        plain = case.make(case.target, mup.MuReadout).state_dict()
        growth = {
            name: float(scaled[name].norm() / plain[name].norm())
            for name in plain
            if plain[name].any()
        }
        assert growth["readout.weight"] == pytest.approx(3**0.5, rel=1e-6)
        for name, parameter in case.plan("adamw").parameters.items():
            torchs = 1.0 if parameter.role in ("embedding", "position") else (1 / 3) ** 0.5
            if parameter.drawn:
                assert parameter.init_std == pytest.approx(growth[name] * torchs, rel=1e-6), name
            elif parameter.role == "bias" and name in growth:
                assert growth[name] * torchs == pytest.approx(1, rel=1e-6), name
                assert parameter.start == 0, name


class TestFolding:
    def test_the_hook_is_the_factor_inside_mu_readout(self):
        plan = CASES["transformer"].plan("adamw")
        (hook,) = plan.hooks
        assert hook.module == "readout"
        assert hook.factor == 1 / CASES["transformer"].with_base_shapes().readout.width_mult()
        assert {p.folded for p in plan.parameters.values()} == {1.0}

    @pytest.mark.parametrize("multipliers", ["fold", "hook"])
    @pytest.mark.parametrize("optimizer", TRAINED)
    @every_case
    def test_a_plain_linear_readout_trains_as_mu_readout_does(self, case, optimizer, multipliers):
        """Loss for loss, in float64. Gains and biases are not decayed, and Adam has no L2: see the
        conventions.
        """
        plan, settings = case.plan(optimizer, multipliers=multipliers), TRAINED[optimizer]
        make_theirs, make_mine = OPTIMIZERS[optimizer]
        torch.manual_seed(0)
        theirs, mine = case.with_base_shapes().double(), case.make(case.target).double()
        mine.load_state_dict(theirs.state_dict())
        plan.attach_(mine)
        folded = plan.parameters["readout.weight"].folded
        assert folded == (1 / 3 if multipliers == "fold" else 1)
        mine.readout.weight.data *= folded
        expected = losses(theirs, make_theirs(without_decay_of_vectors(theirs), **settings))
        momentum = {"momentum": settings["momentum"]} if "momentum" in settings else {}
        tuned = {key: value for key, value in settings.items() if key not in momentum}
        assert losses(
            mine, make_mine(plan.param_groups(mine, **tuned), **momentum)
        ) == pytest.approx(expected, abs=1e-12)
        assert expected[-1] < expected[0] - 0.1


def without_decay_of_vectors(model: nn.Module) -> list[dict[str, Any]]:
    vectors = [p for p in model.parameters() if p.ndim < 2]
    return [
        {"params": [p for p in model.parameters() if p.ndim == 2]},
        {"params": vectors, "weight_decay": 0.0},
    ]


def losses(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 8) -> list[float]:
    tokens = torch.randint(VOCABULARY, (4, CONTEXT + 1), generator=torch.Generator().manual_seed(1))
    seen: list[float] = []
    for _ in range(steps):
        loss = functional.cross_entropy(
            model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    return seen


def llama(width: int, heads: int, kv_heads: int, head_dim: int | None = None) -> LlamaForCausalLM:
    config = LlamaConfig(
        hidden_size=width, num_attention_heads=heads, num_key_value_heads=kv_heads,
        head_dim=head_dim, intermediate_size=2 * width, num_hidden_layers=1, vocab_size=VOCABULARY,
    )  # fmt: skip
    with torch.device("meta"):
        return LlamaForCausalLM(config)


def with_mu_readout(model: LlamaForCausalLM) -> LlamaForCausalLM:
    with torch.device("meta"):
        model.lm_head = mup.MuReadout(model.config.hidden_size, VOCABULARY, bias=False)
    return model


class TestLlama:
    """A model that nobody wrote for mup."""

    BASE, GROWING, FIXED = (64, 4, 2), (256, 16, 8), (256, 16, 2)
    """(width, heads, key/value heads): r = 2, the same r, and the same key/value heads, so r =
    8.
    """

    def test_mup_asks_for_another_readout_and_a_plan_does_not(self):
        with pytest.raises(AssertionError, match="lm_head has infinite fan-in and finite fan-out"):
            mup.set_base_shapes(llama(*self.GROWING), llama(*self.BASE))
        plan = mupscale.plan(llama(*self.GROWING), base=llama(*self.BASE))
        assert plan.hooks == ()
        assert plan.parameters["lm_head.weight"].folded == 1 / 4

    def test_mup_has_no_place_for_a_fixed_number_of_kv_heads_and_a_plan_has(self):
        with pytest.raises(AssertionError, match="k_proj has infinite fan-in and finite fan-out"):
            mup.set_base_shapes(
                with_mu_readout(llama(*self.FIXED)), with_mu_readout(llama(*self.BASE))
            )
        plan = mupscale.plan(llama(*self.FIXED), base=llama(*self.BASE))
        assert any("stays at 2" in warning for warning in plan.warnings)
        for name in ("k_proj", "v_proj"):
            key = plan.parameters[f"model.layers.0.self_attn.{name}.weight"]
            assert key.lr == float((1 + root(8)) / (1 + root(2)) / 4)

    def test_with_the_readout_replaced_and_the_same_r_both_agree(self):
        theirs = mup.set_base_shapes(
            with_mu_readout(llama(*self.GROWING)), with_mu_readout(llama(*self.BASE))
        )
        plan = mupscale.plan(llama(*self.GROWING), base=llama(*self.BASE), multipliers="hook")
        groups = groups_by_name(theirs, mup.MuAdamW(theirs.parameters(), lr=1.0, weight_decay=1.0))
        assert {name: p.lr for name, p in plan.parameters.items()} == to_rounding(
            of_all(groups, "lr")
        )
        mine = {name: p.weight_decay for name, p in plan.parameters.items() if p.drawn}
        assert mine == to_rounding(decayed(plan, groups))


def root(value: Decimal | int) -> Decimal:
    """To 28 digits, as all arithmetic of decimals; a float() of these is the nearest double."""
    return Decimal(value).sqrt()


class TestSharedKeysAndValues:
    """From a base with r = 1, keys and values have the paper's factor to the bit."""

    # n = heads × head_dim with heads of 64, from a base of width 256.
    SHARED = ((768, 12, 2), (768, 12, 3), (768, 12, 4), (768, 12, 6), (768, 12, 12),
              (1024, 16, 1), (1024, 16, 2), (1024, 16, 8), (1024, 16, 16),
              (1600, 25, 5))  # fmt: skip
    KEY, VALUE = (f"model.layers.0.self_attn.{name}_proj.weight" for name in "kv")

    @pytest.mark.parametrize(("width", "heads", "r"), SHARED)
    def test_adam_has_one_plus_root_r_over_two(self, width, heads, r):
        plan = mupscale.plan(llama(width, heads, heads // r), base=llama(256, 4, 4))
        growth = Decimal(width) / 256
        for parameter in (plan.parameters[self.KEY], plan.parameters[self.VALUE]):
            assert parameter.lr == float((1 + root(r)) / 2 / growth)
            assert parameter.weight_decay == float(2 / (1 + root(r)) * growth)
            assert parameter.init_std == float(root(1 / growth))
            assert parameter.eps == float(1 / growth)

    @pytest.mark.parametrize(("width", "heads", "r"), SHARED)
    def test_sgd_has_root_r_less_and_no_width(self, width, heads, r):
        plan = mupscale.plan(
            llama(width, heads, heads // r), base=llama(256, 4, 4), optimizer="sgd"
        )
        for parameter in (plan.parameters[self.KEY], plan.parameters[self.VALUE]):
            assert parameter.lr == float((1 + root(r)) / (2 * root(r)))

    @pytest.mark.parametrize(
        ("target", "base"),
        [
            ((768, 12, 1, 96), (256, 4, 4, 64)),
            ((576, 12, 2, 64), (256, 4, 4, 64)),
            ((576, 12, 12, 64), (256, 4, 4, 32)),
            ((1024, 16, 4, 128), (256, 8, 8, 128)),
            ((1024, 16, 4, 128), (384, 6, 3, 128)),
        ],
    )
    def test_heads_that_do_not_add_up_to_the_width_have_their_own_factor(self, target, base):
        """With a = n/(heads × head_dim): (1 + √(r·a))/(1 + √a), the target's over the base's."""

        def factor(width: int, heads: int, kv_heads: int, head_dim: int) -> Decimal:
            a = Decimal(width) / (heads * head_dim)
            return (1 + root(heads // kv_heads * a)) / (1 + root(a))

        growth = Decimal(target[0]) / base[0]
        rate = factor(*target) / factor(*base) / growth
        plan = mupscale.plan(llama(*target), base=llama(*base))
        for parameter in (plan.parameters[self.KEY], plan.parameters[self.VALUE]):
            assert parameter.lr == float(rate)
            assert parameter.weight_decay == float(1 / rate)
            assert parameter.init_std == float(root(1 / growth))
