"""Errors for parameters without a settled role, with a block to paste in which the role is open."""

from collections.abc import Mapping, Sequence

from mupscale.errors import UnreadableModelError
from mupscale.reading.roles import ROLES
from mupscale.reading.structure import Entry
from mupscale.reading.verdicts import USER, MeasuredUse, Verdict

_SHOWN = 12


def raise_if_unsettled(
    model: str,
    entries: Sequence[Entry],
    verdicts: Mapping[str, Verdict],
    seen: MeasuredUse | None,
) -> None:
    """Raise if a role contradicts the forward pass, or if a parameter has no role."""
    against = [entry for entry in entries if verdicts[entry.name].contradiction]
    if against:
        raise UnreadableModelError(_contradictions(model, against, verdicts))
    unknown = [entry for entry in entries if verdicts[entry.name].role is None]
    if unknown:
        raise UnreadableModelError(_unknown(model, unknown, seen))


def _by_template(entries: Sequence[Entry]) -> dict[tuple[str, tuple[int, ...]], list[Entry]]:
    groups: dict[tuple[str, tuple[int, ...]], list[Entry]] = {}
    for entry in entries:
        groups.setdefault((entry.template, entry.shape), []).append(entry)
    return groups


def _contradictions(model: str, against: Sequence[Entry], verdicts: Mapping[str, Verdict]) -> str:
    lines = [
        f"{model}: what a forward pass shows contradicts the role of {len(against)} parameters:"
    ]
    groups = _by_template(against)
    for (template, shape), entries in list(groups.items())[:_SHOWN]:
        verdict = verdicts[entries[0].name]
        whose = "you say" if verdict.evidence == USER else "the name says"
        lines.append(
            f"  {template} {shape}: {whose} {verdict.role}; in a forward pass it "
            f"{verdict.contradiction}"
        )
    lines += [f"  … and {len(groups) - _SHOWN} more"] if len(groups) > _SHOWN else []
    first = next(iter(groups))[0]
    lines.append(
        f'Give the right role in [reading.roles]: "{first}" = "ROLE". To overrule the forward '
        'pass, write "ROLE!".'
    )
    return "\n".join(lines)


def _unknown(model: str, unknown: Sequence[Entry], seen: MeasuredUse | None) -> str:
    lines = [
        f"{model}: {len(unknown)} parameters are not understood. Give their roles:",
        "",
        "[reading.roles]",
    ]
    groups = _by_template(unknown)
    for (template, shape), entries in groups.items():
        times = f" × {len(entries)}" if len(entries) > 1 else ""
        what = seen.role(entries[0])[1] if seen else "no forward pass could be followed"
        lines.append(
            f'"{template}" = "ROLE"  # {"×".join(map(str, shape)) or "a number"}{times}: {what}'
        )
    first = next(iter(groups))[0]
    lines += [
        "",
        "Replace each ROLE and put the block into mupscale.toml beside the model or into the study "
        f'file. Or pass --role "{first}=ROLE"; in Python, roles={{"{first}": "ROLE"}}.',
        f"Roles: {', '.join(ROLES)}.",
    ]
    return "\n".join(lines)
