"""Models and interrupted runs on disk.

tensors.py holds arrays in safetensors files, and pth.py reads those of PyTorch; names.py undoes what stands before
their names, and weights.py finds one tensor for each parameter; huggingface.py is config.json in other programs' words,
rope_scaling.py the part of it about positions; foreign.py says what is no model.
pretrained.py and resume.py are what one calls.
"""

from numpy_minimind.checkpoint.pretrained import from_pretrained, save_pretrained
from numpy_minimind.checkpoint.pth import read_pth
from numpy_minimind.checkpoint.resume import load_resume, save_resume
from numpy_minimind.files import CheckpointError, DamagedFileError, ForeignFileError, UnsafeFileError
from numpy_minimind.lazy import attributes

__all__ = [
    "CheckpointError",
    "DamagedFileError",
    "ForeignFileError",
    "UnsafeFileError",
    "from_pretrained",
    "load_resume",
    "read_pth",
    "save_pretrained",
    "save_resume",
]

__getattr__ = attributes(
    __name__,
    moved=dict.fromkeys(("CharTokenizer", "PretrainedTokenizer", "load_tokenizer"), "numpy_minimind.text"),
)
