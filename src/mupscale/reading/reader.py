"""`read`: from a module to one fact for each of its parameters, or a refusal that names those it does not know."""

import fnmatch
import functools
import inspect
import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from torch import nn

from mupscale.errors import OptionError, UnknownNameError, UnreadableModelError
from mupscale.reading.config import ConfigFacts, config_facts
from mupscale.reading.dataflow import watch
from mupscale.reading.facts import BRANCH_OUTPUTS, ROLES, Block, ModelFacts, ParameterFact, Role
from mupscale.reading.saying import Inputs, Reading
from mupscale.reading.structure import Entry, bare, bare_name, entries
from mupscale.reading.vocabulary import Layout, fused_layout, matrix_role, outer_matrix_role

_POSITION = re.compile(r"pos(?:ition|itional)?s?(?:$|[._]?emb|[._])|wpe|embed_positions", re.IGNORECASE)
_VECTORS = re.compile(r"bias$|sinks?$")


def read(
    model: nn.Module,
    *,
    reading: Reading | None = None,
    roles: Mapping[str, str] | None = None,
    ignore: Collection[str] = (),
    inputs: Inputs | None = None,
) -> ModelFacts:
    """What each parameter of a model is. `roles` settles what is unclear: {"*.mixer.in_proj.weight": "hidden"}.

    `ignore` names keys of the config that look like multipliers and do not change with width or depth. `inputs` are
    arguments of the forward pass, for a model that is not called with tokens alone. `reading` holds the three as one
    value. Works on the meta device and through DistributedDataParallel, torch.compile and FSDP2.
    """
    reading = (reading or Reading()) | Reading(roles or {}, tuple(ignore), inputs)
    roles, ignore = reading.roles, reading.ignore
    model = bare(model)
    found = list(entries(model))
    output = cast(Any, model).get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    reader = _Reader(type(model).__name__, found, config_facts(model, ignore), _chosen(found, roles or {}), output)
    return _with_dataflow(model, reader.facts(), {entry.name: entry for entry in found}, reading)


def _with_dataflow(model: nn.Module, facts: ModelFacts, found: Mapping[str, Entry], reading: Reading) -> ModelFacts:
    ends = [name for name, fact in facts.parameters.items() if fact.role in BRANCH_OUTPUTS]
    seen = watch(model, {name: _enclosing(found[name]) for name in ends}, reading)
    if seen is None:
        if reading.inputs is not None:
            raise UnreadableModelError(
                f"{type(model).__name__} cannot be run with the inputs given, on the meta device. Leave them out, or "
                "give the arguments of its forward pass: a tuple, or a mapping by name."
            )
        return facts
    final = facts.final_gain if facts.final_gain and found[facts.final_gain].path == seen.last_norm else None
    named = {
        name: replace(fact, normed_by=_bare_path(seen.norm_after.get(name))) for name, fact in facts.parameters.items()
    }
    return replace(facts, parameters=named, final_gain=final, watched=True)


def _bare_path(path: str | None) -> str | None:
    return None if path is None else bare_name(f"{path}.").removesuffix(".")


def _enclosing(entry: Entry) -> list[str]:
    """The owner of a matrix; of one in a mixture of experts, also the modules in the block that mix it with others.

    Only there: elsewhere an enclosing module may add the residual stream before it returns, as Bloom's do.
    """
    parts = entry.path.split(".")
    outside = len(parts) - (len(entry.inside.split(".")) if "expert" in entry.inside else 1)
    return [".".join(parts[:k]) for k in range(len(parts), outside, -1)]


def _chosen(found: Sequence[Entry], roles: Mapping[str, str]) -> dict[str, Role]:
    """The user's roles by parameter; a pattern that matches nothing, or two that match one parameter, raise."""
    chosen: dict[str, tuple[str, Role]] = {}
    for pattern, role in roles.items():
        if role not in ROLES:
            raise UnknownNameError("role", role, ROLES)
        names = [entry.name for entry in found if fnmatch.fnmatchcase(entry.name, pattern)]
        if not names:
            near = ", ".join(sorted({entry.template for entry in found})[:3])
            raise OptionError(f"roles: the pattern {pattern!r} matches no parameter. Names look like {near}.")
        for name in names:
            if name in chosen:
                other = chosen[name][0]
                raise OptionError(f"roles: both {other!r} and {pattern!r} match {name}. Make one of them narrower.")
            chosen[name] = (pattern, role)
    return {name: role for name, (_, role) in chosen.items()}


@dataclass
class _Reader:
    model: str
    found: Sequence[Entry]
    config: ConfigFacts
    chosen: Mapping[str, Role]
    output: nn.Module | None
    """The readout, where the model says which module that is."""

    def facts(self) -> ModelFacts:
        self.tokens = self._token_embedding()
        embedded, self.vocabulary = self._fans(self.tokens, "embedding")
        self.width = self.config.width or embedded
        self.depths = self._depths()
        self.linears = [e for e in self.found if e.stack is None and e.kind == "linear" and e.leaf == "weight"]
        roles: dict[str, Role | None] = {entry.name: self._role(entry) for entry in self.found}
        self._refuse([entry for entry in self.found if roles[entry.name] is None])
        self.matrices = {entry.path: roles[entry.name] for entry in self.found if len(entry.shape) > 1}
        blocks = [entry for entry in self.found if entry.stack is not None]
        self.fans = {size for entry in blocks if len(entry.shape) > 1 for size in entry.shape[-2:]}
        facts = {entry.name: self._fact(entry, roles[entry.name]) for entry in self.found}
        facts = self._with_repetitions(facts)
        self._check(facts)
        gains = [e.name for e in self.found if e.stack is None and roles[e.name] == "gain" and e.shape == (self.width,)]
        config = self.config
        return ModelFacts(
            facts, self.width, max(self.depths.values(), default=0), config.heads, config.kv_heads, config.head_dim,
            gains[-1] if gains else None, readout_multiplier=config.readout_multiplier, settings=config.settings,
            readout_module=self._readout_module(facts),
        )  # fmt: skip

    def _readout_module(self, facts: Mapping[str, ParameterFact]) -> str | None:
        names = [fact.name for fact in facts.values() if fact.role == "readout"] or self.tokens.tied
        return names[-1].rpartition(".")[0] if names else None

    def _token_embedding(self) -> Entry:
        tables = [e for e in self.found if e.kind == "embedding" and e.stack is None and not _POSITION.search(e.name)]
        tables = [e for e in self.found if self.chosen.get(e.name) == "embedding"] or tables
        if not tables:
            raise UnreadableModelError(
                f"{self.model} has no token embedding (nn.Embedding outside of the blocks). Name it: "
                'roles={"…": "embedding"}.'
            )
        return max(tables, key=lambda entry: entry.shape[0])

    def _depths(self) -> dict[str, int]:
        blocks = {(e.stack, e.block) for e in self.found if e.stack is not None and len(e.shape) > 1}
        return dict(Counter(stack for stack, _ in blocks))

    def _role(self, entry: Entry) -> Role | None:
        if entry.name in self.chosen:
            return self.chosen[entry.name]
        if len(entry.shape) <= 1 or entry.leaf.endswith("bias") or entry.kind == "norm":
            return self._vector_role(entry)
        if entry.stack is None:
            return self._outer_role(entry)
        path = entry.inside if entry.leaf == "weight" else f"{entry.inside}.{entry.leaf}"
        role = matrix_role(path)
        return role if role is None or self._fits(entry, role) else None

    def _vector_role(self, entry: Entry) -> Role | None:
        if entry.kind == "norm":
            return "bias" if entry.leaf == "bias" else "gain"
        if entry.shape in ((), (1,)) and entry.leaf != "bias":
            return "gain"  # a scalar that the model sets to a constant
        if entry.leaf == "bias" or (entry.kind == "other" and _VECTORS.search(entry.leaf) and "dt_" not in entry.leaf):
            return "bias"
        return None

    def _outer_role(self, entry: Entry) -> Role | None:
        if entry.kind == "embedding":
            return "position" if _POSITION.search(entry.name) and entry is not self.tokens else "embedding"
        if entry.kind == "linear" and entry.leaf == "weight":
            n_out = entry.shape[1] if entry.transposed else entry.shape[0]
            if entry.owner is self.output or (n_out == self.vocabulary and entry is self.linears[-1]):
                return "readout"
        return outer_matrix_role(entry.inside) if entry.kind == "linear" else None

    def _fits(self, entry: Entry, role: Role) -> bool:
        """Whether a shape can be what the name claims; a claim that fails is no role at all."""
        n_out, n_in = self._fans(entry, role)
        if role == "router":
            return n_in == self.width and (n_out == 1 or n_out == self.config.experts)
        if role in BRANCH_OUTPUTS:
            return n_out == self.width
        if role in ("query", "key", "value", "fused_qkv", "mlp_in", "expert_in", "low_rank_down"):
            return n_in == self.width
        return True

    def _fans(self, entry: Entry, role: Role) -> tuple[int, int]:
        if len(entry.shape) == 1:
            return entry.shape[0], 1
        if role in ("embedding", "position") and entry.kind != "linear":
            return entry.shape[1], entry.shape[0]
        n_out, n_in = entry.shape[-2:]
        return (n_in, n_out) if self._is_transposed(entry) else (n_out, n_in)

    def _is_transposed(self, entry: Entry) -> bool:
        if len(entry.shape) == 3:
            return bool(getattr(entry.owner, "is_transposed", self._in_comes_first(entry)))
        return entry.transposed

    def _in_comes_first(self, entry: Entry) -> bool:
        """Stacked experts are (experts, out, in) unless the input side of the first matrix shows otherwise."""
        first = next((p for name, p in entry.owner.named_parameters() if re.search(r"gate|up|w1", name)), None)
        return first is not None and first.ndim == 3 and first.shape[1] == self.width != first.shape[2]

    def _fact(self, entry: Entry, role: Role | None) -> ParameterFact:
        assert role is not None
        n_out, n_in = self._fans(entry, role)
        looked_up = role in ("embedding", "position") and entry.kind != "linear"
        out_axis = 1 if looked_up else len(entry.shape) - (1 if self._is_transposed(entry) else 2)
        expert = role in ("expert_in", "expert_out")
        config = self.config
        return ParameterFact(
            name=entry.name,
            shape=entry.shape,
            role=role,
            fan_in=n_in,
            fan_out=n_out,
            out_axis=max(out_axis, 0),
            width=self.width,
            depth=None if entry.stack is None else self.depths.get(entry.stack),
            output=_ends_branch(entry, role),
            inner=config.heads * config.head_dim if config.heads and config.head_dim else None,
            active=(config.active_experts or 1) / config.experts if expert and config.experts else 1.0,
            forward_multiplier=self._forward_multiplier(entry, role),
            fixed=role in ("gain", "bias") and self._is_fixed(entry),
            offset=_offset(type(entry.owner)) if role == "gain" else 0.0,
            start=_start(entry, role),
            tied=entry.tied,
            template=entry.template,
        )

    def _is_fixed(self, entry: Entry) -> bool:
        """Whether a vector keeps its length at any width: a gain that all heads share, a bias of logits or scores."""
        size = math.prod(entry.shape)
        if entry.kind != "norm":
            return size == 1 or self.matrices.get(entry.path) in ("readout", "router")
        return size != self.width and (size in (1, self.config.head_dim) or size not in self.fans)

    def _forward_multiplier(self, entry: Entry, role: Role) -> float:
        if role == "embedding" and entry is self.tokens:
            return self.config.embedding_multiplier * _embedding_scale(entry.owner)
        if role == "readout" or (role == "bias" and entry.owner is self.output):
            return self.config.readout_multiplier
        return self.config.residual_multiplier if _ends_branch(entry, role) else 1.0

    def _with_repetitions(self, facts: dict[str, ParameterFact]) -> dict[str, ParameterFact]:
        """Repetitions of keys and values: by the rows of their own attention, which the config must confirm."""
        return {name: self._repeated(fact, facts) for name, fact in facts.items()}

    def _repeated(self, fact: ParameterFact, facts: Mapping[str, ParameterFact]) -> ParameterFact:
        if fact.role == "fused_qkv":
            return self._fused(fact)
        if fact.role not in ("key", "value"):
            return fact
        heads, kv_heads, head_dim = self.config.heads, self.config.kv_heads, self.config.head_dim
        if heads and kv_heads and head_dim:
            if fact.role == "key" and fact.fan_out != kv_heads * head_dim:
                raise UnreadableModelError(
                    f"{fact.name} has {fact.fan_out} outputs, but the config says {kv_heads} key/value heads of "
                    f"{head_dim}, that is {kv_heads * head_dim}. Mend the config, or pass a role for this parameter."
                )
            return replace(fact, repetitions=heads // kv_heads)
        path = fact.name.rsplit(".", 2)[0]
        query = next((f for f in facts.values() if f.role == "query" and f.name.rsplit(".", 2)[0] == path), None)
        if query is None or query.fan_out % fact.fan_out:
            rows = "no query beside it" if query is None else f"{query.fan_out} query outputs, not a multiple"
            raise UnreadableModelError(f"{fact.name} has {fact.fan_out} outputs and {rows}: repetitions are unclear.")
        return replace(fact, repetitions=query.fan_out // fact.fan_out, inner=query.fan_out)

    def _fused(self, fact: ParameterFact) -> ParameterFact:
        heads, kv_heads, head_dim = self.config.heads, self.config.kv_heads, self.config.head_dim
        if not (heads and kv_heads and head_dim):
            raise UnreadableModelError(
                f"{fact.name} holds queries, keys and values, but there is no config with heads."
            )
        rows = (heads + 2 * kv_heads) * head_dim
        if fact.fan_out != rows:
            raise UnreadableModelError(
                f"{fact.name} has {fact.fan_out} outputs, but the config has {heads} + 2·{kv_heads} heads of "
                f"{head_dim}, that is {rows}. Mend the config, or pass a role for this parameter."
            )
        entry = next(entry for entry in self.found if entry.name == fact.name)
        layout = fused_layout(type(entry.parent).__name__, entry.path.rpartition(".")[2], heads // kv_heads)
        blocks = _blocks(heads, kv_heads, head_dim, layout) if layout else ()
        return replace(fact, repetitions=heads // kv_heads, blocks=blocks)

    def _refuse(self, unknown: Sequence[Entry]) -> None:
        if not unknown:
            return
        templates = Counter((entry.template, entry.shape) for entry in unknown)
        rows = [
            f"  {template} {shape}" + (f" × {count}" if count > 1 else "")
            for (template, shape), count in templates.items()
        ]
        shown = rows[:12] + ([f"  … and {len(rows) - 12} more"] if len(rows) > 12 else [])
        example = next(iter(templates))[0]
        raise UnreadableModelError(
            f"{self.model}: {len(unknown)} parameters are not understood:\n"
            + "\n".join(shown)
            + f'\nSay what they are: roles={{"{example}": "hidden"}} (--role "{example}=hidden" on the command line). '
            f"Roles: {', '.join(ROLES)}."
        )

    def _check(self, facts: Mapping[str, ParameterFact]) -> None:
        if not self.tokens.tied and not any(fact.role == "readout" for fact in facts.values()):
            raise UnreadableModelError(
                f"{self.model} has no readout: no matrix outside of the blocks has {self.vocabulary} outputs, and "
                'the embedding is not tied. Name it: roles={"…": "readout"}.'
            )


def _blocks(heads: int, kv_heads: int, head_dim: int, layout: Layout) -> tuple[Block, ...]:
    """The rows of q, k and v."""
    if layout == "one after the other":
        ends = [0, heads, heads + kv_heads, heads + 2 * kv_heads]
        slices = [((ends[i] * head_dim, ends[i + 1] * head_dim),) for i in range(3)]
    else:
        r = heads // kv_heads
        starts = [group * (r + 2) * head_dim for group in range(kv_heads)]
        parts = [(0, r), (r, r + 1), (r + 1, r + 2)]
        slices = [tuple((s + low * head_dim, s + high * head_dim) for s in starts) for low, high in parts]
    return tuple(Block(role, rows) for role, rows in zip(("query", "key", "value"), slices, strict=True))


def _embedding_scale(owner: Any) -> float:
    """The constant by which a scaled embedding multiplies what it looks up (Gemma's √width)."""
    for name in ("scalar_embed_scale", "embed_scale"):
        scale = getattr(owner, name, None)
        if isinstance(scale, int | float):
            return float(scale)
    return 1.0


def _ends_branch(entry: Entry, role: Role) -> bool:
    """Whether a residual branch ends in it: in a matrix, or in that matrix's bias, in its module or named `w2_bias`."""
    if role != "bias":
        return role in BRANCH_OUTPUTS
    beside = entry.inside if entry.leaf == "bias" else f"{entry.inside}.{entry.leaf.removesuffix('_bias')}"
    return matrix_role(beside) in BRANCH_OUTPUTS


def _start(entry: Entry, role: Role) -> float | None:
    if role == "gain" and entry.kind == "norm":
        return 1.0
    return 0.0 if role == "bias" and entry.leaf.endswith("bias") else None


@functools.cache
def _offset(norm: type[nn.Module]) -> float:
    """1 for a norm that multiplies by 1 + weight, as its source shows."""
    try:
        source = inspect.getsource(norm)
    except (OSError, TypeError):
        return 0.0
    return 1.0 if re.search(r"\b1(?:\.0)? \+ self\.weight|self\.weight(?:\.float\(\))? \+ 1", source) else 0.0
