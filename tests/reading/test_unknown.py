"""Errors that name what is not understood: the advice in them must not break the model that follows
it.
"""

import re
import tomllib

import pytest
import torch
import transformers
from torch import nn
from torch.nn.functional import relu

import mupscale as mu
from mupscale.errors import UnreadableModelError
from mupscale.reading import ROLES, Reading, read


class Odd(nn.Module):
    """A block with a gain of no norm that anybody knows, a matrix that chooses, and a vector used
    in an odd way.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.tok = nn.Embedding(31, width)
        self.blocks = nn.ModuleList([nn.Module(), nn.Module()])
        for block in self.blocks:
            block.strength = nn.Parameter(torch.ones(width))
            block.rate = nn.Parameter(torch.zeros(width))
            block.pick = nn.Linear(width, 3, bias=False)
            block.up, block.down = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)
        self.out = nn.Linear(width, 31, bias=False)

    def forward(self, tokens):
        x = self.tok(tokens)
        for block in self.blocks:
            y = (
                x
                / x.norm(dim=-1, keepdim=True)
                * block.strength
                * torch.exp(-torch.exp(block.rate))
            )
            share = torch.softmax(block.pick(y), -1).repeat_interleave(x.shape[-1], -1)
            x = x + block.down(relu(block.up(y)) * share)
        return self.out(x)


def refusal(model: nn.Module, **said) -> str:
    with pytest.raises(UnreadableModelError) as caught:
        read(model, **said)
    return str(caught.value)


def block_of(message: str) -> str:
    return message[message.index("[reading.roles]") : message.index("\n\nReplace each ROLE")]


class TestTheBlock:
    def test_it_names_what_is_open_and_leaves_the_role_open(self):
        """Version 0.1 proposed "hidden" for whatever came first, which on a gain gave N(0, 0.02²)
        and decay.
        """
        message = refusal(Odd(12))
        roles = tomllib.loads(block_of(message))["reading"]["roles"]
        assert roles == {"blocks.*.rate": "ROLE", "blocks.*.pick.weight": "ROLE"}
        assert '= "hidden"' not in message
        assert set(re.search(r"Roles: (.*)\.", message)[1].split(", ")) == set(ROLES)

    def test_it_says_what_was_seen_of_each(self):
        rows = dict(re.findall(r'"(\S+)" = "ROLE"  # (.*)', refusal(Odd(12))))
        assert rows["blocks.*.pick.weight"].startswith(
            "3×12 × 2: multiplies; its 3 outputs go into a softmax"
        )
        assert rows["blocks.*.rate"].startswith("12 × 2: enters through an operation")

    def test_pasted_with_its_roles_it_works(self, tmp_path):
        text = block_of(refusal(Odd(24)))
        text = text.replace('"blocks.*.rate" = "ROLE"', '"blocks.*.rate" = "bias"').replace(
            '"ROLE"', '"router"'
        )
        (tmp_path / "mupscale.toml").write_text(text)
        plan = mu.plan(Odd(24), base=Odd(12), reading=Reading.load(tmp_path / "mupscale.toml"))
        assert plan.evidence["blocks.*.pick.weight"] == "router: you"
        assert plan.evidence["blocks.*.strength"].startswith("gain: a forward pass")
        assert plan.parameters["blocks.0.up.weight"].lr == 1 / 2

    def test_mamba_is_refused_without_advice_for_its_state(self):
        config = transformers.MambaConfig(
            hidden_size=32, num_hidden_layers=2, vocab_size=50, state_size=4
        )
        with torch.device("meta"):
            model = transformers.MambaForCausalLM(config)
        message = refusal(model)
        assert '"backbone.layers.*.mixer.A_log" = "ROLE"' in message
        assert "hidden" not in message.replace(f"Roles: {', '.join(ROLES)}", "")


OPEN = {"blocks.*.rate": "bias", "blocks.*.pick.weight": "router"}


class TestRolesThatCannotBe:
    @pytest.mark.parametrize("role", ["hidden", "mlp_in", "embedding", "readout", "key"])
    def test_a_vector_is_no_matrix(self, role):
        message = refusal(Odd(12), roles=OPEN | {"blocks.*.strength": role})
        assert f"you say {role}; in a forward pass it is a vector of shape (12,)" in message

    def test_a_kernel_that_filters_each_channel_is_not_hidden(self):
        class Filtered(Odd):
            def __init__(self, width):
                super().__init__(width)
                self.filter = nn.Conv1d(width, width, 3, groups=width, padding=1)

            def forward(self, tokens):
                return super().forward(tokens) + self.out(self.filter(self.tok(tokens).mT).mT)

        roles = {"filter.weight": "hidden", **OPEN}
        message = refusal(Filtered(12), roles=roles)
        assert (
            "filter.weight (12, 1, 3): you say hidden; in a forward pass it filters each channel "
            "by itself" in message
        )
        assert read(Filtered(12), roles=OPEN).parameters["filter.weight"].role == "depthwise"

    def test_a_role_that_a_forward_pass_contradicts_shows_both(self):
        message = refusal(Odd(12), roles=OPEN | {"out.weight": "mlp_out"})
        assert (
            "out.weight (31, 12): you say mlp_out; in a forward pass it multiplies, and the model "
            "returns" in message
        )

    def test_one_may_insist(self):
        facts = read(Odd(12), roles=OPEN | {"out.weight": "router!"}).parameters
        assert (facts["out.weight"].role, facts["out.weight"].evidence) == ("router", "you")

    def test_a_name_that_a_forward_pass_contradicts_shows_both(self):
        """`wo` is no branch's end here: it makes queries, and our vocabulary would have scaled it
        by 1/L.
        """

        class Misnamed(nn.Module):
            def __init__(self, width=16):
                super().__init__()
                self.tok, self.out = nn.Embedding(31, width), nn.Linear(width, 31, bias=False)
                self.blocks = nn.ModuleList([nn.Module()])
                for name in ("wo", "wk", "wv", "back"):
                    setattr(self.blocks[0], name, nn.Linear(width, width, bias=False))

            def forward(self, tokens):
                x, block = self.tok(tokens), self.blocks[0]
                q, k, v = (getattr(block, name)(x)[:, None] for name in ("wo", "wk", "wv"))
                return self.out(
                    x + block.back(nn.functional.scaled_dot_product_attention(q, k, v)[:, 0])
                )

        message = refusal(Misnamed())
        assert (
            "wo.weight (16, 16): the name says attention_output; in a forward pass it gives the "
            "queries" in message
        )
        assert (
            read(Misnamed(), roles={"*.wo.weight": "query"}).parameters["blocks.0.wo.weight"].role
            == "query"
        )
