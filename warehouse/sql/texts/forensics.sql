-- Deeper questions: every k, intervals, votes, policies against each other, tokens, corrections.

-- pass@k of one iteration for every k from 1 to the least n, where every task counts.
CREATE OR REPLACE MACRO pass_every_k(at_iteration, of_purpose := 'train') AS TABLE
WITH results AS MATERIALIZED (SELECT task_id, n, c FROM task_results
                              WHERE iteration = at_iteration AND purpose = of_purpose AND n > 0)
SELECT k::INTEGER AS k, avg(pass_at_k(n, c, k)) AS pass_at_k, count(*)::INTEGER AS num_tasks
FROM results, (SELECT unnest(range(1, (SELECT min(n) FROM results) + 1)) AS k)
GROUP BY k ORDER BY k;

-- pass@k of the iterations since .. until with a 95% bootstrap interval over tasks; the draws are a hash, so it
-- comes out the same every time (of one number: DuckDB's hash of two is not uniform enough, it narrows the
-- interval by a fifth).
CREATE OR REPLACE MACRO pass_bands(since := 0, until := 2147483647, resamples := 400) AS TABLE
WITH results AS (
    SELECT iteration, purpose, task_id, n, c, min(n) OVER (PARTITION BY iteration, purpose) AS least
    FROM task_results WHERE n > 0 AND iteration BETWEEN since AND until),
points AS (
    SELECT iteration, purpose, k, list(pass_at_k(n, c, k) ORDER BY task_id) AS shares, count(*) AS num_tasks
    FROM results, (SELECT unnest([1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]) AS k)
    WHERE k <= least
    GROUP BY iteration, purpose, k),
turns AS (
    SELECT num_tasks, draw, unnest(range(num_tasks)) AS turn
    FROM (SELECT DISTINCT num_tasks FROM points), range(resamples) AS draws(draw)),
-- How often each draw took each task: counted with every task once more, so that none is missing.
draws AS (
    SELECT num_tasks, draw, list(times::DOUBLE ORDER BY number) AS times
    FROM (SELECT num_tasks, draw, number, count(*) - 1 AS times
          FROM (SELECT num_tasks, draw, (hash(draw * 1000003 + turn) % num_tasks)::BIGINT AS number FROM turns
                UNION ALL SELECT num_tasks, draw, turn FROM turns)
          GROUP BY num_tasks, draw, number)
    GROUP BY num_tasks, draw),
spreads AS (
    SELECT iteration, purpose, k,
           quantile_cont(list_inner_product(shares, times) / num_tasks, [0.025, 0.975]) AS bounds
    FROM points JOIN draws USING (num_tasks)
    GROUP BY iteration, purpose, k)
SELECT iteration, purpose, k::INTEGER AS k, list_avg(shares) AS pass_at_k, bounds[1] AS low, bounds[2] AS high,
       num_tasks::INTEGER AS num_tasks
FROM points JOIN spreads USING (iteration, purpose, k);

-- pass@k of one iteration with a 95% bootstrap interval over its tasks.
CREATE OR REPLACE MACRO pass_interval(at_iteration, of_purpose := 'train', resamples := 400) AS TABLE
SELECT k, pass_at_k, low, high, num_tasks
FROM pass_bands(since := at_iteration, until := at_iteration, resamples := resamples) WHERE purpose = of_purpose
ORDER BY k;

-- Share of tasks whose most frequent outputs among k completions are right; mean over blocks of k, ties to the first.
CREATE OR REPLACE MACRO maj_at_k(at_iteration, k, of_purpose := 'train') AS TABLE
WITH votes AS (
    SELECT task_id, sample_index // k AS block, fingerprint, count(*) AS num, min(sample_index) AS first,
           bool_or(correct) AS correct
    FROM samples
    WHERE iteration = at_iteration AND purpose = of_purpose AND fingerprint IS NOT NULL
    GROUP BY task_id, block, fingerprint),
whole AS (
    SELECT task_id, sample_index // k AS block FROM samples
    WHERE iteration = at_iteration AND purpose = of_purpose
    GROUP BY task_id, block HAVING count(*) = k),
winners AS (SELECT task_id, block, arg_max(correct, {'num': num, 'early': -first}) AS correct
            FROM votes GROUP BY task_id, block),
tasks_of AS (SELECT task_id, avg(coalesce(correct, false)::INTEGER) AS p, count(*) AS blocks
             FROM whole LEFT JOIN winners USING (task_id, block) GROUP BY task_id)
SELECT avg(p) AS maj_at_k, count(*)::INTEGER AS num_tasks, min(blocks)::INTEGER AS num_blocks FROM tasks_of;

-- Two policies on the tasks that both were sampled on, paired per task; purposes as a LIKE pattern.
CREATE OR REPLACE MACRO compare(policy_a, policy_b, purposes := '%') AS TABLE
WITH a AS (SELECT task_id, sum(n) AS n, sum(c) AS c, avg(reward_mean) AS reward FROM task_results
           WHERE policy_version = policy_a AND purpose LIKE purposes GROUP BY task_id),
     b AS (SELECT task_id, sum(n) AS n, sum(c) AS c, avg(reward_mean) AS reward FROM task_results
           WHERE policy_version = policy_b AND purpose LIKE purposes GROUP BY task_id)
SELECT task_id, a.n::INTEGER AS n_a, a.c::INTEGER AS c_a, b.n::INTEGER AS n_b, b.c::INTEGER AS c_b,
       a.c / a.n AS rate_a, b.c / b.n AS rate_b, b.c / b.n - a.c / a.n AS gain,
       b.reward - a.reward AS reward_gain
FROM a JOIN b USING (task_id) WHERE a.n > 0 AND b.n > 0
ORDER BY gain DESC, task_id;

-- Every token that an iteration's training read: mu, pi_old, and where it was sampled.
CREATE OR REPLACE MACRO token_gaps(at_iteration) AS TABLE
SELECT iteration, purpose, task_id, sample_index, staleness, policy_version, engine, dtype, device, host,
       num_completion_tokens,
       unnest(range(len(completion_ids)))::INTEGER AS position,
       unnest(completion_ids) AS token_id,
       unnest(behaviour_logprobs) AS behaviour_logprob,
       unnest(old_logprobs) AS old_logprob,
       unnest(old_logprobs)::DOUBLE - unnest(behaviour_logprobs) AS gap
FROM (SELECT iteration, purpose, task_id, sample_index, staleness, old_logprobs FROM train_samples
      WHERE trained_iteration = at_iteration AND old_logprobs IS NOT NULL)
JOIN (SELECT iteration, purpose, task_id, sample_index, policy_version, engine, dtype, device, host,
             num_completion_tokens, completion_ids, behaviour_logprobs FROM completions)
    USING (iteration, purpose, task_id, sample_index);

-- Disagreement of engine and trainer by tenths of the completion.
CREATE OR REPLACE MACRO gaps_by_position(at_iteration) AS TABLE
SELECT (10 * position // num_completion_tokens)::INTEGER AS tenth, count(*) AS num_tokens,
       avg(abs(gap)) AS mean_gap, max(abs(gap)) AS largest_gap, avg(k3(clamped(gap))) AS mismatch_kl
FROM token_gaps(at_iteration) GROUP BY tenth ORDER BY tenth;

-- Disagreement of engine and trainer by policy, engine, dtype, device and host.
CREATE OR REPLACE MACRO gaps_by_origin(at_iteration) AS TABLE
SELECT policy_version, engine, dtype, device, host, count(*) AS num_tokens, avg(abs(gap)) AS mean_gap,
       max(abs(gap)) AS largest_gap, avg(k3(clamped(gap))) AS mismatch_kl
FROM token_gaps(at_iteration) GROUP BY ALL ORDER BY mismatch_kl DESC;

-- Weights that a correction gives the tokens of one completion; d = log pi_old - log mu, clamped to +-20.
CREATE OR REPLACE MACRO correction_weights(correction, d, advantage, low, high) AS
CASE correction
    WHEN 'none' THEN list_transform(d, lambda x: 1.0::DOUBLE)
    WHEN 'token_truncate' THEN list_transform(d, lambda x: least(exp(x), high))
    WHEN 'token_mask' THEN list_transform(d, lambda x: CASE WHEN exp(x) BETWEEN low AND high THEN exp(x) ELSE 0 END)
    WHEN 'sequence_truncate' THEN list_transform(d, lambda x: least(exp(clamped(list_sum(d))), high))
    WHEN 'sequence_mask' THEN list_transform(d, lambda x: CASE WHEN exp(clamped(list_sum(d))) BETWEEN low AND high
                                                               THEN exp(clamped(list_sum(d))) ELSE 0 END)
    WHEN 'geometric_mask' THEN list_transform(d, lambda x: CASE WHEN exp(list_avg(d)) BETWEEN low AND high
                                                                THEN 1.0::DOUBLE ELSE 0 END)
    WHEN 'veto' THEN list_transform(d, lambda x: CASE WHEN exp(list_min(d)) < low THEN 0 ELSE 1.0::DOUBLE END)
    WHEN 'off_policy' THEN list_transform(d, lambda x: CASE WHEN advantage < 0 AND -list_avg(d) > high
                                                            THEN 0 ELSE 1.0::DOUBLE END)
    ELSE error('unknown correction ' || correction || ': none, token_truncate, token_mask, sequence_truncate, '
               || 'sequence_mask, geometric_mask, veto, off_policy') END;

-- What a correction would have done to the rows that an iteration trained on (docs: corrections and parameters).
CREATE OR REPLACE MACRO whatif(at_iteration, correction, low := 0.0, high := 2.0) AS TABLE
WITH rows AS (
    SELECT advantage, list_transform(list_zip(old_logprobs, behaviour_logprobs),
                                     lambda pair: clamped(pair[1]::DOUBLE - pair[2])) AS d
    FROM (SELECT iteration, purpose, task_id, sample_index, advantage, old_logprobs FROM train_samples
          WHERE trained_iteration = at_iteration AND old_logprobs IS NOT NULL)
    JOIN (SELECT iteration, purpose, task_id, sample_index, behaviour_logprobs FROM completions)
        USING (iteration, purpose, task_id, sample_index)),
weighted AS (SELECT advantage, d, len(d) AS size, correction_weights(correction, d, advantage, low, high) AS w
             FROM rows WHERE len(d) > 0),
summed AS (
    SELECT advantage, size, list_sum(w) AS total, list_sum(list_transform(w, lambda x: x * x)) AS squares,
           len(list_filter(w, lambda x: x > 0)) AS kept, list_max(w) > 0 AS any_kept
    FROM weighted)
SELECT correction AS correction, low::DOUBLE AS low, high::DOUBLE AS high,
       count(*)::INTEGER AS num_completions, sum(size)::BIGINT AS num_tokens,
       sum(kept) / sum(size) AS tokens_kept, avg(any_kept::INTEGER) AS completions_kept,
       pow(sum(total), 2) / nullif(sum(size) * sum(squares), 0) AS ess,
       sum(total) / sum(size) AS weight_mean,
       sum(total) FILTER (advantage > 0) / sum(size) FILTER (advantage > 0) AS weight_positive,
       sum(total) FILTER (advantage < 0) / sum(size) FILTER (advantage < 0) AS weight_negative,
       (sum(total) / nullif(sum(total / size), 0)) / avg(size) AS length_bias
FROM summed;

-- Every correction of the whatif macro at its usual parameters.
CREATE OR REPLACE MACRO corrections(at_iteration) AS TABLE
FROM whatif(at_iteration, 'none')
UNION ALL FROM whatif(at_iteration, 'token_truncate', high := 2.0)
UNION ALL FROM whatif(at_iteration, 'token_mask', low := 0.5, high := 5.0)
UNION ALL FROM whatif(at_iteration, 'sequence_truncate', high := 2.0)
UNION ALL FROM whatif(at_iteration, 'sequence_mask', low := 0.5, high := 2.0)
UNION ALL FROM whatif(at_iteration, 'geometric_mask', low := 0.99, high := 1.01)
UNION ALL FROM whatif(at_iteration, 'veto', low := 0.0001)
UNION ALL FROM whatif(at_iteration, 'off_policy', high := 0.5);
