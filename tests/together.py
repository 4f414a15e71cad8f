"""Many parameter sets in one test, where each takes less time than pytest spends on a test."""

from __future__ import annotations

import inspect
import itertools
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import pytest

Test = TypeVar("Test", bound=Callable[..., None])
Values = Mapping[str, Any]

LONGEST = 100
"""Characters of a value in the name of a set."""


def together(by: str | Callable[..., str] = "") -> Callable[[Test], Any]:
    """Stands above the ``parametrize`` of a test and makes a test of each group of its sets.

    ``by`` is the parameter that the sets of a group have alike, or a function of the parameters;
    without it there is one group. All sets run; those that fail are named with what they said, and
    each that skips beside others that do not is a subtest that pytest counts as skipped.
    """

    def decorate(test: Test) -> Any:
        marks = list(getattr(test, "pytestmark", ()))
        groups: dict[str, dict[str, Values]] = {}
        for name, values in _sets([mark for mark in marks if mark.name == "parametrize"]):
            group = by(**values) if callable(by) else _text(values[by]) if by else ""
            mine = groups.setdefault(group, {})
            mine[name if name not in mine else f"{name} ({len(mine)})"] = values
        parameters = {name for sets in groups.values() for one in sets.values() for name in one}
        signature = inspect.signature(test)
        fixtures = [p for name, p in signature.parameters.items() if name not in parameters]

        def run(subtests: pytest.Subtests, group: str = "", **given: Any) -> None:
            _run_all(test, groups[group], given, subtests)

        run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
        run.pytestmark = [mark for mark in marks if mark.name != "parametrize"]  # type: ignore[attr-defined]
        own = ("subtests", "group") if by else ("subtests",)
        named = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in own]
        fixtures = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in fixtures]
        run.__signature__ = signature.replace(parameters=[*named, *fixtures])  # type: ignore[attr-defined]
        return pytest.mark.parametrize("group", list(groups))(run) if by else run

    return decorate


def _run_all(
    test: Callable[..., None],
    sets: Mapping[str, Values],
    given: Values,
    subtests: pytest.Subtests,
) -> None:
    assert sets, "no parameter set"
    failed: list[str] = []
    skipped: dict[str, str] = {}
    first: BaseException | None = None
    for name, values in sets.items():
        try:
            test(**values, **given)
        except pytest.skip.Exception as reason:
            skipped[name] = str(reason)
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001  what tests raise
            first = first or error
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{place.filename}:{place.lineno}"
            failed.append(f"{name}: {type(error).__name__}: {error}\n  at {where}")
    if len(skipped) == len(sets):
        pytest.skip(next(iter(skipped.values())))
    for name, reason in skipped.items():
        with subtests.test(name):
            pytest.skip(reason)
    if failed:
        text = "\n".join(failed)
        raise AssertionError(f"{len(failed)} of {len(sets)} fail:\n{text}") from first


def _sets(marks: list[pytest.Mark]) -> Iterator[tuple[str, Values]]:
    """The name and the values of each set, as ``parametrize`` combines them."""
    columns = [_named(*mark.args, **mark.kwargs) for mark in marks]
    for row in itertools.product(*columns):
        values = {name: value for _, part in row for name, value in part.items()}
        yield "-".join(name for name, _ in row), values


def _named(
    names: str | tuple[str, ...] | list[str], rows: Any, ids: Any = None
) -> list[tuple[str, Values]]:
    known = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    found = []
    for place, row in enumerate(rows):
        values = getattr(row, "values", None) if hasattr(row, "marks") else None
        if values is None:
            values = (row,) if len(known) == 1 else tuple(row)
        assert not getattr(row, "marks", ()), "a set with marks is a test of its own"
        name = getattr(row, "id", None) if hasattr(row, "marks") else None
        if not isinstance(name, str):
            called = ids if callable(ids) else lambda value: None
            texts = (_text(value, called(value)) for value in values)
            name = ids[place] if isinstance(ids, list | tuple) else "-".join(texts)
        found.append((name, dict(zip(known, values, strict=True))))
    return found


def _text(value: Any, name: Any = None) -> str:
    """What a value is called: by whoever knows, by its own name, or as it is written."""
    text = name or getattr(value, "name", None) or getattr(value, "__name__", None)
    return text if isinstance(text, str) else str(value)[:LONGEST]
