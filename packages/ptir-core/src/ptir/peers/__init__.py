"""What a model gives beside the same model of another library, which runs in its own process.

The other library's code is the witness: only ``definitions`` knows it, and imports it when a model
is opened. A peer is asked over pipes (``process``, ``worker``); arrays travel as safetensors.
"""
