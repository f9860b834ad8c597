"""What is wrong with a job for Kubernetes, said when it is submitted."""

import pytest

from stretto.backends.kubernetes.options import KubernetesOptions
from stretto.backends.kubernetes.submission import check_job
from stretto.backends.protocol import NodeState
from stretto.jobfile import JobSpec, Resources
from stretto.model import InputError

NODES = [(NodeState("n1", "a100", 4), None), (NodeState("gone", "a100", 8, dead=True), None)]


@pytest.mark.parametrize(
    ("spec", "of_service"),
    [
        (JobSpec("true", image="team/train:1"), ""),
        (JobSpec("true", kubernetes={"image": "team/train:1"}), ""),
        (JobSpec("true"), "team/base:1"),
    ],
)
def test_one_image_suffices_whoever_names_it(spec: JobSpec, of_service: str) -> None:
    check_job(spec, KubernetesOptions(image=of_service), NODES)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (JobSpec("true"), "image: expected the image that the job runs in"),
        (JobSpec("true", image="/shared/train.sif"), "image: expected one of a registry"),
        (JobSpec("true", image="docker://team/train"), "image: expected one of a registry"),
        (JobSpec("true", image="i", resources=Resources(gpus_per_worker=8)), "expected at most 4"),
    ],
)
def test_a_job_that_no_pod_could_run_is_refused(spec: JobSpec, says: str) -> None:
    with pytest.raises(InputError, match=says):
        check_job(spec, KubernetesOptions(), NODES)
