"""What a forward pass on the meta device shows, against what the numbers of the same model do when
they are changed.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import gelu, layer_norm, normalize, scaled_dot_product_attention

from mupscale.reading import Reading, read
from mupscale.reading.measuring import Measured
from mupscale.reading.running import follow, trace
from mupscale.reading.traces import ForwardTrace, TraceFailed

WIDTH, WORDS = 16, 23


class Rms(nn.Module):
    """A norm that acts as a·w + b."""

    def __init__(self, width: int, a: float = 1.0, b: float = 0.0) -> None:
        super().__init__()
        self.a, self.b = a, b
        self.w = nn.Parameter(torch.randn(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * (self.a * self.w + self.b)


class ByLength(Rms):
    def forward(self, x):
        return normalize(x, dim=-1) * x.shape[-1] ** 0.5 * (self.b + self.w * self.a)


class Layer(Rms):
    def forward(self, x):
        return layer_norm(x, x.shape[-1:], self.a * self.w + self.b)


class ByStatistics(Rms):
    def forward(self, x):
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.var(-1, keepdim=True) + 1e-5).sqrt() * (self.b + self.a * self.w)


class Chosen(Rms):
    """litgpt's way to write it: which of the two it is depends on a setting."""

    def forward(self, x):
        x = (x.float() / torch.sqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
        return x * (1 + self.w) if self.b else x * self.w


class Tiny(nn.Module):
    """A norm between an embedding and a readout."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.table, self.thing = nn.Embedding(WORDS, WIDTH), norm
        self.out = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens):
        return self.out(self.thing(self.table(tokens)))


@pytest.mark.parametrize("kind", [Rms, ByLength, Layer, ByStatistics, Chosen])
@pytest.mark.parametrize(("a", "b"), [(1.0, 0.0), (1.0, 1.0), (2.0, 1.0), (0.5, -3.0)])
def test_a_gain_of_minus_its_offset_silences_the_norm(kind, a, b):
    if kind is Chosen and (a, b) not in ((1.0, 0.0), (1.0, 1.0)):
        pytest.skip("it has no such setting")
    model = Tiny(kind(WIDTH, a, b)).double()
    fact = read(model).parameters["thing.w"]
    assert fact.role == "gain"
    assert fact.offset == pytest.approx(b / a)
    x = torch.randn(3, WIDTH, dtype=torch.double)
    loud = model.thing(x)
    with torch.no_grad():
        model.thing.w.fill_(-fact.offset)
    assert model.thing(x).abs().max() < 1e-12 < loud.abs().max()


class Scaled(nn.Module):
    """A block with constants in its forward pass, written in several ways."""

    def __init__(
        self, table: float, branch: float, logits: float, how: str, depth: int = 2
    ) -> None:
        super().__init__()
        self.c_table, self.c_branch, self.c_logits, self.how = table, branch, logits, how
        self.register_buffer("buffered", torch.tensor(table), persistent=False)
        self.tok = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {"n": nn.RMSNorm(WIDTH), "up": nn.Linear(WIDTH, 32), "back": nn.Linear(32, WIDTH)}
            )
            for _ in range(depth)
        )
        self.last, self.out = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def stream(self, x):
        return {
            "number": lambda: x * self.c_table,
            "tensor": lambda: x * torch.tensor(self.c_table, dtype=x.dtype),
            "buffer": lambda: x * self.buffered,
            "division": lambda: x / (1 / self.c_table),
            "in place": lambda: x.clone().mul_(self.c_table),
        }[self.how]()

    def forward(self, tokens):
        x = self.stream(self.tok(tokens))
        for block in self.blocks:
            x = x + self.c_branch * block["back"](gelu(block["up"](block["n"](x))))
        return self.out(self.last(x) * math.sqrt(self.c_logits)) * math.sqrt(self.c_logits)


@pytest.mark.parametrize("how", ["number", "tensor", "buffer", "division", "in place"])
def test_constants_are_those_that_a_change_of_the_weights_meets(how):
    model = Scaled(table=8.0, branch=0.25, logits=0.5, how=how).double()
    facts = read(model).parameters
    tokens = torch.arange(4)[None]
    entered = {}
    handle = model.blocks[0]["n"].register_forward_pre_hook(
        lambda _, given: entered.update(x=given[0].detach())
    )
    model(tokens)
    ratio = entered["x"] / model.tok(tokens)
    assert (
        facts["tok.weight"].forward_multiplier
        == pytest.approx(float(ratio.detach().mean()), rel=1e-12)
        == 8.0
    )
    handle.remove()
    end = facts["blocks.1.back.weight"]
    handle = model.last.register_forward_pre_hook(
        lambda _, given: entered.update(x=given[0].detach())
    )
    before = (model(tokens), entered["x"])[1]
    with torch.no_grad():
        model.blocks[1]["back"].bias += 1.0
    after = (model(tokens), entered["x"])[1]
    handle.remove()
    assert end.output
    assert (
        end.forward_multiplier == pytest.approx(float((after - before).mean()), rel=1e-12) == 0.25
    )
    plain = model.out(model.last(after))
    assert (
        facts["out.weight"].forward_multiplier
        == pytest.approx(float((model(tokens) / plain).detach().mean()))
        == 0.5
    )


HOW = ("torch", "plain", "complex")


class Mixed(nn.Module):
    """Attention from one matrix whose rows are in any order: head_dim rows for each of q, k and v
    of each head.
    """

    def __init__(
        self, order: list[tuple[str, int]], heads: int, kv_heads: int, how: str, head: int = 4
    ) -> None:
        super().__init__()
        self.order, self.heads, self.kv_heads, self.head, self.how = (
            order,
            heads,
            kv_heads,
            head,
            how,
        )
        width = heads * head
        self.tok = nn.Embedding(WORDS, width)
        self.blocks = nn.ModuleList([nn.Module()])
        self.blocks[0].mix = nn.Linear(width, len(order) * head, bias=False)
        self.blocks[0].back = nn.Linear(width, width, bias=False)
        self.blocks[0].n, self.last = nn.LayerNorm(width), nn.LayerNorm(width)
        self.out = nn.Linear(width, WORDS, bias=False)

    def forward(self, tokens):
        x = self.tok(tokens)
        block = self.blocks[0]
        pieces = block.mix(block.n(x)).split(self.head, dim=-1)
        parts = {
            name: torch.stack([pieces[self.order.index((name, k))] for k in range(count)], dim=1)
            for name, count in (("q", self.heads), ("k", self.kv_heads), ("v", self.kv_heads))
        }
        q, k, v = parts["q"], parts["k"], parts["v"]
        if self.how == "complex":  # a rotation of pairs, as in torchtitan's Llama
            places = torch.arange(q.shape[-2])[:, None] * torch.arange(1, self.head // 2 + 1)
            turn = torch.polar(torch.ones(places.shape), 0.3 * places)
            turn = turn.to(torch.complex128 if q.dtype == torch.double else torch.complex64)
            q, k = (
                torch.view_as_real(
                    torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * turn
                ).flatten(-2)
                for x in (q, k)
            )
        r = self.heads // self.kv_heads
        if self.how == "torch":
            y = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            k, v = k.repeat_interleave(r, dim=1), v.repeat_interleave(r, dim=1)
            scores = (q @ k.mT) / self.head**0.5
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
            y = scores.masked_fill(mask, float("-inf")).softmax(-1) @ v
        y = y.transpose(1, 2).flatten(2)
        return self.out(self.last(x + block.back(y)))


def rows_by_changing_them(model: Mixed) -> dict[str, set[int]]:
    """Which rows are queries, keys and values, by what changes after attention when one row's
    output changes.

    A query at one position changes that position alone. A key or value there also changes later
    ones: in proportion to the change for a value, and not so for a key.
    """
    found = {"query": set(), "key": set(), "value": set()}
    block, tokens = model.blocks[0], torch.arange(6)[None]
    seen = {}
    block.back.register_forward_pre_hook(lambda _, given: seen.update(y=given[0].detach()))

    def changed(row: int, by: float) -> torch.Tensor:
        def add(_, __, output):
            output = output.clone()
            output[:, 2, row] += by
            return output

        handle = block.mix.register_forward_hook(add)
        model(tokens)
        handle.remove()
        return seen["y"]

    for row in range(block.mix.out_features):
        none, one, two = (changed(row, by) for by in (0.0, 0.7, 1.4))
        later = (one - none)[:, 3:]
        if later.abs().max() < 1e-12:
            found["query"].add(row)
        elif torch.allclose((two - none)[:, 3:], 2 * later, atol=1e-10):
            found["value"].add(row)
        else:
            found["key"].add(row)
    return found


@settings(max_examples=12, deadline=None)
@given(
    data=st.data(),
    shape=st.sampled_from([(2, 2), (4, 2), (4, 1), (3, 1)]),
    how=st.sampled_from(HOW),
)
def test_rows_of_a_fused_matrix_are_those_that_act_as_queries_keys_and_values(data, shape, how):
    heads, kv_heads = shape
    parts = [("q", k) for k in range(heads)] + [(name, k) for name in "kv" for k in range(kv_heads)]
    model = Mixed(data.draw(st.permutations(parts)), heads, kv_heads, how).double()
    fact = read(model).parameters["blocks.0.mix.weight"]
    assert (fact.role, fact.repetitions) == ("fused_qkv", heads // kv_heads)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.7)
    rows = {
        block.role: {row for slice_ in block.slices for row in range(*slice_)}
        for block in fact.blocks
    }
    assert rows == rows_by_changing_them(model)


class Looks(nn.Module):
    """Code that looks at numbers, which the meta device does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Scaled(2.0, 1.0, 1.0, "number")

    def forward(self, tokens):
        return self.inner(tokens) * (2.0 if float(tokens.sum()) > -1 else 1.0)


def test_a_small_model_that_does_not_run_on_the_meta_device_runs_on_the_cpu():
    model = Looks()
    failed = trace(model, Reading(), "meta")
    assert isinstance(failed, TraceFailed)
    assert "meta" in failed.error
    seen = follow(model, Reading())
    assert isinstance(seen, ForwardTrace)
    assert seen.device == "cpu"
    assert Measured(seen).readouts == {"inner.out.weight": 2.0}


def test_the_cpu_pass_leaves_weights_and_random_numbers_alone():
    model = Looks()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    assert read(model).followed
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert not any(p.grad is not None for p in model.parameters())


def test_a_layer_that_runs_three_times_counts_as_three():
    class Shared(Scaled):
        def forward(self, tokens):
            x = self.tok(tokens)
            for _ in range(3):
                block = self.blocks[0]
                x = x + block["back"](gelu(block["up"](block["n"](x))))
            return self.out(self.last(x))

    assert read(Shared(1.0, 1.0, 1.0, "number", depth=1)).depth == 3
    assert read(Scaled(1.0, 1.0, 1.0, "number", depth=3)).depth == 3


def by_embedding(table: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.embedding(tokens, table)


def by_index(table: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return table[tokens]


def by_selection(table: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return table.index_select(0, tokens.flatten()).unflatten(0, tokens.shape)


class LookedUp(nn.Module):
    """A table by one of three ways to look up, and a branch behind it."""

    def __init__(self, way) -> None:
        super().__init__()
        self.way = way
        self.book = nn.Parameter(torch.randn(WORDS, WIDTH))
        self.norm, self.end = Rms(WIDTH), Rms(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens):
        x = self.way(self.book, tokens)
        return self.out(self.end(x + self.down(gelu(self.up(self.norm(x))))))


@pytest.mark.parametrize("way", [by_index, by_selection])
def test_a_table_is_looked_up_however_that_is_written(way):
    """table[tokens] was taken for the model's own input, and the first matrix behind it for an
    embedding.
    """
    facts, same = read(LookedUp(way)), read(LookedUp(by_embedding))
    assert {name: fact.role for name, fact in facts.parameters.items()} == {
        name: fact.role for name, fact in same.parameters.items()
    }
    assert facts.parameters["book"].role == "embedding"
    assert facts.parameters["up.weight"].role in ("hidden", "mlp_in")


class Conditioned(nn.Module):
    """A block as in diffusion transformers: a vector from outside shifts, scales and gates what the
    branches take.
    """

    def __init__(self, depth: int = 2) -> None:
        super().__init__()
        self.inward, self.last = nn.Linear(5, WIDTH), nn.LayerNorm(WIDTH, elementwise_affine=False)
        self.blocks = nn.ModuleList(nn.Module() for _ in range(depth))
        for block in self.blocks:
            block.six = nn.Linear(3, 3 * WIDTH)
            block.n, block.up = nn.LayerNorm(WIDTH, elementwise_affine=False), nn.Linear(WIDTH, 32)
            block.m, block.back = (
                nn.LayerNorm(WIDTH, elementwise_affine=False),
                nn.Linear(32, WIDTH),
            )
            block.more, block.less = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)
        self.out = nn.Linear(WIDTH, 5)

    def forward(self, x, told):
        x = self.inward(x)
        for block in self.blocks:
            shift, scale, gate = block.six(gelu(told))[:, None].chunk(3, dim=-1)
            x = x + gate * block.back(gelu(block.up(block.n(x) * (1 + scale) + shift)))
            x = x + gate * block.less(gelu(block.more(block.m(x) * (1 + scale) + shift)))
        return self.out(self.last(x))


def test_a_norm_of_the_stream_is_no_post_norm_whatever_shifts_it():
    inputs = (torch.randn(2, 3, 5), torch.randn(2, 3))
    facts = read(Conditioned(), inputs=inputs).parameters
    ends = {name for name, fact in facts.items() if fact.output and name.endswith("weight")}
    assert ends == {f"blocks.{k}.{name}.weight" for k in range(2) for name in ("back", "less")}
    assert not any(fact.normed_by for fact in facts.values())
    assert facts["inward.weight"].role == "embedding"


def test_what_tokens_choose_is_not_the_models_input():
    class Pooled(Scaled):
        def __init__(self):
            super().__init__(1.0, 1.0, 1.0, "number")
            self.projection = nn.Linear(WIDTH, WIDTH, bias=False)

        def forward(self, tokens):
            x = self.tok(tokens)
            for block in self.blocks:
                x = x + block["back"](gelu(block["up"](block["n"](x))))
            pooled = self.last(x)[torch.arange(x.shape[0]), tokens.argmax(-1)]
            return self.out(gelu(self.projection(pooled)))

    assert read(Pooled()).parameters["projection.weight"].role == "hidden"


def test_a_parameter_that_changes_nothing_is_said_to():
    class Unheard(Scaled):
        def __init__(self):
            super().__init__(1.0, 1.0, 1.0, "number")
            self.blocks[0]["fc1"] = nn.Linear(WIDTH, 8)

        def forward(self, tokens):
            self.blocks[0]["fc1"](self.tok(tokens))
            return super().forward(tokens)

    facts = read(Unheard()).parameters
    assert facts["blocks.0.fc1.bias"].evidence.endswith("it does not change the output")
    assert "does not change" not in facts["blocks.0.up.bias"].evidence
