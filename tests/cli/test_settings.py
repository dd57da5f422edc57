"""`combemb settings`: the methods, and the settings of one."""

from dataclasses import field, make_dataclass

import pytest

from combemb import methods
from tests.commands import done, refused


def test_methods_and_every_setting_are_listed():
    assert "combemb" in done("settings").stdout
    shown = done("settings", "combemb").stdout
    for name in methods.get("combemb")().get_params():
        assert name in shown
    assert f"choose one of {', '.join(methods.names())}" in refused("settings", "nope")


def test_what_a_setting_may_be_stands_beside_its_description(monkeypatch: pytest.MonkeyPatch):
    fields = {"rate": {"about": "of Eq. [a]", "allowed": "above 0"}, "name": {"about": "any text"}}
    made = make_dataclass("Made", [(name, float, field(default=1.0, metadata=about)) for name, about in fields.items()])
    monkeypatch.setattr(methods, "get", lambda _: made)
    lines = [line.strip().split(maxsplit=2) for line in done("settings", "made").stdout.splitlines()]
    assert lines[0] == ["setting", "default", "description"]
    assert lines[1:] == [["rate", "1.0", "of Eq. [a] (above 0)"], ["name", "1.0", "any text"]]
