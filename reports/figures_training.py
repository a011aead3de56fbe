"""Figures of the training itself: mismatch of engine and trainer, steps, time and tokens."""

from __future__ import annotations

from reports.drawing import Chart, Series, line_chart, stacked_bars, timeline
from reports.figure import Figure, Rows, bucketed, column, iterations, mean, pivot, series, thinned

MISMATCH_SQL = """\
SELECT iteration, mismatch_kl, log_ratio_abs_mean, ess, log_ratio_abs_max
FROM iteration_stats WHERE purpose = 'train' AND mismatch_kl IS NOT NULL ORDER BY iteration"""
STEPS_SQL = """\
SELECT iteration, avg(grad_norm) AS grad_norm, avg(clip_fraction) AS clip_fraction,
       avg(policy_kl) AS policy_kl, avg(loss) AS loss, max(ratio_max) AS ratio_max
FROM train_steps GROUP BY iteration ORDER BY iteration"""
SECONDS_SQL = """\
SELECT iteration, stage, sum(seconds) AS seconds
FROM costs WHERE seconds IS NOT NULL GROUP BY iteration, stage ORDER BY iteration"""
TOKENS_SQL = """\
SELECT iteration, stage, sum(num_tokens) / sum(seconds) AS tokens_per_second
FROM costs WHERE stage <> 'score' AND seconds > 0 GROUP BY iteration, stage ORDER BY iteration"""
NOT_TRAINED = "Nothing is trained yet."


def draw_mismatch(rows: Rows) -> Chart:
    """KL of engine and trainer and the mean gap, on a logarithmic axis with the alarm level."""
    rows = thinned(rows)
    positive = [{**row, **{name: row[name] or None for name in ("mismatch_kl", "log_ratio_abs_mean")}}
                for row in rows]
    return line_chart(iterations(rows), series(positive, mismatch_kl="KL(mu, pi_old), k3",
                                               log_ratio_abs_mean="mean |log ratio|"),
                      log=True, levels=[(1e-3, "alarm for the KL")])


def draw_ess(rows: Rows) -> Chart:
    """Effective sample size of whole-completion weights."""
    rows = thinned(rows)
    return line_chart(iterations(rows), [Series("ESS / n", column(rows, "ess"))], share=True,
                      levels=[(0.3, "alarm")])


def draw_ratios(rows: Rows) -> Chart:
    """The largest gap of any token."""
    rows = [{**row, "log_ratio_abs_max": row["log_ratio_abs_max"] or None} for row in thinned(rows)]
    return line_chart(iterations(rows), series(rows, log_ratio_abs_max="largest |log ratio|"), log=True)


def draw_steps(rows: Rows) -> Chart:
    """Gradient norm of the steps."""
    rows = thinned(rows)
    return line_chart(iterations(rows), series(rows, grad_norm="gradient norm"))


def draw_clipping(rows: Rows) -> Chart:
    """Clip fraction and KL inside the stage."""
    rows = thinned(rows)
    return line_chart(iterations(rows), series(rows, clip_fraction="clip fraction",
                                               policy_kl="KL of pi and pi_old"))


def draw_seconds(rows: Rows) -> Chart:
    """Seconds per stage."""
    xs, table = pivot(rows, "stage", "seconds")
    stretches = bucketed(xs, 120)
    return stacked_bars([xs[stretch[0]] for stretch in stretches], [
        Series(stage, [mean([table[stage][i] for i in stretch]) for stretch in stretches])
        for stage in ("rollout", "score", "train") if stage in table], share=False)


def draw_tokens(rows: Rows) -> Chart:
    """Tokens per second of sampling and training."""
    xs, table = pivot(rows, "stage", "tokens_per_second")
    return line_chart(xs, [Series(stage, table[stage]) for stage in ("rollout", "train") if stage in table])


def draw_alarms(rows: Rows) -> Chart:
    """When each alarm was raised."""
    xs = sorted({row["iteration"] for row in rows})
    names = list(dict.fromkeys(row["signal"] for row in rows if row["shown"]))
    return timeline(xs, [(name, [row["iteration"] for row in rows if row["signal"] == name and row["raised"]])
                         for name in names])


ALARMS = Figure(
    "alarms", "When alarms were raised", "Signals that fired, at every iteration at which they were raised.",
    """\
SELECT iteration, signal, raised, signal IN (SELECT signal FROM alarms) AS shown
FROM signals WHERE EXISTS (FROM alarms)
ORDER BY (SELECT first_iteration FROM alarms WHERE alarms.signal = signals.signal), signal, iteration""",
    draw_alarms, "No alarm was raised.")

TRAINING = (
    ALARMS,
    Figure(
        "mismatch",
        "Mismatch of engine and trainer",
        "Before the first gradient, over all tokens. At staleness 0 only the engine can be the cause.",
        MISMATCH_SQL,
        draw_mismatch,
        NOT_TRAINED,
    ),
    Figure(
        "ess",
        "Effective sample size",
        "Of importance weights of whole completions, over their number.",
        MISMATCH_SQL,
        draw_ess,
        NOT_TRAINED,
    ),
    Figure(
        "ratios",
        "Largest token gap",
           "The largest |log pi_old - log mu| of any token; 0.7 is a factor of two in probability.",
        MISMATCH_SQL,
        draw_ratios,
        NOT_TRAINED,
    ),
    Figure(
        "gradients",
        "Gradient norm",
        "Before clipping, mean over the steps.",
        STEPS_SQL,
        draw_steps,
        NOT_TRAINED,
    ),
    Figure(
        "clipping",
        "Clipping and drift inside the stage",
        "Share of clipped ratios; KL of the policy against the one the stage started from.",
        STEPS_SQL,
        draw_clipping,
        NOT_TRAINED,
    ),
    Figure(
        "seconds",
        "Seconds per stage",
        "Wall time of every complete stage, evaluations included.",
        SECONDS_SQL,
        draw_seconds,
        "No stage is complete.",
    ),
    Figure(
        "rates",
        "Tokens per second",
        "Completion tokens over the whole stage, start included.",
        TOKENS_SQL,
        draw_tokens,
        "No stage is complete.",
    ),
)
