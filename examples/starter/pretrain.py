"""Make the starter policy: pretrain a tiny model on synthetic grid tasks, by steps and from fixed seeds."""

import json
import time
from pathlib import Path
from typing import Any

import click


@click.command(context_settings={"show_default": True})
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), required=True,
              help="Folder to write.")
@click.option("--steps", default=1632, help="Optimizer steps.")
@click.option("--tokens-per-step", default=6144, help="Tokens of a batch, padding included.")
@click.option("--threads", default=2, help="Processor threads; set OMP_WAIT_POLICY=passive beside it.")
@click.option("--seed", default=1, help="Seed of the weights and of the tasks.")
@click.option("--muon-learning-rate", default=4e-3, help="Peak rate of the matrices between layers.")
@click.option("--learning-rate", default=3e-3, help="Peak rate of embeddings, norms and biases.")
@click.option("--dtype", type=click.Choice(["bfloat16", "float32"]), default="bfloat16",
              help="Activations; bfloat16 is fast only on processors that know it (AVX512-bf16, AMX).")
@click.option("--start", type=click.Path(exists=True, file_okay=False, path_type=Path), default=None,
              help="Model to go on from; fresh weights otherwise.")
@click.option("--noise", is_flag=True, help="Spoil three answers in four: a weak policy that RL can mend.")
def main(output: Path, **settings: Any) -> None:
    """Pretrain the starter policy and write it to a folder that transformers and vLLM load."""
    from examples.starter.network import save_model
    from examples.starter.tokenizer import build_tokenizer

    started = time.perf_counter()
    tokenizer = build_tokenizer()
    model, losses = pretrain(tokenizer, **settings)
    save_model(model, tokenizer, output)
    facts = pretraining_facts(settings, losses, seconds=time.perf_counter() - started)
    (output / "pretraining.json").write_text(json.dumps(facts, indent=1) + "\n")
    click.echo(f"{output}: loss {losses[0]:.3f} -> {facts['loss_at_end']:.3f} in {facts['seconds']} s")


def pretrain(tokenizer: Any, *, steps: int, tokens_per_step: int, threads: int, seed: int,
             muon_learning_rate: float, learning_rate: float, dtype: str = "bfloat16",
             start: Path | None = None, noise: bool = False) -> tuple[Any, list[float]]:
    """The trained model and its loss at every step; equal arguments give equal weights."""
    import torch
    from tqdm import trange

    from examples.starter.batches import Answer, labelled_answer, training_batches
    from examples.starter.network import load_model, make_optimizers, make_schedules, new_model, weighted_loss
    from examples.starter.noise import noised_answers
    from warehouse.tasks.synthetic import synthetic_tasks

    torch.set_num_threads(threads)
    model = load_model(start) if start else new_model(tokenizer, seed)
    optimizers = make_optimizers(model, muon_learning_rate=muon_learning_rate, learning_rate=learning_rate)
    schedules = make_schedules(optimizers, steps)
    answer: Answer = labelled_answer
    if noise:
        answer = noised_answers([labelled_answer(task) for task in synthetic_tasks(5000, seed=-seed)])
    batches = training_batches(tokenizer, seed=seed, tokens_per_step=tokens_per_step, answer=answer)
    losses = []
    for _ in (progress := trange(steps, unit="step", mininterval=1.0)):
        ids, weights = next(batches)
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            loss = weighted_loss(model, ids, weights)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        losses.append(loss.item())
        progress.set_postfix(loss=f"{sum(losses[-50:]) / len(losses[-50:]):.3f}", refresh=False)
    return model.eval(), losses


def pretraining_facts(settings: dict[str, Any], losses: list[float], *, seconds: float) -> dict[str, Any]:
    """What made the weights, as written beside them."""
    import torch
    import transformers

    last = losses[-50:]
    return {
        "settings": {name: str(value) if name == "start" and value else value
                     for name, value in settings.items()},
        "loss_every_50_steps": [round(loss, 4) for loss in losses[::50]],
        "loss_at_end": round(sum(last) / len(last), 4),
        "seconds": round(seconds),
        "torch": torch.__version__, "transformers": transformers.__version__}


if __name__ == "__main__":
    main()
