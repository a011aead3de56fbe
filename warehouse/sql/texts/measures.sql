-- Measures computed from rows, as macros over a table's name: FROM groups_of('all_samples') works too.
-- The views groups, task_results, rolled_mismatch and iteration_stats apply them to stages that no rollup holds, and
-- read the others from the rollup's small files.

-- One row per group of the scored rows of a table.
CREATE OR REPLACE MACRO groups_of(rows) AS TABLE
SELECT iteration, purpose, group_id, task_id,
       any_value(split) AS split,
       max(policy_version) AS policy_version,  -- for carried-over groups, the last one
       count(reward)::INTEGER AS n,
       (count(*) FILTER (correct AND reward IS NOT NULL))::INTEGER AS c,
       (count(*) - count(reward))::INTEGER AS num_missing,
       avg(reward) AS reward_mean,
       CASE n WHEN 1 THEN 0 ELSE stddev_samp(reward) END AS reward_std,
       max(reward) AS reward_max,
       reward_max = min(reward) AS zero_variance,
       CASE WHEN n > 0 THEN c = n END AS all_correct,
       CASE WHEN n > 0 THEN c = 0 END AS none_correct,
       avg(truncated::INTEGER) AS truncated_share,
       avg(num_completion_tokens) AS tokens_mean,
       -- Marked when scored, because count(DISTINCT fingerprint) would take longer than all the rest.
       -- Tests give outputs that cannot be compared: valid, and without a fingerprint.
       CASE WHEN count(*) FILTER (valid_outputs AND first_output IS NULL) = 0
            THEN (count(*) FILTER (first_output))::INTEGER END AS distinct_outputs,
       (count(*) FILTER (first_output AND NOT correct))::INTEGER AS distinct_wrong_outputs,
       (count(first_output) FILTER (NOT correct))::INTEGER AS num_wrong_outputs
FROM query_table(rows)
GROUP BY iteration, purpose, group_id, task_id;

-- One row per task, iteration and purpose of the scored rows of a table.
CREATE OR REPLACE MACRO task_results_of(rows) AS TABLE
SELECT iteration, purpose, task_id,
       any_value(split) AS split,
       max(policy_version) AS policy_version,
       any_value(scorer) AS scorer,
       count(reward)::INTEGER AS n,
       (count(*) FILTER (correct AND reward IS NOT NULL))::INTEGER AS c,
       avg(reward) AS reward_mean,
       max(reward) AS reward_max,
       avg(truncated::INTEGER) AS truncated_share,
       avg(num_completion_tokens) AS tokens_mean
FROM query_table(rows)
GROUP BY iteration, purpose, task_id;

-- Engine against trainer for the trained rows of a table.
CREATE OR REPLACE MACRO mismatch_of(rows) AS TABLE
SELECT trained_iteration AS iteration, staleness,
       count(*)::INTEGER AS num_completions,
       sum(weight)::BIGINT AS num_tokens,
       sum(log_ratio_mean * weight) / sum(weight) AS log_ratio_mean,
       sum(log_ratio_abs_mean * weight) / sum(weight) AS log_ratio_abs_mean,
       max(log_ratio_abs_max) AS log_ratio_abs_max,
       sum(mismatch_kl * weight) / sum(weight) AS mismatch_kl,
       ess(exp(clamped(log_ratio_mean * weight))) AS completion_ess,
       sum(importance_weight_mean * weight) / sum(weight) AS importance_weight_mean,
       coalesce(stddev_samp(importance_weight_mean), 0) AS importance_weight_std,
       sum(kept_fraction * weight) / sum(weight) AS kept_fraction,
       sum(entropy * weight) / sum(weight) AS entropy
FROM (SELECT *, num_trainable_tokens AS weight FROM query_table(rows)
      WHERE mismatch_kl IS NOT NULL AND num_trainable_tokens > 0)
GROUP BY trained_iteration, staleness;

-- One row per iteration and purpose of the scored rows of a table; training is joined by iteration.
CREATE OR REPLACE MACRO stats_of(rows) AS TABLE
WITH held AS (FROM query_table(rows)),  -- read once for measures per row and per group
scored AS (
    SELECT iteration, purpose,
           max(policy_version) AS policy_version,
           any_value(scorer) AS scorer,
           count(*)::INTEGER AS num_completions,
           (count(*) - count(reward))::INTEGER AS num_missing,
           avg(reward) AS reward_mean,
           avg(reward) FILTER (NOT truncated) AS reward_finished,
           avg(reward) FILTER (truncated) AS reward_truncated,
           avg(correct::INTEGER) FILTER (reward IS NOT NULL) AS correct_share,
           avg(valid_code::INTEGER) AS valid_code_share,
           avg(valid_outputs::INTEGER) AS valid_outputs_share,
           avg((error_class IS NOT NULL OR num_completion_tokens <= 1)::INTEGER) AS error_share,
           avg((error_class IS NOT NULL AND error_class <> 'parsing')::INTEGER)
               FILTER (valid_code AND reward IS NOT NULL) AS failed_share,
           avg((num_completion_tokens <= 1)::INTEGER) AS empty_share,
           avg(truncated::INTEGER) AS truncated_share,
           avg(num_completion_tokens) AS tokens_mean,
           quantile_cont(num_completion_tokens, [0.05, 0.25, 0.5, 0.75, 0.95]) AS tokens_quantiles,
           avg(num_completion_tokens) FILTER (NOT truncated) AS tokens_mean_finished,
           avg(num_completion_tokens) FILTER (correct) AS tokens_mean_correct,
           avg(num_completion_tokens) FILTER (NOT correct) AS tokens_mean_wrong,
           -sum(logprob_sum) / nullif(sum(num_completion_tokens) FILTER (logprob_sum IS NOT NULL), 0)
               AS nll_sampled,
           avg(unique_token_ratio) AS unique_token_ratio,
           avg(ngram3_unique_ratio) AS ngram3_unique_ratio,
           avg(ngram4_unique_ratio) AS ngram4_unique_ratio,
           avg((loop_tokens >= 32 OR finish_reason IS NOT DISTINCT FROM 'loop')::INTEGER) AS loop_share
    FROM held
    GROUP BY iteration, purpose),
measured AS (  -- a task's totals are only in the row of its first group
    SELECT *, CASE WHEN row_number() OVER task = 1 THEN sum(n) OVER task END AS task_n,
              CASE WHEN row_number() OVER task = 1 THEN sum(c) OVER task END AS task_c
    FROM groups_of('held')
    WHERE n > 0
    WINDOW task AS (PARTITION BY iteration, purpose, task_id)),
counted AS (
    SELECT *, top_k(quantile_disc(task_n, -0.9) OVER (PARTITION BY iteration, purpose)) AS top
    FROM measured),
grouped AS (
    SELECT iteration, purpose,
           avg(task_c / task_n) AS pass_at_1,
           any_value(top) AS max_k,
           avg(pass_at_k(task_n, task_c, top)) AS pass_at_max_k,
           stddev_samp(task_c / task_n) / sqrt(count(task_n)) AS pass_at_1_error,
           stddev_samp(pass_at_k(task_n, task_c, top)) / sqrt(count(pass_at_k(task_n, task_c, top)))
               AS pass_at_max_k_error,
           count(*) AS num_groups,
           count(task_n)::INTEGER AS num_tasks,
           avg(reward_std) AS reward_std_within,
           coalesce(stddev_samp(reward_mean), 0) AS reward_std_across,
           avg(zero_variance::INTEGER) AS zero_variance_share,
           avg(all_correct::INTEGER) AS all_correct_share,
           avg(none_correct::INTEGER) AS none_correct_share,
           CASE WHEN bool_and(distinct_outputs IS NOT NULL)
                THEN avg(distinct_outputs / (n + num_missing)) END AS distinct_outputs_share,
           sum(distinct_wrong_outputs) / nullif(sum(num_wrong_outputs), 0) AS distinct_wrong_share,
           stddev_samp(reward_mean) / sqrt(count(*)) AS reward_error
    FROM counted
    GROUP BY iteration, purpose),
trained AS (
    SELECT iteration,
           sum(mismatch_kl * num_tokens) / sum(num_tokens) AS mismatch_kl,
           max(mismatch_kl) FILTER (staleness = 0) AS mismatch_kl_fresh,
           sum(log_ratio_abs_mean * num_tokens) / sum(num_tokens) AS log_ratio_abs_mean,
           max(log_ratio_abs_max) AS log_ratio_abs_max,
           min(completion_ess) AS completion_ess,
           sum(importance_weight_mean * num_tokens) / sum(num_tokens) AS importance_weight_mean,
           max(importance_weight_std) AS importance_weight_std,
           sum(entropy * num_tokens) / sum(num_tokens) AS entropy
    FROM rolled_mismatch
    GROUP BY iteration)
SELECT scored.*, grouped.* EXCLUDE (iteration, purpose), trained.* EXCLUDE (iteration)
FROM scored
LEFT JOIN grouped ON grouped.iteration = scored.iteration AND grouped.purpose = scored.purpose
LEFT JOIN trained ON trained.iteration = scored.iteration AND scored.purpose = 'train';
