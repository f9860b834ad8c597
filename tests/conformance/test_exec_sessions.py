"""Programs and connections beside workers, over every backend and every service."""

import pytest

from stretto.testing.backends.exec_sessions import ExecSessions
from stretto.testing.services.exec_and_forward import ExecAndForward

pytestmark = [pytest.mark.processes, pytest.mark.large]


class TestExecSessions(ExecSessions):
    """Over every cluster of `worlds`."""


class TestExecAndForward(ExecAndForward):
    """Over a service of each."""
