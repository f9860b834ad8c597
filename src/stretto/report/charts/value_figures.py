"""Values of a table as their paper draws them: curves over a number, or bars, the paper's beside ours."""

from collections.abc import Sequence

from stretto.report.charts.bars import bars
from stretto.report.charts.curves import curves
from stretto.report.charts.figure import Figure
from stretto.report.value_charts import Chart


def value_figures(charts: Sequence[Chart]) -> tuple[Figure, ...]:
    """Each chart as a figure, in their order."""
    return tuple(
        curves(f"values-{place}", chart) if chart.axis else bars(f"values-{place}", chart)
        for place, chart in enumerate(charts)
    )
