"""The starter's tokenizer: bytes without merges, plus a token for each piece its programs are made of."""

from pathlib import Path

import click

IM_START, IM_END, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
ANSWER_HEAD = "```python\nimport numpy as np\n\ndef transform(grid):\n    g = np.array(grid)\n"
ANSWER_TAIL = "    return g\n```"
CHAT_PIECES = ("system\n", "user\n", "assistant\n", "In\n", "Out\n")
CODE_PIECES = (
    ANSWER_HEAD, ANSWER_TAIL, "    g = ",
    "np.fliplr(g)", "np.flipud(g)", "np.rot90(g", "g.T", "np.hstack([", "np.vstack([", "np.tile(g, (",
    "np.kron(g", "np.ones((", ", int)", "g.repeat(", "np.where(", "g == ", "g > 0", ", g)", ", 0)", ", 1)",
    "g[np.ix_(", ".any(1)", ".any(0)", "g[:, :g.shape[1] // 2]", "g[:, -(g.shape[1] // 2):]",
    "g[:g.shape[0] // 2]", "g[-(g.shape[0] // 2):]", " > 0)", " & ", " | ", " ^ ", "~(",
    "np.take_along_axis(g, ", "np.argsort(", ", kind='stable')", ", axis=0", ", axis=1", "np.roll(g, ",
    "g[1:-1, 1:-1]", "np.pad(g, 1, ", "np.pad(g[1:-1, 1:-1], 1, ", "constant_values=", "mode='edge')",
    "np.full_like(g, ",
    "np.bincount(g.ravel()).argmax()", "np.bincount(g[g > 0]).argmax()", "np.array([[", "]])",
    "g[::2, ::2]", "np.maximum(g, ", "g.max(0)", "g.max(1, keepdims=True)", "np.maximum.accumulate(g",
    "g[:", "g[-", ":]", ", :", ", -", ", ", "g, ", "])", ")\n",
)
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


def build_tokenizer(max_length: int = 1024):     # -> PreTrainedTokenizerFast, imported inside
    """Total on any text: what no piece matches is spelled byte by byte, and decodes to itself."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    characters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({character: i for i, character in enumerate(characters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False)
                                  for text in (END_OF_TEXT, IM_START, IM_END)])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False)
                          for text in CHAT_PIECES + CODE_PIECES])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=IM_END, pad_token=END_OF_TEXT, model_max_length=max_length,
        clean_up_tokenization_spaces=False)
    fast.chat_template = CHAT_TEMPLATE
    return fast


@click.command()
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), required=True,
              help="Folder to write tokenizer.json and its settings to.")
def main(output: Path) -> None:
    """Write the starter's tokenizer."""
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(output)
    click.echo(f"{len(tokenizer)} tokens written to {output}")


if __name__ == "__main__":
    main()
