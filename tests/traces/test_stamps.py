from math import isnan

import pytest

from stretto.traces.sheet import Sheet, stamp_s
from stretto.traces.table import Table


@pytest.mark.parametrize(
    ("text", "after_s"),
    [
        pytest.param("2017-10-09 07:01:55", 0.0, id="a space between date and time"),
        pytest.param("2017-10-09T07:01:55", 0.0, id="a T between date and time"),
        pytest.param("2017-10-09 7:01:55", 0.0, id="an hour of one digit"),
        pytest.param("2017-10-09 07:01:55.5", 0.5, id="half a second"),
        pytest.param("2017-10-09 09:01:55+02:00", 0.0, id="another zone"),
        pytest.param("2017-10-10", 17 * 3600 - 115, id="a date"),
    ],
)
def test_a_stamp_is_seconds_in_utc_unless_it_names_a_zone(text: str, after_s: float) -> None:
    assert stamp_s(text) - stamp_s("2017-10-09 07:01:55") == after_s


@pytest.mark.parametrize("text", ["", "None", "NaT"])
def test_a_stamp_may_be_missing_where_the_format_says_so(text: str) -> None:
    sheet = Sheet(Table("file", {"at": (text,)}, (2,)))
    assert isnan(sheet.stamps_s("at", may_lack=True)[0])
    assert sheet.kept(skip_bad=False).tolist() == [0]
    sheet.stamps_s("at")
    assert sheet.kept(skip_bad=True).tolist() == []
