"""What `rollout --stop-loops TIMES` would save, and how often it errs, on what was sampled without it.

    python -m benchmarks.stop_loops RUN                          completions of a run
    python -m benchmarks.stop_loops --tokenizer tokenizer.json   pieces of Python's library, half made to loop

A completion that the model ended by itself and that the rule would have ended before is an error; of one that
was cut off at the limit, the tokens after that end are saved.
"""

import argparse
import random
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from rollout.engines.stopping import LONGEST_LOOP, end_of_loop
from warehouse.store.run_folder import open_warehouse

TIMES, PIECE, MOST_PIECES = (3, 4, 8, 16, 32, 64), 1024, 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("--tokenizer", type=Path)
    given = parser.parse_args()
    rows = list(pieces_of_code(given.tokenizer) if given.tokenizer else completions(given.run))
    tokens, healthy = sum(len(ids) for ids, _ended in rows), sum(ended for _ids, ended in rows)
    print(f"{len(rows)} texts, {tokens} tokens, {healthy} of them healthy")
    print(f"{'times':>5} {'stopped':>8} {'errors':>12} {'tokens saved':>13}")
    for times in TIMES:
        ends = [(end_of_loop(ids, times), len(ids), ended) for ids, ended in rows]
        stopped = [(end, length, ended) for end, length, ended in ends if end is not None and end < length]
        errors = sum(ended for *_, ended in stopped)
        saved = sum(length - end for end, length, ended in stopped if not ended)
        print(f"{times:>5} {len(stopped):>8} {errors:>5} ({errors / max(healthy, 1):.2%}) "
              f"{saved / max(tokens, 1):>12.1%}")


def completions(run: Path) -> Iterator[tuple[list[int], bool]]:
    """Token ids of every training completion of a run, and whether the model ended it."""
    warehouse = open_warehouse(run)
    for folder in sorted((warehouse.root / "completions").glob("iteration=*")):
        rows = warehouse.read("completions", ["completion_ids", "finish_reason"],
                              iteration=int(folder.name.partition("=")[2]), purpose="train").to_pylist()
        yield from ((row["completion_ids"], row["finish_reason"] == "stop") for row in rows)


def pieces_of_code(tokenizer: Path) -> Iterator[tuple[list[int], bool]]:
    """Pieces of 1,024 tokens of Python's library, and each again with its end in a loop from somewhere on.

    How long a loop's piece is, 1 to 64 tokens, is drawn evenly in its logarithm.
    """
    from tokenizers import Tokenizer
    encode, num_pieces = Tokenizer.from_file(str(tokenizer)).encode, 0
    draw = random.Random(0)
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py"), key=lambda path: path.name[::-1]):
        if "site-packages" in path.parts or num_pieces >= MOST_PIECES:
            continue
        ids = encode(path.read_text(errors="replace")).ids[:4 * PIECE]
        for first in range(0, len(ids) - PIECE + 1, PIECE):
            num_pieces += 1
            piece = ids[first:first + PIECE]
            yield piece, True
            kept, period = draw.randrange(LONGEST_LOOP, PIECE), round(LONGEST_LOOP ** draw.random())
            yield (piece[:kept] + piece[kept - period:kept] * PIECE)[:PIECE], False


if __name__ == "__main__":
    main()
