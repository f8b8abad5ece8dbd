"""`Plan`: what every parameter of a model gets, and the few things to do with that."""

from __future__ import annotations

import dataclasses
import fnmatch
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from mupscale.errors import MupscaleError, OptionError, PlanMismatchError, UnknownNameError
from mupscale.planning import (
    clipping,
    groups,
    hooks,
    initialization,
    showing,
    storing,
    verification,
)
from mupscale.planning.groups import PerRole
from mupscale.planning.values import Hook, Multipliers, PlannedParameter
from mupscale.planning.verification import Verified
from mupscale.reading import Reading, run_once
from mupscale.reading.making import is_zero
from mupscale.reading.structure import bare, bare_name
from mupscale.records import write_whole
from mupscale.theory import Decay, Rule


@dataclass(frozen=True)
class Plan:
    """What every parameter gets, relative to base values that were tuned on the base. A value: it
    changes nothing.

    Methods that end in _ change the model that they are given.
    """

    model: str
    """The class of the model."""
    optimizer: str
    rule: Rule
    decay: Decay
    target: Mapping[str, int]
    """Width, depth, r and the like of the model."""
    base: Mapping[str, int]
    multipliers: Multipliers
    parameters: Mapping[str, PlannedParameter] = field(repr=False)
    hooks: tuple[Hook, ...] = field(default=(), repr=False)
    final_norm: str | None = None
    reference_r: int | None = None
    warnings: tuple[str, ...] = ()
    reading: Reading = field(default_factory=Reading)
    """What the caller said about the model: roles, ignored keys, inputs."""

    # What to do with it

    def initialize_(
        self, model: nn.Module, *, std: PerRole, seed: int, draw: Sequence[str] = ()
    ) -> None:
        """Draw the weights and set gains and biases, and attach the plan's hooks if it has any.

        Only what the model itself drew is drawn again: zeros and other constants, frozen tensors
        and buffers stay as the model made them, and the plan's warnings name them. `draw` holds
        patterns of names to draw all the same. A model whose logits are zero or constant
        afterwards, though its readout is not, raises.

        `std` is the base's standard deviation, or one by role: {"default": 0.02, "embedding": 1.0}.
        Each parameter is drawn from (seed, its name), so that order, sharding and device do not
        matter. Buffers are left alone: after `to_empty`, those that a model computes (rotary
        frequencies, say) must be made anew by the model.
        """
        drawn = [p for p in self.parameters.values() if p.drawn]
        groups.check_per_role("std", std, [p.role for p in drawn])
        if isinstance(seed, bool) or not isinstance(seed, int):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise OptionError(f"seed={seed!r} is not a whole number.")
        tensors = self._tensors(model)
        self.attach_(model)
        padding, wanted = _padding(model), self._matching(draw)
        for name, parameter in self.parameters.items():
            sigma = groups.value_of(std, parameter.role)
            planned = replace(parameter, kept="") if name in wanted else parameter
            initialization.initialize(
                planned, tensors[name], std=sigma, seed=seed, padding=padding.get(name)
            )
        self._refuse_silent(model, tensors)

    def _matching(self, patterns: Sequence[str]) -> set[str]:
        """Names of parameters to draw although the model set them; a pattern that matches none
        raises.
        """
        found: set[str] = set()
        for pattern in patterns:
            names = [
                name
                for name, p in self.parameters.items()
                if p.drawn and fnmatch.fnmatchcase(name, pattern)
            ]
            if not names:
                raise OptionError(f"draw: the pattern {pattern!r} matches no weight of the plan.")
            found.update(names)
        return found

    def _refuse_silent(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
        """A model that gives the same logits whatever it is given has a gain, a readout or an
        embedding at zero.
        """
        readouts = [tensors[p.name] for p in self.parameters.values() if p.role == "readout"]
        if not readouts or any(is_zero(tensor) for tensor in readouts):
            return  # a readout that starts at zero gives zeros, and trains
        logits = run_once(bare(model), self.reading)
        if (
            logits is not None
            and logits.numel() > 1
            and not bool((logits - logits.flatten()[0]).any())
        ):
            zero = [
                name
                for name, p in self.parameters.items()
                if is_zero(tensors[name]) and p.role == "gain"
            ]
            raise PlanMismatchError(
                f"after initialize_ every logit of the model is {float(logits.flatten()[0]):g}, "
                "though its readout is "
                "not zero. "
                f"{f'{len(zero)} gains are zero, {zero[0]} the first. ' if zero else ''}Check the "
                "roles with "
                "plan.evidence, and say what is wrong with roles={…}."
            )

    def param_groups(
        self,
        model: nn.Module,
        lr: PerRole,
        weight_decay: PerRole = 0.0,
        eps: PerRole | None = None,
        betas: tuple[float, float] | None = None,
        *,
        optimizer: str | None = None,
        split_rows: bool = False,
    ) -> list[dict[str, Any]]:
        """Parameter groups for a torch optimizer, as few as there are distinct values.

        `lr`, `weight_decay` and `eps` are what was tuned on the base: one number, or numbers by
        role with a "default": lr={"default": 2**-7, "embedding": 2**-5}. `eps` is torch's default
        where it is left out.

        A plan for Muon holds parameters of two optimizers: optimizer="muon" and optimizer="adamw"
        give the groups of each. `split_rows` describes fused, stacked and transposed matrices to
        `mupscale.optim.Muon`.
        """
        tensors = self._tensors(model)
        if set(self.hooks) != hooks.attached(model):
            raise PlanMismatchError(
                f"the plan has {len(self.hooks)} hooks (the first on {self.hooks[0].module}) that "
                "the model does not "
                "carry. Call plan.initialize_(model, …), or plan.attach_(model) after loading "
                "weights."
                if self.hooks
                else "the model carries hooks of another plan. Remove them with that plan's "
                "detach_."
            )
        base = groups.BaseValues(lr, weight_decay, eps, self.decay)
        extra = {} if betas is None else {"betas": betas}
        return groups.make_groups(
            self._trained_by(optimizer), tensors, base, split_rows=split_rows, extra=extra
        )

    def _trained_by(self, optimizer: str | None) -> list[PlannedParameter]:
        names = list(dict.fromkeys(p.optimizer for p in self.parameters.values()))
        if optimizer is None:
            if len(names) > 1:
                raise OptionError(
                    f"this plan is for {' and '.join(names)} together. Ask for the groups of each: "
                    + ", ".join(f"optimizer={name!r}" for name in names)
                    + "."
                )
            return list(self.parameters.values())
        if optimizer not in names:
            raise UnknownNameError("optimizer in this plan", optimizer, names)
        return [p for p in self.parameters.values() if p.optimizer == optimizer]

    def verify(
        self,
        optimizer: Optimizer,
        *,
        model: nn.Module | None = None,
        lr: PerRole | None = None,
        weight_decay: PerRole | None = None,
        eps: PerRole | None = None,
        betas: tuple[float, float] | None = None,
        std: PerRole | None = None,
        drawn: bool | None = None,
        trainer: object = None,
    ) -> Verified:
        """Raise `PlanMismatchError` naming what differs from the plan: the optimizer's class, a
        group, the weights.

        optimizer  of the plan's kind: AdamW for adamw, and not Adam, which decays differently. A
        class of another
                   package is known by its name (AdamW8bit, FusedAdam); one that is not known is
                   warned of
        model      the model that it trains. Which parameters a group holds then goes by its tensors
        and not by its
                   `param_names`, which `load_state_dict` overwrites; and the weights are compared
                   with what `initialize_` draws, by their size and shape, unless the optimizer has
                   stepped
        lr, weight_decay, eps, betas   the base values; without them, the ratios between the groups
        are checked std        what `initialize_` was given; without it, the ratios between the
        weights are checked drawn      True looks at the weights in any case, False never does: for
        weights that you loaded trainer    transformers' Trainer or TrainingArguments, or
        Lightning's Trainer: warns if it clips gradients too
        """
        if model is None and (std is not None or drawn):
            raise OptionError(
                "std and drawn are about the weights. Give verify the model too: model=…."
            )
        base = {"lr": lr, "weight_decay": weight_decay, "eps": eps, "betas": betas}
        weights = None
        if model is not None:
            weights = verification.Weights(self._tensors(model), std, _padding(model), drawn)
        found = verification.verify(self.parameters, optimizer, base, self.decay, weights)
        if trainer is not None:
            hook = clipping.hook_of(verification.unwrapped(optimizer))
            twice = clipping.clipped_twice(self.parameters.values(), hook, trainer)
            checked = (*found.checked, "clipping")
            found = dataclasses.replace(
                found, checked=checked, warnings=(*found.warnings, *([twice] if twice else []))
            )
        for warning in found.warnings:
            warnings.warn(warning, UserWarning, stacklevel=2)
        return found

    def clip_grad_norm_(
        self, model: nn.Module, max_norm: float, *, error_if_nonfinite: bool = False
    ) -> Tensor:
        """As torch's, with the norm that the gradients have without folding: clipping then does not
        depend on it.
        """
        tensors = self._tensors(model)
        return clipping.clip(
            self.parameters, tensors.items(), max_norm, error_if_nonfinite=error_if_nonfinite
        )

    def clip_before_step(self, optimizer: Optimizer, max_norm: float) -> Any:
        """Clip whenever this optimizer steps, for trainers that would clip by themselves; returns a
        removable handle.

        Switch the trainer's own clipping off: max_grad_norm=0 in transformers. If gradients arrive
        clipped all the same, it warns once. The norm is that of the parameters of this optimizer.
        """
        clipping.check_max_norm(max_norm)
        names = [
            name for group in optimizer.param_groups for name in group.get("param_names", [None])
        ]
        if None in names:
            raise PlanMismatchError(
                "the optimizer does not say which parameters it holds. Use plan.param_groups."
            )
        there = clipping.hook_of(optimizer)
        if there is not None:
            raise OptionError(
                f"this optimizer clips before each step already, to a norm of {there.max_norm:g}. "
                "Remove that first: "
                "call remove() of what clip_before_step returned."
            )
        return optimizer.register_step_pre_hook(
            clipping.ClipBeforeStep(self.parameters, names, max_norm)
        )

    def attach_(self, model: nn.Module) -> None:
        """Put the plan's hooks onto a model, after loading its weights, say. Does nothing where
        there are none.
        """
        self._tensors(model)
        hooks.attach(model, self.hooks)

    def detach_(self, model: nn.Module) -> None:
        """Take the hooks off without touching the weights."""
        hooks.detach(model)

    def bake_(self, model: nn.Module) -> None:
        """Put the hooks' factors into the weights and take the hooks off: a plain model that
        computes the same.
        """
        self._tensors(model)
        if hooks.attached(model) != set(self.hooks):
            raise PlanMismatchError(
                "the model does not carry this plan's hooks, so there is nothing to bake."
            )
        offsets = {name: parameter.offset for name, parameter in self.parameters.items()}
        hooks.bake(model, self.hooks, self.final_norm, offsets)

    def _tensors(self, model: nn.Module) -> dict[str, Tensor]:
        """The model's parameters by their bare names, which must be those of the plan."""
        tensors: dict[str, Tensor] = {
            bare_name(name): tensor for name, tensor in bare(model).named_parameters()
        }
        lost, new = self.parameters.keys() - tensors.keys(), tensors.keys() - self.parameters.keys()
        if lost or new:
            what = (
                f"has no {sorted(lost)[0]}"
                if lost
                else f"has {sorted(new)[0]}, which is not in the plan"
            )
            raise PlanMismatchError(
                f"the plan is for another model: this one {what}. Make a plan for it."
            )
        for name, tensor in tensors.items():
            if tuple(tensor.shape) != self.parameters[name].shape:
                shape = self.parameters[name].shape
                raise PlanMismatchError(
                    f"the plan is for another model: {name} is {tuple(tensor.shape)} here and "
                    f"{shape} in the plan."
                )
        return tensors

    # What it says

    @property
    def evidence(self) -> dict[str, str]:
        """How the role of each parameter is known, by template: its name, a forward pass, or what
        you said.
        """
        return {
            p.template: f"{p.role}: {p.evidence or 'not recorded'}"
            for p in self.parameters.values()
        }

    def explain(self, name: str) -> str:
        """The derivation of one parameter's values, with its numbers put in."""
        if name not in self.parameters:
            raise UnknownNameError(
                "parameter", name, [p.name for p in self.parameters.values()][:12], self.parameters
            )
        return showing.explain(self.parameters[name], self.rule, self.decay)

    def diff(self, other: Plan) -> showing.Differences:
        """What another plan gives instead: settings first, then values by template."""
        settings = [
            showing.Difference("plan", name, getattr(self, name), getattr(other, name))
            for name in (
                "model",
                "optimizer",
                "rule",
                "decay",
                "target",
                "base",
                "multipliers",
                "reference_r",
                "reading",
            )
            if getattr(self, name) != getattr(other, name)
        ]
        return showing.plan_differences(self.parameters, other.parameters, settings)

    def to_text(self) -> str:
        """The table, with a head and the warnings."""
        table = showing.rows(self.parameters.values(), self.rule, self.decay)
        return "\n".join([self._head(), "", *showing.aligned(table), *self._foot()])

    def to_markdown(self) -> str:
        table = showing.rows(self.parameters.values(), self.rule, self.decay)
        return "\n".join([f"**{self._head()}**", "", *showing.markdown(table), *self._foot()])

    def __str__(self) -> str:
        return self.to_text()

    def _head(self) -> str:
        sizes = [
            ", ".join(f"{name} {value}" for name, value in d.items())
            for d in (self.target, self.base)
        ]
        return (
            f"{self.model} ({sizes[0]}) from a base of {sizes[1]} · {self.rule} · {self.optimizer} "
            "· "
            f"{self.decay} decay · factors on the base's values"
        )

    def _foot(self) -> list[str]:
        count = f"{len(self.parameters)} parameters" + (
            f", {len(self.hooks)} hooks" if self.hooks else ""
        )
        evidence = [f"{self.rule}: {self.rule.evidence}"] if self.rule.evidence else []
        return ["", count, *evidence, *(f"warning: {warning}" for warning in self.warnings)]

    # As a file

    def to_dict(self) -> dict[str, Any]:
        return {
            **{
                f.name: getattr(self, f.name)
                for f in dataclasses.fields(self)
                if f.name not in _STRUCTURED
            },
            "rule": self.rule.to_dict(),
            "warnings": list(self.warnings),
            **(
                {"reading": self.reading.to_dict()} if self.reading else {}
            ),  # else the file is as it always was
            "hooks": [dataclasses.asdict(hook) for hook in self.hooks],
            "parameters": {
                name: storing.parameter_to_dict(p) for name, p in self.parameters.items()
            },
        }

    def to_json(self) -> str:
        return storing.to_json(self.to_dict())

    @staticmethod
    def from_json(text: str) -> Plan:
        """A plan from its JSON; a text that was edited or cut short is refused."""
        data = storing.from_json(text)
        parameters = {
            name: storing.parameter_from_dict(p) for name, p in data["parameters"].items()
        }
        return Plan(
            **{key: value for key, value in data.items() if key not in _STRUCTURED},
            rule=Rule.from_dict(data["rule"]),
            warnings=tuple(data["warnings"]),
            reading=Reading.from_dict(data.get("reading", {})),
            hooks=tuple(storing.hook_from_dict(hook) for hook in data["hooks"]),
            parameters=parameters,
        )

    def save(self, path: str | Path) -> None:
        """Write the JSON, whole or not at all."""
        write_whole(Path(path), self.to_json().encode())

    @staticmethod
    def load(path: str | Path) -> Plan:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except OSError as error:
            raise OptionError(
                f"{path}: {error.strerror or error}. Write a plan with plan.save(path)."
            ) from error
        except UnicodeDecodeError as error:
            raise PlanMismatchError(f"{path}: not a plan: it is not text.") from error
        try:
            return Plan.from_json(text)
        except MupscaleError as error:
            raise PlanMismatchError(f"{path}: {error}") from error


_STRUCTURED = ("rule", "warnings", "reading", "hooks", "parameters")


def _padding(model: nn.Module) -> dict[str, int]:
    """The row of each embedding that torch keeps at zero."""
    named = bare(model).named_modules()
    return {
        bare_name(f"{name}.weight"): module.padding_idx
        for name, module in named
        if isinstance(module, nn.Embedding) and module.padding_idx is not None
    }
