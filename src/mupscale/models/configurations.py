"""Named shapes of the reference GPT: the paper's, and ours where the paper says nothing. `source`
tells which.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from mupscale.errors import UnknownNameError
from mupscale.models.gpt import GPTConfig

_PAPER = "GQA-μP, arXiv 2605.15290"


@dataclass(frozen=True)
class Configuration:
    """A shape with its name, where it comes from, and how long it is trained."""

    name: str
    model: GPTConfig
    source: str
    tokens_per_parameter: int | None = None
    """Training tokens for each non-embedding parameter; None where it is not trained to such a
    number.
    """


def configuration(name: str) -> Configuration:
    """The configuration of that name.

    >>> configuration("kvr_2").model.repetitions
    6
    >>> configuration("jwd-smal")
    Traceback (most recent call last):
    mupscale.errors.UnknownNameError: unknown configuration 'jwd-smal'. Did you mean 'jwd-small'? Known: ...
    """
    if name not in CONFIGURATIONS:
        raise UnknownNameError("configuration", name, CONFIGURATIONS)
    return CONFIGURATIONS[name]


def ablation(n_kv_heads: int) -> Configuration:
    """The GQA ablation: 768 wide, 7 deep, 12 heads, and 10 tokens a parameter. The name counts
    key/value heads.
    """
    shape = GPTConfig(width=768, depth=7, n_heads=12, n_kv_heads=n_kv_heads, vocabulary=50304)
    return Configuration(
        f"kvr_{n_kv_heads}", shape, f"{_PAPER}, table of the GQA transfer experiments", 10
    )


def weight_decay(size: str, width: int, depth: int) -> Configuration:
    """The sweep of rate and decay: heads of 64 without sharing, and 3 tokens a parameter."""
    shape = GPTConfig(width=width, depth=depth, n_heads=width // 64, vocabulary=50257)
    return Configuration(
        f"jwd-{size}", shape, f"{_PAPER}, table of the weight-decay experiments", 3
    )


def coordinate_check(n_kv_heads: int) -> Configuration:
    """The coordinate check: 12 heads of 64, as printed, though that is 768 and the width 576."""
    shape = GPTConfig(
        width=576, depth=8, n_heads=12, n_kv_heads=n_kv_heads, head_dim=64, context=1024
    )
    source = f"{_PAPER}, table of the coordinate checks; the vocabulary of 50304 is ours"
    return Configuration(f"coordinate_{n_kv_heads}", shape, source)


def quick_check() -> Configuration:
    """The coordinate check in a minute: as the paper's, thinner and shallower, over bytes."""
    shape = GPTConfig(width=192, depth=2, n_heads=12, head_dim=64, vocabulary=256, context=1024)
    return Configuration("check", shape, "ours: the paper's coordinate check in small")


def quick_study() -> Configuration:
    """A sweep that one core can do: 12 heads, as the paper's ablation has, over bytes, two tokens a
    parameter.
    """
    shape = GPTConfig(width=96, depth=2, n_heads=12, head_dim=8, vocabulary=256, context=64)
    return Configuration("study", shape, "ours: the paper's ablation of r in small")


def proxy_136m(repetitions: int) -> Configuration:
    """A proxy of the 20-TPP experiment. The paper prints its size and r alone: the shape is ours.

    16 heads of 64, so that r = 8 is possible. 139.6, 132.3, 128.6 and 126.8 million non-embedding
    parameters at r = 1, 2, 4 and 8.
    """
    shape = GPTConfig(width=1024, depth=7, n_heads=16, n_kv_heads=16 // repetitions)
    return Configuration(f"136m_r{repetitions}", shape, _ours("136M"), 20)


def target_1200m() -> Configuration:
    """The target of the 20-TPP experiment, 1.16 billion non-embedding parameters. The shape is
    ours, as the proxy's.
    """
    shape = GPTConfig(width=2048, depth=24, n_heads=32, n_kv_heads=8)
    return Configuration("1.2b_r4", shape, _ours("1.2B"), 20)


def _ours(size: str) -> str:
    return f"ours: the paper says {size} and r, and prints no shape"


def cpu(width: int, repetitions: int) -> Configuration:
    """Small enough for one core: bytes, heads of 16, 4 deep, 128 tokens of context."""
    heads = width // 16
    shape = GPTConfig(
        width=width, depth=4, n_heads=heads, n_kv_heads=heads // repetitions, vocabulary=256, context=128
    )  # fmt: skip
    return Configuration(f"cpu_{width}_r{repetitions}", shape, "ours: for experiments on one core")


_CPU_REPETITIONS = {
    32: (1, 2),
    64: (1, 2, 4),
    96: (1, 2, 3, 6),
    128: (1, 2, 4, 8),
    192: (1, 2, 3, 4, 6, 12),
}
"""Every r that the number of heads allows. 192 has 12 heads, as the paper's models have."""

_ALL = (
    *(ablation(n_kv_heads) for n_kv_heads in (1, 2, 3, 4, 6, 12)),
    weight_decay("small", 384, 4),
    weight_decay("medium", 768, 6),
    weight_decay("large", 1024, 10),
    *(coordinate_check(n_kv_heads) for n_kv_heads in (1, 2, 3, 4, 6, 12)),
    quick_check(),
    quick_study(),
    *(proxy_136m(repetitions) for repetitions in (1, 2, 4, 8)),
    target_1200m(),
    *(
        cpu(width, repetitions)
        for width, allowed in _CPU_REPETITIONS.items()
        for repetitions in allowed
    ),
)
CONFIGURATIONS: Mapping[str, Configuration] = MappingProxyType({one.name: one for one in _ALL})
"""All of them by name."""
