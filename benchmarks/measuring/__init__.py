"""What the benchmarks share: peers in processes of their own, the bars, how medians are told."""
