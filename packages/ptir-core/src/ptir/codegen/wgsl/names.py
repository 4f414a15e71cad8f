"""Names that mean something in WGSL: what a kernel calls so gets another name."""

from __future__ import annotations

from typing import Final

from ptir.codegen.expressions.index import Atom, Axis, Dynamic, Index

WORDS: Final = """
    alias break case const const_assert continue continuing default diagnostic discard else enable
    false fn for if let loop override requires return struct switch true var while
    NULL Self abstract active alignas alignof as asm asm_fragment async attribute auto await become
    cast catch class co_await co_return co_yield coherent column_major common compile
    compile_fragment concept const_cast consteval constexpr constinit crate debugger decltype delete
    demote demote_to_helper do dynamic_cast enum explicit export extends extern external fallthrough
    filter final finally friend from fxgroup get goto groupshared highp impl implements import
    inline instanceof interface layout lowp macro macro_rules match mediump meta mod module move mut
    mutable namespace new nil noexcept noinline nointerpolation non_coherent noncoherent
    noperspective null nullptr of operator package packoffset partition pass patch pixelfragment
    precise precision premerge priv protected pub public readonly ref regardless register
    reinterpret_cast require resource restrict self set shared sizeof smooth snorm static
    static_assert static_cast std subroutine super target template this thread_local throw trait try
    type typedef typeid typename typeof union unless unorm unsafe unsized use using varying virtual
    volatile wgsl where with writeonly yield
    abs atomicAnd atomicLoad atomicOr atomicStore bitcast ceil clamp cos exp f32 floor fma i32
    inverseSqrt log max min pow round select sin sqrt tanh trunc u32 vec4 workgroupBarrier
    storageBarrier array atomic bool of_group of_groups of_member
"""
"""Keywords, reserved words, and what the renderer itself writes."""
TAKEN: Final = frozenset(WORDS.split())


def safe(name: str) -> str:
    """``name``, or one like it that means nothing."""
    return f"{name}_own" if name in TAKEN else name


def renamed(index: Index) -> Index:
    """An index whose loop variables are called as they may be."""
    terms = {_renamed(atom): factor for atom, factor in index.terms.items()}
    return Index(terms, index.constant)


def _renamed(atom: Atom) -> Atom:
    if isinstance(atom, Axis):
        return Axis(safe(atom.name), atom.size)
    return atom if isinstance(atom, Dynamic) else type(atom)(renamed(atom.of), atom.by)
