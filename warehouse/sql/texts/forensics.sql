-- Deeper questions: every k, intervals, votes, policies against each other, tokens, corrections.

-- pass@k of one iteration for every k from 1 to the largest that nine of ten tasks have; the other tasks are left
-- out.
CREATE OR REPLACE MACRO pass_every_k(at_iteration, of_purpose := 'train') AS TABLE
WITH results AS MATERIALIZED (SELECT task_id, n, c FROM task_results
                              WHERE iteration = at_iteration AND purpose = of_purpose AND n > 0)
SELECT k::INTEGER AS k, avg(pass_at_k(n, c, k)) AS pass_at_k, count(*)::INTEGER AS num_tasks
FROM results JOIN (SELECT unnest(range(1, (SELECT quantile_disc(n, -0.9) FROM results) + 1)) AS k) ON n >= k
GROUP BY k ORDER BY k;

-- The draws of pass_bands hash one number: DuckDB's hash of two is not uniform enough and narrows the interval by a
-- fifth.

-- pass@k of the iterations since .. until with a 95% bootstrap interval over tasks; no interval for one task. The
-- draws are hashes, so results are reproducible.
CREATE OR REPLACE MACRO pass_bands(since := 0, until := 2147483647, resamples := 400) AS TABLE
WITH results AS (
    SELECT iteration, purpose, task_id, n, c, quantile_disc(n, -0.9) OVER (PARTITION BY iteration, purpose) AS shared
    FROM task_results WHERE n > 0 AND iteration BETWEEN since AND until),
points AS (
    SELECT iteration, purpose, k, list(pass_at_k(n, c, k) ORDER BY task_id) AS shares, count(*) AS num_tasks
    FROM results, (SELECT unnest([1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]) AS k)
    WHERE k <= least(shared, n)
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
SELECT iteration, purpose, k::INTEGER AS k, list_avg(shares) AS pass_at_k,
       CASE WHEN num_tasks > 1 THEN bounds[1] END AS low, CASE WHEN num_tasks > 1 THEN bounds[2] END AS high,
       num_tasks::INTEGER AS num_tasks
FROM points JOIN spreads USING (iteration, purpose, k);

-- Majority vote: share of tasks with right most frequent outputs among k completions; mean over blocks of k, ties
-- go to the first.
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

-- Two policies on the tasks that both sampled, paired per task; purposes as a LIKE pattern. First turns unless the
-- pattern names turns. No gain in reward between different scorers. Carried completions count for the last policy
-- that sampled the task in that iteration.
CREATE OR REPLACE MACRO compare(policy_a, policy_b, purposes := '%') AS TABLE
WITH results AS (SELECT policy_version, task_id, sum(n) AS n, sum(c) AS c,
                        sum(reward_mean * n) / sum(n) AS reward,
                        CASE WHEN min(scorer) = max(scorer) THEN min(scorer) END AS scorer
                 FROM task_results
                 WHERE purpose LIKE purposes AND (turn_of(purpose) = 1 OR purposes LIKE '%turn%')
                 GROUP BY policy_version, task_id HAVING sum(n) > 0)
SELECT task_id, a.n::INTEGER AS n_a, a.c::INTEGER AS c_a, b.n::INTEGER AS n_b, b.c::INTEGER AS c_b,
       a.c / a.n AS rate_a, b.c / b.n AS rate_b, b.c / b.n - a.c / a.n AS gain,
       CASE WHEN a.scorer = b.scorer THEN b.reward - a.reward END AS reward_gain
FROM (FROM results WHERE policy_version = policy_a) AS a
JOIN (FROM results WHERE policy_version = policy_b) AS b USING (task_id)
ORDER BY gain DESC, task_id;

-- Every token that an iteration's training read: mu, pi_old, the policy that sampled it and the machine. gap is
-- log rho, rho = pi_old / mu; ratio is pi / pi_old at the step that used the completion; clipped says whether that
-- step dropped the token.
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

-- Disagreement between engine and trainer by tenths of the completion.
CREATE OR REPLACE MACRO gaps_by_position(at_iteration) AS TABLE
SELECT (10 * position // num_completion_tokens)::INTEGER AS tenth, count(*) AS num_tokens,
       avg(abs(gap)) AS mean_gap, max(abs(gap)) AS largest_gap, avg(k3(gap)) AS mismatch_kl
FROM token_gaps(at_iteration) GROUP BY tenth ORDER BY tenth;

-- Disagreement between engine and trainer by policy, engine, dtype, device and host.
CREATE OR REPLACE MACRO gaps_by_origin(at_iteration) AS TABLE
SELECT policy_version, engine, dtype, device, host, count(*) AS num_tokens, avg(abs(gap)) AS mean_gap,
       max(abs(gap)) AS largest_gap, avg(k3(gap)) AS mismatch_kl
FROM token_gaps(at_iteration) GROUP BY ALL ORDER BY mismatch_kl DESC;

-- The ratio of a whole completion that a correction compares with its bounds, d = log pi_old - log mu clamped to
-- +-20.
CREATE OR REPLACE MACRO bounded_ratio(correction, d, advantage) AS
CASE WHEN starts_with(correction, 'sequence-') THEN exp(clamped(list_sum(d)))
     WHEN correction = 'veto' THEN exp(list_min(d))
     WHEN correction = 'off-policy' AND advantage < 0 THEN -list_avg(d)
     WHEN correction = 'off-policy' THEN NULL  -- nothing to hold against a bound
     ELSE 1.0::DOUBLE END;

-- Whether each token's weight is neither 0 nor clipped by a bound; a null bound is none.
CREATE OR REPLACE MACRO kept_tokens(correction, d, whole, low, high) AS
list_transform(d, lambda x: coalesce(CASE WHEN starts_with(correction, 'token-') THEN exp(x) ELSE whole END
                                     BETWEEN coalesce(low, '-infinity'::DOUBLE)
                                     AND coalesce(high, 'infinity'::DOUBLE), true));

-- The weight of each token: truncation clips to the bound, masks give 0 outside.
CREATE OR REPLACE MACRO correction_weights(correction, d, whole, kept, low, high) AS
list_transform(list_zip(d, kept), lambda pair: CASE
    WHEN correction IN ('none', 'bypass', 'veto', 'off-policy') THEN pair[2]::INTEGER::DOUBLE
    WHEN correction = 'token-truncate' THEN least(greatest(exp(pair[1]), low), high)
    WHEN correction = 'sequence-truncate' THEN least(greatest(whole, low), high)
    WHEN NOT pair[2] THEN 0.0::DOUBLE
    WHEN correction = 'sequence-mask' THEN whole
    ELSE exp(pair[1]) END);

-- The correction that an iteration was trained with, and its bounds.
CREATE OR REPLACE MACRO used_correction(at_iteration) AS TABLE
SELECT known.name, coalesce(written_low, CASE WHEN written_high IS NULL THEN usual_low END) AS low,
       coalesce(written_high, CASE WHEN written_low IS NULL THEN usual_high END) AS high
FROM (SELECT coalesce(facts ->> '$.correction.name', settings ->> '$.correction', 'token-truncate') AS name,
             coalesce(facts ->> '$.correction.low', settings ->> '$.correction_low')::DOUBLE AS written_low,
             coalesce(facts ->> '$.correction.high', settings ->> '$.correction_high')::DOUBLE AS written_high
      FROM stages WHERE stage = 'train' AND iteration = at_iteration) AS written
JOIN importance_corrections AS known USING (name);

-- What a correction would have done to the rows that an iteration trained on: by default the iteration's own
-- correction and bounds; 'all' for every correction (names and default bounds: importance_corrections).
-- `weight_ess` is the effective sample size of the corrected weights. Rows without tokens (pruned) are left out.
CREATE OR REPLACE MACRO whatif(at_iteration, correction := NULL, low := NULL, high := NULL) AS TABLE
WITH rows AS (
    SELECT advantage, list_transform(list_zip(old_logprobs, behaviour_logprobs),
                                     lambda pair: clamped(pair[1]::DOUBLE - pair[2])) AS d
    FROM (SELECT iteration, purpose, task_id, sample_index, advantage, old_logprobs FROM train_samples
          WHERE trained_iteration = at_iteration AND num_trainable_tokens > 0 AND old_logprobs IS NOT NULL)
    JOIN (SELECT iteration, purpose, task_id, sample_index, behaviour_logprobs FROM completions
          WHERE behaviour_logprobs IS NOT NULL)
        USING (iteration, purpose, task_id, sample_index)),
chosen AS (
    SELECT CASE WHEN known.name IS NULL
                THEN error('unknown correction ' || correction || ': '
                           || (SELECT string_agg(name, ', ') FROM importance_corrections))
                ELSE known.name END AS name, used.name IS NOT NULL AS used,
           CASE WHEN low IS NOT NULL OR high IS NOT NULL THEN low
                WHEN used.name IS NOT NULL THEN used.low ELSE known.usual_low END::DOUBLE AS lowest,
           CASE WHEN low IS NOT NULL OR high IS NOT NULL THEN high
                WHEN used.name IS NOT NULL THEN used.high ELSE known.usual_high END::DOUBLE AS highest
    FROM (SELECT coalesce(replace(correction, '_', '-'), (SELECT name FROM used_correction(at_iteration)),
                          'token-truncate') AS asked)
    LEFT JOIN importance_corrections AS known ON asked = 'all' OR known.name = asked
    LEFT JOIN used_correction(at_iteration) AS used ON used.name = known.name),
held AS (SELECT *, bounded_ratio(name, d, advantage) AS whole FROM chosen, rows),
judged AS (SELECT *, kept_tokens(name, d, whole, lowest, highest) AS kept FROM held),
weighed AS (SELECT *, correction_weights(name, d, whole, kept, lowest, highest) AS w FROM judged),
summed AS (
    SELECT name, used, lowest, highest, advantage, len(d) AS size, list_sum(w) AS total,
           list_sum(list_transform(w, lambda x: x * x)) AS squares,
           len(list_filter(kept, lambda x: x)) AS num_kept, list_max(w) > 0 AS any_kept
    FROM weighed)
SELECT name AS correction, lowest AS low, highest AS high, used,
       count(*)::INTEGER AS num_completions, sum(size)::BIGINT AS num_tokens,
       sum(num_kept) / sum(size) AS kept_fraction, avg(any_kept::INTEGER) AS completions_kept,
       pow(sum(total), 2) / nullif(sum(size) * sum(squares), 0) AS weight_ess,
       sum(total) / sum(size) AS importance_weight_mean,
       sum(total) FILTER (advantage > 0) / sum(size) FILTER (advantage > 0) AS weight_positive,
       sum(total) FILTER (advantage < 0) / sum(size) FILTER (advantage < 0) AS weight_negative,
       (sum(total) / nullif(sum(total / size), 0)) / avg(size) AS length_bias
FROM summed
GROUP BY name, used, lowest, highest;

-- Every correction of the macro whatif; `used` marks the iteration's own.
CREATE OR REPLACE MACRO corrections(at_iteration) AS TABLE
SELECT outcome.* FROM whatif(at_iteration, 'all') AS outcome
JOIN importance_corrections ON name = correction ORDER BY number;
