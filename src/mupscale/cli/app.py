"""The commands, and how errors are shown: a user's mistake is one message and an exit status, never
a traceback.

Exit status: 0 success, 1 a check failed, 2 wrong use, 3 inconclusive, 4 a result could not be
written. Nothing heavy is imported here, so that `mupscale --help` answers at once.
"""

import os
import re
import sys
from collections.abc import Sequence

import cyclopts

import mupscale
from mupscale.cli import calibrate, check, demo, paper, plan, report, sweep, theory, training
from mupscale.cli import transfer as transferring
from mupscale.cli.console import HelpFormatter, remark
from mupscale.errors import MupscaleError

app = cyclopts.App(
    name="mupscale",
    help="""Tune a small model, train the large one: scaling rules for transformers, including
    grouped-query attention.

    Example: mupscale plan llama-3-8b --base width=512,depth=8

    Example: mupscale table""",
    version=mupscale.__version__,
    help_format="plaintext",
    help_formatter=HelpFormatter(),
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)
for _command in (
    theory.derive,
    theory.table,
    plan.plan,
    check.check,
    training.train,
    training.models,
    sweep.sweep,
    report.report,
    transferring.transfer,
    calibrate.calibrate,
    paper.app,
    demo.demo,
):
    app.command(_command)  # pyright: ignore[reportArgumentType, reportCallIssue]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    try:
        status = app(
            dotted(sys.argv[1:] if arguments is None else arguments),
            exit_on_error=False,
            print_error=False,
        )
        sys.stdout.flush()
    except MupscaleError as error:
        remark(f"error: {error}")
        return error.exit_status
    except cyclopts.CycloptsError as error:
        remark(f"error: {str(error).strip()}\nRun the command with --help to see its options.")
        return 2
    except BrokenPipeError:  # the reader (head, less) has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        remark("error: interrupted")
        return 130
    return status if isinstance(status, int) else 0


def dotted(arguments: Sequence[str]) -> list[str]:
    """Turn --table.setting VALUE into --set table.setting=VALUE, which the commands take.

    >>> dotted(["train", "gqa.toml", "--model.n-kv-heads", "2", "--optimizer.lr=0.01", "--json"])
    ['train', 'gqa.toml', '--set', 'model.n-kv-heads=2', '--set', 'optimizer.lr=0.01', '--json']
    """
    result: list[str] = []
    words = iter(arguments)
    for word in words:
        if not re.fullmatch(r"--[a-z]+\.[a-zA-Z_-]+(=.*)?", word, flags=re.DOTALL):
            result.append(word)
            continue
        setting = word if "=" in word else f"{word}={next(words, '')}"
        result += ["--set", setting.removeprefix("--")]
    return result
