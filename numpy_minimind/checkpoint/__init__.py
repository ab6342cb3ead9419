"""Models and interrupted runs on disk.

tensors.py holds arrays in safetensors files, and pth.py reads those of PyTorch; names.py undoes what stands before
their names, and weights.py finds one tensor for each parameter; huggingface.py is config.json in other programs' words,
rope_scaling.py the part of it about positions. pretrained.py and resume.py are what one calls.
"""

from typing import TYPE_CHECKING

from numpy_minimind.lazy import attributes

if TYPE_CHECKING:
    from numpy_minimind.checkpoint.pretrained import from_pretrained, save_pretrained
    from numpy_minimind.checkpoint.pth import read_pth
    from numpy_minimind.checkpoint.resume import load_resume, save_resume
    from numpy_minimind.files import CheckpointError, DamagedFileError, ForeignFileError, UnsafeFileError
else:
    __getattr__, __dir__ = attributes(
        __name__,
        {
            "CheckpointError": "numpy_minimind.files",
            "DamagedFileError": "numpy_minimind.files",
            "ForeignFileError": "numpy_minimind.files",
            "UnsafeFileError": "numpy_minimind.files",
            "from_pretrained": "numpy_minimind.checkpoint.pretrained",
            "load_resume": "numpy_minimind.checkpoint.resume",
            "read_pth": "numpy_minimind.checkpoint.pth",
            "save_pretrained": "numpy_minimind.checkpoint.pretrained",
            "save_resume": "numpy_minimind.checkpoint.resume",
        },
        moved=dict.fromkeys(("CharTokenizer", "PretrainedTokenizer", "load_tokenizer"), "numpy_minimind.text"),
    )

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
