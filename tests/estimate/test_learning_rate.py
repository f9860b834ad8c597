import pytest

from stretto.errors import InputError
from stretto.estimate.learning_rate import RULES, Scaling, rule_named


@pytest.mark.parametrize(
    ("rule", "factor"),
    [("linear", 4.0), ("square-root", 2.0), ("adascale", 2.25), ("adamscale", 1.5), ("legw", 2.0)],
)
def test_each_rule_scales_by_its_own_factor(rule: str, factor: float) -> None:
    assert rule_named(rule)(Scaling(scale=4.0, gain=2.25)) == pytest.approx(factor)


@pytest.mark.parametrize("rule", RULES)
def test_no_rule_changes_the_rate_of_the_initial_batch(rule: str) -> None:
    assert rule_named(rule)(Scaling(scale=1.0, gain=1.0)) == 1


@pytest.mark.parametrize(
    ("epoch", "factor"),
    [
        pytest.param(0.0, 0.0, id="starts from nothing"),
        pytest.param(4.0, 1.0, id="half way up"),
        pytest.param(8.0, 2.0, id="up after the warm-up, four times as long as at the initial batch"),
        pytest.param(20.0, 2.0, id="stays"),
    ],
)
def test_legw_warms_up_longer_for_larger_batches(epoch: float, factor: float) -> None:
    assert RULES["legw"](Scaling(scale=4.0, epoch=epoch, warm_up_epochs=2.0)) == pytest.approx(factor)


def test_an_unknown_rule_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"must be one of linear, .*, got 'cubic'"):
        rule_named("cubic")
