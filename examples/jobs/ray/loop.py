"""The loop as tasks of Ray core: a share of a stage is a task, started again elsewhere when its node is lost.

    ray job submit --working-dir . -- python examples/jobs/ray/loop.py RUN ITERATIONS --rollouts 8 --scores 16

RUN is a folder that all nodes see under this name, or a bucket. `pip install 'rollhouse[ray]'` on each.
Variables of work.sh: ray job submit --runtime-env-json '{"env_vars": {"EVAL_EVERY": "5"}}' ..
"""

import argparse
import os
import subprocess

import ray

from warehouse.store.run_folder import open_warehouse

WORK = "examples/jobs/work.sh"


class Stopped(Exception):
    """The command was stopped in order or killed: what it finished is kept, and it is to be started again."""


@ray.remote(max_retries=100, retry_exceptions=[Stopped])
def work(*words: str) -> None:
    code = subprocess.run(["bash", WORK, *words]).returncode
    if code == 75 or code < 0 or code > 128:
        raise Stopped(f"{' '.join(words)} ended with {code}")
    if code:
        raise RuntimeError(f"{' '.join(words)} ended with {code}; what it says stands in its log")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", type=lambda run: run if "://" in run else os.path.abspath(run))
    parser.add_argument("iterations", type=int)
    parser.add_argument("--rollouts", type=int, default=1, help="shares of each rollout")
    parser.add_argument("--scores", type=int, default=1, help="shares of each score")
    parser.add_argument("--gpus", type=float, default=1, help="GPUs of a rollout and of the training")
    parser.add_argument("--cpus", type=float, default=4, help="cores of each task")
    options = parser.parse_args()
    try:
        ray.init(address="auto")    # else Ray starts a cluster of its own, and waits for GPUs that it lacks
    except ConnectionError as error:
        raise SystemExit("No Ray cluster runs here. Start one with `ray start --head`, or submit this to "
                         "one with `ray job submit`.") from error
    cores, device = {"num_cpus": options.cpus}, {"num_gpus": options.gpus}
    stages = (("rollout", options.rollouts, cores | device), ("score", options.scores, cores),
              ("learn", 1, cores | device))
    warehouse = open_warehouse(options.run)

    def run(stage: str, iteration: int, shares: int, needs: dict[str, float]) -> None:
        ray.get([work.options(**needs, name=f"{stage} {iteration} {share}/{shares}").remote(
            stage, options.run, str(iteration), f"{share}/{shares}") for share in range(shares)])

    for iteration in range(options.iterations):
        if iteration < warehouse.log.refresh().newest:      # trained, or left out by a rollback
            continue
        for stage, shares, needs in stages:
            run(stage, iteration, shares, needs)
    if int(os.environ.get("EVAL_EVERY", 0)):
        run("eval", options.iterations, 1, cores | device)


if __name__ == "__main__":
    main()
