"""For authors of backends: what a whole service promises, as tests over a cluster of yours.

`stretto.testing.backends` asks a backend about workers; this suite asks a service over it about jobs. They
start, wait, resize, move, are held and cancelled; the service is killed and the next one adopts their
workers. A test module beside your backend names the suite, and a fixture gives the cluster:

    pytest_plugins = ["stretto.testing.services.plugin"]

    @pytest.fixture(scope="session")
    def cluster(tmp_path_factory):
        return ToyWorld(tmp_path_factory.mktemp("toy"))

    class TestToyService(ServiceConformance):
        pass

`ServiceWorld` is the `World` of the other suite, and says how a service over the cluster is started.
"""

from stretto.testing.backends.world import CannotRun
from stretto.testing.services.exec_and_forward import ExecAndForward
from stretto.testing.services.fixture import ServiceFixture
from stretto.testing.services.jobs import Jobs
from stretto.testing.services.resizing import Resizing
from stretto.testing.services.restarts import Restarts
from stretto.testing.services.uploads import Uploads
from stretto.testing.services.world import ServiceWorld

__all__ = [
    "CannotRun",
    "ExecAndForward",
    "Jobs",
    "Resizing",
    "Restarts",
    "ServiceConformance",
    "ServiceFixture",
    "ServiceWorld",
    "Uploads",
]


class ServiceConformance(Jobs, Resizing, Restarts, ExecAndForward, Uploads):
    """Every promise of a service over a backend."""
