"""Seconds of each page of the viewer for one run: the first time, and the best of three more.

    python -m benchmarks.warehouse --folder /tmp/big --iterations 100 --bodies 100     # a million completions
    python -m benchmarks.viewer /tmp/big
"""

import resource
import sys
import time
from urllib.parse import quote

from starlette.testclient import TestClient

from reports.build import FIGURES
from reports.viewer.app import make_app
from reports.viewer.serve import open_early
from reports.viewer.session import Session


def main(run: str) -> None:
    """Ask for every page and print what it took."""
    started = time.perf_counter()
    session = Session(run, "0")
    open_early(session)
    view = session.view()
    print(f"{'open':60} {time.perf_counter() - started:6.2f} s")
    [row] = view.asking().rows("SELECT iteration, task_id, group_id, sample_index FROM samples "
                               "WHERE iteration = 3 ORDER BY task_id, sample_index LIMIT 1")
    task, name = quote(row["task_id"]), quote(f"3/{row['task_id']}/{row['sample_index']}")
    client = TestClient(make_app([session], "token"), base_url="http://127.0.0.1")
    client.get("/?token=token")
    pages = ["", "0/", "0/settings", "0/history", "0/tasks", "0/iteration?iteration=3", f"0/task?task={task}",
             f"0/group?iteration=3&task={task}", f"0/completion?name={name}", "0/gaps", "0/find",
             "0/find?where=NOT+correct+AND+reward+%3E+2", "0/find?where=iteration+=+7",
             "0/rows?where=NOT+correct+AND+reward+%3E+2&offset=50000", "0/now", "0/part?part=story",
             *(f"0/figure?figure={name}" for name in FIGURES)]
    for page in pages:
        taken = []
        for _ in range(4):
            started = time.perf_counter()
            answer = client.get("/" + page)
            taken.append(time.perf_counter() - started)
        print(f"{'/' + page:60.60} {taken[0]:6.2f} {min(taken[1:]):6.2f} s  {answer.status_code}")
    started, first = time.perf_counter(), None
    with client.stream("GET", "/0/search?text=def+parse") as answer:
        for line in answer.iter_lines():
            first = first or ("around" in line and time.perf_counter() - started)
    print(f"search: first hit {first:.2f} s, all {time.perf_counter() - started:.2f} s")
    print(f"memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main(sys.argv[1])
