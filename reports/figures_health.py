"""Figures of the text: lengths, entropy, repetition, errors."""

from reports.drawing import Chart, Series, line_chart, stacked_bars
from reports.figure import MOST_CELLS, Figure, Rows, columns_of, lines, pivot, stats_sql, thin_out

ERRORS_SQL = """\
WITH failed AS (SELECT iteration, error_class, sum(share) AS share
                FROM errors WHERE purpose = 'train' GROUP BY ALL)
SELECT iteration, error_class, share
FROM (SELECT iteration FROM iteration_stats WHERE purpose = 'train') LEFT JOIN failed USING (iteration)
WHERE EXISTS (FROM failed) ORDER BY iteration"""


def draw_lengths(rows: Rows) -> Chart:
    """Median length with the middle half and the middle nine tenths as bands."""
    xs, values = columns_of(rows, ("p05", "p25", "p50", "p75", "p95"))
    bands = {"5% to 95%": ("p05", "p95"), "25% to 75%, median": ("p25", "p75")}
    return line_chart(xs, [Series(name, values["p50"], values[low], values[high])
                           for name, (low, high) in bands.items()])


def draw_errors(rows: Rows) -> Chart:
    """Failures by kind, as shares of all completions; all but the five most frequent are combined."""
    xs, table = pivot(rows, "error_class", "share")
    table.pop(None, None)       # iterations in which nothing failed
    heaviest = sorted(table, key=lambda kind: -sum(value or 0 for value in table[kind]))
    layers = {str(kind): [value or 0 for value in table[kind]] for kind in heaviest[:5]}
    if heaviest[5:]:
        layers["others"] = [sum(table[kind][i] or 0 for kind in heaviest[5:]) for i in range(len(xs))]
    places, shares = thin_out(xs, layers, MOST_CELLS)
    return stacked_bars(places, [Series(kind, values) for kind, values in shares.items()], share=True)


HEALTH = (
    Figure("shares", "Unusable completions", "Shares. Truncation rises long before the mean reward falls.",
           stats_sql("truncated_share, 1 - valid_code_share AS no_code,\n"
                     "       1 - valid_outputs_share AS no_outputs"),
           lines(share=True, truncated_share="truncated", no_code="no closed code block",
                 no_outputs="no legal outputs")),
    Figure("lengths", "Completion length, tokens", "Median, middle 50% and middle 90%.",
           stats_sql("tokens_quantiles[1] AS p05, tokens_quantiles[2] AS p25, tokens_quantiles[3] AS p50,\n"
                     "       tokens_quantiles[4] AS p75, tokens_quantiles[5] AS p95"), draw_lengths),
    Figure("length-split", "Length of right and wrong completions",
           "If the reward grows with length, right answers grow as well.",
           stats_sql("tokens_mean_correct, tokens_mean_wrong, tokens_mean_finished"),
           lines(tokens_mean_correct="right", tokens_mean_wrong="wrong",
                 tokens_mean_finished="all that finished")),
    Figure("entropy", "Entropy and sampled NLL, nats per token",
           "Rising: the policy becomes random. Near 0: it gives the same answer to everything. The sampled "
           "NLL estimates the entropy at temperature 1 only.", stats_sql("nll_sampled, entropy"),
           lines(nll_sampled="sampled NLL (engine)", entropy="entropy (trainer)")),
    Figure("repetition", "Repetition", "Shares of repeated 4-grams, of completions that end in a loop of 32 "
           "tokens or more, and of distinct tokens.",
           stats_sql("1 - ngram4_unique_ratio AS ngram4, loop_share, unique_token_ratio"),
           lines(share=True, ngram4="repeated 4-grams", loop_share="ends in a loop",
                 unique_token_ratio="distinct tokens")),
    Figure("diversity", "Diversity",
           "Distinct outputs per completion of a group. Groups with equal rewards give no gradient.",
           stats_sql("distinct_outputs_share, zero_variance_share"),
           lines(share=True, distinct_outputs_share="distinct outputs per completion",
                 zero_variance_share="groups of equal rewards")),
    Figure("errors", "Failures by kind", "Shares of all completions.", ERRORS_SQL, draw_errors,
           "No completion of a training iteration failed."),
)
