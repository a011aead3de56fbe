-- Iterations train on different tasks, so results are compared at equal difficulty: effects of iterations and of
-- tasks are fitted together.

-- Variance of a value at a task: `noise`, plus the share of the between-task variance that other visits do not
-- determine.
CREATE OR REPLACE MACRO variance_of(total, noise, visits) AS
noise + greatest(total - noise, 0) / (1 + (visits - 1) * greatest(total - noise, 0) / (noise + 1e-9));

-- value = effect of the occasion + effect of the task + noise, by 12 alternating sweeps. Evaluations are occasions, so
-- the base's rates on training tasks count. A task's mean residual is shrunk by a tenth of a visit. If no task was
-- visited twice, the effects cannot be separated: the value is the plain mean, and its error includes the spread of
-- the tasks. Reach is fitted to visits with its k, and not at all for k = 1. Later turns are left out, because their
-- tasks depend on the policy. Rewards are fitted per scorer. Every measure has occasions and tasks of its own numbers.
CREATE OR REPLACE VIEW adjusted AS
WITH RECURSIVE cells AS MATERIALIZED (
    SELECT *, count(*) OVER (PARTITION BY task) AS visits
    FROM (SELECT *, dense_rank() OVER (ORDER BY measure, iteration, purpose) AS occasion,
                 dense_rank() OVER (ORDER BY measure, task_id, judge) AS task
          FROM (SELECT iteration, purpose, task_id, k, n, unnest([
                    {'measure': 'solving', 'value': c / n, 'judge': ''},
                    {'measure': 'reach', 'value': CASE WHEN k > 1 THEN pass_at_k(n, c, k) END, 'judge': ''},
                    {'measure': 'reward', 'value': reward_mean, 'judge': coalesce(scorer::VARCHAR, '')}], max_depth := 2)
                FROM (SELECT *, top_k(quantile_disc(n, -0.9) OVER (PARTITION BY purpose)) AS k
                      FROM task_results WHERE n > 0 AND turn_of(purpose) = 1))
          WHERE value IS NOT NULL)),
sweeps AS (
    SELECT 0 AS sweep, occasion, task, visits, value, 0.0::DOUBLE AS here, 0.0::DOUBLE AS of_task FROM cells
    UNION ALL
    SELECT sweep + 1, occasion, task, visits, value, here, sum(value - here) OVER (PARTITION BY task) / (visits + 0.1)
    FROM (SELECT * REPLACE (avg(value - of_task) OVER (PARTITION BY occasion) AS here) FROM sweeps WHERE sweep < 12)),
fitted AS MATERIALIZED (
    SELECT cells.*, of_task, cells.value - here - of_task AS rest,
           cells.value - avg(cells.value) OVER (PARTITION BY occasion) AS deviation
    FROM cells JOIN sweeps USING (occasion, task) WHERE sweep = 12),
spread AS (  -- per purpose: benchmarks differ in it; of rewards per scorer
    SELECT measure, purpose, judge, greatest(count(*) - count(DISTINCT occasion), 1) AS total_freedom,
           -- Of a task visited once, chance determines what several completions do to solving, and nothing the rest.
           CASE WHEN count(*) > count(DISTINCT occasion)
                THEN greatest(count(*) - count(DISTINCT occasion) - sum(1 / (visits + 0.1)), 1) END AS freedom,
           sum(pow(deviation, 2)) / total_freedom AS total,
           greatest(sum(pow(rest, 2)) / freedom,
                    avg(value * (1 - value) / nullif(n - 1, 0)) FILTER (measure = 'solving')) AS noise
    FROM fitted GROUP BY measure, purpose, judge),
-- What is learned moves tasks apart, so noise grows: that of the last thirty occasions counts if it is larger.
lately AS (
    SELECT occasion, any_value(total) AS total,
           greatest(any_value(noise), CASE WHEN measure = 'solving' AND count(*) OVER recent >= 10 THEN
               sum(sum(pow(rest, 2))) OVER recent / sum(count(*)) OVER recent
               * any_value(total_freedom / freedom) END) AS noise
    FROM fitted JOIN spread USING (measure, purpose, judge) GROUP BY measure, purpose, judge, occasion
    WINDOW recent AS (PARTITION BY measure, purpose, judge ORDER BY occasion ROWS 29 PRECEDING)),
results AS (  -- rounded, because 0 would otherwise appear as 1e-17
    SELECT iteration, purpose, measure, round(avg(value - of_task), 12) + 0 AS adjusted, avg(value) AS plain,
           sqrt(sum(variance_of(total, noise, visits))) / count(*) AS error, any_value(k) AS k, count(*) AS num
    FROM fitted JOIN lately USING (occasion) GROUP BY iteration, purpose, measure)
SELECT iteration, purpose,
       max(adjusted) FILTER (measure = 'solving') AS solving, max(error) FILTER (measure = 'solving') AS solving_error,
       max(adjusted) FILTER (measure = 'reach') AS reach, max(error) FILTER (measure = 'reach') AS reach_error,
       max(adjusted) FILTER (measure = 'reward') AS reward, max(error) FILTER (measure = 'reward') AS reward_error,
       max(plain) FILTER (measure = 'solving') AS solving_plain, max(plain) FILTER (measure = 'reach') AS reach_plain,
       any_value(k)::INTEGER AS k, (max(num) FILTER (measure = 'solving'))::INTEGER AS num_tasks
FROM results GROUP BY iteration, purpose;
