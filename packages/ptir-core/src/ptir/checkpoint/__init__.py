"""Checkpoints: opening, checking, normalising and saving models and tensor archives."""

from ptir.checkpoint.archive import Archive, load_archive, save_archive
from ptir.checkpoint.assign import check_parameters
from ptir.checkpoint.config import (
    eos_token_ids,
    normalize_config,
    stored_dtype,
    ties_embeddings,
    with_dtype,
)
from ptir.checkpoint.folder import (
    BpeFiles,
    Checkpoint,
    DescribedTokenizer,
    TokenizerText,
    WordFile,
    open_checkpoint,
)
from ptir.checkpoint.safetensors_file import MappedSource, read_header
from ptir.checkpoint.safetensors_write import write_safetensors
from ptir.checkpoint.save import save_folder, save_single_file

__all__ = [
    "Archive",
    "BpeFiles",
    "Checkpoint",
    "DescribedTokenizer",
    "MappedSource",
    "TokenizerText",
    "WordFile",
    "check_parameters",
    "eos_token_ids",
    "load_archive",
    "normalize_config",
    "open_checkpoint",
    "read_header",
    "save_archive",
    "save_folder",
    "save_single_file",
    "stored_dtype",
    "ties_embeddings",
    "with_dtype",
    "write_safetensors",
]
