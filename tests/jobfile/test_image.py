"""The image of a job: what is one, and that it is said once."""

import pytest

from stretto.jobfile import JobSpec
from stretto.jobfile.submission import read_submission
from stretto.model import InputError

IMAGE = "registry.example/team/train:1.2"


def test_a_job_file_names_an_image_in_one_line() -> None:
    spec, warnings = read_submission(f"run: python train.py\nimage: {IMAGE}\n")
    assert (spec.image, spec.named_image, warnings) == (IMAGE, IMAGE, ())
    assert JobSpec.from_json(spec.to_json()) == spec


def test_a_log_that_is_older_than_the_key_has_no_image() -> None:
    written = JobSpec("true").to_json()
    del written["image"]
    assert JobSpec.from_json(written).image == ""


def test_one_of_two_words_for_it_suffices_and_both_may_say_the_same() -> None:
    assert JobSpec("true", kubernetes={"image": IMAGE}).named_image == IMAGE
    assert JobSpec("true", image=IMAGE, kubernetes={"image": IMAGE}).named_image == IMAGE


def test_two_images_are_refused_in_one_line_with_both() -> None:
    text = f"run: true\nimage: {IMAGE}\nkubernetes: {{image: other:2}}\n"
    with pytest.raises(InputError) as refused:
        read_submission(text, where="job.yaml")
    said = f"image and kubernetes.image say different things: '{IMAGE}' and 'other:2'; one of them suffices"
    assert str(refused.value) == f"job.yaml: {said}"


@pytest.mark.parametrize("image", ["--nv", "a b", "a:1\n", "a\t", "x" * 5000])
def test_what_is_no_image_is_refused(image: str) -> None:
    with pytest.raises(InputError, match=r"^image must be"):
        JobSpec("true", image=image)
