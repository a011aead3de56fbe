-- Signals of collapse: published levels, and changes relative to the best that the run had reached.

-- Sampling error of a share; completions of a group count as fewer.
CREATE OR REPLACE MACRO chance(share, num_groups, num_completions) AS
greatest(0.05, 3 * sqrt(share * (1 - share) / sqrt(num_groups * num_completions)));

-- The same for rare events: a few instead of none is not a change.
CREATE OR REPLACE MACRO chance_of_few(share, num_groups, num_completions) AS
chance(least(0.5, greatest(share, 3 / sqrt(num_groups * num_completions))), num_groups, num_completions);

-- Standard errors by which the best mean of `span` iterations among `num` exceeds the truth by chance.
CREATE OR REPLACE MACRO luck(num, span) AS sqrt(2 * ln(greatest(num / span, 1)) / span);

-- One signal: value, level at which it is raised, level at which it fires at once.
CREATE OR REPLACE MACRO signal_of(name, measured, limit_value, rises, gross_value, explanation) AS
{'signal': name, 'value': measured::DOUBLE, 'level': limit_value::DOUBLE, 'above': rises,
 'gross': gross_value::DOUBLE, 'meaning': explanation};

-- Whether an iteration is the first that ends early (--carry-over): all its completions are short.
CREATE OR REPLACE MACRO is_cut_short(the_iteration, the_purpose) AS
the_purpose = 'train' AND the_iteration IN (SELECT DISTINCT iteration FROM carried)
AND the_iteration - 1 NOT IN (SELECT DISTINCT iteration FROM carried);

-- DuckDB plans everything below a view when it checks the view, which is slow for `judged_signals`. So the views are
-- made over its columns only, and it comes last; DuckDB does not plan a macro whose table is a parameter.
CREATE OR REPLACE MACRO judged_signals(rows) AS TABLE
SELECT NULL::INTEGER AS iteration, NULL::VARCHAR AS purpose, NULL::VARCHAR AS signal, NULL::DOUBLE AS value,
       NULL::DOUBLE AS level, NULL::BOOLEAN AS above, NULL::BOOLEAN AS raised, NULL::BOOLEAN AS immediate,
       NULL::VARCHAR AS meaning WHERE false;
CREATE OR REPLACE VIEW signals AS FROM judged_signals('iteration_stats');

-- A trend fires if it is raised in two iterations in a row. Errors that must not happen fire at once, and so do signals
-- raised while pass@1 falls or programs fail, because two numbers agree. A rollback ends every row of iterations:
-- earlier signals do not concern the policy that the run went back to.
CREATE OR REPLACE VIEW raised_signals AS
WITH restarts AS (SELECT coalesce(list(policy_version), [])::INTEGER[] AS versions FROM policies
                  WHERE rolled_back_to IS NOT NULL),
     held AS (
    SELECT signals.*,
           raised AND (immediate OR coalesce(lag(raised) OVER neighbours, false)
                       OR coalesce(lead(raised) OVER neighbours, false)
                       OR bool_or(raised AND signal IN ('solving_falls', 'errors')) OVER same
                          AND count(*) FILTER (raised AND signal <> 'reward_falls') OVER same > 1) AS fired
    FROM signals, restarts
    WINDOW same AS (PARTITION BY purpose, iteration), neighbours AS (
        PARTITION BY purpose, signal, len(list_filter(versions, lambda version: version <= iteration))
        ORDER BY iteration))
SELECT iteration, purpose, signal, value, level, above, fired, meaning FROM held WHERE raised;

CREATE OR REPLACE VIEW fired_signals AS
SELECT * EXCLUDE (fired) FROM raised_signals WHERE fired;

-- Reference values of every iteration and evaluation: the lowest and highest mean of three in a row among the last
-- thirty of its purpose, and the median of the first three. The very first one is the floor, because it shows the base
-- policy. Causes come before their consequences; `warehouse watch` and the report keep this order.
CREATE OR REPLACE MACRO judged_signals(rows) AS TABLE
WITH steps AS (
    SELECT iteration, 'train' AS purpose, max(ratio_max) AS ratio_max, max(policy_kl) AS policy_kl,
           max(grad_norm) AS grad_norm, median(ess) AS ess, avg(clip_fraction) AS clip_fraction, sum(num_completions) AS num_updated
    FROM train_steps GROUP BY iteration),
losses AS (SELECT iteration, 'train' AS purpose, max(settings ->> '$.loss') AS loss,
                  bool_or(settings ->> '$.dtype' IN ('bfloat16', 'auto')) AS is_rounded
           FROM stages WHERE stage = 'train' OR stage = 'rollout' AND purpose = 'train' GROUP BY iteration),
known AS (
    SELECT stats.* EXCLUDE (reward_error), tokens_quantiles[3] AS tokens_median, valid_code_share * num_completions AS num_programs, fitted.* EXCLUDE (iteration, purpose, num_tasks),
           steps.* EXCLUDE (iteration, purpose), loss, is_rounded,
           (SELECT max(epoch) FROM ancestry() WHERE begun <= stats.iteration AND ended = 2147483647) AS num_rollbacks
    FROM (SELECT * REPLACE (coalesce(num_groups, 1) AS num_groups), is_cut_short(iteration, purpose) AS alone
          FROM query_table(rows) WHERE policy_version IS NOT NULL) AS stats  -- without rows of other models
    LEFT JOIN adjusted AS fitted ON fitted.iteration = stats.iteration AND fitted.purpose = stats.purpose
    LEFT JOIN steps ON steps.iteration = stats.iteration AND steps.purpose = stats.purpose
    LEFT JOIN losses ON losses.iteration = stats.iteration AND losses.purpose = stats.purpose),
lived AS (
    SELECT *, row_number() OVER (PARTITION BY purpose, alone, epoch ORDER BY iteration) AS place
    FROM known JOIN ancestry() ON iteration BETWEEN begun AND ended),
smooth AS (
    SELECT *, avg(truncated_share) OVER last_3 AS truncated_3, avg(loop_share) OVER last_3 AS loop_3,
           avg(valid_code_share) OVER last_3 AS valid_code_3, avg(failed_share) OVER last_3 AS failed_3,
           avg(ngram4_unique_ratio) OVER last_3 AS ngram4_3, avg(solving) OVER last_3 AS solving_3, avg(reach) OVER last_3 AS reach_3, avg(reward) OVER paid_3 AS reward_3,
           count(solving) OVER last_3 AS span, count(reward) OVER paid_3 AS paid_span,
           CASE WHEN count(solving) OVER last_4 = 4 THEN avg(solving) OVER last_4 END AS solving_4,
           sum(pow(solving_error, 2)) OVER last_4 / 16 AS variance_4
    FROM lived WINDOW last_3 AS (PARTITION BY purpose, alone, epoch ORDER BY iteration ROWS 2 PRECEDING),
                      last_4 AS (PARTITION BY purpose, alone, epoch ORDER BY iteration ROWS 3 PRECEDING),
                      paid_3 AS (PARTITION BY purpose, alone, epoch, scorer ORDER BY iteration ROWS 2 PRECEDING)),
history AS (
    SELECT *, least(first_value(truncated_share) OVER past, min(truncated_3) OVER recent) AS usual_truncated,
           least(first_value(loop_share) OVER past, min(loop_3) OVER recent) AS usual_loops,
           least(first_value(failed_share) OVER past, min(failed_3) OVER recent) AS usual_errors,
           greatest(first_value(valid_code_share) OVER past, max(valid_code_3) OVER recent) AS usual_code,
           greatest(first_value(ngram4_unique_ratio) OVER past, max(ngram4_3) OVER recent) AS usual_ngram4,
           least(first_value(nll_sampled) OVER past, median(nll_sampled) FILTER (place <= 3) OVER past) AS usual_nll_low,
           greatest(first_value(nll_sampled) OVER past, median(nll_sampled) FILTER (place <= 3) OVER past) AS usual_nll_high,
           least(first_value(tokens_median) OVER past, median(tokens_median) FILTER (place <= 3) OVER past) AS usual_tokens_low,
           greatest(first_value(distinct_wrong_share) OVER past, median(distinct_wrong_share) FILTER (place <= 3) OVER past) AS usual_diversity,
           greatest(first_value(solving) OVER past, median(solving) FILTER (place <= 3) OVER past) AS first_solving,
           -- Below this level, the iteration and the previous one are together 3 standard errors below the best four in a row
           -- before them, less what is luck in that, and the iteration itself is one below: a dip that is over raises nothing. They are not combined across
           -- a rollback, or if one was not measured.
           CASE WHEN num_rollbacks = last_value(num_rollbacks) OVER recent
                     AND last_value(solving) OVER recent IS NOT NULL THEN least(
               2 * (max(solving_4) OVER earlier
                    - luck(count(solving_4) OVER earlier, 4) * 2 * sqrt(arg_max(variance_4, solving_4) OVER earlier)
                    - 3 * sqrt(arg_max(variance_4, solving_4) OVER earlier
                               + (pow(solving_error, 2) + pow(last_value(solving_error) OVER recent, 2)) / 4))
               - last_value(solving) OVER recent, max(solving_4) OVER earlier - solving_error) END AS two_fall,
           -- Standard errors that an iteration may be below the best. A best mean of fewer than three has a larger error.
           2.5 * sqrt(0.75 + 0.75 / arg_max(span, solving_3) OVER recent)
               + luck(count(solving) OVER recent, arg_max(span, solving_3) OVER recent) AS solving_margin,
           3 * sqrt(0.75 + 0.75 / arg_max(paid_span, reward_3) OVER paid)
               + luck(count(reward) OVER paid, arg_max(paid_span, reward_3) OVER paid) AS reward_margin,
           3 + luck(count(reach) OVER recent, 3) AS reach_margin,
           max(solving_3) OVER recent AS best_solving, max(reach_3) FILTER (place > 2 OR purpose <> 'train') OVER recent AS best_reach, max(reward_3) OVER paid AS best_reward,
           arg_max(reward_3, solving_3) OVER paid AS reward_at_best,
           -- If all groups have equal rewards, only the gradient of the KL remains; next to it any other is large.
           CASE WHEN place > 2 THEN median(grad_norm) FILTER (zero_variance_share < 1 OR grad_norm > 0.001) OVER recent END AS usual_grad_norm,
           median(clip_fraction) OVER same_loss AS usual_clipped
    FROM smooth
    WINDOW past AS (PARTITION BY purpose, alone, epoch ORDER BY iteration ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING),
           recent AS (PARTITION BY purpose, alone, epoch ORDER BY iteration ROWS BETWEEN 30 PRECEDING AND 1 PRECEDING),
           same_loss AS (PARTITION BY purpose, alone, epoch, loss ORDER BY iteration ROWS BETWEEN 30 PRECEDING AND 1 PRECEDING),
           -- Rewards of different scorers do not compare.
           paid AS (PARTITION BY purpose, alone, epoch, scorer ORDER BY iteration ROWS BETWEEN 30 PRECEDING AND 1 PRECEDING),
           earlier AS (PARTITION BY purpose, alone, epoch ORDER BY iteration ROWS BETWEEN 31 PRECEDING AND 2 PRECEDING))
-- At equal difficulty pass@1 and pass@k may be below 0; they are shown as 0.
SELECT iteration, purpose, held.signal,
       CASE WHEN held.value < 0 AND held.signal IN ('solving_falls', 'sharpening') THEN 0 ELSE held.value END AS value,
       CASE WHEN held.level < 0 AND held.signal = 'solving_falls' THEN 0 ELSE held.level END AS level, held.above,
       coalesce(CASE WHEN held.above THEN held.value > held.level ELSE held.value < held.level END, false) AS raised,
       raised AND coalesce(CASE WHEN held.above THEN held.value > held.gross ELSE held.value < held.gross END, false)
           AS immediate, held.meaning
FROM (SELECT iteration, purpose, unnest([
    signal_of('wrong_weights', mismatch_kl_fresh, 0.015, true, 0.015,
              'KL(mu, pi_old) at staleness 0: the engine has other weights or another tokenizer than the trainer'),
    -- bfloat16 alone gives small models .002 (SmolLM2-135M; .00025 with 1.5B, 4e-6 in float32).
    signal_of('mismatch', mismatch_kl_fresh, CASE WHEN is_rounded THEN 0.005 ELSE 0.001 END, true, NULL,
              'KL(mu, pi_old) at staleness 0: engine and trainer disagree'),
    -- A single outlier token reduces the ESS of its step to nearly 0, although the correction bounds its weight.
    signal_of('ess', ess, 0.3, false, NULL, 'Effective sample size of pi_old / mu over tokens'),
    signal_of('weight_mean', abs(ln(importance_weight_mean)), ln(2), true, ln(2),
              '|log| of the mean importance weight; 0.69 is 0.5 or 2'),
    signal_of('weight_spread', importance_weight_std, 1, true, 1, 'Standard deviation of importance weights'),
    signal_of('unmeasured', num_missing / num_completions, 0.05, true, 0.05,
              'Share of completions without a measured reward'),
    signal_of('step_ratio', ratio_max, 30, true, 300, 'Largest pi / pi_old of a token in a step'),
    signal_of('step_kl', policy_kl, 0.1, true, 1, 'Largest KL of the policy from the start of its stage'),
    signal_of('grad_norm', grad_norm, 5 * usual_grad_norm, true, 20 * usual_grad_norm,
              'Largest gradient norm of a step, against the last thirty iterations'),
    signal_of('clipping', clip_fraction, 0.2 + usual_clipped, true, 0.5 + usual_clipped,
              'Share of clipped ratios; a third is usual with gspo'),
    signal_of('reuse', num_updated / num_completions, 8, true, NULL, 'Updates per completion'),
    signal_of('empty', empty_share, 0.05, true, 0.05, 'Share of empty completions'),
    signal_of('truncation', truncated_share, 2 * usual_truncated + chance_of_few(usual_truncated, num_groups, num_completions), true,
              usual_truncated + 2 * chance_of_few(usual_truncated, num_groups, num_completions), 'Share of truncated completions'),
    signal_of('loops', loop_share, 2 * usual_loops + chance(usual_loops, num_groups, num_completions), true,
              usual_loops + 1.5 * chance(usual_loops, num_groups, num_completions), 'Share of completions that end in a loop'),
    signal_of('repetition', ngram4_unique_ratio, usual_ngram4 - 0.1, false, usual_ngram4 - 0.3,
              'Distinct 4-grams over 4-grams'),
    signal_of('no_code', valid_code_share, usual_code - 2 * chance(usual_code, num_groups, num_completions), false, usual_code - 0.3,
              'Share of completions with a closed code block, or else an answer'),
    -- More ambitious programs also fail more often: harmless while pass@1 is at its best.
    signal_of('errors', failed_share, CASE WHEN solving > best_solving THEN 'inf'::DOUBLE
              ELSE 2 * usual_errors + chance_of_few(usual_errors, num_groups, num_programs) END, true,
              usual_errors + 2 * chance_of_few(usual_errors, num_groups, num_programs), 'Share of programs that fail'),
    signal_of('entropy_high', nll_sampled, 2 * usual_nll_low + 0.1, true, 4 * usual_nll_low + 0.5,
              'Sampled NLL rises: the policy becomes random'),
    signal_of('entropy_low', nll_sampled, 0.1 * usual_nll_high, false, 0.02 * usual_nll_high,
              'Sampled NLL near 0: the policy gives the same answer to everything'),
    signal_of('length_up', tokens_median, 1.5 * usual_tokens_low, true, NULL, 'Median completion length'),
    signal_of('reward_hacking', reward,
              CASE WHEN solving < best_solving - 2 * solving_error THEN reward_at_best + greatest(0.1 * abs(reward_at_best), reward_error)
                   WHEN best_solving IS NOT NULL THEN 'inf'::DOUBLE END, true, NULL,
              'Mean reward, which rises while fewer completions are right'),
    -- If almost everything is right, the wrong completions come only from the hardest tasks.
    signal_of('diversity', distinct_wrong_share, CASE WHEN reach < best_reach - 2 * reach_error THEN 0.5 * usual_diversity
              WHEN best_reach IS NOT NULL THEN 0 END, false, NULL, 'Different outputs per wrong completion, while pass@k falls'),
    -- `+ 0 * error`: without a known error there is no level (greatest() ignores NULL).
    signal_of('sharpening', reach,
              CASE WHEN solving >= first_solving - solving_error THEN best_reach - greatest(0.05, reach_margin * reach_error) + 0 * reach_error
                   WHEN best_reach IS NOT NULL THEN '-inf'::DOUBLE END, false, NULL,
              'pass@k, which falls while pass@1 does not'),
    signal_of('solving_falls', solving, greatest(best_solving - greatest(0.02, solving_margin * solving_error), two_fall) + 0 * solving_error, false,
              greatest(least(0.5 * best_solving, best_solving - 5 * solving_error), two_fall), 'pass@1 at equal difficulty of tasks'),
    signal_of('reward_falls', reward, best_reward - reward_margin * reward_error, false,
              best_reward - greatest(0.5 * abs(best_reward), 8 * reward_error),
              'Mean reward at equal difficulty of tasks')]) AS held
    FROM history WHERE num_rollbacks = epoch);
