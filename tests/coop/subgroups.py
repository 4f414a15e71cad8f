"""A dialect whose subgroups are played with shared memory, for devices that have none.

Every exchange of values is a function with two barriers, so subgroups of any size run on any
device, and a wrong distance between members is as wrong as on hardware.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ptir.backend.kernel import Argument
from ptir_backend_opencl.dialect import OpenCLC

ROOM = "exchange_room"
EXCHANGE = "".join(
    f"""
{kind} __attribute__((overloadable)) exchanged({kind} x, int step, __local uint *room) {{
  barrier(CLK_LOCAL_MEM_FENCE);
  room[get_local_id(0)] = as_uint(x);
  barrier(CLK_LOCAL_MEM_FENCE);
  return as_{kind}(room[get_local_id(0) ^ step]);
}}
"""
    for kind in ("float", "int", "uint")
)


class WithSubgroups(OpenCLC):
    """OpenCL C in which ``width`` members exchange values, ``mask`` saying with whom."""

    def __init__(self, width: int, mask: str = "{1}") -> None:
        super().__init__(doubles=True)
        assert self.workgroup is not None
        exchange = f"exchanged({{0}}, {mask}, {ROOM})"
        self.workgroup = replace(self.workgroup, shuffle_xor=exchange, subgroup_size=width)

    def workgroup_kernel(
        self, name: str, arguments: Sequence[Argument], workgroup_size: int, body: str
    ) -> str:
        """A kernel with room for what is exchanged."""
        return super().workgroup_kernel(
            name, arguments, workgroup_size, f"  __local uint {ROOM}[{workgroup_size}];\n{body}"
        )

    def prelude(self) -> str:
        """The functions that exchange."""
        return super().prelude() + EXCHANGE
