"""`read`: from a module to one fact for each of its parameters, or an error that names those it
does not know.
"""

import fnmatch
import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import nn

from mupscale.errors import OptionError, UnreadableModelError
from mupscale.reading import refusing
from mupscale.reading.config import ConfigFacts, config_facts
from mupscale.reading.facts import ModelFacts, ParameterFact
from mupscale.reading.fans import Fans
from mupscale.reading.making import has_numbers, made, start_of
from mupscale.reading.measuring import End, Measured
from mupscale.reading.roles import BRANCH_OUTPUTS, Role, role_row
from mupscale.reading.running import follow
from mupscale.reading.saying import Inputs, Reading
from mupscale.reading.sharing import Sharing
from mupscale.reading.structure import Entry, bare, bare_name, class_of, entries
from mupscale.reading.traces import TraceFailed
from mupscale.reading.verdicts import MeasuredUse, Verdict, settle
from mupscale.reading.vocabulary import matrix_role, outer_matrix_role

_POSITION = re.compile(
    r"pos(?:ition|itional)?s?(?:$|[._]?emb|[._])|wpe|embed_positions", re.IGNORECASE
)
_VECTORS = re.compile(r"bias$|sinks?$")


def read(
    model: nn.Module,
    *,
    reading: Reading | None = None,
    roles: Mapping[str, str] | None = None,
    ignore: Collection[str] = (),
    inputs: Inputs | None = None,
    like: ModelFacts | None = None,
) -> ModelFacts:
    """What each parameter of a model is. `roles` settles what is unclear:
    {"*.mixer.in_proj.weight": "hidden"}.

    Names give the first guess. One forward pass on the meta device, followed operation by
    operation, confirms it, fills in what names do not say, or contradicts it, which is an error
    that shows both.

    `ignore` names keys of the config that look like multipliers and do not change with width or
    depth. `inputs` are arguments of the forward pass, for a model that is not called with tokens
    alone. `reading` holds the three as one value. `like` is what was read of the same model at
    another size: it stands in where this one cannot be followed. Works on the meta device and
    through DistributedDataParallel, torch.compile and FSDP2.
    """
    reading = (reading or Reading()) | Reading(roles or {}, tuple(ignore), inputs)
    model = bare(model)
    found = list(entries(model))
    output = (
        cast(Any, model).get_output_embeddings()
        if hasattr(model, "get_output_embeddings")
        else None
    )
    seen = follow(model, reading)
    if isinstance(seen, TraceFailed) and reading.inputs is not None:
        raise UnreadableModelError(
            f"{type(model).__name__} does not run with the inputs given: {seen.error}. Leave them "
            "out, or give the "
            "arguments of its forward pass: a tuple, or a mapping by name."
        )
    failed = seen.error if isinstance(seen, TraceFailed) else None
    measured = None if isinstance(seen, TraceFailed) else Measured(seen)
    config = config_facts(model, reading.ignore)
    others = like.parameters.values() if like is not None and like.followed else ()
    known: dict[str, Role] = {fact.template: fact.role for fact in others}
    chosen = _chosen(found, reading.roles)
    return _Reader(class_of(model), found, config, chosen, output, measured, failed, known).facts()


def read_with_base(
    model: nn.Module, base: nn.Module, *, reading: Reading | None = None
) -> tuple[ModelFacts, ModelFacts]:
    """The facts of a model and of its base, each read once; `mupscale.plan` takes them in place of
    the models.

    A base with weights can run on the CPU where the meta device fails, so it is read first and
    stands in for a model that cannot be followed. Otherwise the model stands in for the base.
    Patterns that match nothing in the base are left out there: it may lack layers of the model.
    """
    reading = reading or Reading()
    fitting = reading.fitting([bare_name(name) for name, _ in bare(base).named_parameters()])
    if any(parameter.is_meta for parameter in base.parameters()):
        facts = read(model, reading=reading)
        return facts, read(base, reading=fitting, like=facts)
    base_facts = read(base, reading=fitting)
    return read(model, reading=reading, like=base_facts), base_facts


def _chosen(found: Sequence[Entry], roles: Mapping[str, str]) -> dict[str, str]:
    """The user's roles by parameter; a pattern that matches nothing, or two that match one
    parameter, raise.
    """
    chosen: dict[str, tuple[str, str]] = {}
    for pattern, role in roles.items():
        names = [entry.name for entry in found if fnmatch.fnmatchcase(entry.name, pattern)]
        if not names:
            near = ", ".join(sorted({entry.template for entry in found})[:3])
            raise OptionError(
                f"roles: the pattern {pattern!r} matches no parameter. Names look like {near}."
            )
        for name in names:
            if name in chosen:
                other = chosen[name][0]
                raise OptionError(
                    f"roles: both {other!r} and {pattern!r} match {name}. Make one of them "
                    "narrower."
                )
            chosen[name] = (pattern, role)
    return {name: role for name, (_, role) in chosen.items()}


@dataclass
class _Reader:
    architecture: type[nn.Module]
    found: Sequence[Entry]
    config: ConfigFacts
    chosen: Mapping[str, str]
    output: nn.Module | None
    """The readout, where the model says which module that is."""
    measured: Measured | None
    failed: str | None
    """Why no forward pass could be followed."""
    known: Mapping[str, Role]
    """Roles by template, from the same model at another size."""

    @property
    def model(self) -> str:
        return self.architecture.__name__

    def facts(self) -> ModelFacts:
        self.seen = None if self.measured is None else MeasuredUse(self.measured, self.found)
        self.fans = Fans(self.measured)
        self.tokens = self._token_embedding()
        self.vocabulary = None if self.tokens is None else self.fans.of(self.tokens, "embedding")[1]
        self.width = self.fans.width = self._width()
        self.linears = [
            e for e in self.found if e.stack is None and e.kind == "linear" and e.leaf == "weight"
        ]
        self.has_numbers = has_numbers(self.found)
        verdicts = {entry.name: self._verdict(entry) for entry in self.found}
        refusing.refuse(self.model, self.found, verdicts, self.seen)
        self.roles: dict[str, Role] = {
            name: verdict.role for name, verdict in verdicts.items() if verdict.role
        }
        self.depths = self._depths()
        self.matrices = {
            entry.path: self.roles[entry.name] for entry in self.found if len(entry.shape) > 1
        }
        blocks = [entry for entry in self.found if entry.stack is not None]
        self.sizes = {size for entry in blocks if len(entry.shape) > 1 for size in entry.shape[-2:]}
        facts = {
            entry.name: self._fact(entry, verdicts[entry.name].evidence) for entry in self.found
        }
        facts = Sharing(self.config, self.measured, self.failed, self.found).with_repetitions(facts)
        tied = self._tied(facts)
        self._check(facts, tied=tied)
        config = self.config
        final_gain, final_norm = self._final()
        r = max((fact.repetitions for fact in facts.values()), default=1)
        kv_heads = config.kv_heads or (config.heads and config.heads // r)
        return ModelFacts(
            facts, self.architecture, self.width, max(self.depths.values(), default=0), config.heads, kv_heads, config.head_dim,
            final_gain, final_norm, readout_multiplier=self._readout_multiplier(tied), not_followed=self.failed,
            settings=config.settings, readout_module=self._readout_module(facts),
            tied_table=self.tokens.name if tied and self.tokens is not None else None,
        )  # fmt: skip

    # The skeleton

    def _token_embedding(self) -> Entry | None:
        tables = [
            e
            for e in self.found
            if e.kind == "embedding" and e.stack is None and not _POSITION.search(e.name)
        ]
        if self.measured is not None:
            looked_up = [
                e for e in self.found if self.measured.looked_up(e.name) and len(e.shape) == 2
            ]
            used = [
                e
                for e in looked_up
                if self.measured.factor(e.name) is not None and not _POSITION.search(e.name)
            ]
            tables = [e for e in tables if e in used] or used or tables
        tables = [
            e for e in self.found if self.chosen.get(e.name, "").removesuffix("!") == "embedding"
        ] or tables
        if tables:
            return max(tables, key=lambda entry: entry.shape[0])
        if self.measured is None:
            raise UnreadableModelError(
                f"{self.model} has no token embedding (nn.Embedding outside of the blocks), and "
                "its forward pass could "
                f'not be followed ({self.failed}). Name it: roles={{"…": "embedding"}}, or give '
                f"inputs={{…}}."
            )
        return None

    def _width(self) -> int:
        """The width of the residual stream: what the config says, or the size of what is added to
        it.
        """
        if self.config.width:
            return self.config.width
        if self.tokens is not None:
            return self.fans.of(self.tokens, "embedding")[0]
        assert self.measured is not None
        sizes = Counter(
            self.fans.of(e, "hidden")[0] for e in self.found if e.name in self.measured.ends
        )
        if sizes:
            return sizes.most_common(1)[0][0]
        readouts = [e for e in self.found if e.name in self.measured.readouts]
        if readouts:
            return self.fans.of(readouts[-1], "readout")[1]
        raise UnreadableModelError(
            f"{self.model} has no embedding, no residual stream and no readout that a forward pass "
            "shows, so its width "
            'is not known. Name the embedding or the readout: roles={"…": "readout"}.'
        )

    def _depths(self) -> dict[str, int]:
        """The number of blocks of each stack. Blocks that share their weights count as often as
        they are used.
        """
        blocks = {
            (e.stack, e.block) for e in self.found if e.stack is not None and len(e.shape) > 1
        }
        depths = Counter(stack for stack, _ in blocks)
        return {stack: count * self._times(stack) for stack, count in depths.items()}

    def _times(self, stack: str | None) -> int:
        """How often each block of a stack runs in one forward pass."""
        measured = self.measured
        if measured is None:
            return 1
        plain = [
            e for e in self.found if e.stack == stack and self.roles.get(e.name) in BRANCH_OUTPUTS
        ]
        counts = [
            measured.times(e.name)
            for e in plain
            if self.roles[e.name] != "expert_out" and len(e.shape) == 2
        ]
        counts = [count for count in counts if count]
        return min(counts) if counts else 1

    def _final(self) -> tuple[str | None, str | None]:
        """The gain and the module of the norm before the readout."""
        if self.measured is None:
            gains = [
                e
                for e in self.found
                if e.stack is None and self.roles[e.name] == "gain" and e.shape == (self.width,)
            ]
            return (gains[-1].name, gains[-1].name.rpartition(".")[0]) if gains else (None, None)
        norm = self.measured.final_norm
        if norm is None:
            return None, None
        gain = norm.gain if norm.gain and len(self.measured.uses(norm.gain, "gain")) == 1 else None
        return gain, gain.rpartition(".")[0] if gain else norm.module

    def _tied(self, facts: Mapping[str, ParameterFact]) -> bool:
        """Whether the embedding is the readout too: the same tensor, or the same parameter used
        twice.
        """
        if self.tokens is None:
            return False
        by_use = self.measured is not None and self.tokens.name in self.measured.readouts
        return by_use or (
            bool(self.tokens.tied) and not any(fact.role == "readout" for fact in facts.values())
        )

    def _readout_module(self, facts: Mapping[str, ParameterFact]) -> str | None:
        names = [fact.name for fact in facts.values() if fact.role == "readout"]
        names = names or list(self.tokens.tied if self.tokens is not None else ())
        return names[-1].rpartition(".")[0] if names else None

    # Roles

    def _verdict(self, entry: Entry) -> Verdict:
        if self.seen is None and entry.template in self.known and entry.name not in self.chosen:
            return Verdict(self.known[entry.template], "a forward pass of the base")
        return settle(entry, self._named(entry), self.chosen.get(entry.name), self.seen)

    def _named(self, entry: Entry) -> Role | None:
        """The role that a name claims, if the shape can be that."""
        looked_up = self.measured is not None and self.measured.looked_up(entry.name)
        if (
            len(entry.shape) <= 1
            or (entry.leaf.endswith("bias") and not looked_up)
            or entry.kind == "norm"
        ):
            return self._vector_role(entry)
        if entry.stack is None:
            return self._outer_role(entry)
        if entry.kind == "embedding":
            return "position" if _POSITION.search(entry.name) else None
        path = entry.inside if entry.leaf == "weight" else f"{entry.inside}.{entry.leaf}"
        role = matrix_role(path)
        return role if role is None or self._fits(entry, role) else None

    def _vector_role(self, entry: Entry) -> Role | None:
        if entry.kind == "norm":
            return "bias" if entry.leaf == "bias" else "gain"
        if entry.shape in ((), (1,)) and entry.leaf != "bias":
            return "gain"  # a scalar that the model sets to a constant
        if entry.leaf == "bias" or (
            entry.kind == "other" and _VECTORS.search(entry.leaf) and "dt_" not in entry.leaf
        ):
            return "bias"
        return None

    def _outer_role(self, entry: Entry) -> Role | None:
        if entry.kind == "embedding":
            return (
                "position"
                if _POSITION.search(entry.name) and entry is not self.tokens
                else "embedding"
            )
        if entry.kind == "linear" and entry.leaf == "weight":
            n_out = entry.shape[1] if entry.transposed else entry.shape[0]
            claims = entry.owner is self.output or (
                n_out == self.vocabulary and entry is self.linears[-1]
            )
            if claims and not self._shown_otherwise(entry):
                return "readout"
            path = entry.inside
            return outer_matrix_role(path) or (matrix_role(path) if "lora_" in path else None)
        return None

    def _shown_otherwise(self, entry: Entry) -> bool:
        """Whether a forward pass shows other readouts than this: a width may be equal to the
        vocabulary by chance.
        """
        seen = self.measured
        return (
            seen is not None
            and seen.seen(entry.name)
            and bool(seen.readouts)
            and entry.name not in seen.readouts
        )

    def _fits(self, entry: Entry, role: Role) -> bool:
        """Whether a shape can be what the name claims; a claim that fails is no role at all."""
        n_out, n_in = self.fans.of(entry, role)
        if role == "router" and n_out not in (1, self.config.experts):
            return False
        row = role_row(role)
        if row.ends_branch:
            return n_out == self.width
        return n_in == self.width or not row.takes_width or "lora" in entry.path

    # Facts

    def _fact(self, entry: Entry, evidence: str) -> ParameterFact:
        role = self.roles[entry.name]
        n_out, n_in = self.fans.of(entry, role)
        expert = role in ("expert_in", "expert_out")
        end = self._end(entry)
        offset = self._offset(entry, role)
        config = self.config
        return ParameterFact(
            name=entry.name,
            shape=entry.shape,
            role=role,
            fan_in=n_in,
            fan_out=n_out,
            out_axis=self.fans.out_axis(entry, role),
            width=self.width,
            depth=None if entry.stack is None else self.depths.get(entry.stack),
            output=self._ends_branch(entry, role),
            inner=config.heads * config.head_dim if config.heads and config.head_dim else None,
            active=(config.active_experts or 1) / config.experts
            if expert and config.experts
            else 1.0,
            forward_multiplier=self._forward_multiplier(entry, role),
            unseen_constant=self._is_unseen(entry, role),
            fixed=role in ("gain", "bias") and self._is_fixed(entry),
            offset=offset,
            start=self._start(entry, role, offset),
            normed_by=self._normed_by(end),
            post_norm=end is not None and end.stream_normed,
            kernel=self.fans.is_kernel(entry),
            made=made(entry) if self.has_numbers or not entry.tensor.requires_grad else "unknown",
            evidence=evidence,
            tied=entry.tied,
            template=entry.template,
        )

    def _end(self, entry: Entry) -> End | None:
        """The end of a branch that a matrix is, or that a bias belongs to."""
        if self.measured is None:
            return None
        names = (
            [entry.name, *self.measured.bias_of(entry.name)]
            if len(entry.shape) <= 1
            else [entry.name]
        )
        return next(
            (self.measured.ends[name] for name in names if name in self.measured.ends), None
        )

    def _normed_by(self, end: End | None) -> str | None:
        """The module of the norm that takes a branch's output: where its gain is, or where it
        runs.
        """
        if end is None or end.normed_by is None:
            return None
        gain = end.normed_by.gain
        return gain.rpartition(".")[0] if gain else end.normed_by.module

    def _ends_branch(self, entry: Entry, role: Role) -> bool:
        """Whether a residual branch ends in it: in a matrix, or in that matrix's bias."""
        if role in ("gain", "frozen", "embedding", "position"):
            return False
        seen = (
            self.measured is not None
            and self.measured.seen(entry.name)
            and self.measured.has_stream
        )
        if seen and role != "bias":
            return self._end(entry) is not None or role in BRANCH_OUTPUTS
        if self._end(entry) is not None:
            return True
        if role != "bias":
            return role in BRANCH_OUTPUTS
        if seen and not (len(entry.shape) > 1):
            return False
        beside = (
            entry.inside
            if entry.leaf == "bias"
            else f"{entry.inside}.{entry.leaf.removesuffix('_bias')}"
        )
        if entry.leaf == "bias" and self.matrices.get(entry.path) is not None:
            return self.matrices[entry.path] in BRANCH_OUTPUTS
        return matrix_role(beside) in BRANCH_OUTPUTS

    def _is_fixed(self, entry: Entry) -> bool:
        """Whether a vector keeps its length at any width: a gain that all heads share, a bias of
        logits or scores.
        """
        size = math.prod(entry.shape)
        if entry.kind != "norm":
            of = [] if self.measured is None else self.measured.bias_of(entry.name)
            roles = {self.roles[name] for name in of if name in self.roles}
            tied_logits = self.tokens is not None and self.tokens.name in of
            layers = self.roles[entry.name] == "gain" and size == max(
                self.depths.values(), default=0
            )
            return (
                size == 1
                or layers
                or tied_logits
                or bool(({self.matrices.get(entry.path)} | roles) & {"readout", "router"})
            )
        return size < self.width and (size == (self.config.head_dim) or size not in self.sizes)

    def _offset(self, entry: Entry, role: Role) -> float:
        """A gain that acts as weight + offset has that offset, by the forward pass."""
        if role != "gain" or self.measured is None:
            return 0.0
        gain = self.measured.gain(entry.name)
        scales = self.measured.uses(entry.name, "scale")
        offset = gain.offset if gain is not None else scales[0].offset if scales else 0.0
        if not math.isfinite(offset):
            raise UnreadableModelError(
                f"{entry.name} acts as its weight plus a constant whose value the meta device does "
                "not have. Build the "
                "model with weights, on the CPU, and plan that."
            )
        return offset

    def _start(self, entry: Entry, role: Role, offset: float) -> float | None:
        of_norm = entry.kind == "norm" or (
            self.measured is not None and self.measured.gain(entry.name) is not None
        )
        return start_of(entry, role, offset, of_norm=of_norm, numbers=self.has_numbers)

    # Constants of the forward pass

    def _forward_multiplier(self, entry: Entry, role: Role) -> float:
        if role == "embedding" and entry is self.tokens:
            named = self.config.embedding_multiplier * _embedding_scale(entry.owner)
            seen = None if self.measured is None else self._table_factor(entry)
            return self._agreed(f"the embedding {entry.name}", named, seen)
        if role in ("embedding", "position") and self.measured is not None and len(entry.shape) > 1:
            return self._agreed(entry.name, 1.0, self._table_factor(entry))
        if role == "readout" or (role == "bias" and entry.owner is self.output):
            return self._logit_factor(entry.name if role == "readout" else None)
        if not self._ends_branch(entry, role):
            return 1.0
        end = self._end(entry)
        return self._agreed(
            f"the branch that ends in {entry.name}",
            self.config.residual_multiplier,
            end and end.factor,
        )

    def _is_unseen(self, entry: Entry, role: Role) -> bool:
        """Whether a constant is there that neither the forward pass nor a name tells the value
        of.
        """
        if self.measured is None or self._forward_multiplier(entry, role) != 1:
            return False
        end = self._end(entry) if self._ends_branch(entry, role) else None
        factors = [
            self._table_factor(entry),
            self.measured.readouts.get(entry.name),
            end and end.factor,
        ]
        return any(factor is not None and math.isinf(factor) for factor in factors)

    def _table_factor(self, entry: Entry) -> float | None:
        assert self.measured is not None
        uses = self.measured.uses(entry.name, "lookup", "added")
        numbers = [use.source for use in uses if use.source is not None]
        found = [
            total[number]
            for total in self.measured.trace.sums
            for number in numbers
            if number in total
        ]
        return found[-1] if found else None

    def _logit_factor(self, name: str | None) -> float:
        seen = None
        if self.measured is not None:
            readouts = self.measured.readouts
            seen = readouts.get(name) if name else next(iter(readouts.values()), None)
        return self._agreed("the logits", self.config.readout_multiplier, seen)

    def _readout_multiplier(self, tied: bool) -> float:
        return self._logit_factor(self.tokens.name if tied and self.tokens is not None else None)

    def _agreed(self, what: str, named: float, seen: float | None) -> float:
        """The constant that a forward pass shows; the config may leave it out, and must not say
        another.
        """
        if seen is None or not math.isfinite(seen):
            return named
        if named != 1 and abs(seen - named) > 1e-6 * abs(named):
            raise UnreadableModelError(
                f"{self.model}: the config says that the forward pass multiplies {what} by "
                f"{named:.6g}, and a forward "
                f"pass shows {seen:.6g}. Fix the config, or pass its key in ignore=[…]."
            )
        return seen

    def _check(self, facts: Mapping[str, ParameterFact], *, tied: bool) -> None:
        """A model that returns its stream needs no readout; where nothing was followed, one must be
        named.
        """
        if (
            self.measured is None
            and not tied
            and not any(fact.role == "readout" for fact in facts.values())
        ):
            raise UnreadableModelError(
                f"{self.model} has no readout: no matrix outside of the blocks has "
                f"{self.vocabulary} outputs, the "
                "embedding is not tied, and its forward pass could not be followed "
                f"({self.failed}). Name it: "
                'roles={"…": "readout"}, or give inputs={…}.'
            )


def _embedding_scale(owner: Any) -> float:
    """The constant by which a scaled embedding multiplies what it looks up (Gemma's √width)."""
    for name in ("scalar_embed_scale", "embed_scale"):
        scale = getattr(owner, name, None)
        if isinstance(scale, int | float):
            return float(scale)
    return 1.0
