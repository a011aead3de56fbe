-- Saved queries, run as `warehouse sql RUN @name key=value`; a run's own stand in config.toml under [queries].

-- @iterations: the main numbers of every training iteration
SELECT iteration, pass_at_1, max_k, pass_at_max_k, reward_mean, truncated_share, tokens_mean, mismatch_kl
FROM iteration_stats WHERE purpose = 'train' ORDER BY iteration;

-- @flags: iterations at which any signal is raised
SELECT iteration, flags FROM collapse WHERE purpose = 'train' AND len(flags) > 0 ORDER BY iteration;

-- @truncated iteration=0: completions that were cut off, and how they end
FROM truncated($iteration, num := 20);

-- @loops iteration=0: completions that end in a loop
FROM loops($iteration, num := 20);

-- @outliers iteration=0: rewards farthest from their group
FROM outliers($iteration, num := 20);

-- @forgotten: tasks solved before and not at their last visit
SELECT task_id, first_solved, last_solved, last_iteration, best_rate
FROM task_history WHERE forgotten ORDER BY best_rate DESC, task_id;

-- @frontier: tasks solved sometimes but not always at their last visit
SELECT task_id, last_rate, best_rate, visits FROM task_history
WHERE last_rate > 0 AND last_rate < 1 ORDER BY abs(last_rate - 0.5), task_id;

-- @errors iteration=0: failures by kind
SELECT error_class, error_name, num, share, example FROM errors
WHERE iteration = $iteration AND purpose = 'train' ORDER BY num DESC;

-- @gaps iteration=0: tokens on which engine and trainer disagree most
SELECT task_id, sample_index, position, token_id, behaviour_logprob, old_logprob, gap
FROM token_gaps($iteration) ORDER BY abs(gap) DESC LIMIT 20;

-- @gaps_by_position iteration=0: disagreement by tenths of the completion
SELECT (10 * position // num_completion_tokens)::INTEGER AS tenth, count(*) AS num_tokens,
       avg(abs(gap)) AS mean_gap, max(abs(gap)) AS largest_gap, avg(k3(clamped(gap))) AS mismatch_kl
FROM token_gaps($iteration) GROUP BY tenth ORDER BY tenth;

-- @gaps_by_origin iteration=0: disagreement by policy, engine, dtype, device and host
SELECT policy_version, engine, dtype, device, host, count(*) AS num_tokens, avg(abs(gap)) AS mean_gap,
       max(abs(gap)) AS largest_gap, avg(k3(clamped(gap))) AS mismatch_kl
FROM token_gaps($iteration) GROUP BY ALL ORDER BY mismatch_kl DESC;

-- @corrections iteration=0: what every importance correction would have done
FROM corrections($iteration);

-- @costs: seconds and rates per stage
SELECT stage, count(*) AS stages, sum(seconds) AS seconds, sum(num_tokens) AS tokens,
       sum(num_tokens) / sum(seconds) AS tokens_per_second
FROM costs GROUP BY stage ORDER BY stage;
