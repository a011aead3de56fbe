"""What an address asks for, each value checked where it is read."""

from collections.abc import Mapping

from warehouse.store.errors import StageError

LONGEST = 10_000        # characters of a value


class Query:
    """The values behind the ? of an address."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = dict(values)

    def all(self) -> dict[str, str]:
        """Every value by its name."""
        return dict(self._values)

    def text(self, name: str, default: str | None = None) -> str:
        """A text; StageError where it is missing and has no default."""
        value = self._values.get(name, default)
        if value is None:
            raise StageError(f"The address lacks '{name}'. Go there by a link of another page.")
        if len(value) > LONGEST or "\x00" in value:
            raise StageError(f"'{name}' of the address is no text of up to {LONGEST:,} characters. "
                             "Shorten it.")
        return value

    def number(self, name: str, default: int | None = None) -> int:
        """A whole number from 0; StageError for what is none."""
        value = self._values.get(name, "" if default is None else str(default))
        if not (value.isdecimal() and value.isascii() and len(value) < 10):
            raise StageError(f"'{name}' of the address is '{value[:40]}', no whole number. Correct it.")
        return int(value)
