"""The norm of a unit step, measured on torch's own optimizers."""

import inspect
import math
import pkgutil

import pytest
import sympy
import torch

import mupscale.optim
from mupscale.errors import OptionError, UnknownNameError
from mupscale.theory import (
    OPTIMIZERS,
    RUNNABLE,
    StepSizes,
    derive,
    name_of_class,
    optimizer_named,
)

SHAPES = [(64, 64), (16, 64), (96, 32)]


def coherent_gradient(n_out: int, n_in: int) -> torch.Tensor:
    """A gradient of one direction, as from inputs that agree: rank one, entries of many sizes and
    both signs.
    """
    generator = torch.Generator().manual_seed(0)
    left, right = (
        torch.randn(size, 1, generator=generator, dtype=torch.float64) for size in (n_out, n_in)
    )
    return 1e-3 * left @ right.T


def step_norm(optimizer: type, gradient: torch.Tensor, W: torch.Tensor, **settings) -> float:
    weight = torch.nn.Parameter(W.clone())
    weight.grad = gradient.clone()
    optimizer([weight], **settings).step()
    return torch.linalg.matrix_norm(weight.detach() - W, 2).item()


def predicted(name: str, W: torch.Tensor, gradient: torch.Tensor) -> float:
    n_out, n_in = (sympy.Integer(size) for size in W.shape)
    rms = W.norm().item() / math.sqrt(W.numel())
    norm = torch.linalg.matrix_norm(gradient, 2).item()
    return float(
        OPTIMIZERS[name].step(StepSizes(n_out, n_in, rms, norm)) * OPTIMIZERS[name].constant
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("name", "optimizer", "settings", "tolerance"),
    [
        ("adamw", torch.optim.AdamW, {"lr": 1.0, "weight_decay": 0.0, "eps": 1e-30}, 1e-6),
        ("adam", torch.optim.Adam, {"lr": 1.0, "eps": 1e-30}, 1e-6),
        ("sgd", torch.optim.SGD, {"lr": 1.0}, 1e-9),
        ("momentum", torch.optim.SGD, {"lr": 1.0, "momentum": 0.9}, 1e-9),
        (
            "adafactor",
            torch.optim.Adafactor,
            {"lr": 1.0, "weight_decay": 0.0, "eps": (1e-12, 1e-12)},
            1e-6,
        ),
        # Newton–Schulz in bfloat16 leaves singular values between about 0.7 and 1.2.
        ("muon", torch.optim.Muon, {"lr": 1.0, "weight_decay": 0.0}, 0.3),
        (
            "muon-match-rms",
            torch.optim.Muon,
            {"lr": 1.0, "weight_decay": 0.0, "adjust_lr_fn": "match_rms_adamw"},
            0.3,
        ),
    ],
)
def test_a_unit_step_of_torch_has_the_stated_norm(name, optimizer, settings, tolerance, shape):
    gradient = coherent_gradient(*shape)
    W = torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    if name.startswith("muon"):
        gradient = gradient + 1e-2 * torch.randn(
            *shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64
        )
    assert step_norm(optimizer, gradient, W, **settings) == pytest.approx(
        predicted(name, W, gradient), rel=tolerance
    )


@pytest.mark.parametrize(("factor", "name"), [(4.0, "sgd"), (4.0, "adamw"), (4.0, "adafactor")])
def test_degrees_say_how_a_step_grows_with_gradient_and_weight(factor, name):
    optimizer, settings = {
        "sgd": (torch.optim.SGD, {"lr": 1.0}),
        "adamw": (torch.optim.AdamW, {"lr": 1.0, "weight_decay": 0.0, "eps": 1e-30}),
        "adafactor": (
            torch.optim.Adafactor,
            {"lr": 1.0, "weight_decay": 0.0, "eps": (1e-12, 1e-12)},
        ),
    }[name]
    gradient, W = coherent_gradient(16, 64), torch.ones(16, 64, dtype=torch.float64)
    plain = step_norm(optimizer, gradient, W, **settings)
    known = OPTIMIZERS[name]
    assert step_norm(optimizer, factor * gradient, W, **settings) == pytest.approx(
        plain * factor**known.gradient_degree
    )
    assert step_norm(optimizer, gradient, factor * W, **settings) == pytest.approx(
        plain * factor**known.weight_degree
    )


@pytest.mark.parametrize(
    ("name", "optimizer"), [("muon", torch.optim.Muon), ("adafactor", torch.optim.Adafactor)]
)
def test_torch_decays_by_the_raw_group_rate(name, optimizer):
    """So decay is the inverse of the group's rate, whatever the optimizer multiplies the step
    with.
    """
    W = torch.ones(8, 32, dtype=torch.float64)
    weight = torch.nn.Parameter(W.clone())
    weight.grad = torch.zeros_like(W)
    optimizer([weight], lr=0.5, weight_decay=0.1).step()
    assert torch.allclose(weight.detach(), W * (1 - 0.5 * 0.1))
    assert OPTIMIZERS[name].decay == "lr_coupled"


class Foreign:
    """Classes of packages that are not installed here, under their names."""

    @staticmethod
    def made(module: str, name: str, **attributes) -> torch.optim.Optimizer:
        cls = type(name, (torch.optim.Optimizer,), {"__module__": module, **attributes})
        return cls([torch.nn.Parameter(torch.zeros(2, 2))], {})


def made(cls: type, **settings) -> torch.optim.Optimizer:
    return cls([torch.nn.Parameter(torch.zeros(2, 2))], lr=0.1, **settings)


class TestByClass:
    """plan(optimizer=torch.optim.AdamW) ended in AttributeError: type object 'AdamW' has no
    attribute 'name'.
    """

    @pytest.mark.parametrize(
        ("given", "name"),
        [
            (torch.optim.AdamW, "adamw"),
            (torch.optim.Adam, "adam"),
            (torch.optim.SGD, "sgd"),
            (torch.optim.Adafactor, "adafactor"),
            (torch.optim.Muon, "muon"),
            (mupscale.optim.Muon, "muon"),
            (mupscale.optim.Lion, "lion"),
            (type("Mine", (torch.optim.AdamW,), {}), "adamw"),
            (made(torch.optim.AdamW), "adamw"),
            (made(torch.optim.Adam), "adam"),
            (made(torch.optim.Adam, decoupled_weight_decay=True), "adamw"),
            (made(torch.optim.SGD), "sgd"),
            (made(torch.optim.SGD, momentum=0.9), "momentum"),
            (made(torch.optim.Muon, adjust_lr_fn="original"), "muon"),
            (made(torch.optim.Muon, adjust_lr_fn="match_rms_adamw"), "muon-match-rms"),
            (made(mupscale.optim.Muon, adjust_lr_fn="spectral"), "muon-spectral"),
            (Foreign.made("bitsandbytes.optim.adamw", "PagedAdamW8bit"), "adamw"),
            (
                Foreign.made("bitsandbytes.optim.adam", "Adam8bit"),
                "adamw",
            ),  # its kernel decouples decay
            (Foreign.made("torchao.optim.adam", "AdamW4bit"), "adamw"),
            (Foreign.made("torchao.optim.adam", "AdamWFp8"), "adamw"),
            (Foreign.made("torchao.optim.adam", "Adam8bit"), "adam"),
            (Foreign.made("apex.optimizers.fused_adam", "FusedAdam", adam_w_mode=1), "adamw"),
            (Foreign.made("apex.optimizers.fused_adam", "FusedAdam", adam_w_mode=0), "adam"),
            (
                Foreign.made("deepspeed.ops.adam.cpu_adam", "DeepSpeedCPUAdam", adam_w_mode=True),
                "adamw",
            ),
            (Foreign.made("lion_pytorch.lion_pytorch", "Lion"), "lion"),
        ],
        ids=lambda value: (
            value if isinstance(value, str) else getattr(value, "__name__", type(value).__name__)
        ),
    )
    def test_a_class_or_an_optimizer_is_taken_for_what_it_computes(self, given, name):
        assert optimizer_named(given).name == name
        assert derive("dense", given).lr == derive("dense", name).lr

    @pytest.mark.parametrize(
        "given",
        [
            torch.optim.NAdam,
            torch.optim.RMSprop,
            Foreign.made(
                "muon", "Muon"
            ),  # by how much it lengthens its steps is another matter in each package
            Foreign.made("transformers.optimization", "Adafactor"),
            Foreign.made("schedulefree", "AdamWScheduleFree"),
        ],
    )
    def test_one_that_is_not_known_is_named_with_what_to_do(self, given):
        name = getattr(given, "__name__", type(given).__name__)
        with pytest.raises(
            OptionError, match=rf"optimizer=[\w.]*{name} is not .*Name the one .*adamw, adam"
        ):
            optimizer_named(given)

    @pytest.mark.parametrize("given", [None, 3, 0.1])
    def test_what_is_no_optimizer_at_all(self, given):
        with pytest.raises(OptionError, match=f"optimizer={given} is not an optimizer"):
            optimizer_named(given)


class TestRegistry:
    """A row's class exists, and has the settings and defaults that the row says."""

    @pytest.mark.parametrize("name", RUNNABLE)
    def test_the_class_of_a_row_has_its_settings_and_defaults(self, name):
        row = OPTIMIZERS[name]
        arguments = inspect.signature(pkgutil.resolve_name(row.torch_class)).parameters
        for setting in ("betas", "eps"):
            default = getattr(row, setting)
            assert (setting in arguments) == (default is not None)
            assert default is None or arguments[setting].default == default
        assert set(row.settings) <= set(arguments)
        assert ("momentum" in arguments) or not row.momentum

    @pytest.mark.parametrize("name", RUNNABLE)
    def test_an_optimizer_built_from_a_row_is_known_by_the_name_of_the_row(self, name):
        row = OPTIMIZERS[name]
        momentum = {"momentum": 0.9} if row.momentum else {}
        built = made(pkgutil.resolve_name(row.torch_class), **row.settings, **momentum)
        assert name_of_class(built) == name

    def test_optimizers_without_a_class_cannot_run(self):
        assert set(OPTIMIZERS) - set(RUNNABLE) == {
            "signsgd", "adafactor", "adafactor-unscaled", "shampoo", "shampoo-grafted",
        }  # fmt: skip

    def test_an_unknown_name_raises(self):
        with pytest.raises(UnknownNameError, match="unknown optimizer 'adanw'"):
            optimizer_named("adanw")
