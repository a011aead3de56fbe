"""Figures of the training itself: mismatch of engine and trainer, steps, time and tokens."""

from __future__ import annotations

from reports.drawing import Chart
from reports.figure import Figure, Rows, bars, draw_cells, lines, stats_sql

MISMATCH_SQL = stats_sql("mismatch_kl, log_ratio_abs_mean, completion_ess, log_ratio_abs_max",
                         "purpose = 'train' AND mismatch_kl IS NOT NULL")
STEPS_SQL = """\
SELECT iteration, avg(grad_norm) AS grad_norm, avg(clip_fraction) AS clip_fraction,
       avg(policy_kl) AS policy_kl
FROM train_steps GROUP BY iteration ORDER BY iteration"""
SECONDS_SQL = """\
SELECT iteration, sum(seconds) FILTER (stage = 'rollout') AS rollout,
       sum(seconds) FILTER (stage = 'score') AS score, sum(seconds) FILTER (stage = 'train') AS train
FROM costs WHERE seconds IS NOT NULL GROUP BY iteration ORDER BY iteration"""
TOKENS_SQL = """\
SELECT iteration,
       sum(num_tokens) FILTER (stage = 'rollout') / sum(seconds) FILTER (stage = 'rollout') AS rollout,
       sum(num_tokens) FILTER (stage = 'train') / sum(seconds) FILTER (stage = 'train') AS train
FROM costs WHERE seconds > 0 GROUP BY iteration ORDER BY iteration"""
ALARMS_SQL = """\
WITH shown AS (SELECT signal, purpose, min(iteration) AS since, bool_or(fired) AS fires FROM raised_signals
               GROUP BY signal, purpose)
SELECT signals.iteration, signals.signal || CASE purpose WHEN 'train' THEN '' ELSE ' ' || purpose END AS name,
       CASE WHEN raised_signals.fired THEN 1.0 WHEN signals.raised THEN 0.4 END AS state
FROM signals JOIN shown USING (signal, purpose)
LEFT JOIN raised_signals USING (iteration, signal, purpose)
ORDER BY NOT fires, since, name, iteration"""
NOT_TRAINED = "Nothing is trained yet."


def draw_alarms(rows: Rows) -> Chart:
    """When each signal was raised, and when it fired."""
    return draw_cells(rows, "name", "state", low=0, high=1, row_height=18, kind="alarm")


TRAINING = (
    Figure("alarms", "Signals raised and fired",
           "Dark where a signal fired, pale where it was raised once.", ALARMS_SQL, draw_alarms,
           "No signal was raised."),
    Figure("mismatch", "Mismatch of engine and trainer",
           "Before the first gradient, over all tokens. At staleness 0 only the engine can be the cause.",
           MISMATCH_SQL,
           lines(log=True, levels=[(1e-3, "alarm for the KL")], mismatch_kl="KL(mu, pi_old), k3",
                 log_ratio_abs_mean="mean |log ratio|"), NOT_TRAINED),
    Figure("ess", "Effective sample size", "Of importance weights of whole completions, over their number.",
           MISMATCH_SQL, lines(share=True, levels=[(0.3, "alarm")], completion_ess="ESS / n"), NOT_TRAINED),
    Figure("ratios", "Largest token gap",
           "The largest |log pi_old - log mu| of any token; 0.7 is a factor of two in probability.",
           MISMATCH_SQL, lines(log=True, log_ratio_abs_max="largest |log ratio|"), NOT_TRAINED),
    Figure("gradients", "Gradient norm", "Before clipping, mean over the steps.", STEPS_SQL,
           lines(grad_norm="gradient norm"), NOT_TRAINED),
    Figure("clipping", "Clipping and drift inside the stage",
           "Share of clipped ratios; KL of the policy against the one the stage started from.", STEPS_SQL,
           lines(clip_fraction="clip fraction", policy_kl="KL of pi and pi_old"), NOT_TRAINED),
    Figure("seconds", "Seconds per stage", "Wall time of every complete stage, evaluations included.",
           SECONDS_SQL, bars(rollout="rollout", score="score", train="train"), "No stage is complete."),
    Figure("rates", "Tokens per second", "Completion tokens over the whole stage, start included.",
           TOKENS_SQL, lines(rollout="rollout", train="train"), "No stage is complete."),
)
