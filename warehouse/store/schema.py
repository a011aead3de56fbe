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
WHY_IT_ENDED = ("'stop': by the model, 'code': its code block closed, 'length': the token limit, 'loop': it "
                "repeated itself.")

WHICH_POLICY = "Policy that sampled it (its last token); 0 is the base, null a model behind an API."


class Column(NamedTuple):
    """One column: its name, Arrow type, and the sentence a person reads in `warehouse schema`."""

    name: str
    type: pa.DataType
    comment: str
    stored: str = ""  # its name in the files, if different
    since: int = OLDEST_VERSION  # the schema version that added it; null in parts of an earlier version


STAGE_KEYS = (
    Column("iteration", COUNT, "Iteration of the loop, from 0."),
    Column("purpose", TEXT, "'train' for rows to train on; 'eval', 'eval-<split>' or 'eval-<label>' for "
           "evaluations; 'distil' or 'distil-<label>' for another model's answers to training tasks. The "
           "ending '-turn2' means second turns, and so on."),
)
KEYS = (
    *STAGE_KEYS,
    Column("task_id", TEXT, "The task; joins with tasks."),
    Column("sample_index", COUNT, "Index of the completion within (iteration, purpose, task_id), from 0."),
)

TASKS = (
    Column("task_id", TEXT, "Unique name of the task in this run."),
    Column("source", TEXT, "Where it was imported from, as given to `warehouse init`."),
    Column("split", TEXT, "Name of the split, for example 'train' or 'heldout'."),
    Column("heldout", FLAG, "True: never trained on unless named."),
    Column("position", COUNT, "Order of import, from 0."),
    Column("kind", TEXT, "Kind of task: how it is scored, for example 'grid' or 'function'.",
           stored="scorer"),
    Column("messages", TEXT, "Chat messages as JSON for tasks that bring their own prompt; null otherwise."),
    Column("payload", TEXT,
           "What the scorer needs, as JSON; for 'grid': {train: [{input, output}], test: [..]}."),
)

PROMPTS = (
    *STAGE_KEYS,
    Column("task_id", TEXT, "The task; joins with tasks."),
    Column("group_index", COUNT, "Index of the prompt among those of the task in this iteration, from 0."),
    Column("group_id", TEXT, "Names the group: completions of one prompt from one policy version."),
    Column("group_size", COUNT, "Completions sampled for this prompt."),
    Column("split", TEXT, "Split of the task."),
    Column("prompt_id", TEXT, "Hash of prompt_ids; equal prompts have equal ids."),
    Column("prompt", TEXT, "The prompt as text, after the chat template."),
    Column("prompt_ids", TOKEN_IDS, "The prompt's token ids, exactly as sent to the engine."),
    Column("num_prompt_tokens", COUNT, "Length of prompt_ids."),
    Column("prompt_format", TEXT, "Name and version of the prompt format, for example 'compact@1'."),
    Column("format_options", TEXT, "Options of the prompt format, as JSON."),
    Column("prefill", TEXT,
           "Assistant text that the prompt ends with; part of the answer when it is parsed."),
    Column("seed", BIG,
           "Seed of the augmentation, the order of pairs and the shown test input."),
    Column("flip", FLAG, "Augmentation: flipped left to right before rotating; null if there is none."),
    Column("rotations", COUNT, "Augmentation: quarter turns counter-clockwise after the flip (numpy.rot90)."),
    Column("color_map", SMALL_LIST, "Augmentation: color_map[c] is the colour that c became, 10 entries."),
    Column("pair_order", SMALL_LIST, "Indices of the train pairs shown, in the order shown."),
    Column("shown_test", COUNT, "Index of the test input shown in the prompt; null if none is."),
    Column("turn", COUNT, "Turn of the conversation that is sampled; 1, or null, is the first.", since=3),
    Column("parent_iteration", COUNT, "Iteration of the completion that is answered; null in first turns.",
           since=3),
    Column("parent_purpose", TEXT, "Its purpose.", since=3),
    Column("parent_sample_index", COUNT, "Its sample_index; its task is the same.", since=3),
    Column("feedback_format", TEXT, "Name and version of the feedback, for example 'tests@1'.",
           since=3),
    Column("verbatim_prefix", FLAG, "prompt_ids begin with exactly the prompt_ids and completion_ids of the "
           "parent; false if the chat template rewrites earlier turns.", since=3),
    Column("segments", SEGMENTS, "What prompt_ids are made of, in order: start, length and kind: 'template', "
           "'task', 'feedback', or 'policy' for sampled tokens; null in first turns.", since=3),
    Column("messages", TEXT, "The chat messages as JSON if they were sent to a model behind an API; null "
           "otherwise.", since=3),
)

COMPLETIONS = (
    *KEYS,
    Column("group_id", TEXT, "The group; joins with prompts by iteration, purpose and group_id."),
    Column("completion", TEXT, "The completion as text, without special tokens but those around thoughts."),
    Column("completion_ids", TOKEN_IDS, "Token ids as sampled, the end token included."),
    Column("behaviour_logprobs", LOGPROBS,
           "Log probability in nats of each sampled token under the distribution it was drawn from, "
           "after temperature, penalties and truncation; at temperature 0 under the plain softmax."),
    Column("num_prompt_tokens", COUNT, "Tokens in the prompt."),
    Column("num_completion_tokens", COUNT, "Tokens in completion_ids."),
    Column("finish_reason", TEXT, WHY_IT_ENDED),
    Column("seed", BIG, "Seed of this completion's sampling."),
    Column("policy_version", COUNT, WHICH_POLICY),
    Column("policy_sha256", TEXT, "Hash of that policy's weights."),
    Column("temperature", FLOAT, "Sampling temperature."),
    Column("top_p", FLOAT, "Nucleus truncation; 1 is none."),
    Column("top_k", COUNT, "Top-k truncation; 0 is none."),
    Column("min_p", FLOAT, "Min-p truncation; 0 is none."),
    Column("repetition_penalty", FLOAT, "1 is none; vLLM counts the prompt's tokens too."),
    Column("presence_penalty", FLOAT, "0 is none."),
    Column("frequency_penalty", FLOAT, "0 is none."),
    Column("max_tokens", COUNT, "Limit on completion tokens."),
    Column("logprobs_mode", TEXT, "What behaviour_logprobs are: 'processed_logprobs' by default."),
    Column("engine", TEXT, "Engine and version, for example 'vllm 0.32.0'."),
    Column("dtype", TEXT, "Weights and activations of the engine."),
    Column("device", TEXT, "Device of the engine, for example 'cpu' or the GPU's name."),
    Column("host", TEXT, "Machine that sampled it."),
    Column("finished_at", pa.timestamp("ms", tz="UTC"), "When the completion finished."),
    Column("version_segments", VERSION_SEGMENTS, "Which policy sampled which tokens, in order: start, "
           "length, policy_version; null if one policy sampled all.", since=3),
    Column("support_ids", SUPPORT, "The ids that remained after top_k, top_p and min_p for each "
           "token, the sampled one first; null without truncation, or if top_k is 0 or above 64.", since=3),
    Column("cost", DOUBLE, "Price of an answer from an API, in rows of earlier versions.", since=3),
)

SAMPLES = (
    *KEYS,
    Column("scorer", TEXT,
           "Identity of the scorer: reward name and a hash of its code and limits."),
    Column("group_id", TEXT, "The group; joins with prompts by iteration, purpose and group_id."),
    Column("split", TEXT, "Split of the task."),
    Column("policy_version", COUNT, WHICH_POLICY),
    Column("finish_reason", TEXT, WHY_IT_ENDED),
    Column("truncated", FLAG, "finish_reason is 'length' or 'loop': the answer was cut off."),
    Column("num_prompt_tokens", COUNT, "Tokens in the prompt."),
    Column("num_completion_tokens", COUNT, "Tokens in the completion."),
    Column("reward", DOUBLE,
           "Total reward; null if it could not be measured (infrastructure), never 0 for that reason."),
    Column("reward_parts", TEXT, "Parts of the reward by name, as JSON."),
    Column("correct", FLAG, "Everything right: every train and test grid, or every test."),
    Column("valid_code", FLAG, "A closed code block was found."),
    Column("valid_outputs", FLAG, "The program ran and every output was legal."),
    Column("train_pixel_score", DOUBLE, "Mean over train grids of the share of equal cells; 0 when invalid."),
    Column("train_correct_grids", DOUBLE, "Share of train grids exactly right."),
    Column("train_is_correct", FLAG, "Every train grid is right."),
    Column("test_pixel_score", DOUBLE, "Mean over test grids of the share of equal cells; 0 when invalid."),
    Column("test_correct_grids", DOUBLE, "Share of test grids exactly right."),
    Column("test_is_correct", FLAG, "Every test grid is right."),
    Column("fingerprint", TEXT, "Hash of all outputs with the augmentation undone; null when invalid."),
    Column("first_output", FLAG,
           "The first completion of its group that gave these outputs; null when invalid."),
    Column("outputs", TEXT,
           "What the program gave, as JSON: {train, test}. Grids with the augmentation undone; of a test "
           "[passed, exception, message, where]; of a case or call its output."),
    Column("code", TEXT, "The program that was run; null when none was found."),
    Column("error_class", TEXT, "Enumerated kind of failure; null when the program ran."),
    Column("error_name", TEXT, "Exception name for runtime errors."),
    Column("error_message", TEXT, "First 500 characters of the message, after the line of the program."),
    Column("cpu_seconds", DOUBLE, "CPU time of the program, all inputs together."),
    Column("wall_seconds", DOUBLE, "Wall time of the program."),
    Column("max_rss_mib", DOUBLE, "Peak resident memory of the program's process, MiB."),
    Column("sandbox_tier", TEXT, "Isolation the program ran under."),
    Column("logprob_sum", DOUBLE, "Sum of behaviour_logprobs, nats."),
    Column("logprob_min", DOUBLE, "Smallest behaviour logprob, nats."),
    Column("nll_sampled", DOUBLE,
           "Minus the mean behaviour logprob: estimates entropy at temperature 1 only."),
    Column("unique_token_ratio", DOUBLE, "Distinct token ids over tokens."),
    Column("ngram3_unique_ratio", DOUBLE,
           "Distinct 3-grams over 3-grams of token ids; 1 when there is none."),
    Column("ngram4_unique_ratio", DOUBLE,
           "Distinct 4-grams over 4-grams of token ids; 1 when there is none."),
    Column("ngram4_top_share", DOUBLE, "Share of the most frequent 4-gram; 0 when there is none."),
    Column("loop_tokens", COUNT,
           "Tokens in the repeating tail: a period of up to 64 tokens seen 3 times or more."),
    Column("extra", TEXT, "Free-form metrics of the scorer, as JSON."),
)

POLICY_LOGPROBS = (
    *KEYS,
    Column("model", TEXT, "The model: 'policy-3', or the name of a model's folder and its hash."),
    Column("policy_version", COUNT, "The policy that it is, 0 for the base; null for another model."),
    Column("logprobs", LOGPROBS, "Its log probability in nats of each token of completion_ids, at the "
           "temperature of the row and over what truncation left (support_ids); as old_logprobs are."),
    Column("entropies", LOGPROBS, "Entropy of its distribution of each token, nats; null unless requested."),
)

TRAIN_SAMPLES = (
    *KEYS,
    Column("group_id", TEXT, "The group; joins with prompts by iteration, purpose and group_id."),
    Column("scorer", TEXT, "Scorer that gave the rewards."),
    Column("trained_iteration", COUNT, "Iteration of the train stage; differs from iteration under replay."),
    Column("staleness", COUNT, "Policy version the stage started from minus the version that sampled "
           "(the oldest token's)."),
    Column("optimizer_step", COUNT,
           "Step of this stage that used the completion, from 0; null if none did."),
    Column("reward", DOUBLE, "Reward used, the completion's own."),
    Column("advantage", DOUBLE, "Advantage of the completion."),
    Column("num_trainable_tokens", COUNT, "Tokens with loss mask 1."),
    Column("drop_reason", TEXT,
           "Why it gave no gradient: 'zero_variance', 'missing_reward', 'truncated', .. or null."),
    Column("old_logprobs", LOGPROBS,
           "pi_old: the trainer's logprobs of the tokens before the first gradient, nats."),
    Column("log_ratio_mean", DOUBLE, "Mean over tokens of old_logprobs - behaviour_logprobs."),
    Column("log_ratio_abs_mean", DOUBLE, "Mean over tokens of |old_logprobs - behaviour_logprobs|."),
    Column("log_ratio_abs_max", DOUBLE, "Largest |old_logprobs - behaviour_logprobs|."),
    Column("mismatch_kl", DOUBLE,
           "Mean over tokens of k3 = exp(d) - d - 1, d = old_logprobs - behaviour_logprobs."),
    Column("importance_weight_mean", DOUBLE,
           "Mean over its tokens of the importance weight after the correction."),
    Column("kept_fraction", DOUBLE,
           "Share of its tokens with a weight that is neither 0 nor clipped by a bound."),
    Column("entropy", DOUBLE, "Mean entropy of pi_old over its tokens, nats."),
    Column("base_kl", DOUBLE, "Mean over its tokens of k3 of pi_old against the base model, nats; null "
           "unless `train --kl-beta` or --kl-monitor computed that.", since=4),
    Column("base_log_ratio", DOUBLE, "Mean over its tokens of log pi_old - log base (k1); null likewise.",
           since=4),
)

TRAIN_TOKENS = (
    *KEYS,
    Column("trained_iteration", COUNT, "Iteration of the train stage; differs from iteration under replay."),
    Column("optimizer_step", COUNT, "Step of this stage that used the completion, from 0."),
    Column("log_drift", LOGPROBS, "log pi - log pi_old of the tokens, pi as it was before that step, nats."),
    Column("clipped", SMALL_LIST, "1 if the clip or the mask of the loss removed the token's gradient."),
)

TRAIN_STEPS = (
    Column("iteration", COUNT, "Iteration of the train stage."),
    Column("optimizer_step", COUNT, "Step of this stage, from 0."),
    Column("global_step", COUNT, "Optimizer steps of the run up to this one, including those rolled back."),
    Column("policy_version", COUNT, "Policy the stage started from."),
    Column("loss", DOUBLE, "Loss of the step."),
    Column("grad_norm", DOUBLE, "Gradient norm before clipping."),
    Column("learning_rate", DOUBLE, "Learning rate of the step."),
    Column("num_groups", COUNT, "Groups in the step, including those of equal rewards."),
    Column("num_completions", COUNT, "Completions in the step."),
    Column("num_trainable_tokens", BIG, "Tokens with loss mask 1 in the step, the denominator of dapo."),
    Column("clip_fraction", DOUBLE, "Share of the trainable tokens of the step with a clipped ratio."),
    Column("policy_kl", DOUBLE, "Mean of k3 of pi against pi_old over the tokens with a gradient."),
    Column("ratio_max", DOUBLE, "Largest pi/pi_old of the tokens with a gradient."),
    Column("entropy", DOUBLE, "Mean entropy of pi_old over all trainable tokens of the step, nats."),
    Column("ess", DOUBLE,
           "Effective sample size of pi_old/mu as a share of the trainable tokens of the step; null for "
           "answers of another model."),
    Column("seconds", DOUBLE, "Wall time of the step."),
    Column("extra", TEXT,
           "As JSON: policy_k2, mean (log pi/pi_old)^2 / 2, and policy_ess, ESS / n of pi/mu, both over the "
           "num_forwarded_tokens with a gradient; skipped, whether the step was skipped because its "
           "gradient was zero."),
    Column("base_kl", DOUBLE, "Mean of k3 of pi against the base model over the tokens with a gradient, "
           "nats; null unless `train --kl-beta` or --kl-monitor computed that.", since=4),
    Column("base_log_ratio", DOUBLE, "Mean of log pi - log base (k1) over these tokens; null likewise.",
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
