"""`read`: from a module to one fact per parameter, or an error that names the unknown ones."""

import fnmatch
import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import nn

from mupscale.errors import OptionError, UnreadableModelError
from mupscale.reading.config import ConfigFacts, config_facts
from mupscale.reading.facts import ModelFacts, ParameterFact
from mupscale.reading.fans import Fans
from mupscale.reading.making import has_numbers, made, start_of
from mupscale.reading.measuring import End, Measured
from mupscale.reading.roles import BRANCH_OUTPUTS, EXPERTS, TABLES, Role, role_row
from mupscale.reading.running import follow
from mupscale.reading.sharing import Sharing
from mupscale.reading.structure import Entry, bare, bare_name, class_of, entries
from mupscale.reading.traces import TraceFailed
from mupscale.reading.unknown import raise_if_unsettled
from mupscale.reading.user_reading import Inputs, Reading
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
    """Read what each parameter of a model is.

    Names give the first guess. One forward pass on the meta device, followed operation by
    operation, confirms it, fills in what names do not show, or contradicts it: that is an error
    that shows both. Works on the meta device and through DistributedDataParallel, torch.compile
    and FSDP2.

    roles    what unclear parameters are, by pattern: {"*.mixer.in_proj.weight": "hidden"}
    ignore   keys of the config that look like multipliers but do not change with width or depth
    inputs   arguments of the forward pass, for a model that takes more than tokens
    reading  these three as one value
    like     facts of the same model at another size, used if this one cannot be followed
    """
    reading = (reading or Reading()) | Reading(roles or {}, tuple(ignore), inputs)
    model = bare(model)
    trace = follow(model, reading)
    failed = trace.error if isinstance(trace, TraceFailed) else None
    if failed is not None and reading.inputs is not None:
        raise UnreadableModelError(
            f"{type(model).__name__} does not run with the inputs given: {failed}. Leave them out, "
            "or give the arguments of its forward pass: a tuple, or a mapping by name."
        )
    found = list(entries(model))
    has_output = hasattr(model, "get_output_embeddings")
    others = like.parameters.values() if like is not None and like.followed else ()
    return _Reader(
        class_of(model),
        found,
        config_facts(model, reading.ignore),
        _chosen(found, reading.roles),
        cast(Any, model).get_output_embeddings() if has_output else None,
        None if isinstance(trace, TraceFailed) else Measured(trace),
        failed,
        {fact.template: fact.role for fact in others},
    ).facts()


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
    """The user's roles by parameter; every pattern must match, and none overlap."""
    chosen: dict[str, str] = {}
    patterns: dict[str, str] = {}
    for pattern, role in roles.items():
        names = [entry.name for entry in found if fnmatch.fnmatchcase(entry.name, pattern)]
        if not names:
            near = ", ".join(sorted({entry.template for entry in found})[:3])
            raise OptionError(
                f"roles: the pattern {pattern!r} matches no parameter. Names look like {near}."
            )
        for name in names:
            if name in chosen:
                raise OptionError(
                    f"roles: both {patterns[name]!r} and {pattern!r} match {name}. Make one of "
                    "them narrower."
                )
            chosen[name], patterns[name] = role, pattern
    return chosen


@dataclass
class _Reader:
    architecture: type[nn.Module]
    found: Sequence[Entry]
    config: ConfigFacts
    chosen: Mapping[str, str]
    """The user's roles, by parameter."""
    output: nn.Module | None
    """The readout, if the model names its module."""
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
        self.outer_linears = [
            e for e in self.found if e.stack is None and e.kind == "linear" and e.leaf == "weight"
        ]
        self.has_numbers = has_numbers(self.found)
        verdicts = {entry.name: self._verdict(entry) for entry in self.found}
        raise_if_unsettled(self.model, self.found, verdicts, self.seen)
        self.roles: dict[str, Role] = {n: v.role for n, v in verdicts.items() if v.role}
        self.depths = self._depths()
        matrices = [entry for entry in self.found if len(entry.shape) > 1]
        self.matrices = {entry.path: self.roles[entry.name] for entry in matrices}
        in_blocks = [entry for entry in matrices if entry.stack is not None]
        self.sizes = {size for entry in in_blocks for size in entry.shape[-2:]}
        facts = {
            entry.name: self._fact(entry, verdicts[entry.name].evidence) for entry in self.found
        }
        sharing = Sharing(self.config, self.measured, self.failed, self.found)
        facts = {name: sharing.with_repetitions(fact, facts) for name, fact in facts.items()}
        return self._model_facts(facts)

    def _model_facts(self, facts: Mapping[str, ParameterFact]) -> ModelFacts:
        readouts = [fact.name for fact in facts.values() if fact.role == "readout"]
        tied = self._tied_table(readouts)
        if self.measured is None and not tied and not readouts:
            # A model that was followed may return its residual stream and have no readout.
            raise UnreadableModelError(
                f"{self.model} has no readout: no matrix outside of the blocks has "
                f"{self.vocabulary} outputs, the embedding is not tied, and its forward pass could "
                f"not be followed ({self.failed}). Name the readout: "
                'roles={"…": "readout"}, or give inputs={…}.'
            )
        names = readouts or list(self.tokens.tied if self.tokens is not None else ())
        config = self.config
        final_gain, final_norm = self._final()
        r = max((fact.repetitions for fact in facts.values()), default=1)
        return ModelFacts(
            facts,
            self.architecture,
            self.width,
            max(self.depths.values(), default=0),
            config.heads,
            config.kv_heads or (config.heads and config.heads // r),
            config.head_dim,
            final_gain,
            final_norm,
            readout_multiplier=self._logit_factor(tied),
            not_followed=self.failed,
            settings=config.settings,
            readout_module=names[-1].rpartition(".")[0] if names else None,
            tied_table=tied,
        )

    # The skeleton

    def _token_embedding(self) -> Entry | None:
        tables = [
            e
            for e in self.found
            if e.kind == "embedding" and e.stack is None and not _POSITION.search(e.name)
        ]
        if self.measured is not None:
            used = [
                e
                for e in self.found
                if self.measured.looked_up(e.name)
                and len(e.shape) == 2
                and self.measured.factor(e.name) is not None
                and not _POSITION.search(e.name)
            ]
            tables = [e for e in tables if e in used] or used or tables
        chosen = [
            e for e in self.found if self.chosen.get(e.name, "").removesuffix("!") == "embedding"
        ]
        tables = chosen or tables
        if not tables and self.measured is None:
            raise UnreadableModelError(
                f"{self.model} has no token embedding (nn.Embedding outside of the blocks), and "
                f"its forward pass could not be followed ({self.failed}). Name it: "
                'roles={"…": "embedding"}, or give inputs={…}.'
            )
        return max(tables, key=lambda entry: entry.shape[0], default=None)

    def _width(self) -> int:
        """The width of the residual stream, from the config or the forward pass."""
        if self.config.width:
            return self.config.width
        if self.tokens is not None:
            return self.fans.of(self.tokens, "embedding")[0]
        assert self.measured is not None
        ends = [e for e in self.found if e.name in self.measured.ends]
        if ends:
            sizes = Counter(self.fans.of(e, "hidden")[0] for e in ends)
            return sizes.most_common(1)[0][0]
        readouts = [e for e in self.found if e.name in self.measured.readouts]
        if readouts:
            return self.fans.of(readouts[-1], "readout")[1]
        raise UnreadableModelError(
            f"{self.model}: its width is not known, because a forward pass shows no embedding, no "
            'residual stream and no readout. Name one of them: roles={"…": "readout"}.'
        )

    def _depths(self) -> dict[str, int]:
        """The number of blocks in each stack, shared ones as often as they run."""
        blocks = {
            (e.stack, e.block) for e in self.found if e.stack is not None and len(e.shape) > 1
        }
        depths = Counter(stack for stack, _ in blocks)
        return {stack: count * self._times(stack) for stack, count in depths.items()}

    def _times(self, stack: str) -> int:
        """How often each block of a stack runs in one forward pass."""
        measured = self.measured
        if measured is None:
            return 1
        # An expert runs only for some tokens, so the number of its uses does not count here.
        ends = [
            e.name
            for e in self.found
            if e.stack == stack
            and len(e.shape) == 2
            and self.roles[e.name] in BRANCH_OUTPUTS - {"expert_out"}
        ]
        return min(filter(None, map(measured.times, ends)), default=1)

    def _final(self) -> tuple[str | None, str | None]:
        """The gain and the module of the norm before the readout."""
        if self.measured is None:
            gains = [
                e.name
                for e in self.found
                if e.stack is None and self.roles[e.name] == "gain" and e.shape == (self.width,)
            ]
            return (gains[-1], gains[-1].rpartition(".")[0]) if gains else (None, None)
        norm = self.measured.final_norm
        if norm is None:
            return None, None
        gain = norm.gain if norm.gain and len(self.measured.uses(norm.gain, "gain")) == 1 else None
        return gain, gain.rpartition(".")[0] if gain else norm.module

    def _tied_table(self, readouts: Sequence[str]) -> str | None:
        """The embedding that is also the readout: the same tensor, or one parameter used twice."""
        if self.tokens is None:
            return None
        by_use = self.measured is not None and self.tokens.name in self.measured.readouts
        return self.tokens.name if by_use or (self.tokens.tied and not readouts) else None

    # Roles

    def _verdict(self, entry: Entry) -> Verdict:
        if self.seen is None and entry.template in self.known and entry.name not in self.chosen:
            return Verdict(self.known[entry.template], "a forward pass of the base")
        return settle(entry, self._named(entry), self.chosen.get(entry.name), self.seen)

    def _named(self, entry: Entry) -> Role | None:
        """The role that a name suggests, if the shape allows it."""
        looked_up = self.measured is not None and self.measured.looked_up(entry.name)
        bias = entry.leaf.endswith("bias") and not looked_up
        if len(entry.shape) <= 1 or bias or entry.kind == "norm":
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
            position = _POSITION.search(entry.name) and entry is not self.tokens
            return "position" if position else "embedding"
        if entry.kind != "linear" or entry.leaf != "weight":
            return None
        n_out = entry.shape[1] if entry.transposed else entry.shape[0]
        last = n_out == self.vocabulary and entry is self.outer_linears[-1]
        if (entry.owner is self.output or last) and not self._other_readouts(entry):
            return "readout"
        path = entry.inside
        return outer_matrix_role(path) or (matrix_role(path) if "lora_" in path else None)

    def _other_readouts(self, entry: Entry) -> bool:
        """Whether a forward pass shows other readouts: a width can equal the vocabulary."""
        seen = self.measured
        return (
            seen is not None
            and seen.seen(entry.name)
            and bool(seen.readouts)
            and entry.name not in seen.readouts
        )

    def _fits(self, entry: Entry, role: Role) -> bool:
        """Whether a shape allows what the name suggests."""
        n_out, n_in = self.fans.of(entry, role)
        if role == "router" and n_out not in (1, self.config.experts):
            return False
        row = role_row(role)
        if row.ends_branch:
            return n_out == self.width
        return n_in == self.width or not row.takes_width or "lora" in entry.path

    # Facts

    def _fact(self, entry: Entry, evidence: str) -> ParameterFact:
        role, config = self.roles[entry.name], self.config
        n_out, n_in = self.fans.of(entry, role)
        experts = config.experts if role in EXPERTS else None
        end = self._end(entry)
        offset = self._offset(entry, role)
        multiplier = self._forward_multiplier(entry, role)
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
            active=(config.active_experts or 1) / experts if experts else 1.0,
            forward_multiplier=multiplier,
            unseen_constant=multiplier == 1 and self._has_unseen_constant(entry, role),
            fixed=role_row(role).start == "set" and self._is_fixed(entry),
            offset=offset,
            start=self._start(entry, role, offset),
            normed_by=None if end is None else end.norm_module,
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
        of = self.measured.bias_of(entry.name) if len(entry.shape) <= 1 else []
        ends = self.measured.ends
        return next((ends[name] for name in (entry.name, *of) if name in ends), None)

    def _ends_branch(self, entry: Entry, role: Role) -> bool:
        """Whether a residual branch ends in it: in a matrix, or in the bias of that matrix."""
        if role in ("gain", "frozen") or role in TABLES:
            return False
        if self._end(entry) is not None:
            return True
        if role != "bias":
            return role in BRANCH_OUTPUTS
        seen = self.measured
        if len(entry.shape) <= 1 and seen is not None and seen.seen(entry.name) and seen.has_stream:
            return False
        if entry.leaf == "bias":
            return (self.matrices.get(entry.path) or matrix_role(entry.inside)) in BRANCH_OUTPUTS
        beside = f"{entry.inside}.{entry.leaf.removesuffix('_bias')}"
        return matrix_role(beside) in BRANCH_OUTPUTS

    def _is_fixed(self, entry: Entry) -> bool:
        """Whether a vector has the same length at any width."""
        size = math.prod(entry.shape)
        if entry.kind == "norm":
            return size < self.width and (size == self.config.head_dim or size not in self.sizes)
        of = [] if self.measured is None else self.measured.bias_of(entry.name)
        roles = {self.roles[name] for name in of if name in self.roles}
        roles |= {self.matrices[entry.path]} if entry.path in self.matrices else set()
        tied_logits = self.tokens is not None and self.tokens.name in of
        deepest = max(self.depths.values(), default=0)
        per_layer = self.roles[entry.name] == "gain" and size == deepest
        return size == 1 or per_layer or tied_logits or bool(roles & {"readout", "router"})

    def _offset(self, entry: Entry, role: Role) -> float:
        """A gain that acts as weight + offset has that offset, by the forward pass."""
        if role != "gain" or self.measured is None:
            return 0.0
        uses = self.measured.uses(entry.name, "gain") or self.measured.uses(entry.name, "scale")
        offset = uses[0].offset if uses else 0.0
        if not math.isfinite(offset):
            raise UnreadableModelError(
                f"{entry.name} acts as its weight plus a constant that has no value on the meta "
                "device. Build the model with weights on the CPU, and plan that."
            )
        return offset

    def _start(self, entry: Entry, role: Role, offset: float) -> float | None:
        gain = None if self.measured is None else self.measured.gain(entry.name)
        of_norm = entry.kind == "norm" or gain is not None
        return start_of(entry, role, offset, of_norm=of_norm, numbers=self.has_numbers)

    # Constants of the forward pass

    def _forward_multiplier(self, entry: Entry, role: Role) -> float:
        if role == "embedding" and entry is self.tokens:
            named = self.config.embedding_multiplier * _embedding_scale(entry.owner)
            return self._agreed(f"the embedding {entry.name}", named, self._table_factor(entry))
        if role in TABLES and len(entry.shape) > 1:
            return self._agreed(entry.name, 1.0, self._table_factor(entry))
        if role == "readout" or (role == "bias" and entry.owner is self.output):
            return self._logit_factor(entry.name if role == "readout" else None)
        if not self._ends_branch(entry, role):
            return 1.0
        end = self._end(entry)
        branch = f"the branch that ends in {entry.name}"
        return self._agreed(branch, self.config.residual_multiplier, end and end.factor)

    def _has_unseen_constant(self, entry: Entry, role: Role) -> bool:
        """Whether the forward pass multiplies it by a constant whose value is not visible."""
        if self.measured is None:
            return False
        end = self._end(entry) if self._ends_branch(entry, role) else None
        readout = self.measured.readouts.get(entry.name)
        factors = (self._table_factor(entry), readout, end and end.factor)
        return any(factor is not None and math.isinf(factor) for factor in factors)

    def _table_factor(self, entry: Entry) -> float | None:
        """The last constant on what is looked up in a table, or on a table that is added."""
        if self.measured is None:
            return None
        sources = [use.source for use in self.measured.uses(entry.name, "lookup", "added")]
        factors = [
            total[number]
            for total in self.measured.trace.sums
            for number in sources
            if number is not None and number in total
        ]
        return factors[-1] if factors else None

    def _logit_factor(self, name: str | None) -> float:
        """The constant on the logits of one readout, or of the first one."""
        readouts = {} if self.measured is None else self.measured.readouts
        seen = readouts.get(name) if name else next(iter(readouts.values()), None)
        return self._agreed("the logits", self.config.readout_multiplier, seen)

    def _agreed(self, what: str, named: float, seen: float | None) -> float:
        """The constant that a forward pass shows. The config may omit it, but not contradict it."""
        if seen is None or not math.isfinite(seen):
            return named
        if named != 1 and abs(seen - named) > 1e-6 * abs(named):
            raise UnreadableModelError(
                f"{self.model}: the config says that the forward pass multiplies {what} by "
                f"{named:.6g}, but a forward pass shows {seen:.6g}. Fix the config, or pass its "
                "key in ignore=[…]."
            )
        return seen


def _embedding_scale(owner: Any) -> float:
    """The constant that a scaled embedding multiplies its output by, such as Gemma's √width."""
    for name in ("scalar_embed_scale", "embed_scale"):
        scale = getattr(owner, name, None)
        if isinstance(scale, int | float):
            return float(scale)
    return 1.0
