"""The commands, and what happens to errors: a user's mistake is one message and a status, never a
traceback.

Exit status: 0 fine, 1 a check failed, 2 wrong use, 3 inconclusive, 4 the disk would not take a
result. Nothing heavy is imported here, so that `mupscale --help` answers at once.
"""

import os
import re
import sys
from collections.abc import Sequence

import cyclopts

import mupscale
from mupscale.cli import (
    calibrate,
    check,
    demo,
    paper,
    plan,
    report,
    sweep,
    theory,
    training,
    transfer,
)
from mupscale.errors import MupscaleError

app = cyclopts.App(
    name="mupscale",
    help="""Tune small, train big: scaling rules for transformers, grouped-query attention included.

    Start with: mupscale plan llama-3-8b --base width=512,depth=8, then: mupscale table""",
    version=mupscale.__version__,
    help_format="plaintext",
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)
app.command(theory.derive)
app.command(theory.table)
app.command(plan.plan)
app.command(check.check)
app.command(training.train)
app.command(training.models)
app.command(sweep.sweep)
app.command(report.report)
app.command(transfer.transfer)
app.command(calibrate.calibrate)
app.command(paper.app)
app.command(demo.demo)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    try:
        status = app(
            _dotted(sys.argv[1:] if arguments is None else arguments),
            exit_on_error=False,
            print_error=False,
        )
        sys.stdout.flush()
    except MupscaleError as error:
        return _complain(str(error), error.exit_status)
    except cyclopts.CycloptsError as error:
        return _complain(str(error).strip(), 2, "Add --help to see how it is used.")
    except BrokenPipeError:
        # The reader (head, less) has gone: nobody is left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        return _complain("interrupted", 130)
    return status if isinstance(status, int) else 0


def _dotted(arguments: Sequence[str]) -> list[str]:
    """--table.setting VALUE as --set table.setting=VALUE, which is what the commands take.

    >>> _dotted(["train", "gqa.toml", "--model.n-kv-heads", "2", "--optimizer.lr=0.01", "--json"])
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


def _complain(message: str, status: int, hint: str = "") -> int:
    print(f"error: {message}", file=sys.stderr)
    if hint:
        print(hint, file=sys.stderr)
    return status
