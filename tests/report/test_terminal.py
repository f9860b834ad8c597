"""The table in the terminal, as a pipe sees it."""

import io
import sys

import pytest
from rich.console import Console
from rich.table import Table

from stretto.cli.printing import show_report
from stretto.report import comparison_table, run_summary

from .made_runs import a_comparison, a_run


class Terminal(io.StringIO):
    """What a person looks at."""

    def isatty(self) -> bool:
        return True


def piped(table: Table, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_on_a_pipe_the_table_is_plain_and_the_best_keeps_a_star() -> None:
    text = piped(comparison_table(a_comparison()))
    assert "\x1b" not in text
    best = next(line for line in text.splitlines() if "stretto" in line)
    assert "*" in best
    assert "1.00" in best


def test_eighty_characters_hold_every_figure_whole() -> None:
    policies = ("tiresias-discretised-least-attained-service", "sia", "fifo")
    text = piped(comparison_table(a_comparison(policies, jobs=60)))
    cut = [line for line in text.splitlines() if "…" in line]
    assert all("tiresias" in line and line.count("…") == 1 for line in cut)
    assert all(len(line) <= 80 for line in text.splitlines())


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100])
def test_a_narrow_terminal_leaves_columns_out_and_never_a_name_or_a_digit(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    policies = ("stretto", "tiresias-gittins", "lyra", "lyra-tuned")
    monkeypatch.setenv("COLUMNS", "200")
    whole = piped(comparison_table(a_comparison(policies, jobs=60)), 200)
    monkeypatch.setenv("COLUMNS", str(width))
    text = piped(comparison_table(a_comparison(policies, jobs=60)), max(width, 40))
    assert all(policy in text for policy in policies)
    assert "…" not in text
    assert ("too narrow for" in " ".join(text.split())) == (width < 100)
    figures = set(whole.replace("*", " ").split())
    assert {word for word in text.replace("*", " ").split() if word[0].isdigit()} <= figures


def test_a_name_that_would_drive_a_terminal_is_spelt_out(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    show_report(run_summary(a_run("sia\x1b]0;owned\x07", jobs=5)))
    assert "\x1b]0" not in terminal.getvalue()
    assert "\\x1b]0;owned" in terminal.getvalue()


def test_policies_come_best_first() -> None:
    text = piped(comparison_table(a_comparison(("fifo", "stretto", "sia"))))
    assert text.index("stretto") < text.index("sia ") < text.index("fifo")


@pytest.mark.parametrize(
    ("traces", "words"), [(("x",), "bootstrap over the jobs of one run"), (("x", "y"), "over traces")]
)
def test_the_caption_says_what_the_interval_varies(traces: tuple[str, ...], words: str) -> None:
    assert words in piped(comparison_table(a_comparison(("a", "b"), traces, jobs=20)))


def test_made_data_is_said() -> None:
    assert "made data, not recorded: philly-1" in piped(comparison_table(a_comparison(jobs=5)))


def test_names_that_look_like_markup_are_printed_as_they_are() -> None:
    assert "[red]x[/red]" in piped(comparison_table(a_comparison(("[red]x[/red]", "sia"), jobs=10)))


def test_one_runs_summary_has_each_figure_in_the_unit_that_fits_and_leaves_out_what_does_not_apply() -> None:
    text = piped(run_summary(a_run("sia", jobs=40)))
    assert "Mean JCT" in text
    assert "Interactive queuing" not in text
    assert "made data" in text
