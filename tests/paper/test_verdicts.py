"""The table of claims: its kinds, its counts, and the words that it defines."""

from mupscale.paper.claims import KINDS, UNDECIDED, VERDICTS, Claim
from mupscale.paper.verdicts import counts, definitions, summary, table_lines


def claim(kind, verdict):
    return Claim("depth", kind, "it holds", "it does", 9, verdict)


CLAIMS = [
    claim("arithmetic", "agrees"),
    claim("arithmetic", "agrees"),
    claim("first steps", "disagrees"),
    claim("best rates", "points against"),
    claim("best rates", UNDECIDED),
    claim("best rates", "ours"),
]


def test_claims_are_counted_by_kind():
    """What agrees in arithmetic does not count for best rates."""
    head, rows = counts(CLAIMS)
    table = {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows}
    assert list(table) == ["arithmetic", "first steps", "best rates"]
    assert table["arithmetic"]["agrees"] == "2"
    assert table["best rates"]["agrees"] == "–"
    assert table["best rates"]["points against"] == "1"
    assert table["best rates"]["ours"] == "1"
    number = sum(int(one) for row in rows for one in row[1:] if one != "–")
    assert number == len(CLAIMS)


def test_the_sentence_leaves_out_what_no_claim_has():
    assert summary(CLAIMS) == (
        "Of 5 claims of the paper, 2 agree, 1 disagrees, 1 points against and 1 cannot be decided. "
        "1 question is ours."
    )
    assert summary([]) == "Of 0 claims of the paper, none is judged. 0 questions are ours."


def test_every_word_is_defined_where_it_is_printed():
    text = "\n".join(table_lines(CLAIMS))
    for word in (*KINDS, *VERDICTS, "ours", "fits"):
        assert any(one.startswith(f"{word}: ") for one in definitions())
        assert f"- {word}: " in text
