-- Detailed queries: intervals, votes, comparisons of policies, tokens.

-- The draws of pass_bands hash one number: DuckDB's hash of two numbers is not uniform enough and narrows the interval
-- by a fifth.

-- pass@k of iterations since .. until with a reproducible 95% bootstrap interval over tasks, none for one task.
CREATE OR REPLACE MACRO pass_bands(since := 0, until := 2147483647, resamples := 400) AS TABLE
WITH results AS (
    SELECT iteration, purpose, policy_version, task_id, n, c, quantile_disc(n, -0.9) OVER (PARTITION BY iteration, purpose) AS shared
    FROM task_results WHERE n > 0 AND iteration BETWEEN since AND until),
points AS (
    SELECT iteration, purpose, k, list(pass_at_k(n, c, k) ORDER BY task_id) AS shares, count(*) AS num_tasks,
           max(policy_version) AS policy_version
    FROM results, (SELECT unnest([1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]) AS k)
    WHERE k <= least(shared, n)
    GROUP BY iteration, purpose, k),
turns AS (
    SELECT num_tasks, draw, unnest(range(num_tasks)) AS turn
    FROM (SELECT DISTINCT num_tasks FROM points), range(resamples) AS draws(draw)),
-- How often each draw took each task, plus one for every task so that none is missing.
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
SELECT iteration, purpose, policy_version, k::INTEGER AS k, list_avg(shares) AS pass_at_k,
       CASE WHEN num_tasks > 1 THEN bounds[1] END AS low, CASE WHEN num_tasks > 1 THEN bounds[2] END AS high,
       num_tasks::INTEGER AS num_tasks
FROM points JOIN spreads USING (iteration, purpose, k)
ORDER BY iteration, purpose, k;

-- Majority vote: share of tasks for which the most frequent of k outputs is right; mean over blocks of k, ties go to
-- the first.
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
    GROUP BY task_id, block HAVING count(reward) = k),
winners AS (SELECT task_id, block, arg_max(correct, {'num': num, 'early': -first}) AS correct
            FROM votes GROUP BY task_id, block),
tasks_of AS (SELECT task_id, avg(coalesce(correct, false)::INTEGER) AS p, count(*) AS blocks
             FROM whole LEFT JOIN winners USING (task_id, block) GROUP BY task_id)
SELECT avg(p) AS maj_at_k, count(*)::INTEGER AS num_tasks, min(blocks)::INTEGER AS num_blocks FROM tasks_of;

-- Two policies on common tasks, paired per task; purposes is a LIKE pattern, eval all evaluations. First turns unless it
-- names turns. A task that was corrected is paired only if both were judged by the same tests. No reward gain between
-- different scorers. Carried completions count for the last policy that sampled the task in that iteration.
CREATE OR REPLACE MACRO compare(policy_a, policy_b, purposes := '%') AS TABLE
WITH corrected AS (SELECT iteration, purpose, scorer, task_id, replaced ->> ('$."' || task_id || '"') AS contents
                   FROM (SELECT *, unnest(json_keys(replaced)) AS task_id
                         FROM (SELECT *, settings -> '$.replaced' AS replaced FROM stages WHERE stage = 'score'))),
results AS (SELECT policy_version, purpose, task_id, sum(n) AS n, sum(c) AS c,
                        sum(reward_mean * n) / sum(n) AS reward,
                        CASE WHEN min(scorer) = max(scorer) THEN min(scorer) END AS scorer,
                        list_sort(list_distinct(list(coalesce(contents, '')))) AS contents
                 FROM task_results LEFT JOIN corrected USING (iteration, purpose, scorer, task_id)
                 WHERE is_asked(purpose, purposes) AND (turn_of(purpose) = 1 OR purposes LIKE '%turn%')
                 GROUP BY policy_version, purpose, task_id HAVING sum(n) > 0)
SELECT purpose, task_id, a.n::INTEGER AS n_a, a.c::INTEGER AS c_a, b.n::INTEGER AS n_b, b.c::INTEGER AS c_b,
       a.c / a.n AS rate_a, b.c / b.n AS rate_b, b.c / b.n - a.c / a.n AS gain,
       CASE WHEN a.scorer = b.scorer THEN b.reward - a.reward END AS reward_gain
FROM (FROM results WHERE policy_version = policy_a) AS a
JOIN (FROM results WHERE policy_version = policy_b) AS b USING (purpose, task_id)
WHERE a.contents = b.contents AND len(a.contents) = 1
ORDER BY purpose, gain DESC, task_id;

-- Every token that an iteration's training read; none after `prune`. gap is log rho, rho = pi_old / mu; ratio is
-- pi / pi_old at the step that used the completion; clipped: that step dropped the token.
CREATE OR REPLACE MACRO token_gaps(at_iteration) AS TABLE
SELECT tokens.* EXCLUDE (log_drift, token_id), token_id, vocabulary.token, exp(gap) AS rho, exp(log_drift) AS ratio
FROM (
SELECT iteration, purpose, task_id, sample_index,
       coalesce(at_iteration - unnest(drawn_by), staleness)::INTEGER AS staleness, unnest(drawn_by) AS policy_version,
       engine, dtype, device, host, num_completion_tokens, advantage, optimizer_step,
       unnest(range(len(completion_ids)))::INTEGER AS position,
       unnest(completion_ids) AS token_id,
       unnest(behaviour_logprobs) AS behaviour_logprob,
       unnest(old_logprobs) AS old_logprob,
       unnest(old_logprobs)::DOUBLE - unnest(behaviour_logprobs) AS gap,
       unnest(log_drift)::DOUBLE AS log_drift,
       unnest(clipped)::BOOLEAN AS clipped
FROM (SELECT iteration, purpose, task_id, sample_index, staleness, old_logprobs, advantage FROM train_samples
      WHERE trained_iteration = at_iteration AND old_logprobs IS NOT NULL)
JOIN (SELECT iteration, purpose, task_id, sample_index, engine, dtype, device, host,
             num_completion_tokens, completion_ids, behaviour_logprobs,
             coalesce(flatten([repeat([part.policy_version], part.length) FOR part IN version_segments]),
                      repeat([policy_version], len(completion_ids))) AS drawn_by
      FROM completions WHERE completion_ids IS NOT NULL)
    USING (iteration, purpose, task_id, sample_index)
LEFT JOIN (SELECT iteration, purpose, task_id, sample_index, optimizer_step, log_drift, clipped FROM train_tokens
           WHERE trained_iteration = at_iteration)
    USING (iteration, purpose, task_id, sample_index)) AS tokens
LEFT JOIN vocabulary USING (token_id);

-- Engine against trainer by policy, engine, dtype, device and host.
CREATE OR REPLACE MACRO gaps_by_origin(at_iteration) AS TABLE
SELECT policy_version, engine, dtype, device, host, count(*) AS num_tokens, avg(abs(gap)) AS mean_gap,
       max(abs(gap)) AS largest_gap, avg(k3(gap)) AS mismatch_kl
FROM token_gaps(at_iteration) GROUP BY ALL ORDER BY mismatch_kl DESC;
