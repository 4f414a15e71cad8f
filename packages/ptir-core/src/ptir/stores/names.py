"""Which model a name means: whole names first, then parts of them; one answer or an error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from ptir.errors import CheckpointError, UsageError
from ptir.stores.files import SUFFIX, Found, Group, grouped, stem_of
from ptir.stores.ollama import LATEST

WILD: Final = frozenset("*?[")
"""What makes a pattern one that stands for several names."""
MOST: Final = 12
"""Names that an error lists."""


def named(spec: str, models: Sequence[Found]) -> Found | None:
    """The model that ``spec`` means among ``models``; None where none of them is called so.

    In this order, and in any case: a whole name, with its store's or without; a repository and a
    pattern of its files, or a repository of one file; the same without the owner; a file's name.
    Raises ``UsageError`` for a name of several, for a pattern that no file of its repository has,
    and for files that are no models.
    """
    wanted = spec.lower()
    for rule in RULES:
        found = distinct(one for one in models if rule(wanted, one))
        chosen = [one for one in found if not one.companion]
        if not chosen and found:
            raise UsageError(
                f"model {spec!r} is {found[0].companion}, and no model; give the model that it"
                " belongs to"
            )
        if chosen:
            return _only(spec, chosen, models)
    repository, colon, pattern = wanted.rpartition(":")
    there = [one for one in models if _repository(repository, one) and not one.companion]
    if colon and there:
        raise UsageError(
            f"model {spec!r}: no file of {there[0].repository} on this machine is called or ends in"
            f" {pattern!r}; there are {_listed([one.name for one in there])}: type one of these, or"
            f" fetch it with `ptir pull {spec}`"
        )
    return None


def choose(repository: str, names: Iterable[str], pattern: str) -> Group:
    """The one model among a repository's files that ``pattern`` means.

    Raises ``CheckpointError`` where none or several do, with what there is.
    """
    models = [group for group in grouped(names) if not group.companion]
    found = [one for one in models if one.variant.lower() == pattern.lower()]
    found = found or [one for one in models if _means(pattern.lower(), stem_of(one.files[0]))]
    if len(found) == 1:
        return found[0]
    what = "several files are called or end in" if found else "no GGUF file is called or ends in"
    there = _listed([f"{repository}:{one.variant}" for one in found or models])
    raise CheckpointError(f"{repository}:{pattern}: {what} {pattern!r}; there are {there}")


def within(folder: Path, pattern: str = "") -> Path:
    """What to open of a folder: itself, or the GGUF file in it that ``pattern`` means.

    Without a pattern it is the one model of a folder that has GGUF files and no configuration.
    Files in its folders count too, as repositories keep each quantization in one of its own.
    Raises ``CheckpointError`` where none or several are meant, with what there is.
    """
    every = (one for rule in ("*", "*/*") for one in sorted(folder.glob(rule)))
    files = (one for one in every if one.suffix.lower() == SUFFIX and not one.is_dir())
    names = [one.relative_to(folder).as_posix() for one in files]
    if pattern:
        return folder / choose(str(folder), names, pattern).files[0]
    models = [group for group in grouped(names) if not group.companion]
    if len(models) > 1:
        there = _listed([f"{folder}:{one.variant}" for one in models])
        raise CheckpointError(f"{folder}: holds several models: {there}; type one of these")
    return folder / models[0].files[0] if models else folder


def typed_names(models: Sequence[Found]) -> list[str]:
    """What to type for each model: its name, with its store's where two have it, or its path."""
    short = Counter(one.name.lower() for one in models)
    full = Counter(one.full_name.lower() for one in models)

    def typed(one: Found) -> str:
        if short[one.name.lower()] == 1:
            return one.name
        return one.full_name if full[one.full_name.lower()] == 1 else str(one.path)

    return [typed(one) for one in models]


# --- rules: whether a name in lower case means a model ---


def _whole(wanted: str, one: Found) -> bool:
    return wanted in (one.name.lower(), one.full_name.lower())


def _pattern(wanted: str, one: Found) -> bool:
    repository, colon, pattern = wanted.rpartition(":")
    return bool(colon) and _repository(repository, one) and _means(pattern, one.stem)


def _latest(wanted: str, one: Found) -> bool:
    return _repository(wanted, one) and one.variant == LATEST


def _lone(wanted: str, one: Found) -> bool:
    return _repository(wanted, one) and not one.companion


def _ownerless(wanted: str, one: Found) -> bool:
    short = one.repository.lower().rpartition("/")[2]
    if one.companion or short == one.repository.lower():
        return False
    repository, _, pattern = wanted.partition(":")
    return repository == short and (not pattern or _means(pattern, one.stem or one.variant))


def _file(wanted: str, one: Found) -> bool:
    return bool(one.stem) and wanted in (one.stem.lower(), one.stem.lower() + SUFFIX)


RULES: Final[tuple[Callable[[str, Found], bool], ...]] = (
    _whole,
    _pattern,
    _latest,
    _lone,
    _ownerless,
    _file,
)


def _repository(wanted: str, one: Found) -> bool:
    repository = one.repository.lower()
    return wanted in (repository, f"{one.store}:{repository}")


def _means(pattern: str, stem: str) -> bool:
    """Whether a file's name is ``pattern`` or ends in it behind a hyphen, a dot or a line.

    A pattern with ``*``, ``?`` or ``[`` is one as of files.
    """
    stem = stem.lower()
    bare = pattern.removesuffix(SUFFIX)
    if WILD & {*bare}:
        return any(fnmatchcase(stem, f"{before}{bare}") for before in ("", "*[-._]"))
    return bool(bare) and (bare == stem or stem.endswith((f"-{bare}", f".{bare}", f"_{bare}")))


def distinct(found: Iterable[Found]) -> list[Found]:
    """The same file, kept twice, is one."""
    return list({one.path.resolve(): one for one in reversed(list(found))}.values())[::-1]


def _only(spec: str, chosen: Sequence[Found], models: Sequence[Found]) -> Found:
    if len(chosen) == 1:
        return chosen[0]
    by_model = dict(zip(map(id, models), typed_names(models), strict=True))
    names = [by_model[id(one)] for one in chosen]
    raise UsageError(f"model {spec!r} means several: {_listed(names)}; type one of these")


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return f"{', '.join(names[:MOST]) or 'none'}{more}"
