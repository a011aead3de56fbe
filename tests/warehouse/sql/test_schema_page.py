"""docs/schema.md says what the SQL says."""

from pathlib import Path

from warehouse.sql.dictionary import dictionary_lines

PAGE = Path(__file__).parents[3] / "docs" / "schema.md"


def test_the_page_is_what_the_command_writes() -> None:
    assert PAGE.read_text() == "\n".join(dictionary_lines(markdown=True)) + "\n", (
        "run: warehouse schema --markdown > docs/schema.md")
