"""What there is: policies, clusters, traces and the version."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from stretto import __version__

from .ran import TRACE, Stretto


@pytest.mark.parametrize("words", ["policies", "clusters list"])
def test_a_list_on_a_pipe_is_as_before(
    words: str, stretto: Stretto, matches_golden: Callable[[str, str], None]
) -> None:
    ran = stretto(*words.split())
    assert (ran.status, ran.err) == (0, "")
    matches_golden(f"{words.replace(' ', '-')}.txt", ran.out)


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("policies", "policies"),
        ("clusters list", "clusters"),
        ("traces list", "traces"),
        ("traces recipes", "recipes"),
    ],
    ids=["policies", "clusters", "traces", "recipes"],
)
def test_a_list_names_the_same_as_an_object(words: str, key: str, tiny: Path, stretto: Stretto) -> None:
    plain, as_json = stretto(*words.split()), stretto(*words.split(), "--json")
    assert [row[0] for row in plain.table[1:]] == [one["name"] for one in as_json.json[key]]
    assert len(plain.table) > 3


def test_the_settings_of_a_policy_are_listed_with_their_ranges(stretto: Stretto) -> None:
    rows = stretto("policies", "optimus").table
    assert rows[0] == ["setting", "default", "expects", "about"]
    assert rows[1][:3] == ["policy.round_s", "600", "a number > 0"]
    listed = stretto("policies", "optimus", "--json").json
    assert listed["policy"] == "optimus"
    assert [f"policy.{each['name']}" for each in listed["settings"]] == [row[0] for row in rows[1:]]


def test_an_unknown_policy_has_no_settings_to_list(stretto: Stretto) -> None:
    ran = stretto("policies", "nope")
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith("stretto: unknown policy 'nope', expected one of 3sigma, afs")


def test_the_version_is_said(stretto: Stretto) -> None:
    assert stretto("version").out == f"{__version__}\n"
    assert stretto("version", "--json").json == {"version": __version__}


def test_a_cluster_is_shown_with_its_types(tiny: Path, stretto: Stretto) -> None:
    ran = stretto("clusters", "show", "tiny.yaml", "--json")
    assert (ran.json["name"], ran.json["gpus"]) == ("tiny", 10)
    assert [(one["type"], one["gpus"], one["nodes"], one["speed"]) for one in ran.json["types"]] == [
        ("slow", 8, ["2 × 4"], 1.0),
        ("fast", 2, ["1 × 2"], 2.0),
    ]
    rows = stretto("clusters", "show", "tiny.yaml").table
    assert [row[:3] for row in rows[1:]] == [["slow", "8", "2 × 4"], ["fast", "2", "1 × 2"]]


def test_public_traces_are_listed_where_they_lie(tiny: Path, stretto: Stretto) -> None:
    (tiny / "data" / "tiresias").mkdir(parents=True)
    (tiny / "data" / "tiresias" / "60_job.csv").write_text("x")
    rows = stretto("traces", "list", "--data", "data", "--json").json["traces"]
    assert [(row["name"], row["synthetic"]) for row in rows if not row["synthetic"]] == [
        ("tiresias-60", False)
    ]


def test_a_trace_is_shown_in_figures(tiny: Path, stretto: Stretto) -> None:
    facts = stretto("traces", "show", "four.csv", "--json").json
    assert (facts["jobs"], facts["gpus_max"], facts["gpus_mean"], facts["duration_p50_s"]) == (
        4,
        4,
        2.75,
        150.0,
    )
    assert facts["synthetic"] is False
    assert dict(stretto("traces", "show", "four.csv").table)["jobs"] == "4"


def test_a_trace_without_durations_has_none(tiny: Path, stretto: Stretto) -> None:
    facts = stretto("traces", "show", "synthetic-sia:jobs=5", "--json").json
    assert facts["duration_p50_s"] is None
    assert facts["models"]


def test_what_is_skipped_is_said_where_a_trace_is_shown_or_converted(tiny: Path, stretto: Stretto) -> None:
    (tiny / "bad.csv").write_text(TRACE + "e,40,0,5\n")
    shown = stretto("traces", "show", "bad.csv", "--skip-bad", "--json")
    converted = stretto("traces", "convert", "bad.csv", "good.csv", "--skip-bad", "--json")
    assert (shown.json["skipped"], converted.json["skipped"]) == (1, 1)
    assert shown.err == converted.err == "skipped bad.csv line 6: gpus must be a whole number >= 1, got '0'\n"


def test_a_converted_trace_is_the_same_workload(tiny: Path, stretto: Stretto) -> None:
    ran = stretto("traces", "convert", "four.csv", "ours.csv.gz")
    assert (ran.status, ran.out, ran.err) == (0, "", "4 jobs written to ours.csv.gz\n")
    before, after = (stretto("traces", "show", name, "--json").json for name in ("four.csv", "ours.csv.gz"))
    assert {name: after[name] for name in before if name != "source"} == {
        name: before[name] for name in before if name != "source"
    }


def test_a_made_trace_says_so_in_its_file_and_is_made_alike_again(tiny: Path, stretto: Stretto) -> None:
    ran = stretto("traces", "synth", "synthetic-philly", "one.csv", "--jobs", 5, "--seed", 3, "--json")
    stretto("traces", "synth", "synthetic-philly:jobs=5,seed=3", "two.csv")
    assert (ran.json["jobs"], ran.json["synthetic"], ran.json["written"]) == (5, True, "one.csv")
    assert (tiny / "one.csv").read_bytes() == (tiny / "two.csv").read_bytes()
    assert "# synthetic: yes" in (tiny / "one.csv").read_text()


def test_what_was_written_can_be_simulated(tiny: Path, stretto: Stretto) -> None:
    stretto("traces", "synth", "demo", "made.csv", "--jobs", 6)
    here, there = (
        stretto("simulate", "-c", "sia-hetero-64", "-t", trace, "-p", "fifo", "--json").json
        for trace in ("made.csv", "demo:jobs=6,seed=0")
    )
    assert (here["avg_jct_s"], here["synthetic"]) == (there["avg_jct_s"], True)


def test_every_command_has_its_section_in_the_documentation(stretto: Stretto) -> None:
    page = (Path(__file__).parents[2] / "docs" / "commands.md").read_text(encoding="utf-8")
    listed = stretto("--help").out.partition("Commands:\n")[2].splitlines()
    commands = {line.split()[0] for line in listed if line.strip()}
    assert commands == {line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")}


def every_command(stretto: Stretto, *group: str) -> list[tuple[str, ...]]:
    """The words of all commands, those in groups included."""
    listed = stretto(*group, "--help").out.partition("Commands:\n")[2].splitlines()
    names = [line.split()[0] for line in listed if line.startswith("  ") and not line.startswith("   ")]
    deeper = [every_command(stretto, *group, name) for name in names]
    return [words for found in deeper for words in found] if names else [group]


@pytest.mark.slow
def test_every_option_in_the_documentation_exists(stretto: Stretto) -> None:
    page = (Path(__file__).parents[2] / "docs" / "commands.md").read_text(encoding="utf-8")
    helps = [stretto(*words, "--help").out for words in [(), *every_command(stretto)]]
    known = set(re.findall(r"--[a-z-]+", " ".join(helps)))
    assert set(re.findall(r"--[a-z]+(?:-[a-z]+)*", page)) - known == set()


def test_a_listed_recipe_can_follow_a_trace_with_its_own_words(tiny: Path, stretto: Stretto) -> None:
    for name, _, parameters in stretto("traces", "recipes").table[1:]:
        ran = stretto("traces", "convert", f"four.csv@{name}:{parameters}", "made.csv")
        drawn_anew = name == "bootstrap"  # whose days may come more than once, or not at all
        assert (ran.status, ran.err.count("jobs written" if drawn_anew else "4 jobs written")) == (0, 1)
    facts = stretto("traces", "show", "four.csv@lyra:elastic=1", "--json").json
    assert facts["name"] == "four@lyra:elastic=1"
    assert "4 elastic" in facts["source"]


def test_a_cluster_is_shown_with_who_lends_what(stretto: Stretto) -> None:
    shown = stretto("clusters", "show", "lyra", "--json").json
    assert [(one["type"], one["stand_ins"]) for one in shown["types"]] == [("v100", 1), ("t4", 3)]
    assert [(one["name"], one["gpus"], one["headroom"]) for one in shown["lenders"]] == [
        ("inference", 4160, 0.02)
    ]
    assert "520 nodes of 8 t4 belong to inference" in stretto("clusters", "show", "lyra").err
    assert stretto("clusters", "show", "sia-homo-64", "--json").json["lenders"] == []
