"""A cluster with services over it, as both shipped suites need it.

Each file of `worlds` has a function `begin(folder: Path) -> World`, which starts the cluster below an empty
folder, once for the whole test session, and raises `CannotRun` with the reason where this machine cannot.
Workers of others are none of its own.
"""

from stretto.testing.backends import CannotRun
from stretto.testing.services import ServiceWorld as World

__all__ = ["NOT_REACHED", "CannotRun", "World"]

NOT_REACHED = dict.fromkeys(
    (
        "test_a_command_beside_a_worker_has_its_environment_and_its_status_comes_back",
        "test_ten_megabytes_go_both_ways_whole",
        "test_a_program_whose_output_nobody_takes_waits",
        "test_a_terminal_beside_a_worker_follows_its_window_and_takes_interrupts",
        "test_connections_to_a_port_of_a_worker_are_carried",
        "test_what_runs_beside_a_worker_ends_with_its_line_and_with_its_worker",
        "test_a_command_beside_a_worker_ends_as_it_does_there_and_the_audit_has_it",
        "test_a_web_server_beside_a_worker_answers_at_a_port_of_this_machine",
    ),
    "its backend reaches no workers yet: exec and forward refuse",
)
