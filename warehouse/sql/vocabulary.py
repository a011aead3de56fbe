"""The text of every token of the base model, as a small file of the run that SQL joins to token ids."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from warehouse.store.commit import replace_bytes
from warehouse.store.errors import StageError
from warehouse.store.run_folder import Warehouse

FILE = "vocabulary.parquet"


def vocabulary_file(warehouse: Warehouse) -> Path | None:
    """RUN/vocabulary.parquet, made from the base's tokenizer.json when it is missing; None without either.

    Derived, and the same for the whole life of a run, whose base model is fixed: remove it at will.
    """
    path, tokenizer = warehouse.root / FILE, Path(warehouse.model) / "tokenizer.json"
    if path.exists():
        return path
    if not tokenizer.exists():
        return None
    with suppress(OSError, StageError):     # an archive may be read-only
        replace_bytes(path, _parquet_bytes(tokenizer))
    return path if path.exists() else None


def load_tokenizer(path: Path) -> Any:
    """The tokenizer of a tokenizer.json; StageError where that is none."""
    from tokenizers import Tokenizer
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:     # what the library raises has no other name
        raise StageError(f"{path} is not a tokenizer ({error}). Restore it.") from error


def _parquet_bytes(path: Path) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq
    tokenizer = load_tokenizer(path)
    ids = sorted(tokenizer.get_vocab(with_added_tokens=True).values())
    texts = [tokenizer.decode([number], skip_special_tokens=False) or tokenizer.id_to_token(number)
             for number in ids]
    sink, table = pa.BufferOutputStream(), pa.table({"token_id": pa.array(ids, pa.int32()), "token": texts})
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue().to_pybytes()
