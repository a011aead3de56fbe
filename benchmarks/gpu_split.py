"""Which split of several GPUs is fastest, and what share of them idles, by seconds measured on one: a model.

    python -m benchmarks.gpu_split [--sampling 9.4 --training 8.0 --tail 4] [--gpus 2 --gpus 4]

Sampling and training take a fixed part, and one in inverse proportion to the GPUs that share it; after the
last completion its programs run for `--tail` seconds. The defaults are an iteration of MBPP on one H100.
Time-shared, all GPUs sample, wait and train; split, some sample the next iteration while the others train.
"""

import click


@click.command()
@click.option("--sampling", default=9.4, show_default=True, help="Seconds on one GPU that several share.")
@click.option("--sampling-fixed", default=1.4, show_default=True, help="Seconds before the first token.")
@click.option("--training", default=8.0, show_default=True, help="Old logprobs and gradients on one GPU.")
@click.option("--training-fixed", default=1.2, show_default=True, help="Seconds of reading and writing.")
@click.option("--tail", default=4.0, show_default=True, help="Programs after the last completion.")
@click.option("--gpus", "counts", multiple=True, default=(2, 4, 8), show_default=True)
@click.option("--grow", is_flag=True, help="Work grows with the number of GPUs.")
def main(counts: tuple[int, ...], grow: bool, **seconds: float) -> None:
    """Print seconds per iteration and the idle share of each way."""
    click.echo(f"{'GPUs':>4}  {'way':<12}{'iteration':>10}{'idle':>8}")
    for count in counts:
        work = (count if grow else 1)
        sampling, training = work * seconds["sampling"], work * seconds["training"]

        def sampled(gpus: int, work: float = sampling) -> float:
            return seconds["sampling_fixed"] + work / gpus

        def trained(gpus: int, work: float = training) -> float:
            return seconds["tail"] + seconds["training_fixed"] + work / gpus
        ways = {"time-shared": sampled(count) + trained(count)}
        ways |= {f"{engines}:{count - engines}": max(sampled(engines), trained(count - engines))
                 for engines in range(1, count)}
        best = min(list(ways)[1:], key=ways.__getitem__)
        for way in ("time-shared", best):
            idle = 1 - (sampling + training) / (count * ways[way])
            click.echo(f"{count:>4}  {way:<12}{ways[way]:>10.1f}{idle:>8.0%}")


if __name__ == "__main__":
    main()
