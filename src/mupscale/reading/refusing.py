"""Errors for parameters that nothing settles, with a block to paste in which the role is left
open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mupscale.errors import UnreadableModelError
from mupscale.reading.roles import ROLES
from mupscale.reading.structure import Entry
from mupscale.reading.verdicts import SAID, MeasuredUse, Verdict

_SHOWN = 12


def refuse(
    model: str, found: Sequence[Entry], verdicts: Mapping[str, Verdict], seen: MeasuredUse | None
) -> None:
    """Raise where a name contradicts what was seen, or where a parameter has no role."""
    against = [entry for entry in found if verdicts[entry.name].contradiction]
    if against:
        raise UnreadableModelError(_contradictions(model, against, verdicts))
    unknown = [entry for entry in found if verdicts[entry.name].role is None]
    if unknown:
        raise UnreadableModelError(_unknown(model, unknown, seen))


def _by_template(several: Sequence[Entry]) -> dict[tuple[str, tuple[int, ...]], list[Entry]]:
    found: dict[tuple[str, tuple[int, ...]], list[Entry]] = {}
    for entry in several:
        found.setdefault((entry.template, entry.shape), []).append(entry)
    return found


def _contradictions(model: str, against: Sequence[Entry], verdicts: Mapping[str, Verdict]) -> str:
    lines = [
        f"{model}: what a forward pass shows contradicts the role of {len(against)} parameters:"
    ]
    rows = _by_template(against)
    for (template, shape), several in list(rows.items())[:_SHOWN]:
        verdict = verdicts[several[0].name]
        whose = (
            f"you say {verdict.role}"
            if verdict.evidence == SAID
            else f"the name says {verdict.role}"
        )
        lines.append(f"  {template} {shape}: {whose}; in a forward pass it {verdict.contradiction}")
    lines += [f"  … and {len(rows) - _SHOWN} more"] if len(rows) > _SHOWN else []
    first = next(iter(rows))[0]
    lines.append(
        f'Say which is right, in [reading.roles]: "{first}" = "ROLE"; "ROLE!" insists on a role '
        "against what was seen."
    )
    return "\n".join(lines)


def _unknown(model: str, unknown: Sequence[Entry], seen: MeasuredUse | None) -> str:
    rows = _by_template(unknown)
    shown = list(rows.items())
    lines = [
        f"{model}: {len(unknown)} parameters are not understood. Say what they are:",
        "",
        "[reading.roles]",
    ]
    for (template, shape), several in shown:
        times = f" × {len(several)}" if len(several) > 1 else ""
        what = seen.role(several[0])[1] if seen is not None else "no forward pass could be followed"
        lines.append(
            f'"{template}" = "ROLE"  # {"×".join(map(str, shape)) or "a number"}{times}: {what}'
        )
    first = shown[0][0][0]
    lines += [
        "",
        "Replace each ROLE and put the block into mupscale.toml beside the model or into the study "
        "file; or pass "
        f'--role "{first}=ROLE", in Python roles={{"{first}": "ROLE"}}.',
        f"Roles: {', '.join(ROLES)}.",
    ]
    return "\n".join(lines)
