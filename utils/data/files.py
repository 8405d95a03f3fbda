"""Find and read the files of the course in `resources/` (chapters 00 and 09)."""

from pathlib import Path

RESOURCES = Path(__file__).resolve().parents[2] / "resources"


def resource(name: str) -> Path:
    """Return the path of a file in `resources/`.

    Args:
        name: the file's name.

    Raises: ValueError for a missing file, as when `utils` was copied without `resources`.
    Source: chapter 00.
    """
    path = RESOURCES / name
    if not path.is_file():
        raise ValueError(
            f"resource: the file must lie in the course's folder resources/, got name={name!r}, "
            f"which is not there. Get the whole course and install it with: pip install -e ."
        )
    return path


def load_sentences() -> list[tuple[str, str]]:
    """Load the sentences of the course, each in English and in Korean.

    Returns:
        pairs (English, Korean), in the order of the file.

    Raises: ValueError for a missing file.
    Source: chapter 09; resources/README.md says who wrote them.
    """
    lines = resource("sentences.tsv").read_text(encoding="utf-8").splitlines()
    return [(english, korean) for english, korean in (line.split("\t") for line in lines[1:])]
