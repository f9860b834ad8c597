"""Smoke tests: what the build runs over real clusters, servers and a browser, each kind a few times.

All such tests take an hour or more on two processors: `make test-all` runs them. The build answers sooner.
It runs what is named here. Of each kind of server that is what shows that the way to it works, and of the
conformance suite every promise, over the clusters that are quick.
"""

import re

# Folder or file → what is run of it: names as pytest has them, with parameters, or a pattern of such.
CONFORMANCE = "tests/conformance/"
OVER = r".*\[(local|emulated|slurm)\b"
FEW = (  # where a worker begins and ends in seconds, and where few machines have the servers
    "test_a_worker_goes_from_its_start_to_being_forgotten",
    "test_workers_on_one_node_have_gpus_of_their_own",
    "test_an_elastic_job_grows_and_shrinks_and_keeps_its_other_workers",
    "test_a_service_that_is_killed_finds_its_jobs_again_and_starts_none_twice",
)
CHOSEN = {
    "tests/backends/slurm/test_service.py": ("test_a_script_of_sbatch_is_submitted_unchanged_.*",),
    "tests/backends/slurm/test_worker_jobs.py": ("test_the_next_service_finds_what_ran_.*",),
    "tests/backends/test_local.py": ("test_the_next_service_adopts_the_agent_and_its_workers",),
    "tests/cli/live/test_exec_and_forward.py": ("test_a_command_has_the_environment_of_its_worker_.*",),
    "tests/kubernetes_operator/test_controller.py": ("test_a_resource_becomes_one_job_.*",),
    "tests/kubernetes_operator/test_gate.py": ("test_a_job_of_four_pods_is_placed_as_a_whole",),
    "tests/service/crash/test_crashes.py": ("test_one_blow_of_each_kind_loses_nothing",),
    "tests/service/end_to_end/test_priorities.py": ("test_an_urgent_job_runs_at_once_.*",),
    "tests/service/end_to_end/test_restart.py": ("test_a_service_says_at_its_end_.*",),
    "tests/service/end_to_end/test_standby.py": ("test_a_standby_on_postgresql_takes_the_place_.*",),
    "tests/service/eventlog/": (r".*\[postgresql\b",),
    "tests/service/eventlog/test_lead.py": (".*",),
    "tests/service/http/test_browser.py": (
        r"test_the_cluster_is_shown_with_who_holds_it\[360\]",
        r"test_what_happens_is_shown_without_a_reload_.*\[360\]",
    ),
    "tests/service/http/test_browser_access.py": ("test_axe_finds_nothing_serious.*",),
    "tests/service/tls/test_service_with_tls.py": ("test_a_name_that_the_certificate_does_not_have_.*",),
    CONFORMANCE: (OVER, *(rf"{name}\[(ray|kubernetes)\b" for name in FEW)),
}


def may_hold_smoke(file: str) -> bool:
    """Whether a file, named from the root of the checkout, has some of them."""
    return any(file.startswith(place) for place in CHOSEN)


def is_smoke(test: str) -> bool:
    """Whether a test, as pytest names it, is one of them."""
    file, _, name = test.partition("::")
    name = re.sub(r"^(\w+::)+", "", name)  # without its class
    return any(
        file.startswith(place) and any(re.match(pattern, name) for pattern in patterns)
        for place, patterns in CHOSEN.items()
    )
