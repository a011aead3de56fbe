-- The options of every stage, and which of them differ.

-- For scores the one that counts; logprobs are left out.
CREATE OR REPLACE VIEW settings AS
SELECT iteration, stage, purpose, key, settings ->> ('$."' || key || '"') AS value
FROM (SELECT iteration, stage, purpose, scorer, settings, unnest(json_keys(settings)) AS key FROM stages) AS written
WHERE stage IN ('rollout', 'train') OR EXISTS (
    FROM scorers WHERE chosen AND scorers.iteration = written.iteration AND scorers.purpose = written.purpose
                       AND scorers.scorer = written.scorer);

-- Settings that differ between the rows of a table like `settings` with a column `run`, without those that follow from
-- the policy; null if a stage has no such setting.
CREATE OR REPLACE MACRO differing_settings(rows) AS TABLE
WITH kept AS (SELECT run, iteration, stage, coalesce(purpose, '') AS purpose, key, value FROM query_table(rows)
              WHERE NOT (ends_with(key, '_sha256') OR ends_with(key, 'policy_version'))),
stages_of AS (SELECT DISTINCT run, iteration, stage, purpose FROM kept),
keys AS (SELECT DISTINCT stage, purpose, key FROM kept),
filled AS (SELECT * FROM stages_of JOIN keys USING (stage, purpose)
           LEFT JOIN kept USING (run, iteration, stage, purpose, key)),
ranges AS (SELECT run, stage, nullif(purpose, '') AS purpose, key, value, min(iteration) AS first_iteration,
                  max(iteration) AS last_iteration, count(*)::INTEGER AS num_iterations
           FROM filled WHERE NOT (key = 'serve' AND value IS NULL) GROUP BY ALL)
SELECT run, stage, purpose, key, value, first_iteration, last_iteration, num_iterations
FROM (SELECT *, count(DISTINCT coalesce(value, chr(0))) OVER (PARTITION BY stage, purpose, key) AS num_values
      FROM ranges)
WHERE num_values > 1
ORDER BY stage, purpose, key, run, first_iteration;

CREATE OR REPLACE VIEW settings_diff AS
WITH held AS (SELECT '' AS run, * FROM settings)
SELECT * EXCLUDE (run) FROM differing_settings('held');
