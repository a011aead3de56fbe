"""The text of every token of the base model, as a small file of the run that SQL joins to token ids."""

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from warehouse.store.commit import replace_file
from warehouse.store.errors import StageError
from warehouse.store.parts import read_part
from warehouse.store.run_folder import Warehouse

FILE = "vocabulary.parquet"


def vocabulary_file(warehouse: Warehouse) -> Path | None:
    """RUN/vocabulary.parquet, made from the base's tokenizer.json if it cannot be read; None without either.

    It is derived and constant, because a run's base model is fixed; it may be removed at any time.
    """
    path, tokenizer = warehouse.root / FILE, Path(warehouse.model) / "tokenizer.json"
    if _is_whole(path):
        return path
    with suppress(OSError):                 # only an empty folder is removed
        path.rmdir()
    if path.is_dir():
        raise StageError(f"{path} is a folder. Move it out of the run: the file of that name is made again.")
    if tokenizer.exists():
        with suppress(OSError, StageError):     # an archive may be read-only
            replace_file(path, partial(_write, tokenizer))
    return path if _is_whole(path) else None


def _is_whole(path: Path) -> bool:
    with suppress(StageError):
        return path.is_file() and read_part(path).column_names == ["token_id", "token"]
    return False


def load_tokenizer(path: Path) -> Any:
    """The tokenizer in a tokenizer.json; StageError if it is not one."""
    from tokenizers import Tokenizer
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:     # the library raises plain Exception
        raise StageError(f"{path} is not a tokenizer ({error}). Restore it.") from error


def _write(tokenizer_file: Path, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq
    tokenizer = load_tokenizer(tokenizer_file)
    ids = sorted(tokenizer.get_vocab(with_added_tokens=True).values())
    texts = [tokenizer.decode([number], skip_special_tokens=False) or tokenizer.id_to_token(number)
             for number in ids]
    table = pa.table({"token_id": pa.array(ids, pa.int32()), "token": texts})
    pq.write_table(table, path, compression="zstd", write_page_checksum=True)
