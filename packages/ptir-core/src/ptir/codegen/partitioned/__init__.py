"""Programs shared by a device's units as workers: each runs its part of every phase in order."""
