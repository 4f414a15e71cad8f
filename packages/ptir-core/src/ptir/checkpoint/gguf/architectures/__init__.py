"""Architectures of GGUF files: the record of one, a file per kin, and the table of all."""
