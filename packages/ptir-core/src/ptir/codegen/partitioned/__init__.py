"""Programs partitioned among a device's units: each runs its part of every phase in order."""
