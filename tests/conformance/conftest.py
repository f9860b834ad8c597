"""The clusters, one after another, and the table of what every test came to over each."""

import asyncio
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.service import StruckService
from tests.conformance.table import Outcomes, table
from tests.conformance.world import CannotRun, World

from stretto.testing.backends.plugin import connection, pytest_pyfunc_call, stage, world
from stretto.testing.services.plugin import service

WORLDS = ["local", "emulated", "ray", "slurm", "kubernetes", "kubelets"]
# What takes a quarter of a minute or more there, as far as the normal run has it over another cluster, or has
# the same of workers instead of services. `make test-long` has all of it.
LONG_THERE = {
    "test_of_a_node_that_dies_nothing_runs_on_and_the_others_go_on": ("ray", "slurm"),
    "test_while_nobody_answers_orders_are_refused_and_nothing_is_concluded": ("ray", "slurm"),
    "test_a_job_goes_on_elsewhere_when_its_node_dies_and_the_node_is_used_again": ("ray", "slurm"),
    "test_a_cluster_that_is_away_for_a_while_loses_nothing": ("ray", "slurm"),
    "test_jobs_of_a_slow_cluster_that_loses_answers_run_once_each": ("ray", "slurm"),
    "test_a_service_that_is_killed_just_when_jobs_start_starts_each_once": ("ray", "slurm"),
    "test_a_drained_node_is_left_and_a_cordoned_one_takes_nobody_new": ("ray",),
    "test_who_waits_for_gpus_says_so_and_starts_when_they_are_free": ("ray", "slurm"),
    "test_idle_connections_without_a_token_end_no_job": ("emulated", "ray", "slurm", "kubernetes"),
    "test_a_user_who_does_everything_at_once_keeps_nobody_from_running": (
        *("emulated", "ray", "slurm", "kubernetes"),
    ),
    "test_a_training_that_came_by_upload_trains_on_each_sample_once": ("local", "ray", "kubernetes"),
}
# What takes a minute, and what the normal run has of it over one cluster is enough.
LONG_BUT_OVER_KUBELETS = ("test_a_training_grows_shrinks_and_moves_in_place_and_trains_on_each_sample_once",)
# A container and an actor begin and end in seconds, not in their tenths: over such clusters the normal run
# has these, `make test-long` all.
SHORT_THERE = {
    "kubelets": (
        *LONG_BUT_OVER_KUBELETS,
        "test_a_worker_goes_from_its_start_to_being_forgotten",
        "test_exit_statuses_and_signals_come_back_as_they_were",
        "test_a_stop_with_grace_lets_a_worker_save",
        "test_workers_on_one_node_have_gpus_of_their_own",
        "test_a_node_that_is_with_its_lender_takes_no_worker_until_it_is_back",
        "test_of_a_node_that_dies_nothing_runs_on_and_the_others_go_on",
        "test_a_job_begins_in_a_copy_of_what_it_brought_along_which_goes_with_it",
        "test_a_terminal_beside_a_worker_follows_its_window_and_takes_interrupts",
    ),
    "ray": (
        "test_a_worker_goes_from_its_start_to_being_forgotten",
        "test_exit_statuses_and_signals_come_back_as_they_were",
        "test_the_next_connection_finds_the_workers_and_goes_on_with_them",
        "test_a_start_that_is_repeated_is_one_start",
        "test_a_stop_with_grace_lets_a_worker_save",
        "test_workers_on_one_node_have_gpus_of_their_own",
        "test_late_and_lost_replies_change_nothing",
        "test_an_elastic_job_grows_and_shrinks_and_keeps_its_other_workers",
        "test_a_service_that_is_killed_finds_its_jobs_again_and_starts_none_twice",
        "test_a_job_begins_in_a_copy_of_what_it_brought_along_which_goes_with_it",
        "test_a_command_beside_a_worker_has_its_environment_and_its_status_comes_back",
        "test_what_was_written_down_gives_no_gpu_twice_and_is_decided_the_same_again",
    ),
}
# Fixtures and the hook that runs coroutines; a plugin for others, named here as this is no top conftest.
__all__ = ["connection", "pytest_pyfunc_call", "service", "stage", "world"]
OUTCOMES = pytest.StashKey[Outcomes]()


@pytest.fixture(scope="session", params=WORLDS)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One cluster for all tests over it; skips, with the reason, where this machine cannot run it."""
    try:
        module = importlib.import_module(f"tests.conformance.worlds.{request.param}")
        found: World = module.begin(tmp_path_factory.mktemp(request.param))
    except CannotRun as why:
        pytest.skip(f"cannot run here: {why}")
    try:
        yield found
    finally:
        asyncio.run(found.close())


@pytest.fixture(scope="session")
def open_cluster(cluster: World) -> World:
    """The cluster: its own fixture closes it, also where no test of a suite runs."""
    return cluster


@pytest.fixture(scope="session")
def only_service(cluster: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StruckService]:
    """One service over a cluster, for all tests that need no other."""
    struck = StruckService(cluster, tmp_path_factory.mktemp(f"service-{cluster.name}"))
    struck.begin()
    try:
        yield struck
    finally:
        struck.end()


@pytest.hookimpl(tryfirst=True)  # before those that are not asked for are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Some clusters have a marker of their own, and some tests are long over some."""
    for item in items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        if params.get("cluster") in ("kubernetes", "kubelets"):
            item.add_marker(pytest.mark.kubernetes)
        short = SHORT_THERE.get(params.get("cluster", ""))
        if short is not None and item_name(item) not in short:
            item.add_marker(pytest.mark.long)
        if params.get("cluster") != "kubelets" and item_name(item) in LONG_BUT_OVER_KUBELETS:
            item.add_marker(pytest.mark.long)
        if params.get("cluster") in LONG_THERE.get(item_name(item), ()):
            item.add_marker(pytest.mark.long)


def item_name(item: pytest.Item) -> str:
    """The test, without its parameters."""
    return str(getattr(item, "originalname", ""))


# ── the table ─────────────────────────────────────────────────────────────────────────────────────


def pytest_configure(config: pytest.Config) -> None:
    """Nothing has been found out yet."""
    config.stash[OUTCOMES] = Outcomes()
    config.pluginmanager.register(Recorder(config.stash[OUTCOMES]), "conformance-recorder")


class Recorder:
    """Notes what tests over clusters come to."""

    def __init__(self, outcomes: Outcomes) -> None:
        self.outcomes = outcomes

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[Any]) -> Iterator[None]:
        """A report says of which test it is, and over which cluster."""
        answer = yield
        report = answer.get_result()  # type: ignore[attr-defined]
        params = getattr(getattr(item, "callspec", None), "params", {})
        if "cluster" in params:
            name = getattr(item, "originalname", item.name)
            report.over_cluster = [item.path.stem, name, params["cluster"]]

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Where reports come together, of whichever process they are."""
        if hasattr(report, "over_cluster") and not (report.passed and report.when != "call"):
            why = report.longrepr[2].removeprefix("Skipped: ") if report.skipped else ""
            file, test, world = report.over_cluster
            self.outcomes.add(file, test, world, report.outcome, why)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the table, and write it where that was asked for."""
    outcomes = config.stash[OUTCOMES]
    tried = {world for row in outcomes.found.values() for world in row}
    lines = list(table(outcomes, [world for world in WORLDS if world in tried]))
    if not lines:
        return
    terminalreporter.section("conformance")
    for line in lines:
        terminalreporter.line(line)
    if path := config.getoption("--conformance-table", None):
        Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")
