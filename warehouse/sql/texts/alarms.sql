-- When a run goes wrong: published levels, and trends against the run's own first iterations.

-- Medians of the run's first training iterations; null while there are fewer than three. A bound, unlike a
-- list, reaches the files of every table that iteration_stats joins, so that the others stay unopened.
CREATE OR REPLACE VIEW baseline AS
SELECT median(truncated_share) AS truncated_share,
       median(valid_code_share) AS valid_code_share,
       median(ngram4_unique_ratio) AS ngram4_unique_ratio,
       median(loop_share) AS loop_share,
       median(nll_sampled) AS nll_sampled,
       median(tokens_quantiles[3]) AS tokens_median,
       median(distinct_wrong_share) AS distinct_wrong_share,
       median(reward_mean) AS reward_mean,
       median(correct_share) AS correct_share,
       median(pass_at_1) AS pass_at_1,
       median(pass_at_max_k) AS pass_at_max_k
FROM iteration_stats
WHERE iteration <= list_max(first_iterations()) AND list_contains(first_iterations(), iteration)
    AND purpose = 'train'
HAVING count(*) >= 3;

-- One signal: its value, its level, and whether it is beyond it.
CREATE OR REPLACE MACRO signal_of(name, measured, limit_value, rises, at_once, explanation) AS
{'signal': name, 'value': measured::DOUBLE, 'level': limit_value::DOUBLE, 'above': rises, 'immediate': at_once,
 'raised': coalesce(CASE WHEN rises THEN measured > limit_value ELSE measured < limit_value END, false),
 'meaning': explanation};

-- Causes come before what follows from them; `warehouse watch` and the report keep this order.
CREATE OR REPLACE VIEW iteration_signals AS
SELECT stats.*,
       [signal_of('wrong_weights', stats.mismatch_kl_fresh, 0.015, true, true,
                  'KL(mu, pi_old) at staleness 0: the engine did not serve the weights that were trained'),
        signal_of('mismatch', stats.mismatch_kl, 0.001, true, false,
                  'KL(mu, pi_old): engine and trainer disagree'),
        signal_of('token_ratio', exp(stats.log_ratio_abs_mean), 1.02, true, false,
                  'exp of the mean |log pi_old - log mu|'),
        signal_of('ess', stats.completion_ess, 0.3, false, true, 'Effective sample size of completion weights'),
        signal_of('weight_mean', abs(ln(stats.importance_weight_mean)), ln(2), true, true,
                  '|log| of the mean importance weight; 0.69 is 0.5 or 2'),
        signal_of('weight_spread', stats.importance_weight_std, 1, true, true,
                  'Standard deviation of importance weights'),
        signal_of('unmeasured', stats.num_missing / stats.num_completions, 0.05, true, true,
                  'Share of completions whose reward could not be measured'),
        signal_of('empty', stats.empty_share, 0.05, true, true, 'Share of empty completions'),
        signal_of('truncation', stats.truncated_share, 2 * usual.truncated_share + 0.05, true, false,
                  'Share of truncated completions'),
        signal_of('loops', stats.loop_share, 2 * usual.loop_share + 0.05, true, false,
                  'Share of completions that end in a loop'),
        signal_of('repetition', stats.ngram4_unique_ratio, usual.ngram4_unique_ratio - 0.1, false, false,
                  'Distinct 4-grams over 4-grams'),
        signal_of('no_code', stats.valid_code_share, usual.valid_code_share - 0.1, false, false,
                  'Share of completions with a closed code block'),
        signal_of('entropy_high', stats.nll_sampled, 2 * usual.nll_sampled + 0.1, true, false,
                  'Sampled NLL: the policy comes apart'),
        signal_of('entropy_low', stats.nll_sampled, 0.1 * usual.nll_sampled, false, false,
                  'Sampled NLL: the policy goes mute'),
        signal_of('length_up', stats.tokens_quantiles[3], 1.5 * usual.tokens_median, true, false,
                  'Median completion length'),
        signal_of('length_down', stats.tokens_quantiles[3], 0.5 * usual.tokens_median, false, false,
                  'Median completion length'),
        signal_of('reward_hacking',
                  CASE WHEN stats.correct_share < usual.correct_share THEN stats.reward_mean END,
                  usual.reward_mean + greatest(0.1 * abs(usual.reward_mean), stats.reward_error), true, false,
                  'Mean reward rises while fewer completions are right'),
        signal_of('diversity', stats.distinct_wrong_share, 0.5 * usual.distinct_wrong_share, false, false,
                  'Different outputs per wrong completion'),
        signal_of('sharpening', CASE WHEN stats.pass_at_1 > usual.pass_at_1 THEN stats.pass_at_max_k END,
                  usual.pass_at_max_k - greatest(0.1, 3 * stats.pass_at_max_k_error), false, false,
                  'pass@k falls while pass@1 rises'),
        signal_of('solving_falls', stats.pass_at_1,
                  usual.pass_at_1 - greatest(0.05, 3 * stats.pass_at_1_error), false, false, 'pass@1 falls'),
        signal_of('reward_falls', stats.reward_mean, usual.reward_mean - 3 * stats.reward_error, false, false,
                  'Mean reward falls, the last thing to move')] AS signals
FROM iteration_stats AS stats
LEFT JOIN baseline AS usual ON stats.purpose = 'train'
    AND NOT list_contains(first_iterations(), stats.iteration);

CREATE OR REPLACE VIEW signals AS
SELECT iteration, one.signal, one.value, one.level, one.above, one.raised, one.immediate, one.meaning
FROM (SELECT iteration, unnest(signals) AS one FROM iteration_signals WHERE purpose = 'train');

CREATE OR REPLACE VIEW collapse AS
SELECT * EXCLUDE (signals),
       list_transform(list_filter(signals, lambda one: one.raised), lambda one: one.signal) AS flags
FROM iteration_signals;

-- A trend fires where it holds for two iterations in a row; what must not happen even once fires at once. A
-- rollback ends every row: what was raised before it says nothing of the policy that was taken up again.
CREATE OR REPLACE VIEW fired_signals AS
WITH restarts AS (SELECT coalesce(list(policy_version), [])::INTEGER[] AS versions FROM policies
                  WHERE rolled_back_to IS NOT NULL),
     held AS (
    SELECT signals.*,
           raised AND (immediate OR coalesce(lag(raised) OVER beside, false)
                       OR coalesce(lead(raised) OVER beside, false)) AS fired
    FROM signals, restarts
    WINDOW beside AS (
        PARTITION BY signal, len(list_filter(versions, lambda version: version <= iteration))
        ORDER BY iteration))
SELECT iteration, signal, value, level, above, meaning FROM held WHERE fired;

CREATE OR REPLACE VIEW alarms AS
SELECT signal, min(iteration) AS first_iteration, max(iteration) AS last_iteration,
       count(*)::INTEGER AS num_iterations, arg_min(value, iteration) AS value, arg_min(level, iteration) AS level,
       any_value(above) AS above, any_value(meaning) AS meaning
FROM fired_signals
GROUP BY signal;
