"""Open checkpoints: Hugging Face folders, and single files that carry their own configuration.

Weights are read from safetensors and GGUF; pickled weights run code when loaded and are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ptir.checkpoint import foreign
from ptir.checkpoint.config import QUANTIZED, named_templates
from ptir.checkpoint.json_text import parse_settings, read_json_object, read_text
from ptir.checkpoint.paths import stays_inside
from ptir.checkpoint.safetensors_file import MappedSource, read_header
from ptir.checkpoint.sentence import SentenceFiles, dense_names, sentence_files
from ptir.errors import CheckpointError, short
from ptir.params.source import JoinedSource, ParamSource, RenamedSource

if TYPE_CHECKING:
    from ptir.checkpoint.gguf import GgufVocabulary

CONFIG: Final = "config.json"
GENERATION_CONFIG: Final = "generation_config.json"
TOKENIZER_CONFIG: Final = "tokenizer_config.json"
PREPROCESSOR_CONFIG: Final = "preprocessor_config.json"
PROCESSOR_CONFIG: Final = "processor_config.json"
"""How a model's inputs are prepared, one kind of input to a key."""
PROCESSORS: Final = ("image_processor", "feature_extractor")
"""The keys there of images and of sound."""
CHAT_TEMPLATE: Final = "chat_template.jinja"
PROCESSOR_TEMPLATE: Final = "chat_template.json"
"""An object with the template, as older models that also see have it."""
CHAT_TEMPLATES: Final = "additional_chat_templates"
"""The folder of those that have a name."""
TOKENIZER: Final = "tokenizer.json"
VOCAB: Final = "vocab.json"
MERGES: Final = "merges.txt"
WORDS: Final = "vocab.txt"
SENTENCE_FILES: Final = "sentence_files"
"""The metadata of a single file that has the texts of a sentence-transformers folder, as JSON."""
INDEX: Final = "model.safetensors.index.json"
WEIGHTS: Final = "model.safetensors"
GGUF_SUFFIX: Final = ".gguf"


@dataclass(frozen=True)
class BpeFiles:
    """A GPT-2 style tokenizer as its two files' texts: ``vocab.json`` and ``merges.txt``."""

    vocab: str
    merges: str


@dataclass(frozen=True)
class WordFile:
    """A BERT style tokenizer as the text of ``vocab.txt``, a piece of a word a line."""

    vocab: str


#: The text of ``tokenizer.json``, older files, or ``None`` for models without text.
TokenizerText: TypeAlias = str | BpeFiles | WordFile | None


@dataclass(frozen=True)
class DescribedTokenizer:
    """A tokenizer in a GGUF file's metadata, and the text of one that lies beside the file."""

    vocabulary: GgufVocabulary
    beside: TokenizerText


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint: configuration as found on disk, mapped weights, tokenizer text.

    ``generation_config`` and ``tokenizer_config`` are empty when the checkpoint has none; a
    separate file of a chat template appears as ``tokenizer_config["chat_template"]``, several
    templates (also those of GGUF files) as a list of objects with ``name`` and ``template``.
    ``files`` holds the weight files, ``said_by`` is what the configuration was read from.
    ``preprocessor_config`` says how images or sound are prepared; it is empty where nothing does.
    ``sentence_files`` are the texts of what sentence-transformers says, by path, if it is such.
    ``file_metadata`` is what a GGUF file says beside its model and its tokenizer.
    """

    path: Path
    config: Mapping[str, Any]
    generation_config: Mapping[str, Any]
    tokenizer_config: Mapping[str, Any]
    source: ParamSource
    tokenizer: TokenizerText | DescribedTokenizer
    files: tuple[Path, ...]
    said_by: str = CONFIG
    preprocessor_config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    sentence_files: Mapping[str, str] = field(default_factory=dict[str, str])
    file_metadata: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a Hugging Face folder, a self-describing safetensors file, GGUF or a file of gpt.rs.

    Reads no weights. Raises ``CheckpointError`` when something is missing, damaged or unsafe.
    """
    path = Path(path)
    if path.is_dir():
        return _open_folder(path)
    from ptir.checkpoint.gguf import begins_as_gguf  # folders need none of it

    if begins_as_gguf(path) or path.suffix.lower() == GGUF_SUFFIX:
        return _open_gguf(path)
    from ptir.checkpoint.gptrs import begins_as_gptrs  # nor of it

    if begins_as_gptrs(path):
        return _open_gptrs(path)
    if path.exists():
        return _open_file(path)
    raise CheckpointError(
        f"{path}: does not exist; give a model folder, a .safetensors file or a .gguf file"
    )


def _open_folder(folder: Path) -> Checkpoint:
    sentence = sentence_files(folder)
    path = sentence.model
    if not (path / CONFIG).is_file():
        other = foreign.held(path)
        also = f" (it holds {other[0]}, {other[1]})" if other else ""
        raise CheckpointError(f"{path}: has no {CONFIG}; a model folder must hold one{also}")
    config = read_json_object(path / CONFIG)
    mapped, files = _weights(path)
    source = _with_dense(_decoding(path, config, mapped), sentence)
    return Checkpoint(
        path=folder,
        config=MappingProxyType(config),
        generation_config=MappingProxyType(_optional_json(path / GENERATION_CONFIG)),
        tokenizer_config=MappingProxyType(_tokenizer_config(path)),
        source=source,
        tokenizer=_tokenizer(path),
        files=(*files, *sentence.dense),
        preprocessor_config=MappingProxyType(_preprocessor_config(path)),
        sentence_files=MappingProxyType(dict(sentence.texts)),
    )


def _with_dense(source: ParamSource, sentence: SentenceFiles) -> ParamSource:
    """The parameters with those of a sentence-transformers folder's projections."""
    for number, file in enumerate(sentence.dense):
        if not file.is_file():
            other = foreign.held(file.parent) if file.parent.is_dir() else None
            also = f" (it holds {other[0]}, {other[1]})" if other else ""
            raise CheckpointError(f"{file.parent}: has no {file.name}{also}")
        stored = MappedSource([file])
        names = dense_names(number, stored.names(), file)
        source = JoinedSource(source, RenamedSource(stored, names))
    return source


def _open_gguf(path: Path) -> Checkpoint:
    from ptir.checkpoint.gguf import GgufModel, open_gguf
    from ptir.checkpoint.gguf.sampling import sampling_config

    model = GgufModel(path)
    opened, beside = open_gguf(model), _tokenizer(path.parent)
    if opened.vocabulary is not None:
        tokenizer: TokenizerText | DescribedTokenizer = DescribedTokenizer(
            opened.vocabulary, beside
        )
    else:
        tokenizer = beside
    return Checkpoint(
        path=path,
        config=MappingProxyType(opened.config),
        generation_config=MappingProxyType(sampling_config(opened.beside)),
        tokenizer_config=MappingProxyType(opened.tokenizer_config),
        source=opened.source,
        tokenizer=tokenizer,
        files=tuple(file.path for file in model.files),
        said_by="the file's metadata",
        sentence_files=MappingProxyType(dict(opened.sentence_files)),
        file_metadata=MappingProxyType(opened.beside),
    )


def _open_file(path: Path) -> Checkpoint:
    metadata = read_header(path).metadata
    if CONFIG not in metadata:
        raise CheckpointError(
            f"{path}: its metadata has no {CONFIG!r}, so nothing says which model it is; "
            f"open the folder that holds it and its {CONFIG}"
        )
    return _described(path, metadata, MappedSource([path]), CONFIG)


def _open_gptrs(path: Path) -> Checkpoint:
    from ptir.checkpoint.gptrs import open_gptrs

    opened = open_gptrs(path)
    found = _described(path, opened.texts, opened.source, "the file's configuration")
    return found if found.tokenizer else replace(found, tokenizer=_tokenizer(path.parent))


def _described(
    path: Path, texts: Mapping[str, str], source: ParamSource, said_by: str
) -> Checkpoint:
    """A file's checkpoint, whose texts are those of a folder's files."""
    config = _from_metadata(path, texts, CONFIG)
    return Checkpoint(
        path=path,
        config=config,
        generation_config=_from_metadata(path, texts, GENERATION_CONFIG),
        tokenizer_config=_from_metadata(path, texts, TOKENIZER_CONFIG),
        source=_decoding(path, config, source),
        tokenizer=_tokenizer_text(texts),
        files=(path,),
        said_by=said_by,
        preprocessor_config=_from_metadata(path, texts, PREPROCESSOR_CONFIG),
        sentence_files=_sentence_texts(path, texts),
    )


def _from_metadata(path: Path, metadata: Mapping[str, str], key: str) -> Mapping[str, Any]:
    return MappingProxyType(parse_settings(metadata.get(key, "{}"), f"{path}: metadata {key!r}"))


def _sentence_texts(path: Path, metadata: Mapping[str, str]) -> Mapping[str, str]:
    found = _from_metadata(path, metadata, SENTENCE_FILES)
    if not all(isinstance(text, str) for text in found.values()):
        raise CheckpointError(f"{path}: metadata {SENTENCE_FILES!r} must be an object of texts")
    return found


def _optional_json(path: Path) -> dict[str, Any]:
    return read_json_object(path) if path.is_file() else {}


def _preprocessor_config(path: Path) -> dict[str, Any]:
    """What the file for images or sound alone says, else their part of that for all inputs."""
    if (path / PREPROCESSOR_CONFIG).is_file():
        return read_json_object(path / PREPROCESSOR_CONFIG)
    said = _optional_json(path / PROCESSOR_CONFIG)
    part = next((one for one in PROCESSORS if one in said), PROCESSORS[0])
    found = said.get(part, {})
    if not isinstance(found, dict):
        raise CheckpointError(f"{path / PROCESSOR_CONFIG}: {part} {short(found)} must be an object")
    return found


def _tokenizer_config(path: Path) -> dict[str, Any]:
    config = _optional_json(path / TOKENIZER_CONFIG)
    if config.get("chat_template") is None:
        legacy = _optional_json(path / PROCESSOR_TEMPLATE).get("chat_template")
        config |= {} if legacy is None else {"chat_template": legacy}
    files = {"default": path / CHAT_TEMPLATE}
    files |= {file.stem: file for file in sorted((path / CHAT_TEMPLATES).glob("*.jinja"))}
    found = named_templates({n: read_text(file) for n, file in files.items() if file.is_file()})
    return config | {"chat_template": found} if found else config


def _tokenizer(path: Path) -> TokenizerText:
    names = [name for name in (TOKENIZER, VOCAB, MERGES, WORDS) if (path / name).is_file()]
    return _tokenizer_text({name: read_text(path / name) for name in names})


def _tokenizer_text(texts: Mapping[str, str]) -> TokenizerText:
    if TOKENIZER in texts:
        return texts[TOKENIZER]
    if VOCAB in texts and MERGES in texts:
        return BpeFiles(texts[VOCAB], texts[MERGES])
    return WordFile(texts[WORDS]) if WORDS in texts else None


def _weights(path: Path) -> tuple[MappedSource, tuple[Path, ...]]:
    if (path / INDEX).is_file():
        where = _indexed(path)
        files = tuple(dict.fromkeys(where.values()))
        return MappedSource(files, where), files
    files = tuple(sorted(path.glob("model*.safetensors")))
    if not files:
        raise CheckpointError(_no_weights(path))
    return MappedSource(files), files


def _decoding(path: Path, config: Mapping[str, Any], source: ParamSource) -> ParamSource:
    """The parameters, decoded where the configuration says that weights are quantized."""
    if not any(config.get(key) for key in QUANTIZED):
        return source
    from ptir.checkpoint.quantized import quantized_source  # plain folders need none of it

    try:
        return quantized_source(config, source)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error


def _indexed(path: Path) -> dict[str, Path]:
    index = path / INDEX
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: 'weight_map' must map tensor names to shard files")
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not stays_inside(shard):
            raise CheckpointError(
                f"{index}: tensor {short(name)}: shard {short(shard)} must name a file inside the"
                " folder"
            )
    where = {name: path / shard for name, shard in weight_map.items()}
    lost = sorted({shard.name for shard in where.values() if not shard.is_file()})
    if lost:
        raise CheckpointError(
            f"{path}: {len(lost)} shards are missing ({', '.join(lost[:5])}); download them too"
        )
    return where


def _no_weights(path: Path) -> str:
    other = foreign.held(path)
    if other:
        return f"{path}: weights are only stored as {other[0]}, {other[1]}"
    others = ", ".join(sorted(file.name for file in path.glob("*.safetensors"))) or "none"
    return (
        f"{path}: holds neither {INDEX} nor model*.safetensors (other safetensors: {others}); "
        "download the weights into this folder"
    )
