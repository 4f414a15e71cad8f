"""The command line: ``ptir COMMAND``, one file per command, listed in ``ptir.cli.main``."""
