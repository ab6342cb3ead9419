"""numpy_minimind: MiniMind-3 in plain NumPy, a modern language model you can read forwards and backwards."""

from typing import TYPE_CHECKING

from numpy_minimind.lazy import attributes
from numpy_minimind.messages import install_command

try:
    import numpy  # noqa: F401  (the one thing that everything here needs)
except ModuleNotFoundError:
    raise ModuleNotFoundError(f"numpy_minimind needs NumPy: {install_command('train')}", name="numpy") from None

if TYPE_CHECKING:
    from numpy_minimind.checkpoint.pretrained import from_pretrained, save_pretrained
    from numpy_minimind.config import MiniMindConfig
    from numpy_minimind.model import MiniMindForCausalLM
    from numpy_minimind.text.load import load_tokenizer
else:
    __getattr__, __dir__ = attributes(
        __name__,
        {
            "MiniMindConfig": "numpy_minimind.config",
            "MiniMindForCausalLM": "numpy_minimind.model",
            "from_pretrained": "numpy_minimind.checkpoint.pretrained",
            "load_tokenizer": "numpy_minimind.text.load",
            "save_pretrained": "numpy_minimind.checkpoint.pretrained",
        },
    )

__version__ = "0.1.0"

__all__ = ["MiniMindConfig", "MiniMindForCausalLM", "from_pretrained", "load_tokenizer", "save_pretrained"]
