"""A complete level 1 backend in few lines; tests also pack this file into wheels."""

from __future__ import annotations

import numpy as np

from ptir.backend import Device, Interpreter
from ptir.ops import OPS, numerics

ONE = (Device(0, "Tiny One", "reference"),)


class TinyBackend(Interpreter):
    name = "tiny"

    def __init__(self, devices=ONE):
        self._devices = devices

    def devices(self):
        return self._devices

    def upload(self, array, device, *, borrow=False):
        return np.array(array)

    def download(self, handle, device):
        return np.array(handle)

    def step(self, instruction, operands, device):
        reference = OPS[instruction.op].reference
        return (np.asarray(reference(numerics, *operands, **instruction.attributes)),)


class WrongBackend(TinyBackend):
    """Runs everything and gets it wrong."""

    def download(self, handle, device):
        return np.array(handle) + 1


backend = TinyBackend()
