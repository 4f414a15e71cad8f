"""Images: opening files safely, preparing them as a checkpoint says, naming classes."""

from ptir.vision.image_file import open_image
from ptir.vision.labels import Label, check_top_k, class_names, likeliest, read_labels
from ptir.vision.preprocessing import Preprocessing, preprocessing_of

__all__ = [
    "Label",
    "Preprocessing",
    "check_top_k",
    "class_names",
    "likeliest",
    "open_image",
    "preprocessing_of",
    "read_labels",
]
