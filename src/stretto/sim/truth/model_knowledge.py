"""What the jobs of one model have shown, for those that run beside them or come later."""

from dataclasses import dataclass, field, replace
from math import isfinite

from stretto.estimate.shared_points import tells_more
from stretto.model import NOTHING_OBSERVED, Evidence, Observations, Point


@dataclass(slots=True)
class ModelKnowledge:
    """Step times by GPU type, and the noise of gradients by epoch. The world writes it as jobs train.

    The live service does the same with the reports of jobs that name a model. So it is bounded here, too: a
    placement is described by a few local batches.
    """

    observed: list[Observations]  # by GPU type
    noise: dict[int, tuple[float, float]] = field(default_factory=dict)  # by epoch, as last seen

    @classmethod
    def of_types(cls, types: int) -> "ModelKnowledge":
        """Nothing is known yet."""
        return cls([NOTHING_OBSERVED] * types)

    def with_point(self, kind: int, point: Point) -> Observations:
        """What is known of a GPU type once a job has shown this, too."""
        known = self.observed[kind]
        batches = [other.local_batch for other in known.points if other[:2] == point[:2]]
        if tells_more(point.local_batch, batches):
            self.observed[kind] = known.with_point(point)
        return self.observed[kind]

    def tell_noise(self, epoch: int, grad_sqr: float, grad_var: float) -> None:
        """A job of the model has reported this in an epoch."""
        self.noise[epoch] = grad_sqr, grad_var

    def shown_to(self, evidence: Evidence, epoch: int) -> Evidence:
        """One job's evidence with what its model has shown; the same object where that adds nothing.

        A job that has not reported its noise is believed to have that of others, in the nearest epoch.
        """
        grad_sqr, grad_var = evidence.grad_sqr, evidence.grad_var
        if not isfinite(grad_sqr) and self.noise:
            grad_sqr, grad_var = self.noise[min(self.noise, key=lambda known: abs(known - epoch))]
        observed = tuple(self.observed)
        is_new = any(now is not before for now, before in zip(observed, evidence.observed, strict=True))
        if not is_new and not (isfinite(grad_sqr) and not isfinite(evidence.grad_sqr)):
            return evidence
        return replace(evidence, observed=observed, grad_sqr=grad_sqr, grad_var=grad_var)
