"""Logprobs and exact gradients of groups, with each prompt forwarded once.

Groups within the budget are forwarded together as one long row without padding: the prompts without their
last tokens, then rows, each the last prompt token followed by the completion without its last token.

A group beyond the budget is forwarded alone. Its prompt goes through the model once, with a graph, and its
keys, values and recurrent states become leaves. Micro-batches of rows accumulate gradients in the leaves,
and one backward pass carries the sum through the prompt. Work falls by N (P + C) / (P - 1 + N C) for
N completions of C tokens after P prompt tokens, memory to one micro-batch. If even that is impossible, each
row is forwarded whole, with its prompt.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from train.model.attention import PromptKV, Tokens, tokens_of
from train.model.packs import UNSCORED, PromptGroup, Text, lay_out, micro_batches
from train.model.policy import CACHED_PROMPT, WHOLE_TEXTS, Policy
from train.model.sharding import FORWARD, GRADIENT
from train.model.token_logprobs import Support, token_logprobs

RowsLoss = Callable[[list[int], Tensor, Tensor], Tensor]


def pack_logprobs(policy: Policy, groups: Sequence[PromptGroup], *, token_budget: int
                  ) -> tuple[list[Tensor], list[Tensor]]:
    """Logprobs and entropies of the tokens of all completions of a pack, nats, float32, on the CPU."""
    pack = _Pack(policy, groups, token_budget)
    logprobs: list[Tensor] = [torch.empty(0)] * sum(len(group.completions) for group in groups)
    entropies = list(logprobs)
    with torch.no_grad():
        prompt_kv = prompt_kv_of(policy, pack.prompt, pack.piece)
        for batch in pack.batches:
            texts, *scores = pack.score(batch, prompt_kv)
            lengths = [len(text.ids) for text in texts]
            for text, *values in zip(texts, *(flat.cpu().split(lengths) for flat in scores), strict=True):
                for row in text.rows:
                    logprobs[row], entropies[row] = values
    return logprobs, entropies


def backward_pack(policy: Policy, groups: Sequence[PromptGroup], rows_loss: RowsLoss, *, token_budget: int
                  ) -> None:
    """Add the gradients of a pack's loss to the parameters' `.grad`.

    `rows_loss(rows, logprobs, entropy)` is called once per micro-batch with the indices of its completions
    over all groups, and the padded [B, T] results in that order (0 past the end of a row). Its return values
    must add up to the loss, so its denominators must be known beforehand.
    """
    pack = _Pack(policy, groups, token_budget)
    # Sharded processes make each pass together, so they cannot keep the graphs of two passes.
    in_one_piece = len(pack.prompt) <= pack.piece and policy.shards is None
    with torch.set_grad_enabled(in_one_piece):
        prompt_kv = prompt_kv_of(policy, pack.prompt, pack.piece)
    leaves = _leaves(prompt_kv, None)
    for batch in pack.batches:
        texts, *scores = pack.score(batch, leaves)
        lengths = [len(text.ids) for text in texts]
        rows = [row for text in texts for row in text.rows]
        source = torch.tensor([place for place, text in enumerate(texts) for _ in text.rows],
                              device=policy.device)
        policy.backward(rows_loss(rows, *(pad_sequence(flat.split(lengths), batch_first=True)[source]
                                          for flat in scores)))
    if in_one_piece:
        _backward_through(prompt_kv, leaves, 0)
    else:
        _backward_in_pieces(policy, pack.prompt, leaves, pack.piece)


def passes_of(policy: Policy, groups: Sequence[PromptGroup], token_budget: int, *, backward: bool) -> str:
    """The passes that a pack makes through a sharded model, in order: see train.model.sharding."""
    pack = _Pack(policy, groups, token_budget)
    pieces = -(-len(pack.prompt) // pack.piece)
    of_rows = (GRADIENT if backward else FORWARD) * len(pack.batches)
    return FORWARD * pieces + of_rows + GRADIENT * (pieces if backward else 0)


class _Pack:
    """The texts of a pack and their micro-batches: a single one with all prompts, if everything fits."""

    def __init__(self, policy: Policy, groups: Sequence[PromptGroup], token_budget: int):
        self.policy, self.temperature = policy, groups[0].temperature
        self.texts = lay_out(groups)
        prompts = [text for text in self.texts if text.parent is None]
        num_tokens = sum(len(text.inputs) for text in self.texts)
        if policy.can_pack and num_tokens <= token_budget and all(len(text.inputs) for text in prompts):
            self.prompt, self.batches = UNSCORED, [list(range(len(self.texts)))]
        else:
            assert len(prompts) == 1, "only one group may be larger than the budget"
            self.prompt = prompts[0].inputs
            if policy.attention == WHOLE_TEXTS:
                self.texts = [text._replace(inputs=torch.cat([self.prompt, text.inputs]), parent=None)
                              for text in self.texts]
                self.prompt = UNSCORED
            copied = len(self.prompt) if policy.attention == CACHED_PROMPT else 0     # into each row
            self.batches = micro_batches(self.texts, copied, token_budget)
        # The number of prompt tokens per forward.
        self.piece = token_budget if policy.can_split else max(token_budget, len(self.prompt))

    def score(self, batch: list[int], prompt_kv: PromptKV) -> tuple[list[Text], Tensor, Tensor]:
        """The scored texts of a batch, and the concatenated logprobs and entropies [T] of their tokens.

        `prompt_kv` are keys and values of a prompt outside of all batches.
        """
        place: dict[int | None, int] = {number: place for place, number in enumerate(batch)}
        texts = [self.texts[number] for number in batch]
        hidden = self.policy.hidden([text.inputs for text in texts],
                                    [place.get(text.parent) for text in texts], prompt_kv)
        scored = [number for number, text in enumerate(texts) if text.rows]
        if self.policy.attention == WHOLE_TEXTS:
            of_texts = hidden.split([len(text.inputs) for text in texts])
            hidden = torch.cat([states[-len(text.ids):]
                                for text, states in zip(texts, of_texts, strict=True)])
            tokens: Tokens = slice(None)
        else:
            tokens = tokens_of([len(text.inputs) for text in texts], scored, self.policy.device)
        targets = torch.cat([texts[number].ids for number in scored]).to(self.policy.device)
        return [texts[number] for number in scored], *token_logprobs(
            hidden[tokens], self.policy.logits, targets, temperature=self.temperature,
            vocabulary_size=self.policy.vocabulary_size, head_is_frozen=self.policy.head_is_frozen,
            support=_support_of([texts[number] for number in scored]))


def _support_of(texts: list[Text]) -> Support | None:
    """The ids from which tokens were sampled; None if that is the whole vocabulary for all."""
    if not any(text.support for text in texts):
        return None
    of_texts = [text.support or Support(UNSCORED, torch.zeros_like(text.ids)) for text in texts]
    return Support(*map(torch.cat, zip(*of_texts, strict=True)))


def prompt_kv_of(policy: Policy, prompt_ids: Tensor, token_budget: int) -> PromptKV:
    """Keys and values of a prompt, with at most `token_budget` of its tokens per forward."""
    prompt_kv: PromptKV = []
    for piece in prompt_ids.split(token_budget):
        prompt_kv = policy.prompt_kv(piece, prompt_kv)
    return prompt_kv


def _backward_in_pieces(policy: Policy, prompt_ids: Tensor, leaves: PromptKV, token_budget: int) -> None:
    """Carry the gradients of the leaves through a long prompt, the last piece first.

    Each piece is forwarded again over the leaves before it and adds its own gradients there. As with
    checkpointing, activations exist for one piece at a time, at the cost of one more forward of the prompt.
    """
    starts = range(0, len(prompt_ids), token_budget)
    for start in reversed(starts):
        before = _leaves(leaves, start) if start else []
        piece_kv = policy.prompt_kv(prompt_ids[start:start + token_budget], before)
        _backward_through(piece_kv, leaves, start)
        for pair, earlier in zip(leaves, before, strict=False):
            for leaf, part in zip(pair, earlier, strict=True):
                if leaf.grad is not None and part.grad is not None:
                    leaf.grad[:, :, :start] += part.grad


def _leaves(prompt_kv: PromptKV, length: int | None) -> PromptKV:
    """The first `length` positions of a prompt, or all of it, cut off the graph, to collect gradients."""
    return [tuple(_positions(tensor, 0, length).detach().requires_grad_() if len(tensor) else tensor
                  for tensor in state) for state in prompt_kv]


def _positions(tensor: Tensor, start: int, end: int | None) -> Tensor:
    """Some positions of keys or values; a state of two dimensions has none."""
    return tensor[:, :, start:end] if tensor.dim() > 2 else tensor


def _backward_through(prompt_kv: PromptKV, leaves: PromptKV, start: int) -> None:
    """Backward from keys and values, those from position `start` on, with the gradients of their leaves."""
    pairs = [(_positions(tensor, start, None), _positions(leaf.grad, start, [*tensor.shape, None][2]))
             for computed, leaf_pair in zip(prompt_kv, leaves, strict=True)
             for tensor, leaf in zip(computed, leaf_pair, strict=True)
             if leaf.grad is not None and tensor.requires_grad]
    if pairs:
        torch.autograd.backward([tensor for tensor, _ in pairs], [gradient for _, gradient in pairs])
