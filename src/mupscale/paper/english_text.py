"""Write an English text for the `text:` corpus from a dictionary in dictd's format, such as
Debian's dict-gcide.

    apt-get install dict-gcide
    python -m mupscale.paper.english_text /usr/share/dictd/gcide.dict.dz runs/gcide.txt
    mupscale sweep study.toml --set data.corpus=text:runs/gcide.txt

The dictionary is not part of the project, because it has its own license. Duplicate entries are
dropped. The rest is sorted by hash: `text:` holds out the end of a file, and the end of an alphabet
differs from its beginning.
"""

import argparse
import gzip
import hashlib
import re
from pathlib import Path


def entries(text: bytes) -> list[bytes]:
    r"""The entries of a dictionary, without those about the dictionary itself.

    An entry begins at a line that is not indented.

    >>> about = b"\n00-database-short\n   Test\n"
    >>> entries(about + b"\nAct\n   A deed.\n\n   2. A law.\n\nAdd\n   To join.\n")
    [b'Act\n   A deed.\n\n   2. A law.', b'Add\n   To join.']
    """
    found = (entry.strip() for entry in re.split(rb"\n(?=\S)", text))
    return [entry for entry in found if entry and not entry.startswith(b"00-database-")]


def shuffled(found: list[bytes]) -> bytes:
    """Each entry once, in an order that depends only on the entries."""
    ordered = sorted(set(found), key=lambda entry: hashlib.sha256(entry).digest())
    return b"".join(entry + b"\n\n" for entry in ordered)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Write an English text from a dictionary in dictd's format."
    )
    parser.add_argument(
        "dictionary", type=Path, help="A .dict file, or a .dict.dz file, which is gzip."
    )
    parser.add_argument("output", type=Path, help="The text file to write.")
    parser.add_argument(
        "--utf8",
        action="store_true",
        help="Drop bytes that are not UTF-8, which subword tokenizers need.",
    )
    where = parser.parse_args()
    packed = where.dictionary.read_bytes()
    found = entries(gzip.decompress(packed) if where.dictionary.suffix == ".dz" else packed)
    text = shuffled(found)
    if where.utf8:
        text = text.decode("utf-8", errors="ignore").encode("utf-8")
    where.output.parent.mkdir(parents=True, exist_ok=True)
    where.output.write_bytes(text)
    unique = len(set(found))
    print(
        f"{where.output}: {unique:,} entries ({len(found) - unique} copies dropped), "
        f"{len(text):,} bytes, SHA-256 {hashlib.sha256(text).hexdigest()}"
    )


if __name__ == "__main__":
    main()
