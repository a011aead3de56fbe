-- Formulas and reading tools: scalar macros, then table macros, as in FROM one_completion(12, 'task', 3).

-- 1 - C(n-c, k) / C(n, k), arXiv 2107.03374 eq. 1; null for k > n.
CREATE OR REPLACE MACRO pass_at_k(n, c, k) AS
CASE WHEN k > n OR k < 1 THEN NULL
     WHEN c <= 0 THEN 0.0::DOUBLE
     WHEN n - c < k THEN 1.0::DOUBLE
     WHEN k = 1 THEN c / n
     ELSE 1.0 - exp(lgamma(n - c + 1) + lgamma(n - k + 1) - lgamma(n - c - k + 1) - lgamma(n + 1)) END;

-- Nine of ten visits have quantile_disc(n, -0.9) completions; with 10 visits quantile_disc(n, 0.1) would be below it.

-- Largest k of pass_curve that n completions allow.
CREATE OR REPLACE MACRO top_k(n) AS CASE WHEN n > 0 THEN least(pow(2, floor(log2(n))), 1024)::INTEGER END;

-- k3 estimate of a KL divergence from d = log p - log q of tokens drawn from q.
CREATE OR REPLACE MACRO k3(d) AS exp(d) - d - 1;

-- A log ratio clamped to +-20.
CREATE OR REPLACE MACRO clamped(d) AS least(greatest(d, -20), 20);

-- ESS: effective sample size of weights divided by their number; an aggregate.
CREATE OR REPLACE MACRO ess(w) AS pow(sum(w), 2) / nullif(count(w) * sum(w * w), 0);

-- Turn of a purpose: 2 for 'eval-turn2', 1 for 'eval'.
CREATE OR REPLACE MACRO turn_of(of_purpose) AS
coalesce(nullif(regexp_extract(of_purpose, '.-turn([2-9]|[1-9]\d+)$', 1), '')::INTEGER, 1);

-- Whether a purpose is among those asked for: a LIKE pattern, or 'eval' for every evaluation.
CREATE OR REPLACE MACRO is_asked(of_purpose, asked) AS
of_purpose LIKE asked OR (asked = 'eval' AND of_purpose LIKE 'eval-%');

-- Purpose of its first turns: 'eval' for 'eval-turn2'.
CREATE OR REPLACE MACRO base_purpose(of_purpose) AS
regexp_replace(of_purpose, '(.)-turn([2-9]|[1-9]\d+)$', '\1');

-- Completions that a next turn answers: wrong on the train pairs of grids, or on the tests of other kinds; best first
-- per task, without duplicates in behaviour.
CREATE OR REPLACE MACRO wrong_completions(at_iteration, of_purpose := 'train') AS TABLE
SELECT iteration, purpose, task_id, sample_index, share, score
FROM (SELECT iteration, purpose, task_id, sample_index, coalesce(fingerprint, code, sample_index::VARCHAR) AS program,
             CASE kind WHEN 'grid' THEN train_is_correct ELSE correct END AS seems_right,
             CASE kind WHEN 'grid' THEN train_correct_grids ELSE test_correct_grids END AS share,
             CASE kind WHEN 'grid' THEN train_pixel_score ELSE reward END AS score
      FROM samples JOIN (SELECT task_id, kind FROM tasks) USING (task_id)
      WHERE iteration = at_iteration AND purpose = of_purpose AND reward IS NOT NULL)
WHERE NOT seems_right
QUALIFY row_number() OVER (PARTITION BY task_id, program ORDER BY share DESC, score DESC, sample_index) = 1
ORDER BY task_id, share DESC, score DESC, sample_index;

-- All columns of completions and samples: FROM one_completion(12, 'task', 3).
CREATE OR REPLACE MACRO one_completion(at_iteration, task, index, of_purpose := 'train') AS TABLE
SELECT completions.*, samples.* EXCLUDE (iteration, purpose, task_id, sample_index, group_id, policy_version,
                                         finish_reason, num_prompt_tokens, num_completion_tokens)
FROM (SELECT * FROM completions WHERE iteration = at_iteration AND purpose = of_purpose AND task_id = task
                                  AND sample_index = index) AS completions
LEFT JOIN (SELECT * FROM samples WHERE iteration = at_iteration AND purpose = of_purpose AND task_id = task
                                   AND sample_index = index) AS samples USING (task_id, sample_index);

-- Metrics of ARC papers, per task; a completion without valid outputs counts as 0.
CREATE OR REPLACE MACRO arc_tasks_of(rows) AS TABLE
SELECT iteration, purpose, task_id, count(*)::INTEGER AS n,
       avg(valid_code::INTEGER) AS "valid code",
       avg(valid_outputs::INTEGER) AS "valid outputs",
       count(DISTINCT fingerprint) / count(*) AS "unique outputs",
       avg(coalesce(train_pixel_score, 0)) AS "train pixel score",
       avg(coalesce(train_correct_grids, 0)) AS "train correct grids",
       avg(coalesce(train_is_correct, false)::INTEGER) AS "train pass rate",
       bool_or(coalesce(train_is_correct, false))::INTEGER AS "train is_correct",
       avg(coalesce(test_pixel_score, 0)) AS "test pixel score",
       avg(coalesce(test_correct_grids, 0)) AS "test correct grids",
       avg(coalesce(test_is_correct, false)::INTEGER) AS "test pass rate",
       bool_or(coalesce(test_is_correct, false))::INTEGER AS "test is_correct",
       "train is_correct" * "test is_correct" AS "is_correct",
       bool_or(coalesce(correct, false))::INTEGER AS "same program"
FROM query_table(rows)
WHERE reward IS NOT NULL
GROUP BY iteration, purpose, task_id;

-- Means of arc_tasks_of over tasks: FROM arc_results_of('samples'). is_correct is as published: all train pairs and all test
-- pairs right, possibly by different programs; `same program` asks for one.
CREATE OR REPLACE MACRO arc_results_of(rows) AS TABLE
SELECT iteration, purpose, count(*)::INTEGER AS tasks, min(n) AS n, max(n) AS "most n",
       avg(COLUMNS(* EXCLUDE (iteration, purpose, task_id, n))) AS '\0'
FROM arc_tasks_of(rows)
GROUP BY iteration, purpose
ORDER BY iteration, purpose;
