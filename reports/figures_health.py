"""Figures of how the text behaves: lengths, entropy, repetition, groups, errors."""

from __future__ import annotations

from reports.drawing import Chart, Series, heat_map, line_chart, stacked_bars
from reports.figure import Figure, Rows, bucketed, column, iterations, mean, pivot, series, thinned

STATS = "SELECT iteration, {columns}\nFROM iteration_stats WHERE purpose = 'train' ORDER BY iteration"
LENGTH_SQL = STATS.format(columns="tokens_quantiles[1] AS p05, tokens_quantiles[2] AS p25, "
                                  "tokens_quantiles[3] "
                                  "AS p50,\n       tokens_quantiles[4] AS p75, tokens_quantiles[5] AS p95")
LENGTH_SPLIT_SQL = STATS.format(columns="tokens_mean_correct, tokens_mean_wrong, tokens_mean_finished")
SHARES_SQL = STATS.format(columns="truncated_share, 1 - valid_code_share AS no_code,\n"
                                  "       1 - valid_outputs_share AS no_outputs")
ENTROPY_SQL = STATS.format(columns="nll_sampled, entropy")
REPETITION_SQL = STATS.format(columns="1 - ngram4_unique_ratio AS ngram4, 1 - ngram3_unique_ratio AS "
                                      "ngram3,\n"
                                      "       loop_share, unique_token_ratio")
GROUPS_SQL = STATS.format(columns="none_correct_share, all_correct_share,\n"
                                  "       1 - none_correct_share - all_correct_share AS mixed, "
                                  "zero_variance_share")
DIVERSITY_SQL = STATS.format(columns="distinct_outputs_share, zero_variance_share")
ERRORS_SQL = """\
SELECT iteration, error_class, sum(share) AS share
FROM errors WHERE purpose = 'train' GROUP BY iteration, error_class ORDER BY iteration"""
BY_LENGTH_SQL = """\
WITH edges AS (SELECT greatest(ceil(max(num_completion_tokens) / 12.0), 1) AS width FROM samples
               WHERE purpose = 'train')
SELECT iteration, (floor(num_completion_tokens / width) * width)::INTEGER AS tokens,
       any_value(width) AS width, avg(reward) AS reward, count(*) AS num
FROM samples, edges WHERE purpose = 'train' AND reward IS NOT NULL
GROUP BY iteration, tokens ORDER BY tokens DESC, iteration"""


def draw_lengths(rows: Rows) -> Chart:
    """Median length with the middle half and the middle nine tenths as bands."""
    rows = thinned(rows)
    return line_chart(iterations(rows), [
        Series("5% to 95%", column(rows, "p50"), column(rows, "p05"), column(rows, "p95"), tone=1),
        Series("25% to 75%, median", column(rows, "p50"), column(rows, "p25"), column(rows, "p75"), tone=1)])


def draw_length_split(rows: Rows) -> Chart:
    """Mean length of right and wrong completions."""
    rows = thinned(rows)
    return line_chart(iterations(rows), series(rows, tokens_mean_correct="right", tokens_mean_wrong="wrong",
                                               tokens_mean_finished="all that finished"))


def draw_shares(rows: Rows) -> Chart:
    """Shares of completions that came to nothing."""
    rows = thinned(rows)
    return line_chart(iterations(rows), series(rows, truncated_share="truncated", no_code="no closed "
                                                                                          "code block",
                                               no_outputs="no legal outputs"), share=True)


def draw_entropy(rows: Rows) -> Chart:
    """Sampled negative log-likelihood and the trainer's entropy."""
    rows = thinned(rows)
    return line_chart(iterations(rows), series(rows, nll_sampled="sampled NLL (engine)",
                                               entropy="entropy (trainer)"))


def draw_repetition(rows: Rows) -> Chart:
    """Repeated n-grams, loops, distinct tokens."""
    rows = thinned(rows)
    return line_chart(iterations(rows), series(rows, ngram4="repeated 4-grams", loop_share="ends in a loop",
                                               unique_token_ratio="distinct tokens"), share=True)


def draw_groups(rows: Rows) -> Chart:
    """Groups all wrong, mixed, all right."""
    rows = thinned(rows, 120)
    return stacked_bars(iterations(rows), [
        Series("all right", column(rows, "all_correct_share"), tone=3),
        Series("mixed: gives signal", column(rows, "mixed"), tone=1),
        Series("all wrong", column(rows, "none_correct_share"), tone=2)])


def draw_diversity(rows: Rows) -> Chart:
    """Different outputs in a group, and groups without any spread."""
    rows = thinned(rows)
    return line_chart(iterations(rows), series(rows, distinct_outputs_share="different outputs per "
                                                                            "completion",
                                               zero_variance_share="groups without spread"), share=True)


def draw_errors(rows: Rows) -> Chart:
    """Failures by kind, as shares of all completions."""
    xs, table = pivot(rows, "error_class", "share")
    heaviest = sorted(table, key=lambda kind: -sum(value or 0 for value in table[kind]))
    stretches = bucketed(xs, 120)
    layers = [Series(str(kind), [mean([table[kind][i] or 0 for i in stretch]) for stretch in stretches])
              for kind in heaviest[:5]]
    if heaviest[5:]:
        rest = [sum(table[kind][i] or 0 for kind in heaviest[5:]) for i in range(len(xs))]
        layers.append(Series("others", [mean([rest[i] for i in stretch]) for stretch in stretches]))
    return stacked_bars([xs[stretch[0]] for stretch in stretches], layers)


def draw_by_length(rows: Rows) -> Chart:
    """Mean reward by completion length."""
    xs, table = pivot(rows, "tokens", "reward")
    width = int(rows[0]["width"])
    stretches = bucketed(xs, 120)
    cells = [[mean([values[i] for i in stretch]) for stretch in stretches] for values in table.values()]
    known = [value for line in cells for value in line if value is not None]
    return heat_map([xs[stretch[0]] for stretch in stretches],
                    [f"{start} to {start + width - 1}" for start in table], cells,
                    low=min(known), high=max(known), row_height=16)


HEALTH = (
    Figure("shares", "Completions that come to nothing",
           "Truncation moves long before the mean reward does.", SHARES_SQL, draw_shares),
    Figure("lengths", "Completion length, tokens",
           "Median, middle half, middle nine tenths.", LENGTH_SQL, draw_lengths),
    Figure("length-split", "Length of right and wrong completions",
           "A reward that grows with length alone shows as right answers growing too.", LENGTH_SPLIT_SQL,
           draw_length_split),
    Figure("by-length", "Reward by length",
           "Mean reward of completions by their length in tokens; darker is higher.", BY_LENGTH_SQL,
           draw_by_length),
    Figure("entropy", "Entropy and sampled NLL, nats per token",
           "Up: the policy comes apart. Towards 0: it goes mute. The sampled NLL estimates the entropy "
           "only at "
           "temperature 1.", ENTROPY_SQL, draw_entropy),
    Figure("repetition", "Repetition", "Shares of repeated 4-grams, of completions that end in a loop of 32 "
           "tokens or more, and of distinct tokens.", REPETITION_SQL, draw_repetition),
    Figure("groups", "Groups: all right, mixed, all wrong",
           "Only mixed groups are sure to give a gradient.", GROUPS_SQL, draw_groups),
    Figure("diversity", "Diversity", "Different outputs per completion of a group; groups whose rewards are "
           "all equal.", DIVERSITY_SQL, draw_diversity),
    Figure("errors", "Failures by kind", "Shares of all completions.", ERRORS_SQL, draw_errors,
           "No completion failed."),
)
