"""Figures of training: mismatch of engine and trainer, steps, time and tokens."""

from reports.drawing import LEFT, RIGHT, TOP, WIDTH, Chart, svg_of, text_at
from reports.figure import Figure, Rows, bars, cells, lines, stats_sql
from reports.scale import Scale, number, scale_ticks

MISMATCH_SQL = stats_sql("mismatch_kl_fresh, mismatch_kl, log_ratio_abs_mean, log_ratio_abs_max",
                         "purpose = 'train' AND mismatch_kl IS NOT NULL")
STEPS_SQL = """\
SELECT iteration, avg(grad_norm) AS grad_norm, avg(clip_fraction) AS clip_fraction,
       avg(policy_kl) AS policy_kl
FROM train_steps GROUP BY iteration ORDER BY iteration"""
BASE_SQL = """\
SELECT iteration, avg(base_kl) AS base_kl, avg(base_log_ratio) AS base_log_ratio
FROM train_steps WHERE base_kl IS NOT NULL GROUP BY iteration ORDER BY iteration"""
ESS_SQL = """\
SELECT iteration, min(ess) AS ess
FROM train_steps WHERE ess IS NOT NULL GROUP BY iteration ORDER BY iteration"""
SECONDS_SQL = """\
SELECT iteration, sum(seconds) FILTER (stage = 'rollout') AS rollout,
       sum(seconds) FILTER (stage = 'score') AS score, sum(seconds) FILTER (stage = 'train') AS train
FROM costs WHERE seconds IS NOT NULL GROUP BY iteration ORDER BY iteration"""
ALARMS_SQL = """\
WITH shown AS (SELECT signal, purpose, min(iteration) AS since, bool_or(fired) AS fires FROM raised_signals
               GROUP BY signal, purpose)
SELECT signals.iteration, signals.signal || CASE purpose WHEN 'train' THEN '' ELSE ' ' || purpose END AS name,
       CASE WHEN raised_signals.fired THEN 1.0 WHEN signals.raised THEN 0.4 END AS state
FROM signals JOIN shown USING (signal, purpose)
LEFT JOIN raised_signals USING (iteration, signal, purpose)
ORDER BY NOT fires, since, name, iteration"""
# When each stage worked: manifests record its end, and the duration of its last phases.
TIMELINE_SQL = """\
WITH spans AS (
    SELECT stage, iteration, epoch(finished_at) AS over,
           [list_sum([coalesce(CAST(facts -> 'seconds' ->> phase AS DOUBLE), 0) FOR phase IN phases])
            FOR phases IN [['sampling', 'running', 'old logprobs', 'gradients'],
                           ['writing', 'reading', 'metrics']]] AS seconds
    FROM stages WHERE (purpose = 'train' OR stage = 'train')
                  AND iteration > (SELECT max(iteration) FROM stages WHERE stage = 'train') - 5)
SELECT stage, iteration, over - seconds[2] - seconds[1] AS start, seconds[1] AS busy
FROM spans WHERE seconds[1] > 0 ORDER BY stage, iteration"""
NOT_TRAINED = "Nothing is trained yet."
NO_MISMATCH = "No rows sampled by a policy of the run are trained yet."


def draw_timeline(rows: Rows) -> Chart:
    """A lane per stage: when it worked, iteration after iteration."""
    began = min(row["start"] for row in rows)
    whole = max(row["start"] + row["busy"] for row in rows) - began
    across, marks, y = Scale(0, whole, LEFT + 22, WIDTH - RIGHT - 34), list[str](), float(TOP)
    for name, stage in (("sampling", "rollout"), ("programs", "score"), ("training", "train")):
        spans = [row for row in rows if row["stage"] == stage]
        for row in spans:
            left, right = across(row["start"] - began), across(row["start"] - began + row["busy"])
            title = f"iteration {row['iteration']}, {name}, {row['busy']:.1f} s"
            marks.append(f'<rect class="bar t{4 + 2 * (row["iteration"] % 2)}" x="{left}" y="{y}" '
                         f'width="{max(right - left, 0.2):.1f}" height="15"><title>{title}</title></rect>')
        if spans:
            share = sum(row["busy"] for row in spans) / whole
            marks += [text_at(LEFT + 16, y + 11, name, anchor="end"),
                      text_at(WIDTH - RIGHT, y + 11, f"{share:.0%}", anchor="end")]
            y += 28
    marks += [text_at(across(value), y + 10, number(value)) for value in scale_ticks(across)]
    marks += [text_at(LEFT + 16, y + 10, "seconds", kind="tick small", anchor="end"),
              text_at(WIDTH - RIGHT, y + 28, f"{whole:.0f} s in all", kind="note", anchor="end")]
    return Chart(svg_of(marks, y + 36), [(4, "even iterations"), (6, "odd ones")], {"x": [], "px": []})


TRAINING = (
    Figure("alarms", "Signals raised and fired",
           "Pale: raised in one iteration only. Full colour: fired.", ALARMS_SQL,
           cells("name", "state", row_height=18, kind="alarm"), "No signal was raised."),
    Figure("mismatch", "Mismatch of engine and trainer",
           "Before the first gradient. At staleness 0 both hold the same weights; other tokens are "
           "of earlier policies.",
           MISMATCH_SQL,
           lines(log=True, levels=[(1e-3, "alarm, KL at staleness 0")],
                 mismatch_kl_fresh="KL(mu, pi_old) at staleness 0, k3", mismatch_kl="the same of all tokens",
                 log_ratio_abs_mean="mean |log ratio|"), NO_MISMATCH),
    Figure("ess", "Effective sample size",
           "ESS of pi_old / mu as a share of the tokens of a step; the lowest step of the iteration.",
           ESS_SQL, lines(share=True, levels=[(0.3, "alarm")], ess="ESS / n"), NO_MISMATCH),
    Figure("ratios", "Largest token gap",
           "The largest |log pi_old - log mu| of any token; 0.7 is a factor of two in probability.",
           MISMATCH_SQL, lines(log=True, log_ratio_abs_max="largest |log ratio|"), NO_MISMATCH),
    Figure("gradients", "Gradient norm", "Before clipping, mean over the steps.", STEPS_SQL,
           lines(grad_norm="gradient norm"), NOT_TRAINED),
    Figure("clipping", "Clipping and drift inside the stage",
           "Share of clipped ratios; KL of the policy from the start of its stage.", STEPS_SQL,
           lines(clip_fraction="clip fraction", policy_kl="KL of pi and pi_old"), NOT_TRAINED),
    Figure("base", "KL to the base model",
           "Nats per token at the optimizer steps: k3 (never negative) and k1 (mean log ratio).",
           BASE_SQL, lines(base_kl="k3", base_log_ratio="k1"),
           "Not computed. `train --kl-beta` and --kl-monitor compute it."),
    Figure("seconds", "Seconds per stage", "Wall time of every complete stage, including evaluations.",
           SECONDS_SQL, bars(rollout="rollout", score="score", train="train"), "No stage is complete."),
    Figure("timeline", "When each stage worked",
           "The last five iterations: which stages overlap, and gaps in which nothing runs. At the right the "
           "share of that time in which a stage worked.",
           TIMELINE_SQL, draw_timeline, "No stage is complete."),
)
