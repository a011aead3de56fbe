-- One row per iteration and purpose: everything that moves when a run goes wrong.

CREATE OR REPLACE VIEW iteration_groups AS
SELECT iteration, purpose,
       count(*) AS num_groups,
       avg(reward_std) AS reward_std_within,
       coalesce(stddev_samp(reward_mean), 0) AS reward_std_across,
       avg(zero_variance::INTEGER) AS zero_variance_share,
       avg(all_correct::INTEGER) AS all_correct_share,
       avg(none_correct::INTEGER) AS none_correct_share,
       avg(distinct_outputs / n) AS distinct_outputs_share,
       sum(distinct_wrong_outputs) / nullif(sum(num_wrong_outputs), 0) AS distinct_wrong_share,
       coalesce(stddev_samp(reward_mean), 0) / sqrt(count(*)) AS reward_error
FROM groups WHERE n > 0
GROUP BY iteration, purpose;

CREATE OR REPLACE VIEW iteration_samples AS
SELECT iteration, purpose,
       max(policy_version) AS policy_version,
       any_value(scorer) AS scorer,
       count(*)::INTEGER AS num_completions,
       (count(*) - count(reward))::INTEGER AS num_missing,
       count(DISTINCT task_id)::INTEGER AS num_tasks,
       avg(reward) AS reward_mean,
       avg(reward) FILTER (NOT truncated) AS reward_finished,
       avg(reward) FILTER (truncated) AS reward_truncated,
       avg(correct::INTEGER) FILTER (reward IS NOT NULL) AS correct_share,
       avg(valid_code::INTEGER) AS valid_code_share,
       avg(valid_outputs::INTEGER) AS valid_outputs_share,
       avg((error_class IS NOT NULL OR num_completion_tokens <= 1)::INTEGER) AS error_share,
       avg((num_completion_tokens <= 1)::INTEGER) AS empty_share,
       avg(truncated::INTEGER) AS truncated_share,
       avg(num_completion_tokens) AS tokens_mean,
       quantile_cont(num_completion_tokens, [0.05, 0.25, 0.5, 0.75, 0.95]) AS tokens_quantiles,
       avg(num_completion_tokens) FILTER (NOT truncated) AS tokens_mean_finished,
       avg(num_completion_tokens) FILTER (correct) AS tokens_mean_correct,
       avg(num_completion_tokens) FILTER (NOT correct) AS tokens_mean_wrong,
       corr(num_completion_tokens, reward) AS length_reward_correlation,
       avg(nll_sampled) AS nll_sampled,
       avg(unique_token_ratio) AS unique_token_ratio,
       avg(ngram3_unique_ratio) AS ngram3_unique_ratio,
       avg(ngram4_unique_ratio) AS ngram4_unique_ratio,
       avg((loop_tokens >= 32)::INTEGER) AS loop_share
FROM samples
GROUP BY iteration, purpose;

CREATE OR REPLACE VIEW iteration_passes AS
SELECT iteration, purpose,
       max(pass_at_k) FILTER (k = 1) AS pass_at_1,
       max(k) AS max_k,
       arg_max(pass_at_k, k) AS pass_at_max_k,
       max(standard_error) FILTER (k = 1) AS pass_at_1_error,
       arg_max(standard_error, k) AS pass_at_max_k_error
FROM pass_curve WHERE every_task
GROUP BY iteration, purpose;

CREATE OR REPLACE VIEW iteration_mismatch AS
SELECT iteration,
       sum(mismatch_kl * num_completions) / sum(num_completions) AS mismatch_kl,
       max(mismatch_kl) FILTER (staleness = 0) AS mismatch_kl_fresh,
       sum(log_ratio_abs_mean * num_completions) / sum(num_completions) AS log_ratio_abs_mean,
       max(log_ratio_abs_max) AS log_ratio_abs_max,
       min(ess) AS ess,
       avg(importance_weight_mean) AS importance_weight_mean,
       max(importance_weight_std) AS importance_weight_std,
       sum(entropy * num_completions) / sum(num_completions) AS entropy
FROM mismatch
GROUP BY iteration;

CREATE OR REPLACE VIEW iteration_stats AS
SELECT samples.*,
       passes.* EXCLUDE (iteration, purpose),
       grouped.* EXCLUDE (iteration, purpose),
       trained.* EXCLUDE (iteration)
FROM iteration_samples AS samples
LEFT JOIN iteration_passes AS passes
    ON passes.iteration = samples.iteration AND passes.purpose = samples.purpose
LEFT JOIN iteration_groups AS grouped
    ON grouped.iteration = samples.iteration AND grouped.purpose = samples.purpose
LEFT JOIN iteration_mismatch AS trained
    ON trained.iteration = samples.iteration AND samples.purpose = 'train';
