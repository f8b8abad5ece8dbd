"""Every study of the package passes all checks that need no run."""

import dataclasses

import pytest

from mupscale.data import hub
from mupscale.errors import OptionError, UnknownNameError
from mupscale.paper import configurations
from mupscale.paper.catalogue import load, studies_of
from mupscale.paper.dry_run import corpus_named, validate
from mupscale.studies import StudyConfig

ALL = [(scale, name) for scale in ("paper", "cpu") for name in studies_of(scale)]


@pytest.fixture(autouse=True)
def no_downloads(monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a dry run opens no corpus")

    monkeypatch.setattr(hub, "import_datasets", refuse)
    monkeypatch.setattr(hub, "open_hub", refuse)


@pytest.mark.parametrize(("scale", "name"), ALL)
def test_every_study_would_run(scale, name, monkeypatch, tmp_path):
    (tmp_path / "runs").mkdir()
    for text in ("gcide.txt", "gcide-utf8.txt"):  # English, which is not included
        (tmp_path / "runs" / text).touch()
    monkeypatch.chdir(tmp_path)
    config = load(name, scale)
    lines = list(validate(config))
    for cell in config.cells():
        assert sum(line.startswith(f"{cell.name}: ") for line in lines) == 1
    if scale == "paper":
        assert (
            "corpus: hf:Skylion007/openwebtext by hub:openai-community/gpt2 (not opened)" in lines
        )


@pytest.mark.parametrize(
    ("name", "last"), [("gqa-ablation", "| 33 | 3262"), ("weight-decay", "| 26 | 2497")]
)
def test_the_papers_rows_are_printed_and_equal(name, last):
    """One rule is enough: the row is the model's."""
    config = dataclasses.replace(load(name, "paper"), rules=("mup",), rule_space={})
    rows = [line for line in validate(config) if "the paper's" in line]
    assert len(rows) == len(config.variants)
    assert all(row.endswith("equal to the printed digit") for row in rows)
    assert any(last in row for row in rows)


def ablation(**changes: object) -> StudyConfig:
    config = load("gqa-ablation", "paper")
    tables = {name: {**values, **changes.get(name, {})} for name, values in config.tables.items()}
    return dataclasses.replace(
        config, rules=("mup",), rule_space={}, variants=config.variants[:1], tables=tables
    )


@pytest.mark.parametrize(
    ("length", "words"),
    [
        ({}, "warmup 65, then a cosine to zero"),
        ({"schedule": "linear", "floor": 0.1}, "then a linear decay to 0.1 of the peak rate"),
        (
            {"schedule": "wsd"},
            "warmup 65, then the peak rate, then a linear decay to zero over the last 652",
        ),
    ],
)
def test_the_schedule_is_printed(length, words):
    (line,) = [line for line in validate(ablation(length=length)) if line.startswith("mup.")]
    assert line.endswith(words)


def test_a_row_that_is_not_as_printed_is_an_error_that_names_the_cell(monkeypatch):
    printed = {**configurations.PRINTED, "kvr_12": (*configurations.PRINTED["kvr_12"][:-1], 3263)}
    monkeypatch.setattr(configurations, "PRINTED", printed)
    with pytest.raises(OptionError, match=r"cell mup\.kvr_12: .*iterations is 3262, printed 3263"):
        list(validate(ablation()))


def test_a_batch_that_ranks_cannot_share_is_an_error_that_names_the_cell():
    config = ablation()
    shared = dataclasses.replace(config, engine=dataclasses.replace(config.engine, ranks=2))
    with pytest.raises(
        OptionError, match=r"cell mup\.kvr_12: A batch of 33 sequences .* 2 ranks and 11 slices"
    ):
        list(validate(shared))


def test_ranks_and_sharding_go_together():
    with pytest.raises(OptionError, match=r"engine.ranks = 1 and machine.shard = fsdp"):
        list(validate(ablation(machine={"shard": "fsdp"})))


def test_what_the_optimizer_would_refuse_is_refused():
    with pytest.raises(OptionError, match=r"cell mup\.kvr_12: eps=.*sgd takes no such epsilon"):
        list(validate(ablation(optimizer={"name": "sgd"})))


def test_a_corpus_without_a_loader_is_refused():
    with pytest.raises(OptionError, match=r"cell mup\.kvr_12: unknown corpus 'openwebtext'"):
        list(validate(ablation(data={"corpus": "openwebtext"})))
    with pytest.raises(UnknownNameError, match="Did you mean 'column'"):
        corpus_named("hf:openwebtext,colunm=text", None)
    with pytest.raises(UnknownNameError, match="unknown tokenizer 'gpt2'"):
        corpus_named("hf:openwebtext", "gpt2")
    with pytest.raises(OptionError, match="no such file or folder"):
        corpus_named("text:/nowhere/at/all", None)


def test_corpora_that_need_no_network(tmp_path):
    assert corpus_named("python-stdlib", "bpe:4096") == "python-stdlib by bpe:4096"
    assert corpus_named(f"bin:{tmp_path}", None) == f"bin:{tmp_path}"
