-- Differences in pairs over tasks, and whether they are beyond chance.

CREATE OR REPLACE MACRO share_noise(n, c) AS c / n * (1 - c / n) / nullif(n - 1, 0);

-- Paired visits remove the tasks' difficulty: the error of a mean gain is that of the tasks' gains. With few tasks
-- it is at least the sampling error of the completions, whose variances per task `noise` lists.
CREATE OR REPLACE MACRO gain_error(gains, noise) AS
sqrt(greatest(list_var_samp(gains), CASE WHEN len(gains) < 30 THEN list_avg(noise::DOUBLE[]) END) / len(gains));

CREATE OR REPLACE MACRO bootstrapped(gains) AS list_aggregate(
    list_transform(range(2000), lambda draw: list_avg(list_transform(range(len(gains)), lambda slot:
        gains[1 + (hash(draw * 1000003 + slot) % len(gains))::BIGINT]))), 'quantile_cont', [0.025, 0.975]);

-- With few tasks a bootstrap over them is too narrow.

-- Reproducible 95% interval [low, high] of the mean of gains, one per task; null for one task.
CREATE OR REPLACE MACRO paired_interval(gains, noise := NULL) AS
CASE WHEN len(gains) > 1 THEN
    [least(bootstrapped(gains)[1], list_avg(gains) - 1.96 * gain_error(gains, noise)),
     greatest(bootstrapped(gains)[2], list_avg(gains) + 1.96 * gain_error(gains, noise))] END;

-- With fewer than six tasks a sign test could not decide either.

-- Whether a 95% interval over tasks excludes 0; null below six tasks, or without width.
CREATE OR REPLACE MACRO beyond_chance(bounds, num_tasks) AS
CASE WHEN num_tasks >= 6 AND bounds[1] < bounds[2] THEN bounds[1] > 0 OR bounds[2] < 0 END;

-- Rows like those of compare, with an iteration, as one row per iteration and purpose.
CREATE OR REPLACE MACRO gains_over(rows, k) AS TABLE
SELECT iteration, purpose, num_tasks, mean_a AS rate_a, mean_b AS rate_b, list_avg(all_gains) AS gain,
       bounds[1] AS low, bounds[2] AS high, better, worse, beyond_chance(bounds, num_tasks) AS beyond_chance
FROM (SELECT *, paired_interval(all_gains, noise) AS bounds
      FROM (SELECT iteration, purpose, count(*)::INTEGER AS num_tasks, avg(at_a) AS mean_a, avg(at_b) AS mean_b,
                   list(at_b - at_a ORDER BY task_id) AS all_gains, list(noise ORDER BY task_id) AS noise,
                   (count(*) FILTER (at_b > at_a))::INTEGER AS better, (count(*) FILTER (at_b < at_a))::INTEGER AS worse
            FROM (SELECT iteration, purpose, task_id, pass_at_k(n_a, c_a, k) AS at_a, pass_at_k(n_b, c_b, k) AS at_b,
                         CASE WHEN k = 1 THEN share_noise(n_a, c_a) + share_noise(n_b, c_b) END AS noise
                  FROM query_table(rows))
            WHERE at_a + at_b IS NOT NULL GROUP BY iteration, purpose))
ORDER BY iteration, purpose;

-- Mean gain in pass@k over the tasks of compare, per purpose, its 95% interval, and whether it is beyond_chance.
CREATE OR REPLACE MACRO gains(policy_a, policy_b, purposes := '%', k := 1) AS TABLE
WITH pairs AS (SELECT NULL::INTEGER AS iteration, * FROM compare(policy_a, policy_b, purposes))
SELECT * EXCLUDE (iteration) FROM gains_over('pairs', k);
