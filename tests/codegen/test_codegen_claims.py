"""What a kernel-level backend claims: all profiles, unless it says less or its device does."""

from __future__ import annotations

from dataclasses import replace

from paper import DEVICE, PaperBackend, PaperDevice

from ptir.ops.profiles import PROFILES


class NoDoubles(PaperBackend):
    def open(self, device):
        opened = PaperDevice()
        opened.traits = replace(opened.traits, has_f64=False)
        return opened


def test_every_profile_is_claimed_by_default_and_f64_where_the_device_has_it() -> None:
    everything = frozenset(PROFILES) - {"extension"}
    assert PaperBackend().claimed(DEVICE) == PaperBackend.claims == everything
    assert NoDoubles().claimed(DEVICE) == everything - {"f64"}


def test_claims_of_a_class_hold_at_level_2_too() -> None:
    class Fewer(NoDoubles):
        claims = frozenset({"core", "f64"})

    assert Fewer().claimed(DEVICE) == {"core"}
