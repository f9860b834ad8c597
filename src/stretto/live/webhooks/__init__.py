"""How does whoever a job file names under `notify` hear of the job, and where may the service be sent?"""

from stretto.live.webhooks.delivery import Webhooks
from stretto.live.webhooks.targets import Target, Targets

__all__ = ["Target", "Targets", "Webhooks"]
