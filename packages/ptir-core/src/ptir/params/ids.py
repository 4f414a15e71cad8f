"""Identities of parameters: stable per name, unique per load, and derived for packed forms."""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass, field
from typing import Final, NoReturn

from ptir.errors import UsageError

_NAME_KEY: Final = b"ptir parameter name 1"
_DERIVED_KEY: Final = b"ptir derived parameter 1"
_ID_BYTES: Final = 16
_namespaces: Final = itertools.count(1)


@dataclass(frozen=True)
class BaseParamId:
    """A parameter's identity within its model: 128 bits that depend on its name alone."""

    value: bytes

    @classmethod
    def of(cls, name: str) -> BaseParamId:
        """The id of the parameter called ``name``, the same in every process and version."""
        return cls(_digest(_NAME_KEY, name.encode("utf-8", "surrogatepass")))

    def __str__(self) -> str:
        return self.value.hex()


@dataclass(frozen=True)
class NamespaceId:
    """One load of one model: every ``NamespaceId()`` of a process differs, and none can be stored.

    Caches that outlive the process are keyed by content instead; pickling raises ``UsageError``.
    """

    number: int = field(init=False, default_factory=lambda: next(_namespaces))

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            f"namespace {self.number} identifies one load in one process and cannot be stored; "
            "key stored data by its content instead"
        )

    def __str__(self) -> str:
        return f"ns{self.number}"


@dataclass(frozen=True)
class ParamKey:
    """A parameter of one loaded model."""

    namespace: NamespaceId
    base: BaseParamId

    @classmethod
    def of(cls, namespace: NamespaceId, name: str) -> ParamKey:
        """The key of the parameter called ``name`` in ``namespace``."""
        return cls(namespace, BaseParamId.of(name))

    def __str__(self) -> str:
        return f"{self.namespace}:{self.base}"


def derived(key: ParamKey, transform: str, backend: str) -> ParamKey:
    """The key of what ``transform`` makes of ``key`` for ``backend`` (packed, transposed, ...).

    It depends on all three, lies in the namespace of ``key`` and can itself be derived from.
    """
    parts = (key.base.value, transform.encode(), backend.encode())
    content = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    return ParamKey(key.namespace, BaseParamId(_digest(_DERIVED_KEY, content)))


def _digest(key: bytes, content: bytes) -> bytes:
    return hashlib.blake2b(content, key=key).digest()[:_ID_BYTES]
