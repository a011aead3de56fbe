-- Logprobs of stored completions under policies and models: rows that `train logprobs` wrote.

-- Every completion under every model in policy_logprobs, with d = log model - log mu of its tokens.
CREATE OR REPLACE VIEW log_ratios AS
SELECT iteration, purpose, task_id, sample_index, completions.policy_version AS sampled_by, model, asked.policy_version,
       list_transform(list_zip(logprobs, behaviour_logprobs), lambda pair: pair[1]::DOUBLE - pair[2]) AS log_ratios
FROM policy_logprobs AS asked JOIN completions USING (iteration, purpose, task_id, sample_index)
WHERE len(logprobs) > 0 AND len(logprobs) = len(behaviour_logprobs);

-- KL(mu, model) over tokens sampled from mu. For the base, policy 0, it is the reference KL of an iteration.
CREATE OR REPLACE VIEW kl_ladder AS
SELECT iteration, purpose, sampled_by, model, policy_version, count(*)::INTEGER AS num_completions,
       sum(len(log_ratios))::BIGINT AS num_tokens,
       sum(list_sum(list_transform(log_ratios, lambda d: k3(d)))) / sum(len(log_ratios)) AS kl,
       -sum(list_sum(log_ratios)) / sum(len(log_ratios)) AS log_ratio_mean,
       -avg(list_sum(log_ratios)) AS kl_completion,
       ess(exp(clamped(list_sum(log_ratios)))) AS ess
FROM log_ratios GROUP BY iteration, purpose, sampled_by, model, policy_version;

-- Every token of an iteration's completions under every model in policy_logprobs; log_ratio is log model - log mu.
CREATE OR REPLACE MACRO model_tokens(at_iteration, of_purpose := 'train') AS TABLE
SELECT rows.* EXCLUDE (token_id), token_id, token, logprob::DOUBLE - behaviour_logprob AS log_ratio
FROM (SELECT task_id, sample_index, completions.policy_version AS sampled_by, model, asked.policy_version,
             unnest(range(len(completion_ids)))::INTEGER AS position, unnest(completion_ids) AS token_id,
             unnest(behaviour_logprobs) AS behaviour_logprob, unnest(logprobs) AS logprob,
             unnest(coalesce(entropies, [NULL::FLOAT])) AS entropy
      FROM (FROM policy_logprobs WHERE iteration = at_iteration AND purpose = of_purpose) AS asked
      JOIN (FROM completions WHERE iteration = at_iteration AND purpose = of_purpose) AS completions
          USING (task_id, sample_index)) AS rows
LEFT JOIN vocabulary USING (token_id);

-- Tokens with a logprob that a later policy changed by at least `nats`, and the first such policy: earliest policy
-- first, then largest change.
CREATE OR REPLACE MACRO first_moved(at_iteration, nats := 1.0, of_purpose := 'train') AS TABLE
SELECT policy_version, task_id, sample_index, position, token_id, token, behaviour_logprob, logprob, log_ratio
FROM model_tokens(at_iteration, of_purpose := of_purpose)
WHERE policy_version > sampled_by AND abs(log_ratio) >= nats
QUALIFY row_number() OVER (PARTITION BY task_id, sample_index, position ORDER BY policy_version) = 1
ORDER BY policy_version, abs(log_ratio) DESC, task_id, sample_index, position;

-- Estimated pass@1 of a model from other policies' completions in iterations since .. until; w = model / mu of whole
-- completions. normalised: weights normalised within each task. robust: doubly robust, b + w (correct - b) with b the
-- share right among the task's other completions (of all others if it has none). Intervals are bootstraps over tasks.
-- ess is summed over tasks. If weight_mean is far from 1, these rows do not cover the model's distribution.
CREATE OR REPLACE MACRO estimated_pass(of_model, purposes := '%', since := 0, until := 2147483647) AS TABLE
WITH weighed AS (
    SELECT purpose, task_id, correct::INTEGER AS hit, exp(clamped(list_sum(log_ratios))) AS w
    FROM (FROM log_ratios WHERE model = of_model AND is_asked(purpose, purposes) AND iteration BETWEEN since AND until)
    JOIN (FROM samples WHERE reward IS NOT NULL) USING (iteration, purpose, task_id, sample_index)),
others AS (
    SELECT *, coalesce((sum(hit) OVER task - hit) / nullif(count(*) OVER task - 1, 0),
                       (sum(hit) OVER every - hit) / nullif(count(*) OVER every - 1, 0), 0) AS b
    FROM weighed WINDOW task AS (PARTITION BY purpose, task_id), every AS (PARTITION BY purpose)),
tasks_of AS (
    SELECT purpose, task_id, count(*) AS n, avg(hit) AS plain, sum(w * hit) / sum(w) AS normalised,
           avg(b + w * (hit - b)) AS robust, ess(w) * count(*) AS effective, avg(w) AS w
    FROM others GROUP BY purpose, task_id),
lists AS (
    SELECT purpose, count(*)::INTEGER AS num_tasks, sum(n)::INTEGER AS num_completions, avg(plain) AS sampled,
           list(normalised ORDER BY task_id) AS normalised, list(robust ORDER BY task_id) AS robust,
           sum(effective) / sum(n) AS ess, sum(w * n) / sum(n) AS weight_mean
    FROM tasks_of GROUP BY purpose)
SELECT purpose, num_tasks, num_completions, sampled, list_avg(normalised) AS normalised, bounds[1] AS normalised_low,
       bounds[2] AS normalised_high, list_avg(robust) AS robust, robust_bounds[1] AS robust_low,
       robust_bounds[2] AS robust_high, ess, weight_mean
FROM (SELECT *, paired_interval(normalised) AS bounds, paired_interval(robust) AS robust_bounds FROM lists)
ORDER BY purpose;
