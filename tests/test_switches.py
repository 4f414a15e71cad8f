"""Environment switches: on, off, or an error that names the variable."""

import pytest

from ptir.cli.main import main
from ptir.errors import UsageError
from ptir.switches import SWITCHES, switched_on


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize(("text", "on"), [("1", True), ("0", False), ("", False)])
def test_a_switch_is_on_or_off(monkeypatch, name, text, on):
    monkeypatch.setenv(name, text)
    assert switched_on(name) is on
    monkeypatch.delenv(name)
    assert switched_on(name) is False


@pytest.mark.parametrize("name", SWITCHES)
def test_any_other_value_ends_with_a_usage_error(monkeypatch, capsys, name):
    monkeypatch.setenv(name, "yes")
    with pytest.raises(UsageError, match=f"{name}=yes: set it to 1"):
        switched_on(name)
    assert main(["ops"]) == 2
    assert f"{name}=yes" in capsys.readouterr().err


def test_an_unknown_switch_is_refused():
    with pytest.raises(UsageError, match="PTIR_VERIFY"):
        switched_on("PTIR_VERIFYY")
