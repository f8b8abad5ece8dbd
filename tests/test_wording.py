"""Plain English: phrases that slow a reader down do not come back, and no line is too long."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("src", "docs", "website", "examples", "drills", "benchmarks", "tests")
ENDINGS = {".py", ".md", ".toml", ".j2", ".js", ".css", ".html"}
FILES = [
    *sorted(ROOT.glob("*.md")),
    ROOT / "Makefile",
    *(
        path
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in ENDINGS and path != Path(__file__)
    ),
    *sorted((ROOT / "results").rglob("*.md")),
]
MAX_WIDTH = 100

# What to avoid → what to write.
PHRASES = {
    r"\b(octaves?|nats?|trials?|runs|one|rows?|lines?|tokens?|bytes?|seeds?|heads?|rates?|steps?"
    r"|points?|times|seconds?|jobs?|studies|batches|results?|numbers?|curves?) a "
    r"(doubling|core|rule|cell|key|parameter|second|step|run|trial|line|head|row|seed|layer|block"
    r"|token|point|transaction|minute|hour|job|worker|process|file|octave|study|rate|member)\b": (
        "per: 0.15 octaves per doubling, one per core, query heads per key/value head"
    ),
    r"\bnot (?:be )?told (?:from|apart)|\btold from (?:zero|noise)|\bno interval tells\b": (
        "no significant drift; indistinguishable from X"
    ),
    r"\b(?:is|are|was|were|be) told\b|\btold of no\b": "is reported; reported no loss",
    r"\b[Mm]end(?:s|ed|ing)?\b": "fix",
    r"\bha(?:s|ve) not the\b|\bthat the model has not\b": "differs from the plan; unknown tensor",
    r"\bthat cannot be[.,;:]|\bis no limit\b|\bare no training\b": "is invalid; must be positive",
    r"\bcannot be asked for\b|\b[Aa]sk less\b": "must be ≥ 0; request fewer resources",
    r"\b[Aa]t most so many\b|\bso many (?:trials|runs|steps)\b": "maximum trials per cell",
    r"\bunless (?:said|given)\b": "(default: …)",
    r"\band else\b": "otherwise",
    r"\bwill not take (?:it|the result|a result)\b|\bwould not take\b": "could not write",
    r"\bno place yet\b|\bcome along together\b": "not located yet; progress evenly",
    r"\bas the base would have it\b|\bmust know besides\b": "in the base's units; caveats",
    r"\brefused by name, never guessed\b": "raise an error that names them",
    r"\b(?:is|are) not to be had\b|\bcan(?:not)? be had\b": "is not available",
    r"\bhears? of (?:it|them)\b": "is notified",
    r"\bfor want of\b|\bhave their say\b|\bcry wolf\b": "for lack of; false alarm",
    r"\bsays? nothing (?:of|on)\b": "does not cover",
}


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


# A phrase may run over the end of a line, of a comment or of a part of a string.
GAP = r"(?: |\s*\"?\s*\n\s*(?:#|//|f?\")?\s*)"


def findings(text: str, where: str) -> list[str]:
    """Each forbidden phrase with its line."""
    return [
        f"{where}:{text.count(chr(10), 0, found.start()) + 1}: {found.group()!r} → {instead}"
        for phrase, instead in PHRASES.items()
        for found in re.finditer(phrase.replace(" ", GAP), text)
    ]


@pytest.mark.parametrize(
    "sentence",
    [
        "0.15 octaves a doubling",
        "query heads a key/value head",
        "it moves is not told from noise",
        "a run that was told of no loss",
        "Mend the config",
        "it has not the plan's values",
        "a width that cannot be.",
        "At most so many trials",
        "2^-8 unless given",
        "and else a Ray of its own",
        "one\n    # a core",
        'one "\n    "a core',
    ],
)
def test_each_phrase_is_noticed(sentence):
    assert findings(sentence, "here")


def test_no_file_has_a_phrase_that_slows_the_reader_down():
    found = [line for path in FILES for line in findings(path.read_text("utf-8"), name(path))]
    assert not found, "\n".join(found)


def too_wide(path: Path) -> list[int]:
    """Lines of prose and code beyond the limit. Tables, links, commands and printed output may be
    wider.
    """
    wide: list[int] = []
    printed = False
    for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1):
        printed ^= path.suffix == ".md" and line.lstrip().startswith("```")
        excused = printed or line.lstrip().startswith("|") or line.startswith("    mupscale ")
        excused = excused or re.search(r"https?://|\]\(", line)
        if len(line) > MAX_WIDTH and not excused:
            wide.append(number)
    return wide


# Python is checked by ruff, which knows which strings cannot be split.
@pytest.mark.parametrize("ending", [".md", ".toml"])
def test_prose_is_at_most_100_wide(ending):
    found = {name(path): too_wide(path) for path in FILES if path.suffix == ending}
    assert not {path: lines for path, lines in found.items() if lines}
