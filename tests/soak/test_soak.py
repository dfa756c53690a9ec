"""Every row of the soak with small counts; timings belong to `make soak` on an idle machine."""

import pytest

from scripts.soak.figures import SHORT, Figure, count, percentile, table
from scripts.soak.rows import ROWS


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("cold_start")
@pytest.mark.parametrize("row", ROWS)
def test_the_service_withstands(row):
    figures = list(ROWS[row](SHORT))
    assert figures
    missed = [figure for figure in figures if not (figure.is_met or figure.is_timing)]
    assert missed == [], table(missed)


def test_a_table_says_which_bound_is_exceeded():
    lines = table([Figure("a", "< 1", "0", is_met=True), Figure("b", "< 1", "2", is_met=False)]).splitlines()
    assert lines[2:] == ["| a | < 1 | 0 | pass |", "| b | < 1 | 2 | FAIL |"]


def test_figures_are_counts_and_percentiles():
    assert count(["b", "a", "b"]) == "1 a, 2 b"
    assert count([]) == "none"
    assert percentile(range(200), 99) == 198
    assert percentile([], 99) == float("inf")
