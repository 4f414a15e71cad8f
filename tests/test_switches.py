"""Environment switches: on, off, or an error that names the variable."""

import pytest

from ptir.cli.main import main
from ptir.errors import UsageError
from ptir.switches import LIMITS, SWITCHES, limited_bytes, switched_on


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


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize(("text", "nbytes"), [("", None), ("0", 0), ("2GiB", 2 << 30), ("7", 7)])
def test_a_limit_is_bytes_or_unset(monkeypatch, name, text, nbytes):
    monkeypatch.setenv(name, text)
    assert limited_bytes(name) == nbytes
    monkeypatch.delenv(name)
    assert limited_bytes(name) is None


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize(
    ("text", "said"), [("2g", "'g' is no unit .did you mean 2GB"), ("-1", "is no number of bytes")]
)
def test_another_limit_ends_with_a_usage_error(monkeypatch, capsys, name, text, said):
    monkeypatch.setenv(name, text)
    with pytest.raises(UsageError, match=f"{name}={text}: {said}.*set it to the most bytes"):
        limited_bytes(name)
    assert main(["ops"]) == 2
    assert f"{name}={text}" in capsys.readouterr().err


def test_an_unknown_limit_is_refused():
    with pytest.raises(UsageError, match="PTIR_WEIGHTS_LIMIT"):
        limited_bytes("PTIR_WEIGHT_LIMIT")
