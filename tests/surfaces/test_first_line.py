"""The first line of surfaces that are spoken in lines."""

import json
from codecs import BOM_UTF8

import pytest

from tests.surfaces.good_requests import request
from tests.surfaces.lines import SPOKEN, STORED
from tests.transport.cli.process import Cli


@pytest.mark.parametrize("name", SPOKEN)
def test_a_byte_order_mark_is_skipped(cli: Cli, name: str) -> None:
    """Programs whose pipes begin with the mark, as PowerShell's do, are understood from the first request on."""
    spoken = SPOKEN[name]
    method, params = (*spoken.hello, spoken.ping)[0]
    line = BOM_UTF8 + json.dumps(request(method, params, 1)).encode() + b"\n"
    ended = cli.run(*spoken.args, *STORED, stdin=line)
    assert [each.get("id") for each in map(json.loads, ended.out.splitlines()) if "error" not in each] == [1]
