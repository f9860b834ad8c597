"""What a service is called on a cluster that it shares with others."""

from pathlib import Path

from stretto.backends.options import SERVICE_NAME, Site


def test_a_name_is_drawn_once_and_no_two_services_have_the_same(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    first, second = Site(tmp_path / "a").service_name, Site(tmp_path / "b").service_name
    assert first != second
    assert Site(tmp_path / "a", shared_key=b"k").service_name == first, "what runs is found again"


def test_a_leader_and_its_standby_have_one_name_though_not_one_directory(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    leader, standby = (Site(tmp_path / name, shared_key=b"key of both").service_name for name in ("a", "b"))
    assert leader == standby
    assert Site(tmp_path / "c", shared_key=b"key of others").service_name != leader
    assert (tmp_path / "a" / SERVICE_NAME).read_text() == leader
    assert b"key of both".hex()[:8] != leader
