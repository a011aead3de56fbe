-- Everyday views over the physical tables. Keys everywhere: iteration, purpose, task_id.
-- Evaluations are rows with another purpose than 'train'. Lists (token ids, logprobs) are never read here.

-- Seconds are the sum of the phases of the process that completed the stage, and what others worked on it before. The
-- learning rate of a training is the one it used: rescues halve the option.
CREATE OR REPLACE VIEW stages AS
SELECT document ->> '$.stage' AS stage,
       (document ->> '$.iteration')::INTEGER AS iteration,
       document ->> '$.purpose' AS purpose,
       document ->> '$.scorer' AS scorer,
       CASE json_type(document, '$.facts.seconds') WHEN 'OBJECT'
            THEN list_sum(list_transform(json_extract(document, '$.facts.seconds.*'), lambda phase: phase::DOUBLE))
            ELSE (document ->> '$.facts.seconds')::DOUBLE END
           + coalesce((document ->> '$.facts.seconds_before')::DOUBLE, 0) AS seconds,
       list_sum(list_transform(json_extract(document, '$.parts[*].bytes'), lambda size: size::BIGINT))::BIGINT
           AS bytes,
       len(json_extract(document, '$.parts[*].name'))::INTEGER AS num_parts,
       document ->> '$.host' AS host,
       to_timestamp((document ->> '$.finished_at')::DOUBLE)::TIMESTAMP AS finished_at,
       document ->> '$.versions.rollhouse' AS rollhouse_version,
       document ->> '$.versions.git' AS git_revision,
       document -> '$.facts' AS facts,
       CASE WHEN factor IS NULL THEN options
            ELSE json_merge_patch(options, json_object('learning_rate', (options ->> '$.learning_rate')::DOUBLE * factor))
            END AS settings
-- The option's name of 0.2 is the stored one.
FROM (SELECT *, replace(document ->> '$.settings', '"updates_per_shard"', '"updates_per_batch"')::JSON AS options
      FROM stage_manifests)
LEFT JOIN (SELECT (document ->> '$.policy_version')::INTEGER AS policy_version,
                  (document ->> '$.learning_rate_factor')::DOUBLE AS factor FROM policy_documents)
    ON document ->> '$.stage' = 'train' AND (document ->> '$.iteration')::INTEGER = policy_version;

CREATE OR REPLACE VIEW policies AS
SELECT (document ->> '$.policy_version')::INTEGER AS policy_version,
       (document ->> '$.parent')::INTEGER AS parent,
       document ->> '$.sha256' AS sha256,
       document ->> '$.base' AS base,
       (document ->> '$.rolled_back_to')::INTEGER AS rolled_back_to,
       regexp_replace(path, '/policy\.json$', '') AS folder,
       document::JSON AS facts
FROM policy_documents;

CREATE OR REPLACE VIEW pass_curve AS
-- Tasks with equal n and c are counted first: there are few such pairs, and each needs one pass@k.
WITH results AS (SELECT iteration, purpose, n, c, count(*) AS tasks FROM task_results WHERE n > 0
                 GROUP BY iteration, purpose, n, c),
     points AS (SELECT iteration, purpose, n, c, tasks,
                       unnest([k FOR k IN [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024] IF k <= n]) AS k,
                       sum(tasks) OVER (PARTITION BY iteration, purpose) AS num_all
                FROM results),
     chances AS (SELECT *, pass_at_k(n, c, k) AS chance FROM points),
     totals AS (SELECT iteration, purpose, k, sum(tasks) AS num,
                       sum(tasks * chance) / sum(tasks) AS mean,
                       sum(tasks * chance * chance) / sum(tasks) AS mean_square,
                       min(chance) = max(chance) AS all_alike,
                       any_value(num_all) AS num_all
                FROM chances
                GROUP BY iteration, purpose, k)
SELECT iteration, purpose, k::INTEGER AS k,
       mean AS pass_at_k,
       CASE WHEN num > 1 AND all_alike THEN 0.0::DOUBLE WHEN num > 1
            THEN sqrt(greatest(mean_square - mean * mean, 0) / (num - 1)) END AS standard_error,
       num::INTEGER AS num_tasks,
       num = num_all AS every_task
FROM totals;

-- The inner query of k_of has no column `purpose`; otherwise k_of(purpose) would compare it with itself.

-- Largest k of pass_curve that nine of ten visits of a purpose have.
CREATE OR REPLACE MACRO k_of(of_purpose) AS
(SELECT top_k(quantile_disc(n, -0.9)) FROM (SELECT n, purpose AS visited FROM task_results WHERE n > 0)
 WHERE visited = of_purpose);

-- The iterations in the ancestry of the policy that each rollback made (`epoch`, from 1), and of the first one (0), from
-- `begun` to `ended`: each rollback in it left the iterations between its two policies behind.
CREATE OR REPLACE MACRO ancestry() AS TABLE
WITH RECURSIVE restarts AS (
    SELECT policy_version, rolled_back_to, row_number() OVER (ORDER BY policy_version) AS epoch
    FROM policies WHERE rolled_back_to IS NOT NULL
    UNION ALL SELECT 0, NULL, 0),
lives AS (
    SELECT epoch, policy_version AS begun, 2147483647 AS ended, rolled_back_to FROM restarts
    UNION ALL
    SELECT lives.epoch, former.policy_version, lives.rolled_back_to, former.rolled_back_to
    FROM lives JOIN restarts AS former ON former.policy_version <= lives.rolled_back_to AND former.policy_version < lives.begun
    WHERE NOT EXISTS (FROM restarts AS later WHERE later.policy_version > former.policy_version
                                               AND later.policy_version <= lives.rolled_back_to))
SELECT epoch, begun, ended FROM lives;

-- Iterations and evaluations of policies that a rollback gave up: they do not concern the one that continues.
CREATE OR REPLACE VIEW given_up AS
SELECT policy_version AS iteration FROM policies
WHERE NOT EXISTS (FROM ancestry() WHERE policy_version BETWEEN begun AND ended
                                        AND epoch = (SELECT max(epoch) FROM ancestry()));

CREATE OR REPLACE VIEW task_history AS
SELECT task_id,
       any_value(split) AS split,
       count(*)::INTEGER AS visits,
       sum(n)::INTEGER AS num_completions,
       min(iteration) AS first_iteration,
       max(iteration) AS last_iteration,
       min(iteration) FILTER (c > 0) AS first_solved,
       max(iteration) FILTER (c > 0) AS last_solved,
       arg_max(c / n, iteration) AS last_rate,
       max(c / n) AS best_rate,
       max(c) > 0 AND arg_max(c, iteration) = 0 AS forgotten
FROM task_results
WHERE purpose = 'train' AND n > 0 AND iteration NOT IN (FROM given_up)
GROUP BY task_id;

CREATE OR REPLACE VIEW answers AS
-- As the scorer finds an answer: behind the last end of thoughts, before open ones (warehouse/tasks/answers.py).
SELECT iteration, purpose, task_id, sample_index,
       CASE WHEN found THEN trim(parts.thoughts, E' \n')
            ELSE nullif(regexp_extract(completion, '(?s)(?:^|\n)\s*(?:{START})(.*)$', 1), '') END AS thoughts,
       regexp_replace(CASE WHEN found THEN trim(parts.answer, E' \n') ELSE completion END,
                      '(?s)(?:^|\n)\s*(?:{START}).*$', '') AS answer
FROM (SELECT *, regexp_matches(completion, '{END}') AS found,
             regexp_extract(completion, '(?s)^\s*(?:{START})?(.*)(?:{END})(.*)$',
                            ['thoughts', 'answer']) AS parts
      FROM completions);

CREATE OR REPLACE VIEW reward_parts AS
SELECT iteration, purpose, task_id, sample_index, scorer, entry.key AS part, entry.value AS value, reward
FROM (SELECT *, unnest(map_entries(reward_parts::JSON::MAP(VARCHAR, DOUBLE))) AS entry FROM all_samples
      WHERE reward_parts IS NOT NULL);

CREATE OR REPLACE VIEW part_means AS
-- Many completions have equal documents, and reading JSON is slow.
WITH documents AS (
    SELECT iteration, purpose, scorer, reward_parts AS document, count(*) AS num
    FROM samples
    WHERE reward IS NOT NULL AND reward_parts IS NOT NULL
    GROUP BY iteration, purpose, scorer, reward_parts),
parts AS (SELECT *, unnest(map_entries(document::JSON::MAP(VARCHAR, DOUBLE))) AS entry FROM documents),
earned AS (SELECT iteration, purpose, scorer, entry.key AS part, sum(num * entry.value) AS total
           FROM parts GROUP BY ALL)
SELECT iteration, purpose, scorer, part, coalesce(total, 0) / nullif(num_completions - num_missing, 0) AS mean
FROM iteration_stats JOIN (SELECT DISTINCT scorer, part FROM earned) USING (scorer)
LEFT JOIN earned USING (iteration, purpose, scorer, part);

CREATE OR REPLACE VIEW errors AS
WITH kinds AS (
    SELECT iteration, purpose, error_class, error_name, count(*) AS num,
           avg(num_completion_tokens) AS tokens_mean, any_value(error_message) AS example
    FROM samples
    GROUP BY iteration, purpose, error_class, error_name)
SELECT iteration, purpose, error_class, error_name, num::INTEGER AS num,
       num / sum(num) OVER (PARTITION BY iteration, purpose) AS share,
       tokens_mean, example
FROM kinds
QUALIFY error_class IS NOT NULL;

-- Tokens that an iteration carried over were sampled by it, not by the one that continues them. A rollout's rates are
-- those of the process that ended it: others may have sampled before it or at the same time.
CREATE OR REPLACE VIEW costs AS
WITH work AS (
    SELECT 'rollout' AS stage, iteration, purpose, NULL::VARCHAR AS scorer, count(*) AS num_completions,
           sum(num_completion_tokens) AS num_tokens
    FROM completions GROUP BY iteration, purpose
    UNION ALL
    SELECT 'score', iteration, purpose, scorer, count(*), sum(num_completion_tokens)
    FROM all_samples GROUP BY iteration, purpose, scorer
    UNION ALL
    SELECT 'train', iteration, NULL, NULL, sum(num_completions), sum(num_trainable_tokens)
    FROM train_steps GROUP BY iteration),
carried_over AS (
    SELECT stage, iteration, purpose,
           num_left - lag(num_left, 1, 0) OVER (PARTITION BY purpose ORDER BY iteration) AS num_more
    FROM (SELECT *, coalesce((facts ->> '$.num_carried_tokens')::BIGINT, 0) AS num_left
          FROM stages WHERE stage = 'rollout')),
timed AS (
    SELECT stages.*, work.num_completions, work.num_tokens + coalesce(num_more, 0) AS num_tokens,
           nullif((stages.facts ->> '$.num_tokens_sampled_last')::BIGINT, 0) AS num_timed,
           seconds - coalesce((stages.facts ->> '$.seconds_before')::DOUBLE, 0) AS last_seconds
    FROM stages
    LEFT JOIN work ON work.stage = stages.stage AND work.iteration = stages.iteration
        AND work.purpose IS NOT DISTINCT FROM stages.purpose
        AND work.scorer IS NOT DISTINCT FROM stages.scorer
    LEFT JOIN carried_over ON carried_over.stage = stages.stage AND carried_over.iteration = stages.iteration
        AND carried_over.purpose = stages.purpose)
SELECT stage, iteration, purpose, scorer, seconds, num_completions::BIGINT AS num_completions,
       num_tokens::BIGINT AS num_tokens, coalesce(num_timed / last_seconds, num_tokens / seconds) AS tokens_per_second,
       num_completions * coalesce(num_timed / num_tokens / last_seconds, 1 / seconds) AS completions_per_second,
       bytes, host
FROM timed;

-- ESS over tokens is what `train` wrote into its manifest: the rows hold only means per completion.
CREATE OR REPLACE VIEW mismatch AS
SELECT rolled_mismatch.*, printed.ess
FROM rolled_mismatch
LEFT JOIN (SELECT (document ->> '$.iteration')::INTEGER AS iteration,
                  unnest(from_json(document -> '$.facts.mismatch',
                                   '[{"staleness": "INTEGER", "ess": "DOUBLE"}]'), recursive := true)
           FROM stage_manifests WHERE document ->> '$.stage' = 'train') AS printed USING (iteration, staleness)
ORDER BY iteration, staleness;
