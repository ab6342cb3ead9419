"""Models, tokenizers and interrupted runs on disk.

files.py writes so that a crash never leaves half a file; tensors.py holds arrays in safetensors files, and pth.py reads
those of PyTorch; names.py undoes what stands before their names, and weights.py finds one tensor for each parameter;
huggingface.py is config.json in transformers' words; foreign.py says what is no model.
pretrained.py, resume.py and tokenizer.py are what one calls.
"""

from numpy_minimind.checkpoint.files import CheckpointError, DamagedFileError, ForeignFileError, UnsafeFileError
from numpy_minimind.checkpoint.pretrained import from_pretrained, save_pretrained
from numpy_minimind.checkpoint.pth import read_pth
from numpy_minimind.checkpoint.resume import load_resume, save_resume
from numpy_minimind.checkpoint.tokenizer import CharTokenizer, PretrainedTokenizer, load_tokenizer

__all__ = [
    "CharTokenizer",
    "CheckpointError",
    "DamagedFileError",
    "ForeignFileError",
    "PretrainedTokenizer",
    "UnsafeFileError",
    "from_pretrained",
    "load_resume",
    "load_tokenizer",
    "read_pth",
    "save_pretrained",
    "save_resume",
]
