"""The columns of every table with their comments: the contract between the rooms, frozen per version."""

from typing import NamedTuple

import pyarrow as pa

SCHEMA_VERSION = 4
OLDEST_VERSION = 2  # oldest readable version

TEXT, FLAG, FLOAT, DOUBLE, COUNT, BIG = (
    pa.string(), pa.bool_(), pa.float32(), pa.float64(), pa.int32(), pa.int64())
TOKEN_IDS, LOGPROBS, SMALL_LIST = pa.list_(pa.int32()), pa.list_(pa.float32()), pa.list_(pa.int8())
SUPPORT = pa.list_(TOKEN_IDS)
SEGMENTS = pa.list_(pa.struct({"start": COUNT, "length": COUNT, "kind": TEXT}))
VERSION_SEGMENTS = pa.list_(pa.struct({"start": COUNT, "length": COUNT, "policy_version": COUNT}))
CUT_OFF = ("length", "loop")  # finish reasons of completions that were not ended by the model or its task


class Column(NamedTuple):
    """One column: its name, Arrow type, and the sentence a person reads in `warehouse schema`."""

    name: str
    type: pa.DataType
    comment: str
    stored: str = ""  # its name in the files, if different
    since: int = OLDEST_VERSION  # the schema version that added it; null in parts of an earlier version


TASK_ID = Column("task_id", TEXT, "Name of the task, unique in the run.")
SPLIT = Column("split", TEXT, "Split, for example 'heldout'.")
GROUP_ID = Column("group_id", TEXT, "Completions of one prompt by one policy; unique within iteration and "
                  "purpose.")
NUM_PROMPT_TOKENS = Column("num_prompt_tokens", COUNT, "Tokens in prompt_ids.")
NUM_COMPLETION_TOKENS = Column("num_completion_tokens", COUNT, "Tokens in completion_ids.")
FINISH_REASON = Column("finish_reason", TEXT, "'stop': by the model, 'length': token limit; in old runs also "
                       "'code': its block closed, 'loop': it repeated itself.")
SAMPLED_BY = Column("policy_version", COUNT, "Policy that sampled it (the last token); 0 is the base, null a "
                    "model behind an API.")
SCORER = Column("scorer", TEXT, "Scorer: reward name and hash of its code and limits.")
REWARD = Column("reward", DOUBLE, "Total reward; null, not 0, if it could not be measured.")
TRAINED_ITERATION = Column("trained_iteration", COUNT, "Iteration of the train stage; differs from iteration "
                           "under replay.")
OPTIMIZER_STEP = Column("optimizer_step", COUNT, "Optimizer step of the stage, from 0; null if none used the "
                        "completion, as one of equal rewards.")
STAGE_KEYS = (
    Column("iteration", COUNT, "Iteration, from 0."),
    Column("purpose", TEXT, "'train'; evaluations: 'eval', 'eval-<split>' or 'eval-<label>'; answers of "
           "another model: 'distil' or 'distil-<label>'. The ending '-turn2' means second turns."),
)
KEYS = (*STAGE_KEYS, TASK_ID,
        Column("sample_index", COUNT, "Index within (iteration, purpose, task_id), from 0."))

TASKS = (
    TASK_ID,
    Column("source", TEXT, "Source as given to `warehouse init`."),
    SPLIT,
    Column("heldout", FLAG, "True: not trained on unless named."),
    Column("position", COUNT, "Order of import, from 0."),
    Column("kind", TEXT, "Decides how it is scored, for example 'grid'.", stored="scorer"),
    Column("messages", TEXT, "Chat messages as JSON if the task brings its own prompt; else null."),
    Column("payload", TEXT, "What the scorer needs, as JSON; for 'grid': {train: [{input, output}], test: "
           "[..]}."),
)

PROMPTS = (
    *STAGE_KEYS,
    TASK_ID,
    Column("group_index", COUNT, "Index among the task's prompts in the iteration, from 0."),
    GROUP_ID,
    Column("group_size", COUNT, "Completions sampled for the prompt."),
    SPLIT,
    Column("prompt_id", TEXT, "Hash of prompt_ids."),
    Column("prompt", TEXT, "Text after the chat template."),
    Column("prompt_ids", TOKEN_IDS, "Token ids as sent to the engine."),
    NUM_PROMPT_TOKENS,
    Column("prompt_format", TEXT, "Prompt format and version, for example 'compact@1'."),
    Column("format_options", TEXT, "Options of the prompt format, as JSON."),
    Column("prefill", TEXT, "Assistant text at the end of the prompt; parsed as part of the answer."),
    Column("seed", BIG, "Seed of augmentation, order of pairs and shown test input."),
    Column("flip", FLAG, "Augmentation: flipped left to right before rotating; null without augmentation."),
    Column("rotations", COUNT, "Quarter turns counter-clockwise after the flip (numpy.rot90)."),
    Column("color_map", SMALL_LIST, "color_map[c] is the colour that c became, 10 entries."),
    Column("pair_order", SMALL_LIST, "Indices of the shown train pairs, in order."),
    Column("shown_test", COUNT, "Index of the shown test input, or null."),
    Column("turn", COUNT, "Turn of the conversation; 1, or null, is the first.", since=3),
    Column("parent_iteration", COUNT, "Iteration of the completion that is answered; null in first turns.",
           since=3),
    Column("parent_purpose", TEXT, "Its purpose.", since=3),
    Column("parent_sample_index", COUNT, "Its sample_index; the task is the same.", since=3),
    Column("feedback_format", TEXT, "Feedback and version, for example 'tests@1'.", since=3),
    Column("verbatim_prefix", FLAG, "True if prompt_ids begin with the parent's prompt_ids and "
           "completion_ids; false if the chat template rewrites earlier turns.", since=3),
    Column("segments", SEGMENTS, "Origin of prompt_ids, in order: kind is 'template', 'task', 'feedback', "
           "or 'policy' if sampled; null in first turns.", since=3),
    Column("messages", TEXT, "Chat messages as JSON if sent to a model behind an API; else null.", since=3),
)

COMPLETIONS = (
    *KEYS,
    GROUP_ID,
    Column("completion", TEXT, "Text, without special tokens but those around thoughts."),
    Column("completion_ids", TOKEN_IDS, "Sampled token ids, with the end token."),
    Column("behaviour_logprobs", LOGPROBS, "mu: logprob of each token, nats, under the distribution it was "
           "drawn from: after temperature, penalties and truncation; the plain softmax at temperature 0."),
    NUM_PROMPT_TOKENS,
    NUM_COMPLETION_TOKENS,
    FINISH_REASON,
    Column("seed", BIG, "Seed of its sampling."),
    SAMPLED_BY,
    Column("policy_sha256", TEXT, "Hash of that policy's weights."),
    Column("temperature", FLOAT, "0 is greedy."),
    Column("top_p", FLOAT, "1 is off."),
    Column("top_k", COUNT, "0 is off."),
    Column("min_p", FLOAT, "0 is off."),
    Column("repetition_penalty", FLOAT, "1 is off; counts prompt tokens too."),
    Column("presence_penalty", FLOAT, "0 is off."),
    Column("frequency_penalty", FLOAT, "0 is off."),
    Column("max_tokens", COUNT, "Limit on completion tokens."),
    Column("logprobs_mode", TEXT, "vLLM's mode of behaviour_logprobs, usually 'processed_logprobs'."),
    Column("engine", TEXT, "Engine and version, for example 'vllm 0.32.0'."),
    Column("dtype", TEXT, "Weights and activations of the engine."),
    Column("device", TEXT, "'cpu', or the GPU's name."),
    Column("host", TEXT, "Machine."),
    Column("finished_at", pa.timestamp("ms", tz="UTC"), "When it finished, UTC."),
    Column("version_segments", VERSION_SEGMENTS, "Which policy sampled which tokens, in order; null if one "
           "sampled all.", since=3),
    Column("support_ids", SUPPORT, "Per token, the ids that top_k, top_p and min_p left, the sampled one "
           "first; null without truncation, or if top_k is 0 or above 64.", since=3),
    Column("cost", DOUBLE, "Price of an answer from an API, in rows of earlier versions.", since=3),
)

SAMPLES = (
    *KEYS,
    SCORER,
    GROUP_ID,
    SPLIT,
    SAMPLED_BY,
    FINISH_REASON,
    Column("truncated", FLAG, "True if finish_reason is 'length' or 'loop'."),
    NUM_PROMPT_TOKENS,
    NUM_COMPLETION_TOKENS,
    REWARD,
    Column("reward_parts", TEXT, "Parts by name, as JSON: `(reward_parts ->> 'NAME')::DOUBLE`."),
    Column("correct", FLAG, "Every train and test grid is right, or every test; null if not measured."),
    Column("valid_code", FLAG, "A closed code block, or else an answer, was found."),
    Column("valid_outputs", FLAG, "The program ran and every output was legal."),
    Column("train_pixel_score", DOUBLE, "Mean share of equal cells over train grids; 0 if invalid."),
    Column("train_correct_grids", DOUBLE, "Share of right train grids."),
    Column("train_is_correct", FLAG, "Every train grid is right."),
    Column("test_pixel_score", DOUBLE, "Mean share of equal cells over test grids; 0 if invalid."),
    Column("test_correct_grids", DOUBLE, "Share of right test grids, tests or cases."),
    Column("test_is_correct", FLAG, "Every test grid, test or case is right."),
    Column("fingerprint", TEXT, "Hash of all outputs, augmentation undone; null if invalid."),
    Column("first_output", FLAG, "The first completion of its group with these outputs; null if invalid."),
    Column("outputs", TEXT, "Outputs as JSON {train, test}: grids with augmentation undone; of a test "
           "[passed, exception, message, where]; of a case or call its output."),
    Column("code", TEXT, "Program that was run; null if none was found."),
    Column("error_class", TEXT, "Kind of failure, as 'timeout_cpu'; null if the program ran."),
    Column("error_name", TEXT, "Exception of a runtime error."),
    Column("error_message", TEXT, "Line of the program, then 500 characters of the message."),
    Column("cpu_seconds", DOUBLE, "CPU time, all inputs together."),
    Column("wall_seconds", DOUBLE, "Wall time."),
    Column("max_rss_mib", DOUBLE, "Peak resident memory, MiB."),
    Column("sandbox_tier", TEXT, "Isolation of the program."),
    Column("logprob_sum", DOUBLE, "Sum of behaviour_logprobs, nats."),
    Column("logprob_min", DOUBLE, "Smallest behaviour logprob, nats."),
    Column("nll_sampled", DOUBLE, "Minus the mean behaviour logprob per token; estimates entropy at "
           "temperature 1 only."),
    Column("unique_token_ratio", DOUBLE, "Distinct token ids over tokens."),
    Column("ngram3_unique_ratio", DOUBLE, "Distinct 3-grams over 3-grams; 1 if there are none."),
    Column("ngram4_unique_ratio", DOUBLE, "Distinct 4-grams over 4-grams; 1 if there are none."),
    Column("ngram4_top_share", DOUBLE, "Share of the most frequent 4-gram; 0 if there are none."),
    Column("loop_tokens", COUNT, "Tokens in the repeating tail: a period of up to 64 tokens, 3 times or "
           "more."),
    Column("extra", TEXT, "Free-form metrics, as JSON."),
)

POLICY_LOGPROBS = (
    *KEYS,
    Column("model", TEXT, "'policy-3', or name and hash of a model's folder."),
    Column("policy_version", COUNT, "Policy that the model is, 0 for the base; null for another model."),
    Column("logprobs", LOGPROBS, "Its logprob of each token of completion_ids, nats, at the row's "
           "temperature and within support_ids, as old_logprobs."),
    Column("entropies", LOGPROBS, "Its entropy at each token, nats; null unless requested."),
)

TRAIN_SAMPLES = (
    *KEYS,
    GROUP_ID,
    SCORER,
    TRAINED_ITERATION,
    Column("staleness", COUNT, "Policy version trained minus the one that sampled (the oldest token's)."),
    OPTIMIZER_STEP,
    REWARD,
    Column("advantage", DOUBLE, "Advantage, mean over tokens."),
    Column("num_trainable_tokens", COUNT, "Tokens with loss mask 1."),
    Column("drop_reason", TEXT, "Why it gave no gradient: 'zero_variance' (its advantage is 0), "
           "'missing_reward', 'truncated', .. or null."),
    Column("old_logprobs", LOGPROBS, "pi_old: the trainer's logprobs before the first gradient, nats."),
    Column("log_ratio_mean", DOUBLE, "Mean log pi_old - log mu per token."),
    Column("log_ratio_abs_mean", DOUBLE, "Mean |log pi_old - log mu| per token."),
    Column("log_ratio_abs_max", DOUBLE, "Largest |log pi_old - log mu| of a token."),
    Column("mismatch_kl", DOUBLE, "Mean k3 estimate of KL(mu, pi_old) per token, nats."),
    Column("importance_weight_mean", DOUBLE, "Mean importance weight per token, after the correction."),
    Column("kept_fraction", DOUBLE, "Share of tokens with a weight that is neither 0 nor clipped."),
    Column("entropy", DOUBLE, "Mean entropy of pi_old per token, nats."),
    Column("base_kl", DOUBLE, "Mean k3 of pi_old against the base per token, nats; null without `train "
           "--kl-beta` or --kl-monitor.", since=4),
    Column("base_log_ratio", DOUBLE, "Mean log pi_old - log base per token (k1); null likewise.", since=4),
)

TRAIN_TOKENS = (
    *KEYS,
    TRAINED_ITERATION,
    OPTIMIZER_STEP,
    Column("log_drift", LOGPROBS, "log pi - log pi_old per token, before that step, nats."),
    Column("clipped", SMALL_LIST, "1 if the loss clipped or masked the token; cispo keeps its gradient."),
)

TRAIN_STEPS = (
    STAGE_KEYS[0],
    OPTIMIZER_STEP,
    Column("global_step", COUNT, "Optimizer steps of the run so far, with those rolled back."),
    Column("policy_version", COUNT, "Policy at the start of the stage."),
    Column("loss", DOUBLE, "Loss."),
    Column("grad_norm", DOUBLE, "Gradient norm before clipping."),
    Column("learning_rate", DOUBLE, "Learning rate."),
    Column("num_groups", COUNT, "Groups, with those of equal rewards."),
    Column("num_completions", COUNT, "Completions."),
    Column("num_trainable_tokens", BIG, "Tokens with loss mask 1, the denominator of dapo."),
    Column("clip_fraction", DOUBLE, "Share of trainable tokens with a clipped ratio."),
    Column("policy_kl", DOUBLE, "Mean k3 of pi against pi_old over tokens with a gradient."),
    Column("ratio_max", DOUBLE, "Largest pi/pi_old of a token with a gradient."),
    Column("entropy", DOUBLE, "Mean entropy of pi_old over trainable tokens, nats."),
    Column("ess", DOUBLE, "ESS of pi_old/mu over trainable tokens; null for answers of another model."),
    Column("seconds", DOUBLE, "Wall time."),
    Column("extra", TEXT, "As JSON: policy_k2, mean (log pi/pi_old)^2 / 2, and policy_ess, ESS of pi/mu, "
           "both over the num_forwarded_tokens with a gradient; skipped, true if the gradient was zero."),
    Column("base_kl", DOUBLE, "Mean k3 of pi against the base over tokens with a gradient, nats; null "
           "without `train --kl-beta` or --kl-monitor.", since=4),
    Column("base_log_ratio", DOUBLE, "Mean log pi - log base over these tokens (k1); null likewise.",
           since=4),
)

TABLES = {"tasks": TASKS, "prompts": PROMPTS, "completions": COMPLETIONS, "carried": COMPLETIONS,
          "samples": SAMPLES, "policy_logprobs": POLICY_LOGPROBS,
          "train_samples": TRAIN_SAMPLES, "train_tokens": TRAIN_TOKENS, "train_steps": TRAIN_STEPS}


def arrow_schema(table: str) -> pa.Schema:
    """Arrow schema of a table named in TABLES, as readers and writers know it."""
    return pa.schema([pa.field(column.name, column.type) for column in TABLES[table]])


def later_columns(table: str, version: int) -> set[str]:
    """Columns of a table that parts of a schema version lack."""
    return {column.name for column in TABLES[table] if column.since > version}


def stored_names(table: str) -> dict[str, str]:
    """The name in the files for each column of a table."""
    return {column.name: column.stored or column.name for column in TABLES[table]}
