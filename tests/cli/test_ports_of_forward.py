"""How `stretto forward` reads its ports: in the order that kubectl and ssh have."""

import pytest

from stretto.cli.exec_and_forward import ports_in
from stretto.errors import InputError


@pytest.mark.parametrize(
    ("said", "here", "there"),
    [
        pytest.param("8888", 8888, 8888, id="one number is both"),
        pytest.param("9999:6006", 9999, 6006, id="that of this machine comes first"),
        pytest.param("0:6006", 0, 6006, id="0 takes a free one"),
        pytest.param(":6006", 0, 6006, id="nothing takes a free one"),
    ],
)
def test_the_port_of_this_machine_comes_before_that_of_the_worker(said: str, here: int, there: int) -> None:
    assert ports_in(said) == (here, there)


@pytest.mark.parametrize("said", ["web", "", ":", "8888:", "8888:0", "0", "70000", "70000:80", "1:2:3", "-1"])
def test_what_is_no_port_is_one_line(said: str) -> None:
    with pytest.raises(InputError, match=rf"^port {said}: expected PORT or LOCAL:PORT, of 1 to 65535$"):
        ports_in(said)
