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
-- tasks depend on the policy. Rewards are fitted per scorer.
CREATE OR REPLACE VIEW adjusted AS
WITH RECURSIVE cells AS MATERIALIZED (
    SELECT *, count(*) OVER same AS visits, count(reach) OVER same AS reach_visits, count(*) OVER paid AS paid_visits
    FROM (SELECT dense_rank() OVER (ORDER BY iteration, purpose) AS occasion,
                 dense_rank() OVER (ORDER BY task_id) AS task, iteration, purpose, scorer, k, n, c / n AS solving,
                 CASE WHEN k > 1 THEN pass_at_k(n, c, k) END AS reach, reward_mean AS reward
          FROM (SELECT *, top_k(quantile_disc(n, -0.9) OVER (PARTITION BY purpose)) AS k
                FROM task_results WHERE n > 0 AND turn_of(purpose) = 1))
    WINDOW same AS (PARTITION BY task), paid AS (PARTITION BY task, scorer)),
sweeps AS (
    SELECT 0 AS sweep, occasion, task, scorer, n, visits, reach_visits, paid_visits, solving, reach, reward, 0.0::DOUBLE AS solving_here,
           0.0::DOUBLE AS reach_here, 0.0::DOUBLE AS reward_here, 0.0::DOUBLE AS solving_of_task,
           0.0::DOUBLE AS reach_of_task, 0.0::DOUBLE AS reward_of_task
    FROM cells
    UNION ALL
    SELECT sweep + 1, occasion, task, scorer, n, visits, reach_visits, paid_visits, solving, reach, reward, solving_here, reach_here, reward_here,
           sum(solving - solving_here) OVER same / (visits + 0.1),
           sum(reach - reach_here) OVER same / (reach_visits + 0.1), sum(reward - reward_here) OVER paid / (paid_visits + 0.1)
    FROM (SELECT * REPLACE (avg(solving - solving_of_task) OVER here AS solving_here,
                            avg(reach - reach_of_task) OVER here AS reach_here,
                            avg(reward - reward_of_task) OVER here AS reward_here)
          FROM sweeps WHERE sweep < 12 WINDOW here AS (PARTITION BY occasion))
    WINDOW same AS (PARTITION BY task), paid AS (PARTITION BY task, scorer)),
fitted AS MATERIALIZED (FROM sweeps WHERE sweep = 12),
deviations AS MATERIALIZED (
    SELECT *, avg(solving) OVER here AS solving_mean, avg(reach) OVER here AS reach_mean, avg(reward) OVER here AS reward_mean
    FROM fitted JOIN (SELECT DISTINCT occasion, purpose FROM cells) USING (occasion)
    WINDOW here AS (PARTITION BY occasion)),
spread AS (  -- per purpose: benchmarks differ in it
    SELECT purpose, greatest(count(*) - count(DISTINCT occasion), 1) AS total_freedom,
           -- Of a task visited once, chance determines what several completions do to solving, and nothing the rest.
           CASE WHEN count(*) > count(DISTINCT occasion)
                THEN greatest(count(*) - count(DISTINCT occasion) - sum(1 / (visits + 0.1)), 1) END AS freedom,
           greatest(count(reach) - count(DISTINCT occasion) FILTER (reach IS NOT NULL), 1) AS reach_total_freedom,
           greatest(count(reach) - count(DISTINCT occasion) FILTER (reach IS NOT NULL)
                    - sum(1 / (reach_visits + 0.1)) FILTER (reach IS NOT NULL), 1) + 0 * freedom AS reach_freedom,
           sum(pow(solving - solving_mean, 2)) / total_freedom AS solving_total,
           sum(pow(reach - reach_mean, 2)) / reach_total_freedom AS reach_total,
           greatest(sum(pow(solving - solving_here - solving_of_task, 2)) / freedom,
                    avg(solving * (1 - solving) / nullif(n - 1, 0))) AS solving_noise,
           sum(pow(reach - reach_here - reach_of_task, 2)) / reach_freedom AS reach_noise
    FROM deviations GROUP BY purpose),
paid_spread AS (  -- and per scorer
    SELECT purpose, scorer,
           sum(pow(reward - reward_mean, 2)) / greatest(count(*) - count(DISTINCT occasion), 1) AS reward_total,
           CASE WHEN count(*) > count(DISTINCT occasion)
                THEN sum(pow(reward - reward_here - reward_of_task, 2))
                     / greatest(count(*) - count(DISTINCT occasion) - sum(1 / (paid_visits + 0.1)), 1) END AS reward_noise
    FROM deviations GROUP BY purpose, scorer),
-- What is learned moves tasks apart, so noise grows: that of the last thirty occasions counts if it is larger.
lately AS (
    SELECT occasion, greatest(any_value(solving_noise), CASE WHEN count(*) OVER recent >= 10 THEN
               sum(sum(pow(solving - solving_here - solving_of_task, 2))) OVER recent / sum(count(*)) OVER recent
               * any_value(total_freedom / freedom) END) AS solving_noise
    FROM deviations JOIN spread USING (purpose) GROUP BY purpose, occasion
    WINDOW recent AS (PARTITION BY purpose ORDER BY occasion ROWS 29 PRECEDING))
-- Rounded, because 0 would otherwise appear as 1e-17.
SELECT iteration, cells.purpose, round(avg(fitted.solving - solving_of_task), 12) + 0 AS solving,
       sqrt(sum(variance_of(solving_total, lately.solving_noise, cells.visits))) / count(*) AS solving_error,
       round(avg(fitted.reach - reach_of_task), 12) + 0 AS reach,
       sqrt(sum(variance_of(reach_total, reach_noise, cells.reach_visits)) FILTER (cells.reach IS NOT NULL))
           / count(cells.reach) AS reach_error,
       round(avg(fitted.reward - reward_of_task), 12) + 0 AS reward,
       sqrt(sum(variance_of(reward_total, reward_noise, cells.paid_visits))) / count(*) AS reward_error,
       avg(cells.solving) AS solving_plain, avg(cells.reach) AS reach_plain,
       any_value(k)::INTEGER AS k, count(*)::INTEGER AS num_tasks
FROM fitted JOIN cells USING (occasion, task) JOIN spread USING (purpose) JOIN lately USING (occasion)
    JOIN paid_spread ON paid_spread.purpose = cells.purpose AND paid_spread.scorer IS NOT DISTINCT FROM cells.scorer
GROUP BY iteration, cells.purpose;
