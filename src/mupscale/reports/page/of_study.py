"""From a study on disk to the data of its page. torch is imported only when called."""

import dataclasses
import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING

import mupscale
from mupscale.analysis.families import analyse
from mupscale.errors import StudyFailedError
from mupscale.reports.page.data import CheckSummary, PageData, RecipeView, StudyProgress
from mupscale.reports.page.recipes import no_recipe, recipe_view

if TYPE_CHECKING:
    from mupscale.analysis.families import StudyAnalysis
    from mupscale.studies import Snapshot, Study, StudyConfig
    from mupscale.targets import Target


def page_data(
    study: "Study",
    *,
    to: "str | Target | None" = None,
    checks: Sequence[CheckSummary] = (),
    refresh_seconds: int | None = None,
    snapshot: "Snapshot | None" = None,
    analysis: "StudyAnalysis | None" = None,
) -> PageData:
    """What the study's files show now. The page of a finished study never refreshes itself.

    Pass a snapshot and its analysis if you have them: reading and analysing takes seconds.
    """
    from mupscale.studies.measured import measured
    from mupscale.studies.sensitivity import found_in

    snapshot = snapshot or study.snapshot()
    runs, axis = measured(snapshot)
    analysis = analysis or analyse(runs, axis=axis)
    progress = _progress(snapshot)
    sensitivity, gains = found_in(snapshot)
    return PageData(
        name=study.config.name,
        config=_public(study.config),
        analysis=analysis,
        runs=runs,
        trials=[trial.to_dict() for trial in snapshot.trials],
        copies=frozenset(snapshot.copies),
        progress=progress,
        made_at=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        version=mupscale.__version__,
        recipe=None if to is None else _recipe(study, to, analysis),
        checks=checks,
        sensitivity=sensitivity,
        gains=gains,
        refresh_seconds=None if progress.done else refresh_seconds,
    )


def _progress(snapshot: "Snapshot") -> StudyProgress:
    own = snapshot.cells.keys() - snapshot.copies
    return StudyProgress(
        ended=sum(len(snapshot.cells[cell]) for cell in own),
        expected=sum(snapshot.expected.get(cell, 0) for cell in own),
        running=len(snapshot.running),
        done=len(snapshot.done) == len(snapshot.cells),
        growing=snapshot.config.search.method not in ("grid", "random"),
    )


def _public(config: "StudyConfig") -> str:
    """As TOML without the trainer's environment: pages are shared, and it may hold secrets."""
    if config.trainer is not None:
        hidden = dict.fromkeys(config.trainer.environment, "(not shown)")
        config = dataclasses.replace(
            config, trainer=dataclasses.replace(config.trainer, environment=hidden)
        )
    return config.to_toml()


def _recipe(study: "Study", to: "str | Target", analysis: "StudyAnalysis") -> RecipeView:
    """A recipe, or the reason why the study has none yet."""
    from mupscale.recipes import transfer

    try:
        recipe = transfer(study, to=to, analysis=analysis)
    except StudyFailedError as error:
        return no_recipe(to if isinstance(to, str) else to.name, str(error))
    return recipe_view(recipe)
