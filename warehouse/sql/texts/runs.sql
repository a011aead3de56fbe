-- Queries over several runs; every view and macro of one run has a first column `run` here.

CREATE OR REPLACE VIEW settings_diff AS FROM differing_settings('settings');

-- Two runs on common tasks with equal contents, paired per task at the same iteration and purpose.
CREATE OR REPLACE MACRO compare_runs(run_a, run_b) AS TABLE
SELECT iteration, purpose, task_id, a.n AS n_a, a.c AS c_a, b.n AS n_b, b.c AS c_b,
       a.c / a.n AS rate_a, b.c / b.n AS rate_b, b.c / b.n - a.c / a.n AS gain,
       CASE WHEN a.scorer = b.scorer THEN b.reward_mean - a.reward_mean END AS reward_gain
FROM (FROM task_results WHERE run = run_a AND n > 0) AS a
JOIN (FROM task_results WHERE run = run_b AND n > 0) AS b USING (iteration, purpose, task_id)
WHERE task_id IN (SELECT one.task_id FROM (FROM tasks WHERE run = run_a) AS one
                  JOIN (FROM tasks WHERE run = run_b) AS other USING (task_id, payload))
UNION ALL BY NAME
SELECT NULL::INTEGER AS iteration
FROM (SELECT bool_or(run = run_a) AND bool_or(run = run_b) AS known, string_agg(run, ', ') AS names FROM runs)
WHERE CASE WHEN known THEN false
           ELSE error('Runs ' || run_a || ' and ' || run_b || ' are not both here, but ' || names || '.') END
ORDER BY iteration, purpose, gain DESC, task_id;

-- Mean gain in pass@k of run_b over run_a at each common iteration and purpose, its 95% interval over tasks, and whether
-- it is beyond_chance.
CREATE OR REPLACE MACRO gains_of_runs(run_a, run_b, k := 1) AS TABLE
WITH pairs AS (FROM compare_runs(run_a, run_b))
FROM gains_over('pairs', k);
